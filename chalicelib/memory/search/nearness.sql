-- has_vectors --
SELECT to_regclass('pal.memory_vectors') IS NOT NULL

-- near_all --
-- Vectors have the length 1 (or 0, where nothing is said), so that their product is the cosine. The
-- order is by an expression, which no index on the vectors would serve: all are compared.
WITH near AS (
    SELECT v.event_id, (v.vec <#> %(vector)s::halfvec(256)) + 0 AS away
    FROM memory_vectors v
    WHERE v.tenant_id = pal.tenant() AND v.model = %(model)s
    ORDER BY away LIMIT %(most)s
)
SELECT m.stream, m.place, extract(epoch FROM m.occurred_at)::bigint, -near.away
FROM near JOIN memory_index m ON m.tenant_id = pal.tenant() AND m.event_id = near.event_id
WHERE (%(since)s::timestamptz IS NULL OR m.occurred_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR m.occurred_at < %(until)s)

-- near_coarse --
-- By the signs first, 32 bytes a row, then exactly among the nearest of those.
WITH coarse AS (
    SELECT v.event_id,
           v.bits <~> binary_quantize(%(vector)s::halfvec(256))::bit(256) AS away
    FROM memory_vectors v
    WHERE v.tenant_id = pal.tenant() AND v.model = %(model)s
    ORDER BY away LIMIT %(coarse)s
), near AS (
    SELECT v.event_id, v.vec <#> %(vector)s::halfvec(256) AS away
    FROM coarse JOIN memory_vectors v ON v.tenant_id = pal.tenant() AND v.event_id = coarse.event_id
    ORDER BY 2 LIMIT %(most)s
)
SELECT m.stream, m.place, extract(epoch FROM m.occurred_at)::bigint, -near.away
FROM near JOIN memory_index m ON m.tenant_id = pal.tenant() AND m.event_id = near.event_id
WHERE (%(since)s::timestamptz IS NULL OR m.occurred_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR m.occurred_at < %(until)s)

-- near_group --
SELECT m.stream, m.place, extract(epoch FROM m.occurred_at)::bigint,
       -(v.vec <#> %(vector)s::halfvec(256)) AS cosine
FROM memory_index m JOIN memory_vectors v ON v.tenant_id = m.tenant_id AND v.event_id = m.event_id
WHERE m.tenant_id = pal.tenant() AND m.group_id = %(group)s AND v.model = %(model)s
  AND (%(since)s::timestamptz IS NULL OR m.occurred_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR m.occurred_at < %(until)s)
  AND (%(person)s::text IS NULL OR EXISTS (
      SELECT FROM memory_events e WHERE e.tenant_id = pal.tenant() AND e.id = m.event_id
        AND e.person_id = %(person)s))
ORDER BY cosine DESC LIMIT %(most)s

-- near_person --
SELECT m.stream, m.place, extract(epoch FROM m.occurred_at)::bigint,
       -(v.vec <#> %(vector)s::halfvec(256)) AS cosine
FROM memory_events e
JOIN memory_index m ON m.tenant_id = e.tenant_id AND m.event_id = e.id
JOIN memory_vectors v ON v.tenant_id = e.tenant_id AND v.event_id = e.id
WHERE e.tenant_id = pal.tenant() AND e.person_id = %(person)s AND v.model = %(model)s
  AND (%(since)s::timestamptz IS NULL OR m.occurred_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR m.occurred_at < %(until)s)
ORDER BY cosine DESC LIMIT %(most)s
