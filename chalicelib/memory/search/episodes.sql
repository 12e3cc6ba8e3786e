-- read_words --
SELECT pal.lexemes(%(text)s)

-- count_rows --
-- So many and no more: what it is for, a logarithm hardly tells apart.
SELECT count(*) FROM (
    SELECT FROM memory_index WHERE tenant_id = pal.tenant() LIMIT %(most)s
) AS counted

-- read_scope --
-- Of the newest rows of a group, or of the tenant: how many they are, and which hold which term. The
-- operators that an index on the words would take are not leakproof; the tenant and the group are
-- compared by ones that are.
WITH scope AS MATERIALIZED (
    SELECT m.stream, m.place, m.occurred_at, m.keys FROM memory_index m
    WHERE m.tenant_id = pal.tenant() AND (%(group)s::text IS NULL OR m.group_id = %(group)s)
      AND (%(since)s::timestamptz IS NULL OR m.occurred_at >= %(since)s)
      AND (%(until)s::timestamptz IS NULL OR m.occurred_at < %(until)s)
      AND (%(person)s::text IS NULL OR EXISTS (
          SELECT FROM memory_events e WHERE e.tenant_id = pal.tenant() AND e.id = m.event_id
            AND e.person_id = %(person)s))
    ORDER BY m.occurred_at DESC LIMIT %(most)s
), wanted AS (
    SELECT pal.word_key(pal.tenant(), w) AS key, p AS part
    FROM unnest(%(words)s::text[], %(parts)s::integer[]) AS g (w, p)
)
SELECT counted.rows, held.part, held.stream, held.place, held.at
FROM (SELECT count(*) AS rows FROM scope) AS counted LEFT JOIN (
    SELECT DISTINCT w.part, s.stream, s.place, extract(epoch FROM s.occurred_at)::bigint AS at
    FROM scope s, unnest(s.keys) AS k JOIN wanted w ON w.key = k
) AS held ON true

-- read_person --
WITH scope AS MATERIALIZED (
    SELECT m.stream, m.place, m.occurred_at, m.keys
    FROM memory_events e JOIN memory_index m ON m.tenant_id = e.tenant_id AND m.event_id = e.id
    WHERE e.tenant_id = pal.tenant() AND e.person_id = %(person)s
      AND (%(since)s::timestamptz IS NULL OR e.occurred_at >= %(since)s)
      AND (%(until)s::timestamptz IS NULL OR e.occurred_at < %(until)s)
    LIMIT %(most)s
), wanted AS (
    SELECT pal.word_key(pal.tenant(), w) AS key, p AS part
    FROM unnest(%(words)s::text[], %(parts)s::integer[]) AS g (w, p)
)
SELECT counted.rows, held.part, held.stream, held.place, held.at
FROM (SELECT count(*) AS rows FROM scope) AS counted LEFT JOIN (
    SELECT DISTINCT w.part, s.stream, s.place, extract(epoch FROM s.occurred_at)::bigint AS at
    FROM scope s, unnest(s.keys) AS k JOIN wanted w ON w.key = k
) AS held ON true

-- find_words --
SELECT part, stream, place, at FROM pal.find_words(%(words)s::text[], %(parts)s::integer[],
    %(cap)s, %(group)s, %(person)s, %(since)s::timestamptz, %(until)s::timestamptz)

-- find_both --
SELECT one, other, stream, place, at FROM pal.find_both(%(words)s::text[], %(parts)s::integer[],
    %(cap)s, %(group)s, %(person)s, %(since)s::timestamptz, %(until)s::timestamptz)

