-- merged_ids --
SELECT id FROM people WHERE merged_into = %(person)s ORDER BY id

-- forgotten --
-- Of what was forgotten nothing is held but this; also of friends whom the person told of.
SELECT split_part(topic_key, E'\x1f', 1), forgotten_at FROM memory_forgotten
WHERE person_id = %(person)s
   OR (person_id IS NULL AND split_part(topic_key, E'\x1f', 3) = %(person)s)
ORDER BY id

-- facts --
-- About the person or said by them, superseded ones as well. As many as are wanted and begin within
-- the given bytes. `found` counts those that were looked at, so more than come tells that there is
-- more; so do `events` and, of sessions, `page_messages`.
SELECT id, person_id, said_by, group_id, topic, content, confidence, origin, source_kind,
       session_id, event_id, said_at, created_at, updated_at, superseded_by, superseded_at,
       total, found
FROM (
    SELECT d.*, octet_length(content) + 600 AS size,
           sum(octet_length(content) + 600) OVER (ORDER BY id) AS total, count(*) OVER () AS found
    FROM memory_distillates d
    WHERE tenant_id = pal.tenant() AND (person_id = %(person)s OR said_by = %(person)s)
      AND id > %(after)s
    ORDER BY id LIMIT %(most)s
) AS sized
WHERE total - size < %(bytes)s
ORDER BY id

-- events --
SELECT id, channel, kind, direction, content, occurred_at, ingested_at, external_id, group_id,
       session_id, turn_id, metadata, total, found
FROM (
    SELECT sized.*, sum(size) OVER (ORDER BY id) AS total, count(*) OVER () AS found
    FROM (
        SELECT e.*, octet_length(content) + coalesce(octet_length(metadata::text), 0) + 500 AS size
        FROM memory_events e
        WHERE tenant_id = pal.tenant() AND person_id = %(person)s AND id > %(after)s
        ORDER BY id LIMIT %(most)s
    ) AS sized
) AS counted
WHERE total - size < %(bytes)s
ORDER BY id

-- episodes --
SELECT id, session_id, group_id, kind, content, sources, occurred_at, created_at, total, found
FROM (
    SELECT e.*, octet_length(content) + 600 AS size,
           sum(octet_length(content) + 600) OVER (ORDER BY id) AS total, count(*) OVER () AS found
    FROM memory_episodes e
    WHERE tenant_id = pal.tenant() AND person_id = %(person)s AND id > %(after)s
    ORDER BY id LIMIT %(most)s
) AS sized
WHERE total - size < %(bytes)s
ORDER BY id

-- narratives --
-- As it is written, with what is told no more because something that it rests on is gone.
SELECT id, lines, created_at, updated_at, 0 AS total, 1 AS found
FROM memory_narratives
WHERE tenant_id = pal.tenant() AND person_id = %(person)s AND id > %(after)s
  AND %(bytes)s > 0 AND %(most)s > 0

-- candidates --
-- About the person or said by them.
SELECT id, tier, person_id, group_id, session_id, content, proposal, status, memory_id, created_at,
       decided_at,
       total, found
FROM (
    SELECT sized.*, sum(size) OVER (ORDER BY id) AS total, count(*) OVER () AS found
    FROM (
        SELECT c.*, coalesce(octet_length(content), 0)
                    + coalesce(octet_length(proposal::text), 0) + 500 AS size
        FROM memory_candidates c
        WHERE tenant_id = pal.tenant() AND id > %(after)s
          AND (person_id = %(person)s OR proposal ->> 'said_by' IN (
                   SELECT id FROM people WHERE id = %(person)s OR merged_into = %(person)s))
        ORDER BY id LIMIT %(most)s
    ) AS sized
) AS counted
WHERE total - size < %(bytes)s
ORDER BY id

-- states --
-- What sessions work with, of those of the person that have anything.
SELECT id, pins, nodes, total, found
FROM (
    SELECT sized.*, sum(size) OVER (ORDER BY id) AS total, count(*) OVER () AS found
    FROM (
        SELECT s.id, st.pins, coalesce(tree.nodes, '[]') AS nodes,
               octet_length(st.pins::text) + coalesce(octet_length(tree.nodes::text), 0) AS size
        FROM sessions s JOIN session_states st ON st.session_id = s.id
        CROSS JOIN LATERAL (
            SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
                       'kind', n.kind, 'text', n.text, 'status', n.status, 'outcome', n.outcome,
                       'sources', n.sources)) ORDER BY n.number) AS nodes
            FROM session_nodes n WHERE n.session_id = s.id
        ) AS tree
        WHERE s.tenant_id = pal.tenant() AND s.person_id = %(person)s AND s.id > %(after)s
          AND (st.pins <> '[]' OR tree.nodes IS NOT NULL)
        ORDER BY s.id LIMIT %(most)s
    ) AS sized
) AS counted
WHERE total - size < %(bytes)s
ORDER BY id

-- session_ids --
SELECT id FROM sessions
WHERE tenant_id = pal.tenant() AND person_id = %(person)s AND id >= %(since)s
ORDER BY id LIMIT %(most)s
