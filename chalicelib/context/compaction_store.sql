-- read_session --
-- Where it is this worker's. The messages come only once there are so many, of which those that
-- have an id count: below that, nothing of what may be megabytes is sent.
SELECT counted.messages, st.compactions, s.summary,
       CASE WHEN counted.messages > %(past)s
                 AND (%(force)s OR counted.messages >= st.compact_at)
            THEN s.messages::text END
FROM sessions s JOIN session_states st ON st.session_id = s.id,
     LATERAL (SELECT jsonb_array_length(jsonb_path_query_array(s.messages, '$[*].id'))) AS
         counted (messages)
WHERE s.id = %(session_id)s AND st.worker = %(lease)s AND st.sealed_at IS NULL

-- lock_head --
-- Before the statement that decides: one that waited for this row sees what the other wrote only
-- in its next statement.
SELECT FROM session_heads WHERE session_id = %(session_id)s FOR NO KEY UPDATE

-- cut_messages --
-- After lock_head, which every writer of the messages holds. No row: it is another's by now, it is
-- sealed, or what is to leave is not there any more. Messages are only ever added behind, so the
-- same one at the cut means the same ones before it; what was added meanwhile stays.
WITH state AS (
    SELECT session_id FROM session_states
    WHERE session_id = %(session_id)s AND worker = %(lease)s AND sealed_at IS NULL
      AND compactions = %(compactions)s
    FOR UPDATE
), session AS (
    UPDATE sessions s SET
        summary = %(summary)s,
        messages = jsonb_path_query_array(s.messages, '$[$cut to last]',
                                          jsonb_build_object('cut', %(cut)s::integer))
    FROM state
    WHERE s.id = state.session_id AND s.messages -> %(cut)s::integer ->> 'id' = %(next_id)s
    RETURNING s.id, jsonb_array_length(jsonb_path_query_array(s.messages, '$[*].id')) AS kept
), done AS (
    UPDATE session_states st SET compactions = st.compactions + 1, compact_at = 0
    FROM session WHERE st.session_id = session.id
), head AS (
    UPDATE session_heads h SET next_seq = h.next_seq + 1
    FROM session WHERE h.session_id = session.id
    RETURNING h.session_id, h.tenant_id, h.next_seq - 1 AS seq, session.kept,
              pal.watched(h.watchers) AS watched
), event AS (
    INSERT INTO session_events (session_id, seq, tenant_id, kind, data)
    SELECT session_id, seq, tenant_id, 'compacted',
           json_build_object('sessionId', session_id, 'removed', %(removed)s::integer,
                             'kept', kept, 'summaryTokens', %(tokens)s::integer)::text
    FROM head
)
SELECT seq, kept, CASE WHEN watched THEN pg_notify('pal_feed', session_id || ' ' || seq) END
FROM head

-- put_off --
UPDATE session_states SET compact_at = %(compact_at)s
WHERE session_id = %(session_id)s AND worker = %(lease)s AND sealed_at IS NULL
