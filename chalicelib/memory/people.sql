-- resolve_people --
-- The person of each handle, made where there is none: in one statement, so that of two who make
-- the same one at once the later gets the earlier's. The rows of known handles are held until the
-- transaction ends: a merge moves them before it moves what refers to their person. Handles are
-- taken in the order of their keys, as everywhere.
WITH given AS (
    SELECT * FROM unnest(%(channels)s::text[], %(handles)s::text[], %(givens)s::text[],
                         %(contacts)s::text[], %(names)s::text[], %(name_keys)s::text[],
                         %(new_ids)s::text[])
        AS g (channel, handle, given, contact, name, name_key, new_id)
), known AS (
    SELECT h.channel, h.handle, h.person_id
    FROM person_handles h JOIN given g ON h.channel = g.channel AND h.handle = g.handle
    ORDER BY h.channel, h.handle FOR SHARE OF h
), claimed AS (
    INSERT INTO person_handles (tenant_id, channel, handle, given, contact, person_id)
    SELECT pal.tenant(), g.channel, g.handle, g.given, g.contact, g.new_id FROM given g
    WHERE NOT EXISTS (SELECT FROM known k WHERE k.channel = g.channel AND k.handle = g.handle)
    ORDER BY g.channel COLLATE "C", g.handle COLLATE "C"
    ON CONFLICT (tenant_id, channel, handle) DO UPDATE SET handle = excluded.handle
    RETURNING channel, handle, person_id
), made AS (
    INSERT INTO people (id, tenant_id, name, name_key)
    SELECT g.new_id, pal.tenant(), g.name, g.name_key
    FROM claimed c JOIN given g ON g.new_id = c.person_id
), nameless AS (
    SELECT p.id FROM people p
    WHERE p.name IS NULL AND p.id IN (
        SELECT k.person_id FROM known k JOIN given g USING (channel, handle)
        WHERE g.name IS NOT NULL)
    ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED
), named AS (
    UPDATE people p SET name = g.name, name_key = g.name_key, updated_at = now()
    FROM nameless n, known k, given g
    WHERE p.id = n.id AND k.person_id = n.id AND g.channel = k.channel AND g.handle = k.handle
      AND g.name IS NOT NULL
)
SELECT channel, handle, person_id FROM known
UNION ALL SELECT channel, handle, person_id FROM claimed

-- insert_person --
INSERT INTO people (id, tenant_id, name, name_key, metadata)
VALUES (%(id)s, pal.tenant(), %(name)s, %(name_key)s, %(metadata)s)

-- claim_handles --
-- Whose each handle is now: the given person's, or someone else's who had it before.
INSERT INTO person_handles (tenant_id, channel, handle, given, contact, person_id)
SELECT pal.tenant(), channel, handle, given, contact, %(person_id)s
FROM unnest(%(channels)s::text[], %(handles)s::text[], %(givens)s::text[], %(contacts)s::text[])
    AS g (channel, handle, given, contact)
ORDER BY channel COLLATE "C", handle COLLATE "C"
ON CONFLICT (tenant_id, channel, handle) DO UPDATE SET handle = excluded.handle
RETURNING channel, handle, person_id

-- touch_person --
UPDATE people SET updated_at = now() WHERE id = %(id)s

-- read_people --
SELECT p.id, p.name, p.metadata, p.created_at, p.updated_at,
       (SELECT json_agg(json_build_object('channel', h.channel, 'handle', h.handle,
                                          'as_given', h.given) ORDER BY h.channel, h.handle)
        FROM person_handles h WHERE h.tenant_id = p.tenant_id AND h.person_id = p.id)
FROM people p WHERE p.id = ANY (%(ids)s)
ORDER BY p.id

-- list_people --
-- Newest first.
SELECT p.id, p.name, p.metadata, p.created_at, p.updated_at,
       (SELECT json_agg(json_build_object('channel', h.channel, 'handle', h.handle,
                                          'as_given', h.given) ORDER BY h.channel, h.handle)
        FROM person_handles h WHERE h.tenant_id = p.tenant_id AND h.person_id = p.id)
