-- take_work --
-- The lease of the work behind a session's replies. No row: someone is at it, or the session is
-- sealed or gone. What the provider has counted is kept on the way. The session comes first: one that
-- is deleted takes its state along, and every second update of that state looks at the session.
INSERT INTO session_states AS st (session_id, tenant_id, worker, work_until, calibration,
                                  counted_model)
SELECT id, tenant_id, %(lease)s, now() + make_interval(secs => %(seconds)s),
       coalesce(%(calibration)s, 1), %(model)s
FROM (SELECT id, tenant_id FROM sessions WHERE id = %(session_id)s FOR KEY SHARE) AS held
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
-- What was said in turns that have ended since the tree was last kept; of many the newest. The
-- stand-in has said nothing.
SELECT id, role, content, created_at, turn_ordinal FROM (
    SELECT m.id, m.role, m.created_at, m.turn_ordinal, m.seq,
           CASE WHEN m.role = 'assistant' AND t.provider = 'offline' THEN ''
                ELSE m.content END AS content
    FROM messages m JOIN turns t ON t.id = m.turn_id
    WHERE m.session_id = %(session_id)s AND m.turn_ordinal > %(ordinal)s
      AND t.status IN ('completed', 'failed')
    ORDER BY m.turn_ordinal DESC, m.seq DESC LIMIT %(most)s
) AS newest
ORDER BY turn_ordinal, seq

-- end_work --
-- The lease goes, unless something was said meanwhile by a turn whose runner found it taken. In one
-- that only went on with another and failed, nothing is.
UPDATE session_states st SET worker = NULL, work_until = NULL
WHERE st.session_id = %(session_id)s AND st.worker = %(lease)s
  AND (%(anyway)s OR st.tree_ordinal >= coalesce((
      -- the newest by the index: a long session is not read through for it
      SELECT m.turn_ordinal FROM messages m JOIN turns t ON t.id = m.turn_id
      WHERE m.session_id = %(session_id)s AND t.status IN ('completed', 'failed')
      ORDER BY m.turn_ordinal DESC, m.seq DESC LIMIT 1), 0))
RETURNING session_id
