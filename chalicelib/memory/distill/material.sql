-- read_material --
-- Behind a place, in the order of ingest, never past a transaction that is still open. As many as
-- fit into the bytes, but one at least.
SELECT ingest_tx::text, id, occurred_at, ingested_at, channel, kind, content, direction, group_id,
       person_id, name, session_id, turn_id, metadata
FROM (
    SELECT e.*, p.name,
           sum(octet_length(e.content)) OVER (ORDER BY e.ingest_tx, e.id)
           - octet_length(e.content) AS before
    FROM (
        SELECT * FROM memory_events
        WHERE tenant_id = pal.tenant() AND (ingest_tx, id) > (%(read_tx)s::xid8, %(read_id)s)
          AND ingest_tx < pg_snapshot_xmin(pg_current_snapshot())
        ORDER BY ingest_tx, id LIMIT %(most)s
    ) AS e LEFT JOIN people p ON p.tenant_id = e.tenant_id AND p.id = e.person_id
) AS sized
WHERE before < %(bytes)s
ORDER BY sized.ingest_tx, sized.id
