-- read_policy --
SELECT timezone, memory::text FROM tenant_policies WHERE tenant_id = pal.tenant()

-- find_timezone --
-- As Postgres spells it, whatever its case. What a server keeps beside the names proper (`posix/`,
-- `right/`, its own `localtime`) is not one that another server would know.
SELECT name FROM pg_timezone_names
WHERE lower(name) = lower(%(name)s) AND name !~ '^(posix|right)/'
  AND name NOT IN ('localtime', 'posixrules', 'Factory')
ORDER BY name = %(name)s DESC LIMIT 1

-- write_policy --
INSERT INTO tenant_policies AS p (tenant_id, timezone, memory)
VALUES (pal.tenant(), %(timezone)s, %(memory)s)
ON CONFLICT (tenant_id) DO UPDATE SET
    timezone = excluded.timezone, memory = excluded.memory, updated_at = now()
