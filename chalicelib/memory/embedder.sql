-- ready --
SELECT to_regtype('halfvec') IS NOT NULL AND to_regclass('pal.memory_vectors') IS NOT NULL

-- due --
SELECT tenant_id FROM pal.tenants_to_embed(%(model)s, %(most)s)

-- begin --
-- Another model's places mean nothing: all is to be done again. What may still be committed counts
-- as new.
INSERT INTO memory_embedded AS s (tenant_id, model, new_tx, old_tx)
SELECT pal.tenant(), %(model)s, x, x FROM pg_snapshot_xmin(pg_current_snapshot()) AS x
ON CONFLICT (tenant_id) DO UPDATE
SET model = excluded.model, new_tx = excluded.new_tx, new_id = '', old_tx = excluded.old_tx,
    old_id = '', fact_id = '', failures = 0
WHERE s.model <> excluded.model

-- note_try --
UPDATE memory_embedded SET tried_at = now(), failures = CASE WHEN %(failed)s THEN failures + 1 ELSE 0 END
WHERE tenant_id = pal.tenant() AND model = %(model)s

-- newer --
-- The next in the order of ingest, and whether each still lacks a vector: looked up for each, since
-- a join may be planned as a reading of all that there are.
SELECT e.ingest_tx::text, e.id, %(model)s IS DISTINCT FROM (
    SELECT v.model FROM memory_vectors v WHERE v.tenant_id = pal.tenant() AND v.event_id = e.id)
FROM (SELECT ingest_tx, id FROM memory_events
      WHERE tenant_id = pal.tenant()
        AND (ingest_tx, id) > ((SELECT new_tx FROM memory_embedded WHERE tenant_id = pal.tenant()),
                               (SELECT new_id FROM memory_embedded WHERE tenant_id = pal.tenant()))
        AND ingest_tx < pg_snapshot_xmin(pg_current_snapshot())
      ORDER BY ingest_tx, id LIMIT %(most)s) e
ORDER BY e.ingest_tx, e.id

-- older --
SELECT e.ingest_tx::text, e.id, %(model)s IS DISTINCT FROM (
    SELECT v.model FROM memory_vectors v WHERE v.tenant_id = pal.tenant() AND v.event_id = e.id)
FROM (SELECT ingest_tx, id FROM memory_events
      WHERE tenant_id = pal.tenant()
        AND (ingest_tx, id) < ((SELECT old_tx FROM memory_embedded WHERE tenant_id = pal.tenant()),
                               (SELECT old_id FROM memory_embedded WHERE tenant_id = pal.tenant()))
      ORDER BY ingest_tx DESC, id DESC LIMIT %(most)s) e
ORDER BY e.ingest_tx DESC, e.id DESC

-- facts --
-- Ids are made a little before their transaction ends: one that is young may come after a younger.
SELECT d.id, d.topic, d.content, %(model)s IS DISTINCT FROM (
           SELECT v.model FROM memory_distillate_vectors v
           WHERE v.tenant_id = pal.tenant() AND v.distillate_id = d.id),
       d.created_at < now() - interval '2 minutes'
FROM (SELECT id, topic, content, created_at FROM memory_distillates
      WHERE tenant_id = pal.tenant() AND superseded_by IS NULL
        AND id > (SELECT fact_id FROM memory_embedded WHERE tenant_id = pal.tenant())
      ORDER BY id LIMIT %(most)s) d
ORDER BY d.id

-- pass_newer --
-- Not past an event that could not be written while it may still be there (its delete may yet be
-- undone); nor back, where someone else has gone further.
UPDATE memory_embedded SET new_tx = %(tx)s::xid8, new_id = %(id)s
WHERE tenant_id = pal.tenant() AND model = %(model)s
  AND (new_tx, new_id) < (%(tx)s::xid8, %(id)s)
  AND NOT EXISTS (SELECT FROM memory_events e
                  WHERE e.tenant_id = pal.tenant() AND e.id = ANY (%(unwritten)s::text[]))

-- pass_older --
UPDATE memory_embedded SET old_tx = %(tx)s::xid8, old_id = %(id)s
WHERE tenant_id = pal.tenant() AND model = %(model)s
  AND (old_tx, old_id) > (%(tx)s::xid8, %(id)s)
  AND NOT EXISTS (SELECT FROM memory_events e
                  WHERE e.tenant_id = pal.tenant() AND e.id = ANY (%(unwritten)s::text[]))

-- end_older --
UPDATE memory_embedded SET old_tx = NULL
WHERE tenant_id = pal.tenant() AND model = %(model)s AND old_tx IS NOT NULL

-- pass_facts --
UPDATE memory_embedded SET fact_id = %(id)s
WHERE tenant_id = pal.tenant() AND model = %(model)s AND fact_id < %(id)s
  AND NOT EXISTS (SELECT FROM memory_distillates d
                  WHERE d.tenant_id = pal.tenant() AND d.id = ANY (%(unwritten)s::text[]))

-- read_events --
SELECT e.id, left(pal.said_in(e.content, e.turn_id, p.name), %(characters)s)
FROM memory_events e LEFT JOIN people p ON p.tenant_id = e.tenant_id AND p.id = e.person_id
WHERE e.tenant_id = pal.tenant() AND e.id = ANY (%(ids)s)

-- read_facts --
SELECT id, topic, content FROM memory_distillates
WHERE tenant_id = pal.tenant() AND id = ANY (%(ids)s) AND superseded_by IS NULL

-- write_vectors --
-- In one order, so that two writers do not wait for one another. What is being deleted is left out.
INSERT INTO memory_vectors (tenant_id, event_id, model, vec)
SELECT e.tenant_id, e.id, %(model)s, g.vec::halfvec
FROM (SELECT * FROM unnest(%(ids)s::text[], %(vectors)s::text[]) AS u (id, vec)
      ORDER BY id COLLATE "C") g
CROSS JOIN LATERAL (SELECT o.tenant_id, o.id FROM memory_events o
                    WHERE o.tenant_id = pal.tenant() AND o.id = g.id
                    FOR KEY SHARE SKIP LOCKED) e
ON CONFLICT (tenant_id, event_id) DO UPDATE SET model = excluded.model, vec = excluded.vec
RETURNING event_id

-- write_fact_vectors --
INSERT INTO memory_distillate_vectors (tenant_id, distillate_id, model, vec)
SELECT d.tenant_id, d.id, %(model)s, g.vec::halfvec
FROM (SELECT * FROM unnest(%(ids)s::text[], %(vectors)s::text[]) AS u (id, vec)
      ORDER BY id COLLATE "C") g
CROSS JOIN LATERAL (SELECT o.tenant_id, o.id FROM memory_distillates o
                    WHERE o.tenant_id = pal.tenant() AND o.id = g.id
                    FOR KEY SHARE SKIP LOCKED) d
ON CONFLICT (tenant_id, distillate_id) DO UPDATE SET model = excluded.model, vec = excluded.vec
RETURNING distillate_id

-- progress --
SELECT (SELECT count(*) FROM memory_vectors
        WHERE tenant_id = pal.tenant() AND model = %(model)s)
     + (SELECT count(*) FROM memory_distillate_vectors v
        JOIN memory_distillates d ON d.tenant_id = pal.tenant() AND d.id = v.distillate_id
        WHERE v.tenant_id = pal.tenant() AND v.model = %(model)s AND d.superseded_by IS NULL),
       (SELECT count(*) FROM memory_events WHERE tenant_id = pal.tenant())
     + (SELECT count(*) FROM memory_distillates
        WHERE tenant_id = pal.tenant() AND superseded_by IS NULL)
