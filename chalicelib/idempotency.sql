-- begin_once --
-- A row older than a day counts as absent and is taken over. A concurrent call with the same key
-- waits here for the first one's transaction.
INSERT INTO idempotency_keys (tenant_id, scope, key, body_hash)
VALUES (pal.tenant(), %(scope)s, %(key)s, %(body_hash)s)
ON CONFLICT (tenant_id, scope, key) DO UPDATE
SET body_hash = excluded.body_hash, answer = NULL, created_at = now()
WHERE idempotency_keys.created_at < now() - interval '24 hours'
RETURNING true

-- read_once --
SELECT body_hash, answer FROM idempotency_keys WHERE scope = %(scope)s AND key = %(key)s

-- finish_once --
UPDATE idempotency_keys SET answer = %(answer)s WHERE scope = %(scope)s AND key = %(key)s
