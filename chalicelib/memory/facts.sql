-- hold_unattached --
-- One writer at a time of what is about no one in particular, where there is no person to lock.
INSERT INTO memory_passes (tenant_id) VALUES (pal.tenant())
ON CONFLICT (tenant_id) DO UPDATE SET more = memory_passes.more

-- clock --
-- Not the transaction's time: it may have waited for the locks that decide the order.
SELECT clock_timestamp()

-- hold_sessions --
-- Before the events: a session that is deleted takes its events along.
SELECT id FROM sessions WHERE id = ANY (%(ids)s) ORDER BY id FOR KEY SHARE

-- hold_events --
SELECT id FROM memory_events WHERE id = ANY (%(ids)s) ORDER BY id FOR KEY SHARE

-- forgotten --
-- The numbers of those facts that were said before they were forgotten, by topic or by content.
SELECT f.n
FROM unnest(%(numbers)s::integer[], %(people)s::text[], %(groups)s::text[],
            %(topic_keys)s::text[], %(content_keys)s::bytea[], %(said)s::timestamptz[])
    AS f (n, person_id, group_id, topic_key, content_key, said_at)
WHERE EXISTS (
    SELECT FROM memory_forgotten t
    WHERE t.tenant_id = pal.tenant() AND t.person_id = f.person_id
      AND (t.topic_key = f.topic_key OR f.content_key = ANY (t.contents))
      AND f.said_at <= t.forgotten_at
) OR (f.person_id IS NULL AND EXISTS (
    SELECT FROM memory_forgotten t
    WHERE t.tenant_id = pal.tenant() AND t.person_id IS NULL
      AND coalesce(t.group_id, '') = coalesce(f.group_id, '')
      AND (t.topic_key = f.topic_key OR f.content_key = ANY (t.contents))
      AND f.said_at <= t.forgotten_at
))

-- lock_rows --
-- Of these people and topics the active rows, and those that were said at one of these times.
-- Joined and not looked for by IN: of that, a row that changes while this waits for it is lost.
WITH wanted AS MATERIALIZED (
    SELECT id FROM memory_distillates
    WHERE person_id = ANY (%(people)s::text[]) AND topic_key = ANY (%(topic_keys)s::text[])
      AND (superseded_by IS NULL OR said_at = ANY (%(said)s::timestamptz[]))
    UNION ALL
    SELECT id FROM memory_distillates
    WHERE %(no_one)s AND tenant_id = pal.tenant() AND person_id IS NULL
      AND topic_key = ANY (%(topic_keys)s::text[])
      AND (superseded_by IS NULL OR said_at = ANY (%(said)s::timestamptz[]))
)
SELECT d.id, d.person_id, d.said_by, d.group_id, d.topic, d.topic_key, d.content, d.confidence,
       d.origin, d.source_kind, d.session_id, d.event_id, d.key_id, d.said_at, d.superseded_by
FROM wanted w JOIN memory_distillates d ON d.tenant_id = pal.tenant() AND d.id = w.id
ORDER BY d.id FOR NO KEY UPDATE OF d

-- supersede --
UPDATE memory_distillates d SET superseded_by = g.successor, superseded_at = now()
FROM unnest(%(ids)s::text[], %(successors)s::text[]) AS g (id, successor)
WHERE d.id = g.id

-- refresh --
UPDATE memory_distillates d SET
    confidence = g.confidence, origin = g.origin, said_at = g.said_at, source_kind = g.source_kind,
    session_id = g.session_id, event_id = g.event_id, said_by = g.said_by, key_id = g.key_id,
    updated_at = now()
FROM unnest(%(ids)s::text[], %(confidences)s::float8[], %(origins)s::text[],
            %(said)s::timestamptz[], %(source_kinds)s::text[], %(sessions)s::text[],
            %(events)s::text[], %(said_by)s::text[], %(keys)s::text[])
    AS g (id, confidence, origin, said_at, source_kind, session_id, event_id, said_by, key_id)
WHERE d.id = g.id

-- insert_rows --
INSERT INTO memory_distillates (
    id, tenant_id, person_id, said_by, group_id, topic, topic_key, content, confidence, origin,
    source_kind, session_id, event_id, key_id, said_at, superseded_by, superseded_at)
SELECT id, pal.tenant(), person_id, said_by, group_id, topic, topic_key, content, confidence,
       origin, source_kind, session_id, event_id, key_id, said_at, superseded_by,
       CASE WHEN superseded_by IS NOT NULL THEN now() END
