-- insert_approvals --
-- After append_events. The turn ends with these; the calls wait for a person.
WITH given AS (
    SELECT * FROM unnest(%(ids)s::text[], %(calls)s::text[], %(tools)s::text[],
                         %(arguments)s::text[], %(hashes)s::bytea[])
        AS g (id, call_id, tool, arguments, hash)
), made AS (
    INSERT INTO approvals (id, tenant_id, session_id, turn_id, call_id, tool, arguments,
                           arguments_hash, expires_at)
    SELECT id, pal.tenant(), %(session_id)s, %(turn_id)s, call_id, tool, arguments, hash,
           %(expires_at)s
    FROM given
), waiting AS (
    UPDATE tool_calls SET status = 'pending' WHERE id = ANY (%(calls)s)
)
UPDATE session_heads SET open_approvals = cardinality(%(ids)s::text[])
WHERE session_id = %(session_id)s

-- supersede_approvals --
-- After the head is locked: what is still open of this session will not be asked for any more.
WITH gone AS (
    UPDATE approvals SET status = 'superseded', decided_at = now()
    WHERE session_id = %(session_id)s AND status = 'pending'
    RETURNING call_id
)
UPDATE tool_calls SET status = 'superseded', result = %(result)s, ended_at = now()
FROM gone WHERE id = gone.call_id
RETURNING turn_id

-- expire_approvals --
-- After lock_head.
WITH gone AS (
    UPDATE approvals SET status = 'expired', decided_at = now()
    WHERE session_id = %(session_id)s AND status = 'pending' AND expires_at < now()
    RETURNING id, call_id
), calls AS (
    UPDATE tool_calls SET status = 'expired', result = %(result)s, ended_at = now()
    FROM gone WHERE tool_calls.id = gone.call_id
    RETURNING tool_calls.id, turn_id, name, gone.id AS approval_id
), head AS (
    UPDATE session_heads SET
        open_approvals = open_approvals - (SELECT count(*) FROM gone)::integer,
        status = CASE WHEN status = 'awaiting_approval'
                       AND open_approvals = (SELECT count(*) FROM gone) THEN 'active' ELSE status END,
        next_seq = next_seq + (SELECT count(*) FROM gone)
    WHERE session_id = %(session_id)s AND EXISTS (SELECT FROM gone)
    RETURNING next_seq - (SELECT count(*) FROM gone) AS first, next_seq - 1 AS last,
              pal.watched(watchers) AS watched
), told AS (
    SELECT head.first + row_number() OVER (ORDER BY calls.id) - 1 AS seq, calls.turn_id,
           json_build_object('sessionId', %(session_id)s::text, 'turnId', calls.turn_id,
                             'approvalId', calls.approval_id, 'callId', calls.id,
                             'name', calls.name, 'decision', 'expired')::text AS data
    FROM calls, head
), event AS (
    INSERT INTO session_events (session_id, seq, tenant_id, kind, data)
    SELECT %(session_id)s, seq, pal.tenant(), 'approval_decided', data FROM told
)
SELECT told.seq, told.turn_id, told.data,
       CASE WHEN head.watched THEN pg_notify('pal_feed', %(session_id)s || ' ' || head.last) END
FROM told, head ORDER BY told.seq

-- get_approval --
SELECT id, session_id, turn_id, call_id, tool, arguments, status, created_at, expires_at,
       decided_at, status = 'pending' AND expires_at < now() AS lapsed
FROM approvals WHERE id = %(id)s

-- list_approvals --
-- Newest first. One whose time is over counts as expired before the sweep has come by.
SELECT id, session_id, turn_id, call_id, tool, arguments, status, created_at, expires_at,
       decided_at, status = 'pending' AND expires_at < now() AS lapsed
FROM approvals
WHERE tenant_id = pal.tenant()
  AND (%(before)s::text IS NULL OR id < %(before)s)
  AND (%(session_id)s::text IS NULL OR session_id = %(session_id)s)
  AND (%(status)s::text IS NULL
       OR %(status)s = CASE WHEN status = 'pending' AND expires_at < now() THEN 'expired'
                            ELSE status END)
ORDER BY id DESC LIMIT %(most)s

-- decide --
-- After lock_head, with an approval seen pending under that lock. The turn that tells the model is
-- the queued one, or a new one that resumes the turn which asked.
WITH decided AS (
    UPDATE approvals SET status = %(status)s, decided_at = now(), decided_by = %(key_id)s
    WHERE id = %(id)s AND status = 'pending'
    RETURNING session_id, turn_id, call_id, tool
), call AS (
    UPDATE tool_calls SET status = %(status)s, result = %(result)s,
        ended_at = CASE WHEN %(status)s = 'denied' THEN now() END
    FROM decided WHERE tool_calls.id = decided.call_id
), head AS (
    UPDATE session_heads h SET
        next_seq = next_seq + 1,
        open_approvals = open_approvals - 1,
        turn_count = turn_count + (queued_turn IS NULL)::integer,
        queued_turn = coalesce(queued_turn, %(new_turn)s),
        queued_at = CASE WHEN queued_turn IS NULL OR status = 'interrupted' THEN now()
                         ELSE queued_at END,
        cuts = CASE WHEN status = 'interrupted' THEN 0 ELSE cuts END,
        status = 'processing'
    FROM decided WHERE h.session_id = decided.session_id
    RETURNING h.session_id, h.tenant_id, h.next_seq - 1 AS seq, h.queued_turn, h.turn_count,
              h.running_turn IS NOT NULL AS busy, pal.watched(h.watchers) AS watched
), made AS (
    INSERT INTO turns (id, tenant_id, session_id, ordinal, resumes_turn)
    SELECT head.queued_turn, head.tenant_id, head.session_id, head.turn_count, decided.turn_id
    FROM head, decided WHERE head.queued_turn = %(new_turn)s
), joined AS (
    UPDATE turns SET resumes_turn = coalesce(turns.resumes_turn, decided.turn_id)
    FROM head, decided WHERE turns.id = head.queued_turn AND head.queued_turn <> %(new_turn)s
), event AS (
    INSERT INTO session_events (session_id, seq, tenant_id, kind, turn_id, data)
    SELECT head.session_id, head.seq, head.tenant_id, 'approval_decided', head.queued_turn,
           json_build_object('sessionId', head.session_id, 'turnId', head.queued_turn,
                             'approvalId', %(id)s::text, 'callId', decided.call_id,
                             'name', decided.tool, 'decision', %(status)s::text)::text
    FROM head, decided
    RETURNING data
)
SELECT head.seq, head.queued_turn, head.busy, event.data,
       CASE WHEN watched THEN pg_notify('pal_feed', session_id || ' ' || seq) END
FROM head, event

-- due_approvals --
SELECT tenant_id, session_id FROM pal.due_approvals(%(most)s)
