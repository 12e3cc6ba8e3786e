-- Search: what the timeline and the distillates are found by.
--
-- A row of memory_index is written with its event and never again: its own words, and its place in
-- its conversation. What the neighbours say is taken into account when it is searched for.

-- as in 0004: all locks at first
LOCK TABLE pal.memory_events, pal.memory_distillates IN ACCESS EXCLUSIVE MODE;

-- ── words ───────────────────────────────────────────────────────────────────────────────────
-- English stems, since a stemmer for each language would first have to know the language; another
-- language's words stay as they are but for their accents.
CREATE TEXT SEARCH CONFIGURATION pal.words (COPY = pg_catalog.english);
ALTER TEXT SEARCH CONFIGURATION pal.words
    ALTER MAPPING FOR asciiword, asciihword, hword_asciipart, word, hword, hword_part
    WITH unaccent, english_stem;

-- The words of a text, each once. Chinese and Japanese, written without spaces, count by character;
-- a slash is a space, or the parser would see paths. A long text is read in pieces: a tsvector of
-- more than a megabyte is an error.
CREATE FUNCTION pal.lexemes(said text) RETURNS text[] LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(DISTINCT lexeme), '{}')
    FROM generate_series(0, (length(said) - 1) / 50000) AS piece,
         substr(said, piece * 50000 + 1, 50000) AS part,
         unnest(tsvector_to_array(to_tsvector('pal.words', translate(
             CASE WHEN part ~ '[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]'
                  THEN regexp_replace(part, '([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])', ' \1 ', 'g')
                  ELSE part END, '/', ' ')))) AS lexeme
$$;

-- What a word is found by: the tenant is part of it, so the one index serves a tenant alone.
CREATE FUNCTION pal.word_key(tenant text, lexeme text) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT hashtextextended(tenant || ' ' || lexeme, 0) $$;

CREATE FUNCTION pal.word_keys(tenant text, said text) RETURNS bigint[] LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(hashtextextended(tenant || ' ' || lexeme, 0)), '{}')
    FROM unnest(pal.lexemes(said)) AS lexeme
$$;

-- The share of a text's sentences that ask: a question is seldom the answer to another one.
CREATE FUNCTION pal.asks(said text) RETURNS real LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN said ~ '[?？؟]' THEN
        regexp_count(said, '[?](\s|$)|[？؟]')::real
            / greatest(1, regexp_count(said, '[.!?](\s|$)|[。！？؟]')
                          + (said !~ '[.!?。！？؟]\s*$')::integer)
    ELSE 0 END
$$;

-- ── the timeline's index ────────────────────────────────────────────────────────────────────
CREATE TABLE pal.memory_index (
    tenant_id   text COLLATE "C" NOT NULL,
    event_id    text COLLATE "C" NOT NULL,
    -- where it was said (a session, a group), as a hash, and the place there: neighbours are 1 apart,
    -- and another conversation begins 10,000 on
    stream      bigint NOT NULL,
    place       integer NOT NULL,
    occurred_at timestamptz NOT NULL,
    group_id    text,
    asks        real NOT NULL,
    keys        bigint[] NOT NULL,
    PRIMARY KEY (tenant_id, event_id),
    FOREIGN KEY (tenant_id, event_id) REFERENCES pal.memory_events (tenant_id, id) ON DELETE CASCADE
);
-- a short pending list: it is read by every search until it is merged
CREATE INDEX memory_index_keys ON pal.memory_index USING gin (keys)
    WITH (fastupdate = on, gin_pending_list_limit = 256);
CREATE INDEX memory_index_stream ON pal.memory_index (stream, place);
CREATE INDEX memory_index_time ON pal.memory_index (tenant_id, occurred_at);
CREATE INDEX memory_index_group ON pal.memory_index (tenant_id, group_id, occurred_at)
    WHERE group_id IS NOT NULL;

