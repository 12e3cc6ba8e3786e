-- mark_people --
-- In one order of owners everywhere, people before groups, so that no two wait for one another.
INSERT INTO memory_narratives AS n (id, tenant_id, person_id, stale_at)
SELECT id, pal.tenant(), owner, now()
FROM unnest(%(ids)s::text[], %(owners)s::text[]) WITH ORDINALITY AS o (id, owner, place)
ORDER BY place
ON CONFLICT (tenant_id, person_id) WHERE person_id IS NOT NULL DO UPDATE SET
    version = n.version + 1, stale_at = coalesce(n.stale_at, excluded.stale_at)

-- mark_groups --
INSERT INTO memory_narratives AS n (id, tenant_id, group_id, stale_at)
SELECT id, pal.tenant(), owner, now()
FROM unnest(%(ids)s::text[], %(owners)s::text[]) WITH ORDINALITY AS o (id, owner, place)
ORDER BY place
ON CONFLICT (tenant_id, group_id) WHERE group_id IS NOT NULL DO UPDATE SET
    version = n.version + 1, stale_at = coalesce(n.stale_at, excluded.stale_at)

-- read_narratives --
-- With those of the sources that are there and may be told to the owner, as `session_facts` tells:
-- what was forgotten, superseded or given to another person since is not among them.
SELECT n.id, n.person_id, n.group_id, n.lines, n.updated_at, n.version, n.told_at,
       standing.ids, standing.times
FROM (
    SELECT * FROM memory_narratives
    WHERE tenant_id = pal.tenant() AND person_id = ANY (%(people)s::text[])
    UNION ALL
    SELECT * FROM memory_narratives
    WHERE tenant_id = pal.tenant() AND group_id = ANY (%(groups)s::text[])
) AS n
CROSS JOIN LATERAL (
    SELECT ARRAY(SELECT jsonb_array_elements_text(line -> 'sources')
                 FROM jsonb_array_elements(n.lines) AS line) AS ids
) AS named
CROSS JOIN LATERAL (
    SELECT array_agg(id) AS ids, array_agg(at) AS times FROM (
        SELECT d.id, d.said_at AS at FROM memory_distillates d
        WHERE d.tenant_id = n.tenant_id AND d.id = ANY (named.ids) AND d.superseded_by IS NULL
          AND CASE WHEN n.group_id IS NOT NULL THEN d.group_id = n.group_id
                   WHEN d.group_id IS NOT NULL THEN d.person_id = n.person_id
                   WHEN d.said_by IS NOT NULL THEN d.said_by = n.person_id
                   ELSE d.person_id = n.person_id AND d.source_kind <> 'session' END
        UNION ALL
        SELECT e.id, e.occurred_at FROM memory_episodes e
        WHERE e.tenant_id = n.tenant_id AND e.id = ANY (named.ids)
          AND CASE WHEN n.group_id IS NOT NULL THEN e.group_id = n.group_id
                   ELSE e.group_id IS NULL AND e.person_id = n.person_id END
    ) AS found
) AS standing
ORDER BY n.id

-- own_sources --
-- Of these facts and episodes, those that are of this person or group, and since when they are
-- there. What callers had remembered of no one is in every session: it is no part of anyone's story.
SELECT id, created_at FROM memory_distillates
WHERE tenant_id = pal.tenant() AND id = ANY (%(ids)s::text[])
  AND (person_id IS NOT NULL OR said_by IS NOT NULL OR group_id IS NOT NULL)
UNION ALL
SELECT id, created_at FROM memory_episodes
WHERE tenant_id = pal.tenant() AND id = ANY (%(ids)s::text[])

-- write_lines --
UPDATE memory_narratives SET lines = %(lines)s, updated_at = %(now)s WHERE id = %(id)s

-- tell_narrative --
-- No row: something has changed since the model was asked, and it is asked again.
UPDATE memory_narratives SET
    lines = %(lines)s, version = version + 1, stale_at = NULL, told_at = now(), updated_at = now()
WHERE id = %(id)s AND version = %(version)s

-- drop_narrative --
DELETE FROM memory_narratives WHERE id = %(id)s AND version = %(version)s

-- stale_narratives --
SELECT person_id, group_id,
       EXISTS (SELECT FROM tenant_secrets WHERE kind = 'provider')
FROM memory_narratives
WHERE tenant_id = pal.tenant() AND stale_at IS NOT NULL
ORDER BY stale_at, id LIMIT %(most)s
