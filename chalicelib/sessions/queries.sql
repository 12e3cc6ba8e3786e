-- insert_session --
-- Session, head and state in one statement: none is ever seen without the others. So is the person
-- of the `user_id`, if there is one: as `resolve_people` of memory's people.sql, for one handle.
WITH known AS (
    SELECT person_id FROM person_handles
    WHERE tenant_id = pal.tenant() AND channel = 'user' AND handle = %(handle)s FOR SHARE
), claimed AS (
    INSERT INTO person_handles (tenant_id, channel, handle, given, contact, person_id)
    SELECT pal.tenant(), 'user', %(handle)s, %(user_id)s, %(contact)s, %(new_person)s
    WHERE %(handle)s::text IS NOT NULL AND NOT EXISTS (SELECT FROM known)
    ON CONFLICT (tenant_id, channel, handle) DO UPDATE SET handle = excluded.handle
    RETURNING person_id
), person AS (
    INSERT INTO people (id, tenant_id)
    SELECT person_id, pal.tenant() FROM claimed WHERE person_id = %(new_person)s
), made AS (
    INSERT INTO sessions (id, tenant_id, agent_name, environment, user_id, group_id, metadata,
                          person_id)
    VALUES (%(id)s, pal.tenant(), %(agent_name)s, %(environment)s, %(user_id)s, %(group_id)s,
            %(metadata)s, coalesce((SELECT person_id FROM known), (SELECT person_id FROM claimed)))
    RETURNING id, tenant_id
), state AS (
    INSERT INTO session_states (session_id, tenant_id) SELECT id, tenant_id FROM made
)
INSERT INTO session_heads (session_id, tenant_id) SELECT id, tenant_id FROM made

-- agent_defined --
SELECT EXISTS (SELECT FROM agents WHERE tenant_id = pal.tenant() AND name = %(name)s)

-- get_session --
SELECT s.id, s.tenant_id, s.agent_name, h.status, s.summary, s.created_at,
       greatest(s.updated_at, h.queued_at), s.user_id, s.group_id, s.metadata
FROM sessions s JOIN session_heads h ON h.session_id = s.id
WHERE s.id = %(session_id)s

-- list_sessions --
-- Newest first. The status filter walks the list: an index on it would cost every turn.
SELECT s.id, s.tenant_id, s.agent_name, h.status, s.summary, s.created_at,
       greatest(s.updated_at, h.queued_at), s.user_id, s.group_id, s.metadata
FROM sessions s JOIN session_heads h ON h.session_id = s.id
WHERE s.tenant_id = pal.tenant()
  AND (%(before)s::text IS NULL OR s.id < %(before)s)
  AND (%(agent)s::text IS NULL OR s.agent_name = %(agent)s)
  AND (%(status)s::text IS NULL OR h.status = %(status)s)
  AND (%(group_id)s::text IS NULL OR s.group_id = %(group_id)s)
ORDER BY s.id DESC LIMIT %(most)s

-- newest_messages --
-- The newest messages that add up to at most the given bytes, oldest first; the newest one always
-- comes. One row more than fits tells that there is more.
SELECT id, role, content, created_at, turn_id, attachments, tool_calls, turn_ordinal, seq,
       total > %(bytes)s AS over
FROM (
    SELECT sized.*, sum(size) OVER (ORDER BY turn_ordinal DESC, seq DESC) AS total
    FROM (
        SELECT m.*, octet_length(content) + coalesce(octet_length(attachments::text), 0)
                    + coalesce(octet_length(tool_calls::text), 0) + 200 AS size
        FROM messages m WHERE session_id = %(session_id)s
        ORDER BY turn_ordinal DESC, seq DESC LIMIT %(most)s
    ) AS sized
) AS counted
WHERE total - size <= %(bytes)s
ORDER BY turn_ordinal, seq

-- page_messages --
-- As many as are wanted and fit into the given bytes, but one at least. `found` counts those that
-- were looked at, so more than come tells that there is more.
SELECT id, role, content, created_at, turn_id, attachments, tool_calls, turn_ordinal, seq, found
FROM (
    SELECT sized.*, sum(size) OVER (ORDER BY turn_ordinal, seq) AS total, count(*) OVER () AS found
    FROM (
        SELECT m.*, octet_length(content) + coalesce(octet_length(attachments::text), 0)
                    + coalesce(octet_length(tool_calls::text), 0) + 200 AS size
        FROM messages m
        WHERE session_id = %(session_id)s
          AND (turn_ordinal, seq) > (%(after_ordinal)s, %(after_seq)s)
        ORDER BY turn_ordinal, seq LIMIT %(most)s
    ) AS sized
) AS counted
WHERE total - size < %(bytes)s
ORDER BY turn_ordinal, seq

