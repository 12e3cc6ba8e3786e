-- hold_group --
-- One writer at a time of what is a group's, where there is no person to lock.
SELECT pg_advisory_xact_lock(hashtextextended('episodes ' || pal.tenant() || ' ' || %(group_id)s, 0))

-- known_episodes --
-- Those of the same group, or of the same person outside of groups, that say one of these.
SELECT content_key, id FROM memory_episodes
WHERE tenant_id = pal.tenant() AND content_key = ANY (%(keys)s::bytea[])
  AND CASE WHEN %(group_id)s::text IS NOT NULL THEN group_id = %(group_id)s
           WHEN %(person_id)s::text IS NOT NULL THEN person_id = %(person_id)s AND group_id IS NULL
           ELSE session_id = %(session_id)s END

-- forgotten --
-- As in facts.sql: what was said before it was forgotten does not come back.
SELECT g.key FROM unnest(%(keys)s::bytea[], %(times)s::timestamptz[]) AS g (key, occurred_at)
WHERE EXISTS (
    SELECT FROM memory_forgotten t
    WHERE t.tenant_id = pal.tenant() AND g.key = ANY (t.contents)
      AND g.occurred_at <= t.forgotten_at
      AND (t.person_id = %(person_id)s
           OR t.person_id IS NULL AND coalesce(t.group_id, '') = coalesce(%(group_id)s, ''))
)

-- insert_episodes --
INSERT INTO memory_episodes (id, tenant_id, session_id, person_id, group_id, kind, content,
                             content_key, sources, node, occurred_at, created_at)
SELECT g.id, pal.tenant(), %(session_id)s, %(person_id)s, %(group_id)s, g.kind, g.content, g.key,
       string_to_array(g.sources, ' '), g.node, g.occurred_at, %(now)s
FROM unnest(%(ids)s::text[], %(kinds)s::text[], %(contents)s::text[], %(keys)s::bytea[],
            %(sources)s::text[], %(nodes)s::integer[], %(times)s::timestamptz[])
    AS g (id, kind, content, key, sources, node, occurred_at)

-- renew_episodes --
UPDATE memory_episodes e SET occurred_at = g.occurred_at
FROM unnest(%(ids)s::text[], %(times)s::timestamptz[]) AS g (id, occurred_at)
WHERE e.tenant_id = pal.tenant() AND e.id = g.id AND e.occurred_at < g.occurred_at

-- session_episodes --
-- The newest that may be told in a session: in a group the group's, else its person's own.
SELECT id, kind, content, occurred_at, session_id, content_key FROM memory_episodes
WHERE tenant_id = pal.tenant()
  AND CASE WHEN %(group_id)s::text IS NOT NULL THEN group_id = %(group_id)s
           ELSE person_id = %(person_id)s AND group_id IS NULL END
ORDER BY occurred_at DESC, id DESC LIMIT %(most)s

-- list_episodes --
-- The newest first. The session's person is told of also in a group.
SELECT id, kind, content, occurred_at, session_id, person_id, group_id, sources
FROM memory_episodes
WHERE tenant_id = pal.tenant()
  AND (%(person_id)s::text IS NULL OR person_id = %(person_id)s)
  AND (%(group_id)s::text IS NULL OR group_id = %(group_id)s)
  AND (%(kind)s::text IS NULL OR kind = %(kind)s)
  AND (%(occurred)s::timestamptz IS NULL OR (occurred_at, id) < (%(occurred)s, %(id)s::text))
ORDER BY occurred_at DESC, id DESC LIMIT %(most)s

-- owner_of --
SELECT person_id, group_id FROM memory_episodes WHERE tenant_id = pal.tenant() AND id = %(id)s

-- forget_episode --
-- What another session of theirs, not ended yet, has come to before this does not bring it back;
-- nor does what waits for approval. The key is one that no fact's topic has.
WITH gone AS (
    DELETE FROM memory_episodes WHERE tenant_id = pal.tenant() AND id = %(id)s
    RETURNING id, tenant_id, person_id, group_id, content_key
), marked AS (
    INSERT INTO memory_forgotten (id, tenant_id, person_id, group_id, topic_key, contents,
                                  forgotten_at)
    SELECT id, tenant_id, CASE WHEN group_id IS NULL THEN person_id END, group_id, E'episode\x1f',
           ARRAY[content_key], clock_timestamp()
    FROM gone WHERE person_id IS NOT NULL OR group_id IS NOT NULL
), unasked AS (
    DELETE FROM memory_candidates c USING gone
    WHERE c.tenant_id = gone.tenant_id AND c.tier = 'episodic' AND c.status = 'pending'
      AND c.content_key = gone.content_key
      AND CASE WHEN gone.group_id IS NOT NULL THEN c.group_id = gone.group_id
               ELSE c.group_id IS NULL AND c.person_id = gone.person_id END
)
SELECT count(*) FROM gone