FROM people p
WHERE p.tenant_id = pal.tenant() AND p.merged_into IS NULL
  AND (%(before)s::text IS NULL OR p.id < %(before)s)
  AND (%(name_like)s::text IS NULL OR p.name_key LIKE %(name_like)s OR EXISTS (
      SELECT FROM person_handles h WHERE h.tenant_id = p.tenant_id AND h.person_id = p.id
        AND lower(h.handle) LIKE %(handle_like)s))
  AND (%(channel)s::text IS NULL OR EXISTS (
      SELECT FROM person_handles h WHERE h.tenant_id = p.tenant_id AND h.person_id = p.id
        AND h.channel = %(channel)s AND (%(handle)s::text IS NULL OR h.handle = %(handle)s)))
ORDER BY p.id DESC LIMIT %(most)s

-- survivors --
-- Who each of these is by now.
SELECT id, coalesce(merged_into, id) FROM people WHERE id = ANY (%(ids)s)

-- lock_people --
-- Whoever writes by a person's id does this first, so that a merge cannot pass between. Without those
-- who were merged into them: who locks the same person twice would lock one who came in between out
-- of order.
WITH held AS (
    SELECT id, merged_into FROM people WHERE id = ANY (%(ids)s) ORDER BY id FOR NO KEY UPDATE
)
SELECT id FROM held WHERE merged_into IS NULL

-- lock_whole_people --
-- With those who were merged into them, whose redirects a merge changes and who end with them: one
-- that waited for such a row before it was merged holds it from then on.
WITH held AS (
    SELECT id, merged_into FROM people
    WHERE id = ANY (%(ids)s) OR merged_into = ANY (%(ids)s)
    ORDER BY id FOR NO KEY UPDATE
)
SELECT id, merged_into IS NULL FROM held

-- redirects --
SELECT id FROM people WHERE merged_into = ANY (%(ids)s)

-- wait_for_merges --
-- Merges of a tenant go one after another: each would otherwise hold what another is to redirect.
SELECT pg_advisory_xact_lock(hashtextextended('merge ' || pal.tenant(), 0))

-- move_handles --
WITH own AS (
    SELECT channel, handle FROM person_handles WHERE person_id = %(source)s
    ORDER BY channel, handle FOR NO KEY UPDATE
)
UPDATE person_handles h SET person_id = %(target)s
FROM own WHERE h.channel = own.channel AND h.handle = own.handle

-- move_sessions --
-- Before the events: a turn that ends holds its session's row while it writes its event.
WITH own AS (
    SELECT id FROM sessions WHERE person_id = %(source)s ORDER BY id FOR NO KEY UPDATE
)
UPDATE sessions s SET person_id = %(target)s FROM own WHERE s.id = own.id

-- move_events --
UPDATE memory_events SET person_id = %(target)s WHERE person_id = %(source)s

-- settle_facts --
-- Of two that are active on one topic, theirs or of a friend whom both told of in private, the
-- lesser is superseded by the other, as `settle` of supersession.py has it.
WITH pairs AS (
    SELECT s.id AS source, t.id AS target
    FROM memory_distillates s JOIN memory_distillates t
        ON t.tenant_id = s.tenant_id AND t.person_id = %(target)s AND t.topic_key = s.topic_key
    WHERE s.person_id = %(source)s AND s.superseded_by IS NULL AND t.superseded_by IS NULL
    UNION ALL
    SELECT s.id, t.id
    FROM memory_distillates s JOIN memory_distillates t
        ON t.tenant_id = s.tenant_id AND t.said_by = %(target)s AND t.person_id IS NULL
       AND t.topic_key = replace(s.topic_key, E'\x1f' || %(source)s, E'\x1f' || %(target)s)
    WHERE s.said_by = %(source)s AND s.person_id IS NULL AND s.topic_key <> t.topic_key
      AND s.superseded_by IS NULL AND t.superseded_by IS NULL
), both_of AS (
    SELECT p.source, p.target,
           (array_position('{inferred,observed,stated}', replace(s.origin, 'promoted', 'observed')),
            s.said_at)
         > (array_position('{inferred,observed,stated}', replace(t.origin, 'promoted', 'observed')),
            t.said_at) AS source_stands
    FROM pairs p JOIN memory_distillates s ON s.tenant_id = pal.tenant() AND s.id = p.source
    JOIN memory_distillates t ON t.tenant_id = pal.tenant() AND t.id = p.target
), lesser AS MATERIALIZED (
    SELECT CASE WHEN source_stands THEN target ELSE source END AS id,
           CASE WHEN source_stands THEN source ELSE target END AS successor
    FROM both_of
), held AS (
    -- joined, as `lock_rows` of facts.sql does
    SELECT d.id FROM lesser l JOIN memory_distillates d
        ON d.tenant_id = pal.tenant() AND d.id = l.id
    ORDER BY d.id FOR NO KEY UPDATE OF d
)
UPDATE memory_distillates d SET superseded_by = l.successor, superseded_at = now()
FROM held JOIN lesser l USING (id) WHERE d.id = held.id

