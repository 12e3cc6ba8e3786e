-- append_events --
-- Events of a running turn, in order; its runner's lease is renewed by it. No row: the lease is
-- lost. It comes first in its transaction, so that what follows is fenced by the lock it takes.
WITH head AS (
    UPDATE session_heads SET next_seq = next_seq + cardinality(%(kinds)s::text[]),
                             lease_until = now() + make_interval(secs => %(lease)s)
    WHERE session_id = %(session_id)s AND running_turn = %(turn_id)s
      AND generation = %(generation)s
    RETURNING session_id, tenant_id, next_seq - cardinality(%(kinds)s::text[]) AS first,
              next_seq - 1 AS last, pal.watched(watchers) AS watched, cancel_requested, status
), event AS (
    INSERT INTO session_events (session_id, seq, tenant_id, kind, turn_id, generation, data)
    SELECT session_id, first + e.place - 1, tenant_id, e.kind, %(turn_id)s, %(generation)s, e.data
    FROM head, unnest(%(kinds)s::text[], %(events)s::text[]) WITH ORDINALITY AS e (kind, data, place)
)
SELECT first, cancel_requested, status IN ('stopped', 'ended') AS closed,
       CASE WHEN watched AND last >= first THEN pg_notify('pal_feed', session_id || ' ' || last) END
FROM head

-- adopt_rounds --
-- What a turn that was cut had done is done for the turn that takes it up.
UPDATE turn_rounds SET turn_id = %(turn_id)s WHERE turn_id = %(cut_turn)s

-- adopt_calls --
UPDATE tool_calls
SET turn_id = CASE WHEN turn_id = %(cut_turn)s THEN %(turn_id)s ELSE turn_id END,
    run_turn = CASE WHEN run_turn = %(cut_turn)s THEN %(turn_id)s ELSE run_turn END
WHERE session_id = %(session_id)s AND (turn_id = %(cut_turn)s OR run_turn = %(cut_turn)s)

-- take_decisions --
-- Calls that were decided on since the turn which asked for them ended: this turn tells the model.
UPDATE tool_calls SET run_turn = %(turn_id)s
WHERE session_id = %(session_id)s AND run_turn IS NULL AND turn_id <> %(turn_id)s
  AND status IN ('approved', 'denied', 'expired', 'superseded')

-- read_rounds --
SELECT round, content, provider, model, reasoning, tokens_in, tokens_out, tokens_cached, cost_usd
FROM turn_rounds WHERE turn_id = %(turn_id)s ORDER BY round

-- read_calls --
SELECT c.id, c.turn_id, c.round, c.place, c.name, c.arguments, c.status, c.result,
       a.arguments_hash
FROM tool_calls c LEFT JOIN approvals a ON a.call_id = c.id
WHERE c.session_id = %(session_id)s AND (c.turn_id = %(turn_id)s OR c.run_turn = %(turn_id)s)
ORDER BY c.turn_id, c.round, c.place

-- read_hints --
-- Those of the turn that stopped for an approval, or of the one before it that had a message.
WITH RECURSIVE line AS (
    SELECT id, resumes_turn FROM turns WHERE id = %(turn_id)s AND session_id = %(session_id)s
    UNION
    SELECT t.id, t.resumes_turn FROM turns t JOIN line ON t.id = line.resumes_turn
)
SELECT m.hints FROM messages m
WHERE m.session_id = %(session_id)s AND m.role = 'user' AND m.turn_ordinal = (
    SELECT max(turn_ordinal) FROM messages JOIN line ON turn_id = line.id
    WHERE session_id = %(session_id)s AND role = 'user')
ORDER BY m.seq DESC

-- insert_round --
INSERT INTO turn_rounds (turn_id, round, tenant_id, session_id, content, reasoning, provider, model,
                         tokens_in, tokens_out, tokens_cached, cost_usd)
VALUES (%(turn_id)s, %(round)s, pal.tenant(), %(session_id)s, %(content)s, %(reasoning)s,
        %(provider)s, %(model)s, %(tokens_in)s, %(tokens_out)s, %(tokens_cached)s, %(cost_usd)s)

-- insert_calls --
INSERT INTO tool_calls (id, tenant_id, session_id, turn_id, round, place, name, arguments, status,
                        started_at)
SELECT c.id, pal.tenant(), %(session_id)s, %(turn_id)s, %(round)s, c.place, c.name, c.arguments,
       c.status, CASE WHEN c.status = 'running' THEN now() END
FROM unnest(%(ids)s::text[], %(names)s::text[], %(arguments)s::text[], %(statuses)s::text[])
    WITH ORDINALITY AS c (id, name, arguments, status, place)

-- start_calls --
UPDATE tool_calls SET status = 'running', started_at = now() WHERE id = ANY (%(ids)s)

-- finish_call --
UPDATE tool_calls SET status = %(status)s, result = %(result)s, output = %(output)s,
                      ended_at = now()
WHERE id = %(id)s AND status <> %(status)s

-- show_calls --
-- The message of the turn that asked shows the calls as they stand now.
UPDATE messages SET tool_calls = pal.calls_of(%(turn_id)s)
WHERE id = (SELECT message_id FROM turns WHERE id = %(turn_id)s) AND tool_calls IS NOT NULL

-- call_status --
SELECT status FROM tool_calls WHERE id = %(id)s

-- has_round --
SELECT EXISTS (SELECT FROM turn_rounds WHERE turn_id = %(turn_id)s AND round = %(round)s)

-- close_journal --
-- At the end of a turn its rounds are in the history; what was still open came to nothing.
WITH gone AS (
    DELETE FROM turn_rounds WHERE turn_id = %(turn_id)s
)
UPDATE tool_calls SET
    status = CASE WHEN status = 'running' THEN 'unknown' ELSE 'failed' END,
    result = CASE WHEN status = 'running' THEN %(unknown)s ELSE %(not_run)s END,
    ended_at = now()
WHERE session_id = %(session_id)s AND (turn_id = %(turn_id)s OR run_turn = %(turn_id)s)
  AND status IN ('asked', 'running', 'approved')

-- read_call --
SELECT id, turn_id, round, name, arguments, status, result, output, started_at, ended_at
FROM tool_calls WHERE session_id = %(session_id)s AND id = %(id)s
