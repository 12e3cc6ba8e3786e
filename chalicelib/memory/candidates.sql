-- hold_group --
-- One writer at a time of what is proposed of a group, where there is no person to lock.
SELECT pg_advisory_xact_lock(hashtextextended('candidates ' || pal.tenant() || ' ' || %(group_id)s, 0))

-- propose --
-- Each but what waits already, or was denied, of the same person or group: how many are new, and how
-- many were denied before.
WITH given AS (
    SELECT * FROM unnest(%(ids)s::text[], %(people)s::text[], %(groups)s::text[],
                         %(sessions)s::text[], %(contents)s::text[], %(keys)s::bytea[],
                         %(proposals)s::jsonb[])
        AS g (id, person_id, group_id, session_id, content, content_key, proposal)
), known AS (
    SELECT g.id, bool_or(c.status = 'denied') AS denied
    FROM given g JOIN memory_candidates c
        ON c.tenant_id = pal.tenant() AND c.content_key = g.content_key AND c.tier = %(tier)s
       AND c.status <> 'approved'
       AND CASE WHEN %(tier)s = 'semantic' AND g.person_id IS NOT NULL
                THEN c.person_id = g.person_id
                WHEN g.group_id IS NOT NULL THEN c.group_id = g.group_id
                     AND (%(tier)s = 'episodic' OR c.person_id IS NULL)
                ELSE c.group_id IS NULL AND c.person_id IS NOT DISTINCT FROM g.person_id
                     -- of no one known, what a session comes to is that session's
                     AND (%(tier)s = 'semantic' OR g.person_id IS NOT NULL
                          OR c.session_id = g.session_id) END
    GROUP BY g.id
), fresh AS (
    INSERT INTO memory_candidates (id, tenant_id, tier, person_id, group_id, session_id, content,
                                   content_key, proposal)
    SELECT id, pal.tenant(), %(tier)s, person_id, group_id, session_id, content, content_key,
           proposal
    FROM given WHERE id NOT IN (SELECT id FROM known)
    RETURNING id
)
SELECT (SELECT count(*) FROM fresh), (SELECT count(*) FROM known WHERE denied)

-- read_candidates --
SELECT id, tier, person_id, group_id, session_id, content, proposal, status, memory_id
FROM memory_candidates WHERE id = ANY (%(ids)s) ORDER BY id

-- hold_sessions --
-- Before the candidates: a session that is deleted takes its candidates along.
SELECT id FROM sessions WHERE id = ANY (%(ids)s) ORDER BY id FOR KEY SHARE

-- lock_candidates --
SELECT id, tier, person_id, group_id, session_id, content, proposal, status, memory_id
FROM memory_candidates WHERE id = ANY (%(ids)s) ORDER BY id FOR UPDATE

-- events_there --
SELECT id FROM memory_events WHERE id = ANY (%(ids)s)

-- close_candidates --
-- Without their words: what was approved is told by the memory that came of it, and forgotten with
-- that; what was denied is told by no one.
UPDATE memory_candidates c SET
    status = %(status)s, memory_id = g.memory_id, key_id = %(key_id)s, content = NULL,
    proposal = NULL, decided_at = now()
FROM unnest(%(ids)s::text[], %(memories)s::text[]) AS g (id, memory_id)
WHERE c.id = g.id

-- withdraw --
-- What waits of the topics or the contents of these facts: approved, it would not come back.
WITH gone AS (
    SELECT person_id, group_id, topic_key FROM memory_distillates
    WHERE tenant_id = pal.tenant() AND id = ANY (%(ids)s)
)
DELETE FROM memory_candidates c
WHERE c.tenant_id = pal.tenant() AND c.tier = 'semantic' AND c.status = 'pending'
  AND EXISTS (
      SELECT FROM gone g
      WHERE c.person_id IS NOT DISTINCT FROM g.person_id
        AND (g.person_id IS NOT NULL OR c.group_id IS NOT DISTINCT FROM g.group_id)
        AND (c.proposal ->> 'topic_key' = g.topic_key OR c.content_key = ANY (%(keys)s::bytea[])))

-- list_candidates --
-- The newest first; of approved ones what the memory says that came of them.
SELECT c.id, c.tier, c.person_id, c.group_id, c.session_id, c.status, c.created_at, c.decided_at,
       c.memory_id, c.proposal,
       coalesce(c.content, d.content, e.content),
       d.topic, d.origin, d.source_kind, d.session_id, d.event_id, e.kind
FROM memory_candidates c
LEFT JOIN memory_distillates d
    ON c.tier = 'semantic' AND d.tenant_id = c.tenant_id AND d.id = c.memory_id
LEFT JOIN memory_episodes e
    ON c.tier = 'episodic' AND e.tenant_id = c.tenant_id AND e.id = c.memory_id
WHERE c.tenant_id = pal.tenant()
  AND (%(status)s::text IS NULL OR c.status = %(status)s)
  AND (%(person_id)s::text IS NULL OR c.person_id = %(person_id)s)
  AND (%(before)s::text IS NULL OR c.id < %(before)s)
ORDER BY c.id DESC LIMIT %(most)s