-- read_around --
-- Which of the common terms stand around these places.
WITH wanted AS (
    SELECT pal.word_key(pal.tenant(), w) AS key, p AS part
    FROM unnest(%(words)s::text[], %(parts)s::integer[]) AS g (w, p)
)
SELECT DISTINCT w.part, m.stream, m.place, extract(epoch FROM m.occurred_at)::bigint
FROM unnest(%(streams)s::bigint[], %(places)s::integer[]) AS c (stream, place)
CROSS JOIN LATERAL (
    SELECT i.stream, i.place, i.occurred_at, i.keys FROM memory_index i
    WHERE i.stream = c.stream AND i.place BETWEEN c.place - 3 AND c.place + 2
    OFFSET 0  -- or the planner reads the tenant as a whole
) m
CROSS JOIN unnest(m.keys) AS k JOIN wanted w ON w.key = k

-- read_candidates --
SELECT m.event_id, m.stream, m.place, m.asks, p.name
FROM unnest(%(streams)s::bigint[], %(places)s::integer[]) AS c (stream, place)
CROSS JOIN LATERAL (
    SELECT i.event_id, i.stream, i.place, i.asks, i.group_id, i.occurred_at FROM memory_index i
    WHERE i.stream = c.stream AND i.place = c.place OFFSET 0
) m
CROSS JOIN LATERAL (
    SELECT v.person_id FROM memory_events v
    WHERE v.tenant_id = pal.tenant() AND v.id = m.event_id OFFSET 0
) e
LEFT JOIN people p ON p.tenant_id = pal.tenant() AND p.id = e.person_id
WHERE (%(group)s::text IS NULL OR m.group_id = %(group)s)
  AND (%(person)s::text IS NULL OR e.person_id = %(person)s)
  AND (%(since)s::timestamptz IS NULL OR m.occurred_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR m.occurred_at < %(until)s)

-- read_events --
SELECT id, content, occurred_at, person_id, session_id, external_id
FROM memory_events WHERE tenant_id = pal.tenant() AND id = ANY (%(ids)s)

-- find_misspelt --
-- Of the newest rows in scope, those with something like one of these words at their beginning, or
-- of someone who is called like it.
WITH newest AS MATERIALIZED (
    (SELECT m.event_id FROM memory_index m
     WHERE m.tenant_id = pal.tenant() AND %(person)s::text IS NULL
       AND (%(group)s::text IS NULL OR m.group_id = %(group)s)
       AND (%(since)s::timestamptz IS NULL OR m.occurred_at >= %(since)s)
       AND (%(until)s::timestamptz IS NULL OR m.occurred_at < %(until)s)
     ORDER BY m.occurred_at DESC LIMIT %(most)s)
    UNION ALL
    (SELECT e.id FROM memory_events e
     WHERE e.tenant_id = pal.tenant() AND e.person_id = %(person)s
       AND (%(group)s::text IS NULL OR e.group_id = %(group)s)
       AND (%(since)s::timestamptz IS NULL OR e.occurred_at >= %(since)s)
       AND (%(until)s::timestamptz IS NULL OR e.occurred_at < %(until)s)
     ORDER BY e.occurred_at DESC LIMIT %(most)s)
), called AS (
    SELECT id FROM (
        SELECT p.id, (SELECT max(word_similarity(w, p.name_key)) FROM unnest(%(spelt)s::text[]) w) AS likeness
        FROM (SELECT id, name_key FROM people
              WHERE tenant_id = pal.tenant() AND merged_into IS NULL AND name_key IS NOT NULL
              ORDER BY id DESC LIMIT %(people)s) p
    ) AS s
    WHERE likeness >= 0.5 ORDER BY likeness DESC, id LIMIT 5
)
SELECT e.id,
       (SELECT max(word_similarity(w, lower(left(e.content, %(characters)s))))
        FROM unnest(%(spelt)s::text[]) w) AS likeness,
       e.person_id IN (SELECT id FROM called) AS named
FROM newest n CROSS JOIN LATERAL (
    SELECT v.id, v.content, v.person_id, v.occurred_at FROM memory_events v
    WHERE v.tenant_id = pal.tenant() AND v.id = n.event_id OFFSET 0
) e
ORDER BY likeness DESC, e.occurred_at DESC, e.id LIMIT %(limit)s