-- lock_head --
-- Before any statement that decides: one that waited for this row sees what the other wrote only
-- in its next statement.
SELECT status, running_turn, queued_turn, generation, next_seq, lease_until < now() AS lapsed,
       pal.watched(watchers) AS watched
FROM session_heads WHERE session_id = %(session_id)s FOR NO KEY UPDATE

-- accept_message --
-- One statement: the head's row is locked by its own update, and the rest follows from what that
-- returns. No row: the session is gone, stopped or ended, and nothing was written. The event's
-- empty turnId is filled in; no text inside a JSON string can look like it, its quotes are escaped.
WITH head AS (
    UPDATE session_heads SET
        next_seq = next_seq + 1,
        turn_count = turn_count + (queued_turn IS NULL)::integer,
        queued_turn = coalesce(queued_turn, %(new_turn)s),
        queued_at = CASE WHEN queued_turn IS NULL OR status = 'interrupted' THEN now()
                         ELSE queued_at END,
        cuts = CASE WHEN status = 'interrupted' THEN 0 ELSE cuts END,
        status = 'processing'
    WHERE session_id = %(session_id)s AND status NOT IN ('stopped', 'ended')
    RETURNING session_id, tenant_id, next_seq - 1 AS seq, queued_turn, turn_count,
              running_turn IS NOT NULL AS busy, pal.watched(watchers) AS watched
), turn AS (
    INSERT INTO turns (id, tenant_id, session_id, ordinal)
    SELECT queued_turn, tenant_id, session_id, turn_count FROM head
    WHERE queued_turn = %(new_turn)s
), message AS (
    INSERT INTO messages (id, tenant_id, session_id, turn_id, turn_ordinal, seq, role, content,
                          attachments, hints)
    SELECT %(message_id)s, tenant_id, session_id, queued_turn, turn_count, seq, 'user',
           %(content)s, %(attachments)s, %(hints)s
    FROM head
), event AS (
    INSERT INTO session_events (session_id, seq, tenant_id, kind, turn_id, data)
    SELECT session_id, seq, tenant_id, 'user_message', queued_turn,
           replace(%(event)s, '"turnId":""', '"turnId":"' || queued_turn || '"')
    FROM head
)
SELECT seq, queued_turn, busy, watched,
       CASE WHEN watched THEN pg_notify('pal_feed', session_id || ' ' || seq) END
FROM head