-- Places are given in the order of arrival, and by time within a statement: what is told later of an
-- earlier hour stands behind, so that no row has to be moved. A gap of an hour in a group (or in
-- what one person says on a channel) parts two conversations.
--
-- Two batches of one conversation at once would be given the same places, and each would be taken for
-- what was said around the other: they take turns, except for a session's, which has one turn at a
-- time anyway. Locks are few and in one order. After two seconds a batch no longer waits.
CREATE FUNCTION pal.index_events() RETURNS trigger LANGUAGE plpgsql
SET search_path = pal, public, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    turn integer;
BEGIN
    BEGIN
        FOR turn IN SELECT DISTINCT hashtext(coalesce(n.metadata ->> 'sessionId', n.group_id, n.person_id)) & 31
                    FROM fresh n WHERE n.session_id IS NULL AND TG_TABLE_NAME = 'memory_events' ORDER BY 1 LOOP
            PERFORM pg_advisory_xact_lock(hashtext(pal.tenant()), turn);
        END LOOP;
    EXCEPTION WHEN lock_not_available THEN
        NULL;
    END;
    INSERT INTO pal.memory_index (tenant_id, event_id, stream, place, occurred_at, group_id, asks, keys)
    WITH told AS (
        SELECT n.tenant_id, n.id, n.occurred_at, n.group_id,
               pal.said_in(n.content, n.turn_id, p.name) AS said,
               n.session_id IS NULL AND (n.metadata ->> 'sessionId') IS NULL AS by_time,
               hashtextextended(n.tenant_id || CASE
                   WHEN n.session_id IS NOT NULL THEN ' session ' || n.session_id
                   WHEN (n.metadata ->> 'sessionId') IS NOT NULL
                       THEN ' told ' || n.channel || ' ' || (n.metadata ->> 'sessionId')
                   WHEN n.group_id IS NOT NULL THEN ' group ' || n.group_id
                   WHEN n.person_id IS NOT NULL THEN ' person ' || n.channel || ' ' || n.person_id
                   ELSE ' event ' || n.id END, 0) AS stream
        FROM fresh n LEFT JOIN pal.people p ON p.tenant_id = n.tenant_id AND p.id = n.person_id
    ), before AS (
        SELECT s.stream, l.place, l.occurred_at
        FROM (SELECT DISTINCT t.stream FROM told t) s,
             LATERAL (SELECT m.place, m.occurred_at FROM pal.memory_index m
                      WHERE m.stream = s.stream ORDER BY m.place DESC LIMIT 1) l
    ), timed AS (
        SELECT t.*, coalesce(b.place, 0) AS base,
               t.occurred_at - coalesce(lag(t.occurred_at) OVER w, b.occurred_at) AS gap
        FROM told t LEFT JOIN before b ON b.stream = t.stream
        WINDOW w AS (PARTITION BY t.stream ORDER BY t.occurred_at, t.id)
    ), parted AS (
        SELECT *, count(*) FILTER (WHERE by_time AND gap NOT BETWEEN interval '-1 hour'
                                                          AND interval '1 hour')
                  OVER (PARTITION BY stream ORDER BY occurred_at, id) AS parts
        FROM timed
    )
    SELECT tenant_id, id, stream,
           -- at the end of what an integer holds, all is one conversation
           CASE WHEN parts = 0 OR base >= 2000000000 THEN base
                ELSE least(base / 10000 + parts, 200000) * 10000 END
               + row_number() OVER (PARTITION BY stream, parts ORDER BY occurred_at, id),
           occurred_at, group_id, pal.asks(said), pal.word_keys(tenant_id, said)
    FROM parted;
    RETURN NULL;
END $$;

