-- take_work --
-- The lease of the work behind a session's replies. No row: someone is at it, or the session is
-- sealed or gone. What the provider has counted is kept on the way.
INSERT INTO session_states AS st (session_id, tenant_id, worker, work_until, calibration,
                                  counted_model)
SELECT id, tenant_id, %(lease)s, now() + make_interval(secs => %(seconds)s),
       coalesce(%(calibration)s, 1), %(model)s
FROM sessions WHERE id = %(session_id)s
ON CONFLICT (session_id) DO UPDATE SET
    worker = excluded.worker, work_until = excluded.work_until, touched_at = now(),
    calibration = coalesce(%(calibration)s, st.calibration),
    counted_model = coalesce(%(model)s, st.counted_model)
WHERE st.sealed_at IS NULL
  AND (st.worker IS NULL OR st.work_until < now() OR st.worker = excluded.worker OR %(force)s)
RETURNING st.tree_ordinal, st.compact_at

-- is_open --
SELECT EXISTS (SELECT FROM session_states WHERE session_id = %(session_id)s AND sealed_at IS NULL)

-- read_work --
SELECT jsonb_array_length(s.messages), a.definition::text,
       EXISTS (SELECT FROM tenant_secrets WHERE kind = 'provider') AS own_keys
FROM sessions s LEFT JOIN agents a ON a.tenant_id = s.tenant_id AND a.name = s.agent_name
WHERE s.id = %(session_id)s

-- unread --
-- What was said in turns that have ended since the tree was last kept; of many the newest.
SELECT id, role, content, created_at, turn_ordinal FROM (
    SELECT m.id, m.role, m.content, m.created_at, m.turn_ordinal, m.seq
    FROM messages m JOIN turns t ON t.id = m.turn_id
    WHERE m.session_id = %(session_id)s AND m.turn_ordinal > %(ordinal)s
      AND t.status IN ('completed', 'failed')
    ORDER BY m.turn_ordinal DESC, m.seq DESC LIMIT %(most)s
) AS newest
ORDER BY turn_ordinal, seq

-- end_work --
-- The lease goes, unless a turn has ended meanwhile whose runner found it taken.
UPDATE session_states st SET worker = NULL, work_until = NULL
WHERE st.session_id = %(session_id)s AND st.worker = %(lease)s
  AND (%(anyway)s OR NOT EXISTS (
      SELECT FROM turns t WHERE t.session_id = st.session_id AND t.ordinal > st.tree_ordinal
        AND t.status IN ('completed', 'failed')))
RETURNING session_id
