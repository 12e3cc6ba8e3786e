-- tenants_keeping --
SELECT tenant_id FROM pal.tenants_keeping(make_interval(secs => %(every)s), %(most)s)

-- begin_sweep --
-- No row: another process is at it, or has just been.
UPDATE tenant_policies SET swept_at = clock_timestamp()
WHERE tenant_id = pal.tenant()
  AND (swept_at IS NULL OR swept_at < clock_timestamp() - make_interval(secs => %(every)s))

-- put_back --
-- There was not time enough: the next round goes on with it.
UPDATE tenant_policies SET swept_at = NULL WHERE tenant_id = pal.tenant()

-- expire_events --
-- A page in the order of ingest: how many of it went, and where it ends. By the later of the two
-- times: an old archive is kept so long from the day it was brought in, and what lies ahead until
-- it has been. With `unread` also what no pass has read yet.
WITH page AS (
    SELECT id, ingest_tx, occurred_at, ingested_at FROM memory_events
    WHERE tenant_id = pal.tenant() AND (ingest_tx, id) > (%(read_tx)s::xid8, %(read_id)s)
    ORDER BY ingest_tx, id LIMIT %(most)s
), held AS (
    SELECT e.id FROM memory_events e JOIN page USING (id)
    WHERE e.tenant_id = pal.tenant() AND greatest(page.occurred_at, page.ingested_at) < %(before)s
      AND (%(unread)s OR EXISTS (
          SELECT FROM memory_passes p WHERE p.tenant_id = e.tenant_id
            AND (page.ingest_tx, page.id) <= (p.read_tx, p.read_id)))
    ORDER BY e.id FOR UPDATE OF e SKIP LOCKED
), gone AS (
    DELETE FROM memory_events e USING held
    WHERE e.tenant_id = pal.tenant() AND e.id = held.id RETURNING e.id
)
SELECT (SELECT count(*) FROM gone), ingest_tx::text, id,
       (SELECT count(*) FROM page) = %(most)s AND ingested_at < %(before)s AS more
FROM page ORDER BY page.ingest_tx DESC, page.id DESC LIMIT 1

-- expire_episodes --
-- Narratives lose what rested on one, as on a fact, by a trigger of theirs.
WITH held AS (
    SELECT id FROM memory_episodes
    WHERE tenant_id = pal.tenant() AND occurred_at < %(before)s AND created_at < %(before)s
    ORDER BY occurred_at LIMIT %(most)s FOR UPDATE SKIP LOCKED
)
DELETE FROM memory_episodes e USING held WHERE e.tenant_id = pal.tenant() AND e.id = held.id
RETURNING e.id

-- expire_pending --
-- What no one has decided on is kept as long as the memory that it would be.
WITH held AS (
    SELECT id FROM memory_candidates
    WHERE tenant_id = pal.tenant() AND status = 'pending' AND tier = %(tier)s
      AND created_at < %(before)s
    ORDER BY id LIMIT %(most)s FOR UPDATE SKIP LOCKED
)
DELETE FROM memory_candidates c USING held WHERE c.tenant_id = pal.tenant() AND c.id = held.id
RETURNING c.id

-- hold_superseded --
SELECT id, superseded_by FROM memory_distillates
WHERE tenant_id = pal.tenant() AND superseded_by IS NOT NULL AND superseded_at < %(before)s
ORDER BY superseded_at LIMIT %(most)s FOR UPDATE SKIP LOCKED

-- hold_unchanged --
-- Active facts that nothing has been said on for so long. Whoever is about to say something on one
-- holds its row, and has it.
SELECT id FROM memory_distillates
WHERE tenant_id = pal.tenant() AND superseded_by IS NULL AND updated_at < %(before)s
ORDER BY updated_at LIMIT %(most)s FOR UPDATE SKIP LOCKED

-- expire_chains --
-- With all that they had superseded, so that no row is left that refers to one of them. In a
-- statement of its own, behind the locks: nothing can be put below these any more. A chain of which
-- someone holds a row is left to the next time, so this waits for no one.
WITH RECURSIVE chain AS (
    SELECT id, id AS head FROM memory_distillates
    WHERE tenant_id = pal.tenant() AND id = ANY (%(ids)s)
    UNION
    SELECT d.id, chain.head FROM chain JOIN memory_distillates d
        ON d.tenant_id = pal.tenant() AND d.superseded_by = chain.id
), held AS MATERIALIZED (
    SELECT d.id FROM chain JOIN memory_distillates d
        ON d.tenant_id = pal.tenant() AND d.id = chain.id
    FOR UPDATE OF d SKIP LOCKED
), marked AS (
    -- by a window, since no plan knows how many rows come of a chain
    SELECT chain.id, bool_and(held.id IS NOT NULL) OVER (PARTITION BY chain.head) AS whole
    FROM chain LEFT JOIN held ON held.id = chain.id
)
DELETE FROM memory_distillates d USING marked
WHERE marked.whole AND d.tenant_id = pal.tenant() AND d.id = marked.id
RETURNING d.id

-- expire_narratives --
WITH held AS (
    SELECT id FROM memory_narratives
    WHERE tenant_id = pal.tenant() AND updated_at < %(before)s
    ORDER BY updated_at LIMIT %(most)s FOR UPDATE SKIP LOCKED
)
DELETE FROM memory_narratives n USING held WHERE n.tenant_id = pal.tenant() AND n.id = held.id
RETURNING n.id

-- hold_sealed --
-- The head first, as everywhere.
SELECT h.session_id
FROM session_states s JOIN session_heads h USING (session_id)
WHERE s.tenant_id = pal.tenant() AND s.sealed_at < %(before)s AND s.cleared_at IS NULL
ORDER BY s.sealed_at LIMIT %(most)s FOR NO KEY UPDATE OF h SKIP LOCKED

-- clear_states --
UPDATE session_states SET pins = '[]', tree = '', active_node = NULL, cleared_at = now()
WHERE session_id = ANY (%(ids)s) AND cleared_at IS NULL

-- clear_nodes --
DELETE FROM session_nodes WHERE session_id = ANY (%(ids)s)

-- clear_contexts --
-- What the model was given; the transcript itself stays.
WITH own AS (
    SELECT id FROM sessions WHERE id = ANY (%(ids)s) ORDER BY id FOR NO KEY UPDATE
)
UPDATE sessions s SET messages = '[]', summary = NULL FROM own WHERE s.id = own.id

-- expire_decided --
-- Not the tombstones of what was forgotten: they hold no words, and without them what was said
-- before would come back with the next reading of it.
WITH held AS (
    SELECT id FROM memory_candidates
    WHERE tenant_id = pal.tenant() AND status <> 'pending' AND decided_at < %(before)s
    ORDER BY id LIMIT %(most)s FOR UPDATE SKIP LOCKED
)
DELETE FROM memory_candidates c USING held WHERE c.tenant_id = pal.tenant() AND c.id = held.id
RETURNING c.id
