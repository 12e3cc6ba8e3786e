-- take_lease --
-- No row: someone else has it. One that lapsed is a dead process's, and may be taken.
INSERT INTO memory_passes AS p (tenant_id, lease, lease_until, began_at)
VALUES (pal.tenant(), %(lease)s, clock_timestamp() + make_interval(secs => %(seconds)s),
        clock_timestamp())
ON CONFLICT (tenant_id) DO UPDATE SET
    lease = excluded.lease, lease_until = excluded.lease_until, began_at = excluded.began_at
WHERE p.lease IS NULL OR p.lease_until < clock_timestamp()
RETURNING p.read_tx::text, p.read_id,
          EXISTS (SELECT FROM tenant_secrets WHERE kind = 'provider')

-- end_slice --
-- Locked by the writing before it, in the order of locks. No row: another pass has taken over, and
-- nothing may stand.
UPDATE memory_passes SET
    read_tx = %(read_tx)s::xid8, read_id = %(read_id)s, lease = NULL, lease_until = NULL,
    ended_at = clock_timestamp(), more = %(more)s, failures = 0, error_code = NULL
WHERE tenant_id = pal.tenant() AND lease = %(lease)s

-- fail_slice --
UPDATE memory_passes SET
    lease = NULL, lease_until = NULL, ended_at = clock_timestamp(), failures = failures + 1,
    error_code = %(code)s
WHERE tenant_id = pal.tenant() AND lease = %(lease)s

-- put_off --
-- Nothing was read, and the rest of the interval is waited for.
UPDATE memory_passes SET
    lease = NULL, lease_until = NULL, ended_at = clock_timestamp(), more = false, failures = 0
WHERE tenant_id = pal.tenant() AND lease = %(lease)s

-- give_lease_back --
UPDATE memory_passes SET lease = NULL, lease_until = NULL
WHERE tenant_id = pal.tenant() AND lease = %(lease)s

-- tenants_due --
SELECT tenant_id FROM pal.tenants_due(make_interval(secs => %(every)s), %(most)s)
