-- read_scoped --
-- The newest of a group or of a person, whose own they are outside of groups.
SELECT e.id, e.kind, e.content, e.occurred_at, e.session_id, e.person_id, e.group_id, p.name
FROM memory_episodes e
LEFT JOIN people p ON p.tenant_id = e.tenant_id AND p.id = e.person_id
WHERE e.tenant_id = pal.tenant()
  AND (%(group)s::text IS NULL OR e.group_id = %(group)s)
  AND (%(person)s::text IS NULL
       OR e.person_id = %(person)s AND (%(group)s::text IS NOT NULL OR e.group_id IS NULL))
  AND (%(since)s::timestamptz IS NULL OR e.occurred_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR e.occurred_at < %(until)s)
ORDER BY e.occurred_at DESC, e.id DESC LIMIT %(most)s

-- find_episodes --
SELECT part, id FROM pal.find_episodes(%(words)s::text[], %(parts)s::integer[], %(cap)s)

-- read_episodes --
SELECT e.id, e.kind, e.content, e.occurred_at, e.session_id, e.person_id, e.group_id, p.name
FROM memory_episodes e
LEFT JOIN people p ON p.tenant_id = e.tenant_id AND p.id = e.person_id
WHERE e.tenant_id = pal.tenant() AND e.id = ANY (%(ids)s)
  AND (%(since)s::timestamptz IS NULL OR e.occurred_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR e.occurred_at < %(until)s)

-- words_of --
SELECT e.id, pal.lexemes(e.content)
FROM memory_episodes e WHERE e.tenant_id = pal.tenant() AND e.id = ANY (%(ids)s)
