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

-- count_period --
SELECT count(*) FROM (
    SELECT FROM memory_index m WHERE m.tenant_id = pal.tenant()
      AND (%(since)s::timestamptz IS NULL OR m.occurred_at >= %(since)s)
      AND (%(until)s::timestamptz IS NULL OR m.occurred_at < %(until)s)
    LIMIT %(rows)s
) AS counted

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

-- near_scope --
-- In a group, or in a time. The vectors are looked up row by row: of a join, the planner makes a reading of all the tenant's
-- for each row of the scope, on a table that it knows nothing of yet.
WITH near AS (
    SELECT m.stream, m.place, m.occurred_at, v.vec <#> %(vector)s::halfvec(256) AS away
    FROM memory_index m CROSS JOIN LATERAL (
        SELECT o.model, o.vec FROM memory_vectors o
        WHERE o.tenant_id = pal.tenant() AND o.event_id = m.event_id OFFSET 0
    ) v
    WHERE m.tenant_id = pal.tenant() AND v.model = %(model)s
      AND (%(group)s::text IS NULL OR m.group_id = %(group)s)
      AND (%(since)s::timestamptz IS NULL OR m.occurred_at >= %(since)s)
      AND (%(until)s::timestamptz IS NULL OR m.occurred_at < %(until)s)
      AND (%(person)s::text IS NULL OR EXISTS (
          SELECT FROM memory_events e WHERE e.tenant_id = pal.tenant() AND e.id = m.event_id
            AND e.person_id = %(person)s))
    ORDER BY away LIMIT %(most)s
)
SELECT stream, place, extract(epoch FROM occurred_at)::bigint, -away FROM near

-- near_person --
WITH near AS (
    SELECT e.id, v.vec <#> %(vector)s::halfvec(256) AS away
    FROM memory_events e CROSS JOIN LATERAL (
        SELECT o.model, o.vec FROM memory_vectors o
        WHERE o.tenant_id = pal.tenant() AND o.event_id = e.id OFFSET 0
    ) v
    WHERE e.tenant_id = pal.tenant() AND e.person_id = %(person)s AND v.model = %(model)s
      AND (%(since)s::timestamptz IS NULL OR e.occurred_at >= %(since)s)
      AND (%(until)s::timestamptz IS NULL OR e.occurred_at < %(until)s)
    ORDER BY away LIMIT %(most)s
)
SELECT m.stream, m.place, extract(epoch FROM m.occurred_at)::bigint, -near.away
FROM near CROSS JOIN LATERAL (
    SELECT i.stream, i.place, i.occurred_at FROM memory_index i
    WHERE i.tenant_id = pal.tenant() AND i.event_id = near.id OFFSET 0
) m
