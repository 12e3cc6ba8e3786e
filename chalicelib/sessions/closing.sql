-- look_at --
-- Without a lock: whether there is anything to bring up to date before the end.
SELECT status <> 'ended' AND running_turn IS NULL AND (queued_turn IS NULL OR status = 'interrupted')
FROM session_heads WHERE session_id = %(session_id)s

-- still_in_use --
-- Whether anyone has said anything since. If so it is not looked at again before its time.
UPDATE session_states st SET touched_at = greatest(st.touched_at, s.updated_at, h.queued_at)
FROM sessions s JOIN session_heads h ON h.session_id = s.id
WHERE st.session_id = %(session_id)s AND s.id = st.session_id
  AND greatest(s.updated_at, h.queued_at) >= now() - make_interval(secs => %(idle)s)
RETURNING true

-- hold_state --
-- After lock_head. Whoever works behind the last reply is through, or finds the lease gone.
INSERT INTO session_states (session_id, tenant_id)
SELECT id, tenant_id FROM sessions WHERE id = %(session_id)s
ON CONFLICT (session_id) DO UPDATE SET worker = NULL, work_until = NULL

-- read_promoted --
SELECT promoted FROM session_states WHERE session_id = %(session_id)s

-- read_agent --
SELECT a.definition::text FROM sessions s
    JOIN agents a ON a.tenant_id = s.tenant_id AND a.name = s.agent_name
WHERE s.id = %(session_id)s

-- read_owner --
SELECT person_id, group_id FROM sessions WHERE id = %(session_id)s

-- end_session --
-- After hold_state. A turn that was cut is not taken up any more, nor one that never ran.
WITH head AS (
    UPDATE session_heads SET
        status = 'ended', open_approvals = 0, queued_turn = NULL, cut_turn = NULL, cuts = 0,
        cancel_requested = false, next_seq = next_seq + 1
    WHERE session_id = %(session_id)s AND running_turn IS NULL AND status <> 'ended'
    RETURNING session_id, tenant_id, next_seq - 1 AS seq, pal.watched(watchers) AS watched
), state AS (
    UPDATE session_states st SET sealed_at = now(), promoted = %(promoted)s
    FROM head WHERE st.session_id = head.session_id
), left_over AS (
    UPDATE turns t SET status = 'cut', ended_at = now(), error_code = 'session_ended',
                       error = 'The session ended before this turn ran.'
    FROM head WHERE t.session_id = head.session_id AND t.status = 'queued'
), event AS (
    INSERT INTO session_events (session_id, seq, tenant_id, kind, data)
    SELECT session_id, seq, tenant_id, 'session_ended',
           json_build_object('sessionId', session_id, 'status', 'ended',
                             'promoted', %(promoted)s::integer)::text
    FROM head
    RETURNING data
)
SELECT seq, data, CASE WHEN watched THEN pg_notify('pal_feed', session_id || ' ' || seq) END
FROM head, event

-- resume_session --
-- After lock_head. As accept_message does it, without a message: the claim folds those of the cut
-- turn in. It asks the same, so it counts as accepted when that was.
WITH head AS (
    UPDATE session_heads SET
        turn_count = turn_count + (queued_turn IS NULL)::integer,
        queued_turn = coalesce(queued_turn, %(new_turn)s),
        queued_at = now(), cuts = 0, status = 'processing'
    WHERE session_id = %(session_id)s AND status = 'interrupted'
    RETURNING session_id, tenant_id, queued_turn, cut_turn, turn_count
), turn AS (
    INSERT INTO turns (id, tenant_id, session_id, ordinal, accepted_at)
    SELECT head.queued_turn, head.tenant_id, head.session_id, head.turn_count,
           coalesce(cut.accepted_at, now())
    FROM head LEFT JOIN turns cut ON cut.id = head.cut_turn
    WHERE head.queued_turn = %(new_turn)s
)
SELECT queued_turn FROM head

-- idle_sessions --
SELECT tenant_id, session_id FROM pal.idle_sessions(make_interval(secs => %(idle)s), %(most)s)
