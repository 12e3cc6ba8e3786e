-- insert_agent --
-- Nothing comes back where the tenant has an agent of that name.
INSERT INTO agents (id, tenant_id, name, definition)
VALUES (%(id)s, pal.tenant(), %(name)s, %(definition)s)
ON CONFLICT (tenant_id, name) DO NOTHING
RETURNING id, name, definition, created_at, updated_at

-- replace_agent --
UPDATE agents SET definition = %(definition)s, updated_at = now() WHERE name = %(name)s
RETURNING id, name, definition, created_at, updated_at

-- get_agent --
SELECT id, name, definition, created_at, updated_at FROM agents WHERE name = %(name)s

-- list_agents --
-- By the names' bytes: the order of a page's token is then the same on every database.
SELECT id, name, definition, created_at, updated_at FROM agents
WHERE %(after)s::text IS NULL OR name COLLATE "C" > %(after)s
ORDER BY name COLLATE "C" LIMIT %(most)s

-- delete_agent --
DELETE FROM agents WHERE name = %(name)s RETURNING true
