-- told_of --
-- Whom the person told something of in private; NULL where it was no one in particular.
SELECT DISTINCT person_id FROM memory_distillates
WHERE said_by = %(person)s AND group_id IS NULL

-- hold_facts --
-- All at first, in everyone's order: whatever is deleted locks narratives at once. With those that
-- `mend_chains` mends.
SELECT FROM memory_distillates
WHERE tenant_id = pal.tenant() AND id IN (
    SELECT id FROM memory_distillates WHERE person_id = %(person)s OR said_by = %(person)s
    UNION ALL
    SELECT d.id FROM memory_distillates g JOIN memory_distillates d
        ON d.tenant_id = pal.tenant() AND d.superseded_by = g.id
    WHERE g.person_id = %(person)s OR g.said_by = %(person)s)
ORDER BY id FOR UPDATE

-- hold_episodes --
SELECT FROM memory_episodes WHERE tenant_id = pal.tenant() AND person_id = %(person)s
ORDER BY id FOR UPDATE

-- hold_candidates --
SELECT FROM memory_candidates c
WHERE c.tenant_id = pal.tenant()
  AND (c.person_id = %(person)s OR c.proposal ->> 'said_by' IN (
           SELECT id FROM people WHERE id = %(person)s OR merged_into = %(person)s))
ORDER BY c.id FOR UPDATE

-- hold_narratives --
-- Those that the triggers of both deletions will lock.
WITH gone AS (
    SELECT person_id, said_by, group_id FROM memory_distillates
    WHERE tenant_id = pal.tenant()
      AND (person_id = %(person)s OR said_by = %(person)s AND group_id IS NULL)
    UNION ALL
    SELECT person_id, NULL, group_id FROM memory_episodes
    WHERE tenant_id = pal.tenant() AND person_id = %(person)s
), wanted AS MATERIALIZED (
    SELECT id FROM memory_narratives
    WHERE tenant_id = pal.tenant() AND person_id IN (
        SELECT person_id FROM gone UNION ALL SELECT said_by FROM gone UNION ALL SELECT %(person)s)
    UNION ALL
    SELECT id FROM memory_narratives
    WHERE tenant_id = pal.tenant() AND group_id IN (SELECT group_id FROM gone)
)
SELECT FROM wanted w JOIN memory_narratives n ON n.tenant_id = pal.tenant() AND n.id = w.id
ORDER BY n.person_id NULLS LAST, n.group_id COLLATE "C" FOR NO KEY UPDATE OF n

-- erase_facts --
-- What is about the person, and what they said in private of others. The rows that these had
-- superseded are mended next, before the foreign key is looked at.
WITH own AS (
    SELECT id FROM memory_distillates
    WHERE person_id = %(person)s OR (said_by = %(person)s AND group_id IS NULL)
    ORDER BY id FOR UPDATE
)
DELETE FROM memory_distillates d USING own WHERE d.id = own.id
RETURNING d.id

-- mend_chains --
-- Rows that had been superseded by what is gone: by the one of their topic that is active, or, where
-- none is left, by the best of them, which is active again. RANK of memory.distill.shapes.
WITH cut AS (
    SELECT id, person_id, coalesce(group_id, '') AS place, topic_key,
           first_value(id) OVER (
               PARTITION BY person_id,
                            CASE WHEN person_id IS NULL THEN coalesce(group_id, '') END, topic_key
               ORDER BY CASE origin WHEN 'stated' THEN 3 WHEN 'inferred' THEN 1 ELSE 2 END DESC,
                        said_at DESC, id DESC) AS best
    FROM memory_distillates WHERE superseded_by = ANY (%(gone)s)
), headed AS (
    SELECT c.id, coalesce(a.id, c.best) AS head
    FROM cut c LEFT JOIN memory_distillates a
        ON a.tenant_id = pal.tenant() AND a.topic_key = c.topic_key AND a.superseded_by IS NULL
       AND a.person_id IS NOT DISTINCT FROM c.person_id
       AND (c.person_id IS NOT NULL OR coalesce(a.group_id, '') = c.place)
)
UPDATE memory_distillates d SET
    superseded_by = nullif(h.head, d.id),
    superseded_at = CASE WHEN h.head <> d.id THEN d.superseded_at END
FROM headed h WHERE d.id = h.id

-- erase_tombstones --
-- Of friends whom the person told of; their own go with them.
DELETE FROM memory_forgotten
WHERE person_id IS NULL AND split_part(topic_key, E'\x1f', 3) = %(person)s

-- unname_facts --
-- What they said where others heard it stays, and no more as theirs.
UPDATE memory_distillates SET said_by = NULL WHERE said_by = %(person)s

-- erase_episodes --
-- In groups too: they go with the sessions, which are theirs.
DELETE FROM memory_episodes WHERE person_id = %(person)s

-- erase_candidates --
-- About the person, and what they said in private of others.
DELETE FROM memory_candidates c
WHERE c.tenant_id = pal.tenant()
  AND (c.person_id = %(person)s OR c.group_id IS NULL AND c.proposal ->> 'said_by' IN (
           SELECT id FROM people WHERE id = %(person)s OR merged_into = %(person)s))

-- unname_candidates --
UPDATE memory_candidates c SET proposal = jsonb_set(proposal, '{said_by}', 'null')
WHERE c.tenant_id = pal.tenant() AND c.proposal ->> 'said_by' IN (
    SELECT id FROM people WHERE id = %(person)s OR merged_into = %(person)s)

-- erase_narrative --
-- Of the narratives of others, what rested on the person's facts and episodes went with those.
DELETE FROM memory_narratives WHERE person_id = %(person)s

-- erase_handles --
-- Who is met by one of them from now on is someone new.
WITH own AS (
    SELECT channel, handle FROM person_handles WHERE person_id = %(person)s
    ORDER BY channel, handle FOR UPDATE
)
DELETE FROM person_handles h USING own WHERE h.channel = own.channel AND h.handle = own.handle

-- erase_answers --
-- Answers that are kept for calls that are made again.
WITH ids AS (
    SELECT id FROM people WHERE id = %(person)s OR merged_into = %(person)s
)
DELETE FROM idempotency_keys
WHERE tenant_id = pal.tenant()
  AND (scope = ANY (%(scopes)s)
       OR scope IN (SELECT 'POST /v1/people/' || id || '/handles' FROM ids))
  AND coalesce(answer->>'person_id', answer->>'id') IN (SELECT id FROM ids)

-- sessions_of --
SELECT id FROM sessions WHERE person_id = %(person)s ORDER BY id LIMIT %(most)s

-- session_left --
SELECT FROM sessions WHERE tenant_id = pal.tenant() AND person_id = %(person)s
LIMIT 1 FOR KEY SHARE

-- event_left --
SELECT FROM memory_events WHERE tenant_id = pal.tenant() AND person_id = %(person)s
LIMIT 1 FOR KEY SHARE

-- erase_events --
DELETE FROM memory_events WHERE id IN (
    SELECT id FROM memory_events WHERE person_id = %(person)s LIMIT %(most)s)

-- erase_person --
-- Those who were merged into them, and what of theirs was forgotten, go with them.
DELETE FROM people WHERE id = %(person)s
