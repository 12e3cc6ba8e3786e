-- insert_events --
-- Ids ascend with the batch, rows are written in the order of their keys: two batches that hold the
-- same events wait for one another, and not each for the other.
INSERT INTO memory_events (id, tenant_id, occurred_at, channel, kind, direction, external_id, once,
                           group_id, person_id, content, metadata)
SELECT id, pal.tenant(), occurred_at, channel, kind, direction, external_id, once, group_id,
       person_id, content, metadata
FROM unnest(%(ids)s::text[], %(occurred)s::timestamptz[], %(channels)s::text[], %(kinds)s::text[],
            %(directions)s::text[], %(external_ids)s::text[], %(once)s::bytea[],
            %(groups)s::text[], %(people)s::text[], %(contents)s::text[], %(metadata)s::jsonb[])
    AS g (id, occurred_at, channel, kind, direction, external_id, once, group_id, person_id,
          content, metadata)
ORDER BY once, id
ON CONFLICT (tenant_id, once) WHERE once IS NOT NULL DO NOTHING
RETURNING id
