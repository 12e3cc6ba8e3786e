-- lock_session --
-- Before any statement here that decides: who stops, ends or deletes the session locks it first too.
SELECT status NOT IN ('stopped', 'ended') FROM session_heads
WHERE session_id = %(session_id)s FOR NO KEY UPDATE

-- find_vm --
-- The session's one VM that is not at its end. Its notice is told in one turn; of one that was cut
-- no one knows what it has told.
SELECT id, driver, state, machine_id, endpoint, started_at,
       expires_at < now() + make_interval(secs => %(margin)s) AS expires,
       state = 'starting' AND created_at < now() - make_interval(secs => %(patience)s) AS given_up,
       CASE WHEN told_turn IS NULL OR told_turn = %(turn_id)s
              OR EXISTS (SELECT FROM turns t WHERE t.id = told_turn AND t.status = 'cut')
            THEN notice END AS notice,
       told_turn,
       coalesce(used_until >= now() + make_interval(secs => %(seconds)s - %(slack)s), false) AS fresh
FROM session_vms
WHERE session_id = %(session_id)s AND state IN ('starting', 'running')

-- use_vm --
-- No row: it has come to its end since it was found.
UPDATE session_vms SET
    used_until = greatest(used_until, now() + make_interval(secs => %(seconds)s)),
    told_turn = coalesce(%(told)s, told_turn)
WHERE id = %(id)s AND state = 'running'
RETURNING id

-- insert_vm --
-- After lock_session. What the session has lost with the one before is told with this one's first
-- results; one that was never asked anything hands on what it would have told.
WITH before AS (
    SELECT CASE WHEN used_until IS NULL THEN notice ELSE reason END AS notice
    FROM session_vms
    WHERE session_id = %(session_id)s AND state IN ('ending', 'ended') AND reason <> 'closed'
    ORDER BY id DESC LIMIT 1
), gone AS (
    DELETE FROM session_vms WHERE session_id = %(session_id)s AND state = 'ended'
)
INSERT INTO session_vms (id, tenant_id, session_id, driver, notice)
VALUES (%(id)s, pal.tenant(), %(session_id)s, %(driver)s, (SELECT notice FROM before))

-- run_vm --
-- After lock_session. No row: it was not to be started any more, or another process has written this
-- already, or all too late: see `vm_due`. The event is the running turn's, which waits for this.
WITH vm AS (
    UPDATE session_vms SET
        state = 'running', machine_id = %(machine_id)s, endpoint = %(endpoint)s,
        started_at = %(started_at)s, running_at = now(),
        expires_at = %(started_at)s + make_interval(secs => %(longest)s)
    WHERE id = %(id)s AND state = 'starting' AND created_at > now() - interval '8 minutes'
    RETURNING id, session_id, notice
), head AS (
    UPDATE session_heads h SET next_seq = next_seq + 1
    FROM vm WHERE h.session_id = vm.session_id
    RETURNING h.session_id, h.tenant_id, next_seq - 1 AS seq, running_turn, generation,
              pal.watched(watchers) AS watched
), event AS (
    INSERT INTO session_events (session_id, seq, tenant_id, kind, turn_id, generation, data)
    SELECT head.session_id, head.seq, head.tenant_id,
           CASE WHEN vm.notice IS NULL THEN 'vm_started' ELSE 'vm_replaced' END,
           head.running_turn, head.generation,
           json_strip_nulls(json_build_object(
               'sessionId', head.session_id, 'turnId', head.running_turn, 'vmId', vm.id,
               'reason', vm.notice))::text
    FROM head, vm
)
SELECT seq, CASE WHEN watched THEN pg_notify('pal_feed', session_id || ' ' || seq) END
FROM head

-- machine_of --
SELECT machine_id FROM session_vms WHERE id = %(id)s AND state = 'running'

-- retire_vm --
-- No row: it is at its end already.
UPDATE session_vms SET state = 'ending', reason = %(reason)s, ended_at = now()
WHERE id = %(id)s AND state IN ('starting', 'running')
RETURNING id, machine_id

-- close_vms --
-- After the session's head is locked, when it takes no more turns.
WITH told AS (
    DELETE FROM session_vms WHERE session_id = %(session_id)s AND state = 'ended'
)
UPDATE session_vms SET
    state = 'ending', reason = 'closed', ended_at = coalesce(ended_at, now())
WHERE session_id = %(session_id)s AND state <> 'ended'
RETURNING id, machine_id

-- begin_end --
-- No row: it is not due any more, or another process is at it.
UPDATE session_vms v SET
    state = 'ending', reason = pal.vm_due(v, make_interval(secs => %(idle)s)),
    ended_at = coalesce(ended_at, now()), tried_at = now()
WHERE v.id = %(id)s AND v.state <> 'ended'
  AND pal.vm_due(v, make_interval(secs => %(idle)s)) IS NOT NULL
  AND (v.tried_at IS NULL OR v.tried_at < now() - interval '20 seconds')
RETURNING id, machine_id

-- lock_session_of --
-- As lock_session: what follows sees the VM after it, or the one after it sees what followed.
SELECT FROM session_heads
WHERE session_id = (SELECT session_id FROM session_vms WHERE id = %(id)s) FOR NO KEY UPDATE

-- keep_word --
-- Its VM has ended. The row stays while the session has yet to be told what it lost.
UPDATE session_vms v SET state = 'ended', machine_id = NULL, endpoint = NULL
WHERE v.id = %(id)s AND v.state = 'ending' AND v.reason <> 'closed'
  AND (v.used_until IS NOT NULL OR v.notice IS NOT NULL)
  AND pal.session_is_open(v.session_id)
  AND NOT EXISTS (SELECT FROM session_vms later
                  WHERE later.session_id = v.session_id AND later.id > v.id)

-- delete_vm --
-- After keep_word.
DELETE FROM session_vms WHERE id = %(id)s AND state = 'ending'

-- due_vms --
SELECT tenant_id, id FROM pal.due_vms(%(driver)s, make_interval(secs => %(idle)s), %(most)s)

-- known_machines --
SELECT pal.known_machines(%(driver)s, %(found)s)

-- lost_vms --
SELECT tenant_id, session_id, id
FROM pal.lost_vms(%(driver)s, %(alive)s, make_interval(secs => %(settled)s), %(most)s)

-- purge_vms --
SELECT pal.purge_vms()