-- claim_turn --
-- After lock_head. Freezes the queued turn's messages and those of the turn that was cut before it,
-- takes the lease and a new generation.
WITH prior AS (
    SELECT * FROM session_heads WHERE session_id = %(session_id)s
), head AS (
    UPDATE session_heads h SET
        running_turn = prior.queued_turn, queued_turn = NULL, cut_turn = NULL,
        generation = prior.generation + 1,
        lease_until = now() + make_interval(secs => %(lease)s),
        turn_seq = prior.next_seq, next_seq = prior.next_seq + 1
    FROM prior
    WHERE h.session_id = prior.session_id AND prior.running_turn IS NULL
      AND prior.queued_turn IS NOT NULL AND prior.status <> 'interrupted'
    RETURNING h.session_id, h.tenant_id, h.running_turn, prior.cut_turn, h.generation, h.turn_seq,
              h.turn_count, h.cancel_requested, pal.watched(h.watchers) AS watched
), folded AS (
    UPDATE messages m SET turn_id = head.running_turn, turn_ordinal = head.turn_count
    FROM head WHERE m.session_id = head.session_id AND m.turn_id = head.cut_turn
      AND head.cut_turn IS NOT NULL  -- else a long session is read through for nothing
), turn AS (
    UPDATE turns t SET status = 'running', generation = head.generation, started_at = now(),
                       resumes_turn = coalesce(head.cut_turn, t.resumes_turn)
    FROM head WHERE t.id = head.running_turn
    RETURNING t.accepted_at, t.resumes_turn
), event AS (
    INSERT INTO session_events (session_id, seq, tenant_id, kind, turn_id, generation, data)
    SELECT session_id, turn_seq, tenant_id, 'turn_started', running_turn, generation,
           json_build_object('sessionId', session_id, 'turnId', running_turn,
                             'resumesTurnId', resumes_turn)::text
    FROM head, turn
    RETURNING data
)
SELECT head.running_turn, head.cut_turn, head.generation, head.turn_seq, head.watched,
       turn.accepted_at, event.data, s.agent_name, s.messages::text, head.cancel_requested,
       (SELECT json_agg(json_build_object(
                   'id', m.id, 'role', m.role, 'content', m.content,
                   'timestamp', to_char(m.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                   'turnId', head.running_turn, 'attachments', m.attachments, 'hints', m.hints)
               ORDER BY m.seq)::text
        FROM messages m
        WHERE m.session_id = head.session_id AND m.turn_id IN (head.running_turn, head.cut_turn)
          AND m.role = 'user'
          -- by their place as well, or a long session is read through for them
          AND m.turn_ordinal = ANY (ARRAY(
              SELECT o.ordinal FROM turns o WHERE o.id IN (head.running_turn, head.cut_turn)))),
       turn.resumes_turn, s.user_id, s.person_id, s.group_id, a.definition::text,
       a.id IS NULL AND NOT t.undefined_agents AS agent_missing,
       EXISTS (SELECT FROM tenant_secrets WHERE kind = 'provider') AS own_keys,
       s.summary, coalesce(st.pins::text, '[]'), coalesce(st.tree, ''),
       coalesce(st.calibration, 1)::double precision, st.counted_model,
       turn.accepted_at AT TIME ZONE coalesce(tp.timezone, 'UTC'), coalesce(tp.timezone, 'UTC'),
       (SELECT p.name FROM people p WHERE p.tenant_id = s.tenant_id AND p.id = s.person_id),
       EXISTS (SELECT FROM tool_calls c WHERE c.session_id = head.session_id AND c.run_turn IS NULL
               AND c.status IN ('approved', 'denied', 'expired', 'superseded')) AS decided,
       CASE WHEN head.watched THEN pg_notify('pal_feed', head.session_id || ' ' || head.turn_seq) END
FROM head, turn, event, tenants t, sessions s
    LEFT JOIN agents a ON a.tenant_id = s.tenant_id AND a.name = s.agent_name
    LEFT JOIN session_states st ON st.session_id = s.id
    LEFT JOIN tenant_policies tp ON tp.tenant_id = s.tenant_id
WHERE s.id = head.session_id AND t.id = head.tenant_id

-- read_ground --
-- What a turn's context would be compiled from, were there a turn now.
SELECT s.agent_name, s.messages::text, s.person_id, s.group_id, a.definition::text,
       a.id IS NULL AND NOT t.undefined_agents AS agent_missing,
       EXISTS (SELECT FROM tenant_secrets WHERE kind = 'provider') AS own_keys,
       s.summary, coalesce(st.pins::text, '[]'), coalesce(st.tree, ''),
       coalesce(st.calibration, 1)::double precision, st.counted_model,
       now() AT TIME ZONE coalesce(tp.timezone, 'UTC'), coalesce(tp.timezone, 'UTC'),
       (SELECT p.name FROM people p WHERE p.tenant_id = s.tenant_id AND p.id = s.person_id),
       s.tenant_id
FROM sessions s JOIN tenants t ON t.id = s.tenant_id
    LEFT JOIN agents a ON a.tenant_id = s.tenant_id AND a.name = s.agent_name
    LEFT JOIN session_states st ON st.session_id = s.id
    LEFT JOIN tenant_policies tp ON tp.tenant_id = s.tenant_id
WHERE s.id = %(session_id)s

-- write_deltas --
-- The text and the heartbeat of many turns of one tenant in one statement. A row of text per turn
-- that has any; the lease of each is renewed. A head that another transaction holds is skipped and
-- written the next time. `stale`: that runner may write nothing more.
WITH given AS (
    SELECT * FROM unnest(%(sessions)s::text[], %(turns)s::text[], %(generations)s::bigint[],
                         %(starts)s::integer[], %(texts)s::text[])
        AS g (session_id, turn_id, generation, start, text)
), own AS (
    SELECT h.session_id FROM session_heads h JOIN given g ON h.session_id = g.session_id
    WHERE h.running_turn = g.turn_id AND h.generation = g.generation
    ORDER BY h.session_id FOR NO KEY UPDATE OF h SKIP LOCKED
), head AS (
    UPDATE session_heads h SET
        lease_until = now() + make_interval(secs => %(lease)s),
        next_seq = h.next_seq + (g.text <> '')::integer
    FROM given g JOIN own USING (session_id)
    WHERE h.session_id = g.session_id AND h.running_turn = g.turn_id
      AND h.generation = g.generation
    RETURNING h.session_id, h.tenant_id, g.turn_id, g.generation, g.start, g.text,
              h.next_seq - 1 AS seq, h.cancel_requested, pal.watched(h.watchers) AS watched
), event AS (
    INSERT INTO session_events (session_id, seq, tenant_id, kind, turn_id, generation, start, text)
    SELECT session_id, seq, tenant_id, 'delta', turn_id, generation, start, text
    FROM head WHERE text <> ''
)
SELECT g.turn_id, head.seq, coalesce(head.cancel_requested, false),
       coalesce(head.watched, false), head.session_id IS NOT NULL AS written,
       h.session_id IS NULL OR h.running_turn IS DISTINCT FROM g.turn_id
           OR h.generation <> g.generation AS stale,
       CASE WHEN head.watched AND g.text <> ''
            THEN pg_notify('pal_feed', g.session_id || ' ' || head.seq) END
FROM given g LEFT JOIN head USING (session_id, turn_id)
LEFT JOIN session_heads h ON h.session_id = g.session_id

-- end_turn --
-- The commit of a turn, completed or failed, in one statement: no row means that nothing was
-- written, because this runner's lease had lapsed, or because a turn that would be completed was
-- cancelled in the meantime. The rest of the text goes into the log first. A completed turn is an
-- event of the timeline: the time is that of the last message it answers.
WITH head AS (
    UPDATE session_heads SET
        running_turn = NULL, lease_until = NULL, cuts = 0, cancel_requested = false,
        status = CASE WHEN status IN ('stopped', 'ended') THEN status
                      WHEN queued_turn IS NOT NULL THEN 'processing'
                      WHEN open_approvals > 0 THEN 'awaiting_approval' ELSE 'active' END,
        next_seq = next_seq + 1 + (%(tail)s <> '')::integer
    WHERE session_id = %(session_id)s AND running_turn = %(turn_id)s
      AND generation = %(generation)s
      AND NOT (cancel_requested AND %(status)s = 'completed')
    RETURNING session_id, tenant_id, next_seq - 1 AS seq, queued_turn,
              pal.watched(watchers) AS watched
), turn AS (
    UPDATE turns SET status = %(status)s, ended_at = now(), provider = %(provider)s,
        model = %(model)s, tokens_in = %(tokens_in)s, tokens_out = %(tokens_out)s,
        tokens_cached = %(tokens_cached)s, rounds = %(rounds)s,
        cost_usd = %(cost_usd)s, finish_reason = %(finish_reason)s, message_id = %(message_id)s,
        error_code = %(error_code)s, error = %(error)s
    FROM head WHERE turns.id = %(turn_id)s
    RETURNING ordinal
), message AS (
    INSERT INTO messages (id, tenant_id, session_id, turn_id, turn_ordinal, seq, role, content,
                          tool_calls)
    SELECT %(message_id)s, tenant_id, session_id, %(turn_id)s, turn.ordinal, seq, 'assistant',
           %(text)s, CASE WHEN %(rounds)s::integer > 0 THEN pal.calls_of(%(turn_id)s) END
    FROM head, turn WHERE %(message_id)s::text IS NOT NULL
), session AS (
    UPDATE sessions SET messages = messages || %(appended)s::jsonb, updated_at = now()
    FROM head WHERE sessions.id = head.session_id
    RETURNING id, sessions.tenant_id, group_id, person_id
), said AS (
    SELECT string_agg(pal.told('user', m.content), E'\n' ORDER BY m.seq) AS text,
           max(m.created_at) AS at
    FROM messages m
    WHERE m.session_id = %(session_id)s AND m.turn_ordinal = (SELECT ordinal FROM turn)
      AND m.role = 'user' AND m.turn_id = %(turn_id)s
), timeline AS (
    INSERT INTO memory_events (id, tenant_id, occurred_at, channel, kind, group_id, person_id,
                               session_id, turn_id, content)
    SELECT %(event_id)s, session.tenant_id, coalesce(said.at, now()), 'session', 'turn',
           session.group_id, session.person_id, session.id, %(turn_id)s,
           concat_ws(E'\n', said.text, pal.told('assistant', %(text)s))
    FROM session, said WHERE %(status)s = 'completed'
), tail AS (
    INSERT INTO session_events (session_id, seq, tenant_id, kind, turn_id, generation, start, text)
    SELECT session_id, seq - 1, tenant_id, 'delta', %(turn_id)s, %(generation)s, %(start)s, %(tail)s
    FROM head WHERE %(tail)s <> ''
), event AS (
    INSERT INTO session_events (session_id, seq, tenant_id, kind, turn_id, generation, data)
    SELECT session_id, seq, tenant_id, %(kind)s, %(turn_id)s, %(generation)s, %(event)s FROM head
)
SELECT seq, queued_turn,
       CASE WHEN watched THEN pg_notify('pal_feed', session_id || ' ' || seq) END
FROM head

-- cut_turn --
-- After lock_head. Ends a turn whose lease lapsed (or is given back) with message_error; its
-- messages go into the queued turn, or a new one. The second time in a row, with no message that
-- came since to take them along, the session is interrupted and waits for one or for a resume. A
-- turn that was to be cancelled is queued all the same, and its claim is the end of it.
WITH head AS (
    UPDATE session_heads SET
        running_turn = NULL, lease_until = NULL,
        cancel_requested = cancel_requested AND queued_turn IS NULL,
        cut_turn = running_turn, cuts = cuts + 1,
        turn_count = turn_count
            + (queued_turn IS NULL AND (cuts = 0 OR cancel_requested))::integer,
        queued_turn = CASE WHEN queued_turn IS NULL AND (cuts = 0 OR cancel_requested)
                           THEN %(new_turn)s ELSE queued_turn END,
        queued_at = now(),
        status = CASE WHEN queued_turn IS NULL AND cuts > 0 AND NOT cancel_requested
                       AND status = 'processing' THEN 'interrupted' ELSE status END,
        next_seq = next_seq + 1
    WHERE session_id = %(session_id)s AND running_turn IS NOT NULL
      AND (lease_until < now() OR generation = %(generation)s)
    RETURNING session_id, tenant_id, next_seq - 1 AS seq, cut_turn, generation, queued_turn,
              turn_count, status, pal.watched(watchers) AS watched
), turn AS (
    UPDATE turns SET status = 'cut', ended_at = now(), error_code = 'interrupted',
                     error = %(error)s
    FROM head WHERE turns.id = head.cut_turn
), next AS (
    -- it asks the same, the time included
    INSERT INTO turns (id, tenant_id, session_id, ordinal, accepted_at)
    SELECT h.queued_turn, h.tenant_id, h.session_id, h.turn_count, t.accepted_at
    FROM head h JOIN turns t ON t.id = h.cut_turn
    WHERE h.queued_turn = %(new_turn)s
), event AS (
    INSERT INTO session_events (session_id, seq, tenant_id, kind, turn_id, generation, data)
    SELECT session_id, seq, tenant_id, 'message_error', cut_turn, generation,
           json_build_object('sessionId', session_id, 'turnId', cut_turn, 'error', %(error)s::text,
                             'code', 'interrupted')::text
    FROM head
    RETURNING data
)
SELECT seq, cut_turn, generation, queued_turn, status, event.data,
       CASE WHEN watched THEN pg_notify('pal_feed', session_id || ' ' || seq) END
FROM head, event

-- stop_session --
-- After lock_head. Stopping twice writes no second event.
WITH head AS (
    UPDATE session_heads SET status = 'stopped', open_approvals = 0, next_seq = next_seq + 1
    WHERE session_id = %(session_id)s AND status <> 'stopped'
    RETURNING session_id, tenant_id, next_seq - 1 AS seq, pal.watched(watchers) AS watched
), event AS (
    INSERT INTO session_events (session_id, seq, tenant_id, kind, data)
    SELECT session_id, seq, tenant_id, 'session_stopped',
           json_build_object('sessionId', session_id, 'status', 'stopped')::text
    FROM head
    RETURNING data
)
SELECT seq, data, CASE WHEN watched THEN pg_notify('pal_feed', session_id || ' ' || seq) END
FROM head, event

-- request_cancel --
-- A turn that is queued and not yet claimed is cancelled when it is.
UPDATE session_heads SET cancel_requested = true
WHERE session_id = %(session_id)s AND coalesce(running_turn, queued_turn) IS NOT NULL
RETURNING coalesce(running_turn, queued_turn),
          pg_notify('pal_cancel', coalesce(running_turn, queued_turn))

-- hold_memory --
-- After lock_head.
SELECT pal.hold_memory(%(session_id)s)

-- delete_session --
-- After hold_memory. Everything of the session goes with it.
DELETE FROM sessions WHERE id = %(session_id)s
RETURNING pg_notify('pal_feed', id || ' deleted')

-- due_sessions --
SELECT tenant_id, session_id, lapsed
FROM pal.due_sessions(make_interval(secs => %(unclaimed)s), %(most)s)
