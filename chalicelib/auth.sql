-- authenticate --
SELECT key_id, tenant_id, scopes, undefined_agents FROM pal.authenticate(%(digest)s)

-- key_is_live --
SELECT pal.key_is_live(%(key_id)s)

-- read_stream_token --
SELECT key_id, tenant_id, session_id FROM pal.read_stream_token(%(digest)s)

-- insert_stream_token --
-- The session must be the tenant's own: RLS lets the SELECT see no other.
INSERT INTO stream_tokens (hash, tenant_id, session_id, key_id, expires_at)
SELECT pal.salted(%(digest)s), tenant_id, id, %(key_id)s, now() + make_interval(secs => %(seconds)s)
FROM sessions WHERE id = %(session_id)s
RETURNING expires_at

-- insert_tenant --
INSERT INTO tenants (id, name, undefined_agents) VALUES (%(id)s, %(name)s, %(undefined_agents)s)

-- list_tenants --
SELECT id, name, undefined_agents, created_at FROM pal.list_tenants()

-- insert_key --
INSERT INTO api_keys (id, tenant_id, name, hash, hint, scopes)
VALUES (%(id)s, %(tenant_id)s, %(name)s, pal.salted(%(digest)s), %(hint)s, %(scopes)s)
ON CONFLICT (hash) DO NOTHING

-- list_keys --
SELECT id, name, hint, scopes, created_at, last_used_at, revoked_at FROM api_keys ORDER BY id

-- revoke_key --
UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = %(key_id)s RETURNING id