-- What was said, without who is told to say it: the roles of a turn, or a name before a colon.
CREATE FUNCTION pal.said_in(content text, turn_id text, name text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN turn_id IS NOT NULL THEN regexp_replace(content, '^(user|assistant): ', '', 'gn')
        WHEN starts_with(lower(content), lower(name) || ':') THEN substr(content, length(name) + 2)
        ELSE content END
$$;

CREATE TRIGGER memory_events_indexed AFTER INSERT ON pal.memory_events
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION pal.index_events();

-- ── the distillates' index ──────────────────────────────────────────────────────────────────
ALTER TABLE pal.memory_distillates ADD COLUMN keys bigint[] NOT NULL DEFAULT '{}';
CREATE FUNCTION pal.index_distillate() RETURNS trigger LANGUAGE plpgsql
SET search_path = pal, public, pg_temp AS $$
BEGIN
    NEW.keys := pal.word_keys(NEW.tenant_id, NEW.topic || ' ' || NEW.content);
    RETURN NEW;
END $$;
CREATE TRIGGER memory_distillates_indexed BEFORE INSERT OR UPDATE OF topic, content
    ON pal.memory_distillates FOR EACH ROW EXECUTE FUNCTION pal.index_distillate();
CREATE INDEX memory_distillates_keys ON pal.memory_distillates USING gin (keys)
    WHERE superseded_by IS NULL;
-- for words that are written wrong: looked for in a tenant's newest ones, since an index of trigrams
-- would be of all tenants, and each would wait for (and could time) what the others hold
CREATE INDEX memory_distillates_newest ON pal.memory_distillates (tenant_id, said_at)
    WHERE superseded_by IS NULL;

-- ── row-level security ──────────────────────────────────────────────────────────────────────
-- Operators of arrays are not leakproof, so under a policy no index of theirs serves.
-- pal_search may read every tenant's row, in just these columns; its functions compare the tenant
-- themselves, and they are all that may be called of it.
ALTER TABLE pal.memory_index ENABLE ROW LEVEL SECURITY;
ALTER TABLE pal.memory_index FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON pal.memory_index TO pal_app, pal_owner
    USING (tenant_id = pal.tenant()) WITH CHECK (tenant_id = pal.tenant());
GRANT SELECT, INSERT, UPDATE, DELETE ON pal.memory_index TO pal_app;

GRANT USAGE ON SCHEMA pal TO pal_search;
GRANT SELECT ON pal.memory_index TO pal_search;
GRANT SELECT (tenant_id, id, person_id) ON pal.memory_events TO pal_search;
GRANT SELECT (tenant_id, id, superseded_by, keys) ON pal.memory_distillates TO pal_search;
CREATE POLICY search_read ON pal.memory_index FOR SELECT TO pal_search USING (true);
CREATE POLICY search_read ON pal.memory_events FOR SELECT TO pal_search USING (true);
CREATE POLICY search_read ON pal.memory_distillates FOR SELECT TO pal_search USING (true);

-- ── what pal_search does ────────────────────────────────────────────────────────────────────
-- The events that hold the words, in all of the tenant: at most `cap` of each, and one row more to
-- say that there are more. `words` are lexemes, `parts` the number of the term that each belongs to.
-- The tenant is compared in a way that no index takes: the planner would add the tenant's whole
-- index to that of the keys.
CREATE FUNCTION pal.find_words(words text[], parts integer[], cap integer, grp text, who text,
                               since timestamptz, until timestamptz)
RETURNS TABLE (part integer, stream bigint, place integer, at bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pal, public, pg_temp
SET enable_seqscan = off SET enable_indexscan = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    tenant text := pal.tenant();
    one integer;
    wanted bigint[];
BEGIN
    FOR one IN SELECT DISTINCT p FROM unnest(parts) p ORDER BY p LOOP
        SELECT array_agg(pal.word_key(tenant, w)) INTO wanted
        FROM unnest(words, parts) AS g (w, p) WHERE p = one;
        RETURN QUERY
        SELECT one, m.stream, m.place, extract(epoch FROM m.occurred_at)::bigint
        FROM pal.memory_index m WHERE m.keys && wanted AND m.tenant_id || '' = tenant
          AND (since IS NULL OR m.occurred_at >= since) AND (until IS NULL OR m.occurred_at < until)
          AND (grp IS NULL OR m.group_id = grp)
          AND (who IS NULL OR EXISTS (SELECT FROM pal.memory_events e WHERE e.tenant_id = tenant
                                        AND e.id = m.event_id AND e.person_id = who))
        LIMIT cap + 1;
    END LOOP;
END $$;

-- Those that hold two terms, for terms that are too common by themselves.
CREATE FUNCTION pal.find_both(words text[], parts integer[], cap integer, grp text, who text,
                              since timestamptz, until timestamptz)
RETURNS TABLE (one integer, other integer, stream bigint, place integer, at bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pal, public, pg_temp
SET enable_seqscan = off SET enable_indexscan = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    tenant text := pal.tenant();
    pair record;
BEGIN
    FOR pair IN
        WITH terms AS (SELECT p, array_agg(pal.word_key(tenant, w)) AS wanted
                       FROM unnest(words, parts) AS g (w, p) GROUP BY p)
        SELECT a.p AS a, b.p AS b, a.wanted AS these, b.wanted AS those
        FROM terms a JOIN terms b ON a.p < b.p ORDER BY 1, 2
    LOOP
        RETURN QUERY
        SELECT pair.a, pair.b, m.stream, m.place, extract(epoch FROM m.occurred_at)::bigint
        FROM pal.memory_index m WHERE m.keys && pair.these AND m.keys && pair.those AND m.tenant_id || '' = tenant
          AND (since IS NULL OR m.occurred_at >= since) AND (until IS NULL OR m.occurred_at < until)
          AND (grp IS NULL OR m.group_id = grp)
          AND (who IS NULL OR EXISTS (SELECT FROM pal.memory_events e WHERE e.tenant_id = tenant
                                        AND e.id = m.event_id AND e.person_id = who))
        LIMIT cap;
    END LOOP;
END $$;

-- The active distillates that hold the words, in all of the tenant, as `find_words` does.
CREATE FUNCTION pal.find_facts(words text[], parts integer[], cap integer)
RETURNS TABLE (part integer, id text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pal, public, pg_temp
SET enable_seqscan = off SET enable_indexscan = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    tenant text := pal.tenant();
    one integer;
    wanted bigint[];
BEGIN
    FOR one IN SELECT DISTINCT p FROM unnest(parts) p ORDER BY p LOOP
        SELECT array_agg(pal.word_key(tenant, w)) INTO wanted
        FROM unnest(words, parts) AS g (w, p) WHERE p = one;
        RETURN QUERY
        SELECT one, d.id FROM pal.memory_distillates d
        WHERE d.keys && wanted AND d.superseded_by IS NULL AND d.tenant_id || '' = tenant
        LIMIT cap + 1;
    END LOOP;
END $$;

GRANT CREATE ON SCHEMA pal TO pal_search;
DO $$
DECLARE sig text;
BEGIN
    FOREACH sig IN ARRAY ARRAY[
        'find_words(text[], integer[], integer, text, text, timestamptz, timestamptz)',
        'find_both(text[], integer[], integer, text, text, timestamptz, timestamptz)',
        'find_facts(text[], integer[], integer)'] LOOP
        EXECUTE 'ALTER FUNCTION pal.' || sig || ' OWNER TO pal_search';
        SET LOCAL ROLE pal_search;
        EXECUTE 'REVOKE ALL ON FUNCTION pal.' || sig || ' FROM PUBLIC';
        EXECUTE 'GRANT EXECUTE ON FUNCTION pal.' || sig || ' TO pal_owner, pal_app';
        RESET ROLE;
    END LOOP;
END $$;
REVOKE CREATE ON SCHEMA pal FROM pal_search;

-- ── what there was before ───────────────────────────────────────────────────────────────────
CREATE TABLE pal.again (LIKE pal.memory_events);
CREATE TRIGGER indexed AFTER INSERT ON pal.again
    REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION pal.index_events();
DO $$
DECLARE tenant text;
BEGIN
    FOR tenant IN SELECT id FROM pal.list_tenants() LOOP
        PERFORM set_config('pal.tenant', tenant, true);
        INSERT INTO pal.again SELECT * FROM pal.memory_events WHERE tenant_id = tenant;
    END LOOP;
    PERFORM set_config('pal.tenant', '', true);
END $$;
DROP TABLE pal.again;
