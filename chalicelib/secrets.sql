-- put_secret --
INSERT INTO tenant_secrets (tenant_id, kind, name, sealed, hint, base_url)
VALUES (pal.tenant(), %(kind)s, %(name)s, %(sealed)s, %(hint)s, %(base_url)s)
ON CONFLICT (tenant_id, kind, name) DO UPDATE
SET sealed = excluded.sealed, hint = excluded.hint, base_url = excluded.base_url,
    updated_at = now()

-- delete_secret --
DELETE FROM tenant_secrets WHERE kind = %(kind)s AND name = %(name)s RETURNING true

-- list_secrets --
SELECT name, hint, base_url, updated_at FROM tenant_secrets WHERE kind = %(kind)s ORDER BY name

-- read_secret --
SELECT sealed FROM tenant_secrets WHERE kind = 'tool' AND name = %(name)s

-- read_providers --
SELECT name, sealed, base_url FROM tenant_secrets WHERE kind = 'provider'
