-- read_scoped --
-- All that is known of a person, or in a group; the newest, if it is more than any scope should be.
SELECT d.id, d.topic, d.content, d.confidence, d.said_at, d.person_id, d.source_kind, d.session_id,
       d.event_id, p.name
FROM memory_distillates d
LEFT JOIN people p ON p.tenant_id = d.tenant_id AND p.id = d.person_id
WHERE d.tenant_id = pal.tenant() AND d.superseded_by IS NULL
  AND (%(person)s::text IS NULL OR d.person_id = %(person)s)
  AND (%(group)s::text IS NULL OR d.group_id = %(group)s)
  AND (%(since)s::timestamptz IS NULL OR d.said_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR d.said_at < %(until)s)
ORDER BY d.said_at DESC, d.id LIMIT %(most)s

-- find_facts --
SELECT part, id FROM pal.find_facts(%(words)s::text[], %(parts)s::integer[], %(cap)s)

-- find_like --
-- Of the tenant's newest facts, those with something like one of these words, the likest first.
WITH newest AS MATERIALIZED (
    SELECT d.id, d.topic || ' ' || d.content AS told FROM memory_distillates d
    WHERE d.tenant_id = pal.tenant() AND d.superseded_by IS NULL
    ORDER BY d.said_at DESC LIMIT %(most)s
)
SELECT l.id, w.part FROM unnest(%(spelt)s::text[]) WITH ORDINALITY AS w (word, part)
CROSS JOIN LATERAL (
    SELECT id FROM (SELECT n.id, word_similarity(w.word, n.told) AS likeness FROM newest n) AS s
    WHERE likeness >= 0.5 ORDER BY likeness DESC, id LIMIT 50
) AS l

-- near_facts --
SELECT v.distillate_id, -(v.vec <#> %(vector)s::halfvec(256)) AS cosine
FROM memory_distillate_vectors v
JOIN memory_distillates d ON d.tenant_id = v.tenant_id AND d.id = v.distillate_id
WHERE v.tenant_id = pal.tenant() AND v.model = %(model)s AND d.superseded_by IS NULL
  AND (%(person)s::text IS NULL OR d.person_id = %(person)s)
  AND (%(group)s::text IS NULL OR d.group_id = %(group)s)
  AND (%(since)s::timestamptz IS NULL OR d.said_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR d.said_at < %(until)s)
ORDER BY cosine DESC LIMIT %(most)s

-- read_facts --
SELECT d.id, d.topic, d.content, d.confidence, d.said_at, d.person_id, d.source_kind, d.session_id,
       d.event_id, p.name
FROM memory_distillates d
LEFT JOIN people p ON p.tenant_id = d.tenant_id AND p.id = d.person_id
WHERE d.tenant_id = pal.tenant() AND d.superseded_by IS NULL AND d.id = ANY (%(ids)s)
  AND (%(since)s::timestamptz IS NULL OR d.said_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR d.said_at < %(until)s)

-- words_of --
SELECT d.id, pal.lexemes(d.topic || ' ' || d.content)
FROM memory_distillates d WHERE d.tenant_id = pal.tenant() AND d.id = ANY (%(ids)s)
