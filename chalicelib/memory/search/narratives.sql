-- owners --
-- Those with the most facts and episodes that hold one of the words: their narratives rest on them.
WITH hits AS (
    SELECT DISTINCT id FROM pal.find_facts(%(words)s::text[], %(parts)s::integer[], %(cap)s)
    UNION
    SELECT DISTINCT id FROM pal.find_episodes(%(words)s::text[], %(parts)s::integer[], %(cap)s)
), owners AS (
    SELECT unnest(ARRAY[d.person_id, d.said_by]) AS person_id, d.group_id FROM memory_distillates d
    WHERE d.tenant_id = pal.tenant() AND d.id IN (SELECT id FROM hits)
    UNION ALL
    SELECT e.person_id, e.group_id FROM memory_episodes e
    WHERE e.tenant_id = pal.tenant() AND e.id IN (SELECT id FROM hits)
)
SELECT person_id, NULL AS group_id, count(*) AS held FROM owners
WHERE person_id IS NOT NULL GROUP BY person_id
UNION ALL
SELECT NULL, group_id, count(*) FROM owners WHERE group_id IS NOT NULL GROUP BY group_id
ORDER BY held DESC, person_id, group_id LIMIT %(most)s

-- words_of --
SELECT pal.lexemes(told) FROM unnest(%(texts)s::text[]) WITH ORDINALITY AS t (told, place)
ORDER BY place
