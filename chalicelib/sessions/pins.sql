-- read_pins --
SELECT coalesce(st.pins, '[]') FROM sessions s LEFT JOIN session_states st ON st.session_id = s.id
WHERE s.id = %(session_id)s

-- read_agent --
SELECT a.definition::text FROM sessions s
    JOIN agents a ON a.tenant_id = s.tenant_id AND a.name = s.agent_name
WHERE s.id = %(session_id)s

-- read_messages --
SELECT id, content FROM messages WHERE session_id = %(session_id)s AND id = ANY (%(ids)s)

-- write_pins --
-- After lock_head. Sessions from before there were states get theirs here.
INSERT INTO session_states (session_id, tenant_id, pins)
SELECT id, tenant_id, %(pins)s FROM sessions WHERE id = %(session_id)s
ON CONFLICT (session_id) DO UPDATE SET pins = excluded.pins
WHERE session_states.sealed_at IS NULL
RETURNING true