-- told_of_no_one --
SELECT FROM memory_distillates WHERE said_by = %(source)s AND person_id IS NULL LIMIT 1

-- move_facts --
-- Whose friend someone is who is not known stands in the key of their topics.
WITH held AS (
    SELECT id FROM memory_distillates WHERE person_id = %(source)s OR said_by = %(source)s
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE memory_distillates d SET
    person_id = CASE d.person_id WHEN %(source)s THEN %(target)s ELSE d.person_id END,
    said_by = CASE d.said_by WHEN %(source)s THEN %(target)s ELSE d.said_by END,
    topic_key = CASE WHEN d.person_id IS NULL
        THEN replace(d.topic_key, E'\x1f' || %(source)s, E'\x1f' || %(target)s)
        ELSE d.topic_key END
FROM held WHERE d.id = held.id

-- move_forgotten --
UPDATE memory_forgotten SET
    person_id = CASE person_id WHEN %(source)s THEN %(target)s ELSE person_id END,
    topic_key = replace(topic_key, E'\x1f' || %(source)s, E'\x1f' || %(target)s)
WHERE person_id = %(source)s
   OR (person_id IS NULL AND strpos(topic_key, E'\x1f' || %(source)s) > 0)

-- move_episodes --
WITH held AS (
    SELECT id FROM memory_episodes WHERE tenant_id = pal.tenant() AND person_id = %(source)s
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE memory_episodes e SET person_id = %(target)s
FROM held WHERE e.tenant_id = pal.tenant() AND e.id = held.id

-- move_candidates --
WITH held AS (
    SELECT id FROM memory_candidates WHERE tenant_id = pal.tenant() AND person_id = %(source)s
    ORDER BY id FOR NO KEY UPDATE
)
UPDATE memory_candidates c SET person_id = %(target)s
FROM held WHERE c.tenant_id = pal.tenant() AND c.id = held.id

-- join_narratives --
-- The survivor's first. As lines they may be too many together: they are cut off when they are read.
WITH gone AS (
    DELETE FROM memory_narratives WHERE person_id = %(source)s
    RETURNING id, tenant_id, lines, created_at
)
INSERT INTO memory_narratives AS n (id, tenant_id, person_id, lines, created_at)
SELECT id, tenant_id, %(target)s, lines, created_at FROM gone
ON CONFLICT (tenant_id, person_id) WHERE person_id IS NOT NULL DO UPDATE SET
    lines = n.lines || excluded.lines, updated_at = now()

-- renew_narrative --
-- No model has seen all of it.
UPDATE memory_narratives SET
    version = version + 1, told_at = NULL, stale_at = coalesce(stale_at, now())
WHERE person_id = %(target)s

-- redirect --
-- With those who had been merged into this one, so that a redirect is one step, always.
UPDATE people SET merged_into = %(target)s, updated_at = now()
WHERE id = %(source)s OR merged_into = %(source)s

-- inherit --
-- The survivor's own name and metadata stand before the other's.
UPDATE people t SET
    name = coalesce(t.name, s.name),
    name_key = CASE WHEN t.name IS NULL THEN s.name_key ELSE t.name_key END,
    metadata = coalesce(s.metadata || t.metadata, t.metadata, s.metadata),
    updated_at = now()
FROM people s WHERE t.id = %(target)s AND s.id = %(source)s

-- duplicates --
SELECT reason, value, ids[1:%(each)s] FROM (
    SELECT CASE WHEN contact LIKE '+%%' THEN 'phone' ELSE 'email' END AS reason, contact AS value,
           array_agg(DISTINCT person_id) AS ids
    FROM person_handles WHERE tenant_id = pal.tenant() AND contact IS NOT NULL
    GROUP BY contact HAVING count(DISTINCT person_id) > 1
    UNION ALL
    SELECT 'name', name_key, array_agg(id ORDER BY id)
    FROM people
    WHERE tenant_id = pal.tenant() AND merged_into IS NULL AND name_key IS NOT NULL
    GROUP BY name_key HAVING count(*) > 1
) AS same
ORDER BY reason = 'name', value LIMIT %(most)s