FROM unnest(%(ids)s::text[], %(people)s::text[], %(said_by)s::text[], %(groups)s::text[],
            %(topics)s::text[], %(topic_keys)s::text[], %(contents)s::text[],
            %(confidences)s::float8[], %(origins)s::text[], %(source_kinds)s::text[],
            %(sessions)s::text[], %(events)s::text[], %(keys)s::text[], %(said)s::timestamptz[],
            %(successors)s::text[])
    AS g (id, person_id, said_by, group_id, topic, topic_key, content, confidence, origin,
          source_kind, session_id, event_id, key_id, said_at, superseded_by)

-- active_facts --
-- The newest of these people, and of the place's where no one is known. What comes of it is told to
-- whoever may see the answer's facts: a group what was said there, a person what they may be told
-- of themself (see `session_facts`).
SELECT d.topic, d.content, d.person_id, p.name
FROM memory_distillates d LEFT JOIN people p ON p.tenant_id = d.tenant_id AND p.id = d.person_id
WHERE d.id IN (
    SELECT id FROM memory_distillates
    WHERE person_id = ANY (%(people)s) AND superseded_by IS NULL
      AND CASE WHEN %(group_id)s::text IS NOT NULL THEN group_id = %(group_id)s
               ELSE group_id IS NOT NULL OR said_by = ANY (%(people)s)
                    OR said_by IS NULL AND source_kind <> 'session' END
    UNION ALL
    SELECT id FROM memory_distillates
    WHERE tenant_id = pal.tenant() AND person_id IS NULL AND superseded_by IS NULL
      AND CASE WHEN %(group_id)s::text IS NULL
               THEN group_id IS NULL AND said_by = ANY (%(people)s)
               ELSE group_id = %(group_id)s END
)
ORDER BY d.updated_at DESC, d.id DESC LIMIT %(most)s

-- active_of --
SELECT id, person_id, topic, content, confidence, origin, source_kind, session_id, event_id,
       created_at, updated_at, superseded_by, superseded_at, group_id, said_by
FROM memory_distillates
WHERE tenant_id = pal.tenant() AND topic_key = %(topic_key)s AND superseded_by IS NULL
  AND CASE WHEN %(person_id)s::text IS NULL
           THEN person_id IS NULL AND coalesce(group_id, '') = coalesce(%(group_id)s, '')
           ELSE person_id = %(person_id)s END

-- list_distillates --
SELECT id, person_id, topic, content, confidence, origin, source_kind, session_id, event_id,
       created_at, updated_at, superseded_by, superseded_at, group_id, said_by
FROM memory_distillates
WHERE tenant_id = pal.tenant() AND superseded_by IS NULL
  AND (%(person_id)s::text IS NULL OR person_id = %(person_id)s)
  AND (%(topic_key)s::text IS NULL OR split_part(topic_key, E'\x1f', 1) = %(topic_key)s)
  AND (%(words)s::text[] IS NULL
       OR lower(normalize(topic || ' ' || content, NFKC)) LIKE ALL (%(words)s::text[]))
  AND (%(updated)s::timestamptz IS NULL OR (updated_at, id) < (%(updated)s, %(id)s::text))
ORDER BY updated_at DESC, id DESC LIMIT %(most)s

-- chain_ids --
-- All that this row superseded and was superseded by: from its active end down again.
WITH RECURSIVE up AS (
    SELECT id, superseded_by FROM memory_distillates WHERE id = %(id)s
    UNION
    SELECT d.id, d.superseded_by FROM up JOIN memory_distillates d
        ON d.tenant_id = pal.tenant() AND d.id = up.superseded_by
), chain AS (
    SELECT id FROM up WHERE superseded_by IS NULL
    UNION
    SELECT d.id FROM chain JOIN memory_distillates d
        ON d.tenant_id = pal.tenant() AND d.superseded_by = chain.id
)
SELECT id FROM chain

-- read_chain --
-- Newest first; what is active stands before what was said after it by a lesser word.
SELECT id, person_id, topic, content, confidence, origin, source_kind, session_id, event_id,
       created_at, updated_at, superseded_by, superseded_at, group_id, said_by
FROM memory_distillates WHERE id = ANY (%(ids)s)
ORDER BY superseded_by IS NOT NULL, said_at DESC, id DESC

-- hold_chain --
SELECT FROM memory_distillates WHERE id = ANY (%(ids)s) ORDER BY id FOR UPDATE

-- delete_chain --
WITH own AS (
    SELECT id FROM memory_distillates WHERE id = ANY (%(ids)s) ORDER BY id FOR UPDATE
)
DELETE FROM memory_distillates d USING own WHERE d.id = own.id

-- insert_tombstone --
-- Under the locks that writers take, so that nothing is said between this and the end of it.
INSERT INTO memory_forgotten (id, tenant_id, person_id, group_id, topic_key, contents,
                              forgotten_at)
SELECT id, tenant_id, person_id, group_id, topic_key, %(contents)s, clock_timestamp()
FROM memory_distillates WHERE id = ANY (%(ids)s) AND superseded_by IS NULL
