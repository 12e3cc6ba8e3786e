-- Memory that outlives a session: promoted episodes, narratives, and what waits for a person's word.

LOCK TABLE pal.tenants, pal.people, pal.sessions, pal.memory_distillates
    IN SHARE ROW EXCLUSIVE MODE;

-- ── episodes ────────────────────────────────────────────────────────────────────────────────
-- What came of a session, promoted when it ended. It goes with its session. In a group's session it
-- is the group's, else its person's; of neither, it is told to no one and only callers find it.
CREATE TABLE pal.memory_episodes (
    id          text COLLATE "C" NOT NULL,
    tenant_id   text COLLATE "C" NOT NULL REFERENCES pal.tenants,
    session_id  text COLLATE "C" NOT NULL,
    person_id   text COLLATE "C",         -- the session's person, also in a group
    group_id    text,
    kind        text NOT NULL CHECK (kind IN ('decision', 'outcome', 'commitment', 'answer')),
    content     text NOT NULL CHECK (char_length(content) BETWEEN 1 AND 2000),
    content_key bytea NOT NULL,           -- as `memory.topics.content_key`: the same is kept once
    sources     text[] NOT NULL DEFAULT '{}',   -- ids of the messages it rests on
    node        integer,                  -- of the session's tree
    occurred_at timestamptz NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    keys        bigint[] NOT NULL DEFAULT '{}',
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES pal.sessions (tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, person_id) REFERENCES pal.people (tenant_id, id)
);
CREATE INDEX memory_episodes_person ON pal.memory_episodes (tenant_id, person_id, occurred_at, id)
    WHERE person_id IS NOT NULL;
CREATE INDEX memory_episodes_group ON pal.memory_episodes (tenant_id, group_id, occurred_at, id)
    WHERE group_id IS NOT NULL;
CREATE INDEX memory_episodes_session ON pal.memory_episodes (tenant_id, session_id);
CREATE INDEX memory_episodes_newest ON pal.memory_episodes (tenant_id, occurred_at);
CREATE INDEX memory_episodes_keys ON pal.memory_episodes USING gin (keys);

CREATE FUNCTION pal.index_episode() RETURNS trigger LANGUAGE plpgsql
SET search_path = pal, public, pg_temp AS $$
BEGIN
    NEW.keys := pal.word_keys(NEW.tenant_id, NEW.content);
    RETURN NEW;
END $$;
CREATE TRIGGER memory_episodes_indexed BEFORE INSERT OR UPDATE OF content
    ON pal.memory_episodes FOR EACH ROW EXECUTE FUNCTION pal.index_episode();

-- ── narratives ──────────────────────────────────────────────────────────────────────────────
-- One a person and one a group. A line is told only as long as all that it rests on is there.
CREATE TABLE pal.memory_narratives (
    id         text COLLATE "C" NOT NULL,
    tenant_id  text COLLATE "C" NOT NULL REFERENCES pal.tenants,
    person_id  text COLLATE "C",
    group_id   text,
    -- [{"text", "sources": [ids]}], with "plain": true where no model wrote it
    lines      jsonb NOT NULL DEFAULT '[]',
    version    integer NOT NULL DEFAULT 1,     -- another one with each change of what it rests on
    -- since when something has changed that no model has written in yet; NULL: nothing
    stale_at   timestamptz,
    told_at    timestamptz,                    -- when a model last wrote it; NULL: never
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, person_id) REFERENCES pal.people (tenant_id, id) ON DELETE CASCADE,
    CHECK ((person_id IS NULL) <> (group_id IS NULL))
);
CREATE UNIQUE INDEX memory_narratives_person ON pal.memory_narratives (tenant_id, person_id)
    WHERE person_id IS NOT NULL;
CREATE UNIQUE INDEX memory_narratives_group ON pal.memory_narratives (tenant_id, group_id)
    WHERE group_id IS NOT NULL;
CREATE INDEX memory_narratives_stale ON pal.memory_narratives (tenant_id, stale_at)
    WHERE stale_at IS NOT NULL;

-- What is deleted, by whatever way, is told no more: its lines go with it, from the narratives of
-- whom it was about, who said it and where. In the one order that narratives are locked in.
CREATE FUNCTION pal.prune_narratives() RETURNS trigger LANGUAGE plpgsql
SET search_path = pal, pg_temp AS $$
DECLARE
    ids text[] := ARRAY(SELECT id FROM gone);
    whose text[] := ARRAY(SELECT DISTINCT person_id FROM gone WHERE person_id IS NOT NULL);
    groups text[] := ARRAY(SELECT DISTINCT group_id FROM gone WHERE group_id IS NOT NULL);
    one record;
    kept jsonb;
BEGIN
    IF ids = '{}' THEN
        RETURN NULL;
    END IF;
    IF TG_TABLE_NAME = 'memory_distillates' THEN
        whose := whose || ARRAY(SELECT DISTINCT said_by FROM gone WHERE said_by IS NOT NULL);
    END IF;
    FOR one IN
        -- joined, as `lock_rows` of facts.sql does
        WITH wanted AS MATERIALIZED (
            SELECT id FROM memory_narratives
            WHERE tenant_id = pal.tenant() AND person_id = ANY (whose)
            UNION ALL
            SELECT id FROM memory_narratives
            WHERE tenant_id = pal.tenant() AND group_id = ANY (groups)
        )
        SELECT n.id, n.lines FROM wanted w JOIN memory_narratives n
            ON n.tenant_id = pal.tenant() AND n.id = w.id
        ORDER BY n.person_id NULLS LAST, n.group_id COLLATE "C" FOR NO KEY UPDATE OF n
    LOOP
        SELECT coalesce(jsonb_agg(line ORDER BY place), '[]') INTO kept
        FROM jsonb_array_elements(one.lines) WITH ORDINALITY AS l (line, place)
        WHERE NOT line -> 'sources' ?| ids;
        -- another version in any case: a model may be at it that was given what is gone. One that
        -- wrote lines may have named other sources than it told of, so it is asked anew.
        UPDATE memory_narratives SET version = version + 1, lines = kept,
            stale_at = CASE WHEN kept = lines AND told_at IS NULL THEN stale_at
                            ELSE coalesce(stale_at, now()) END,
            updated_at = CASE WHEN kept = lines THEN updated_at ELSE now() END
        WHERE tenant_id = pal.tenant() AND id = one.id;
    END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER memory_distillates_untold AFTER DELETE ON pal.memory_distillates
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION pal.prune_narratives();
CREATE TRIGGER memory_episodes_untold AFTER DELETE ON pal.memory_episodes
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION pal.prune_narratives();

-- ── candidates ──────────────────────────────────────────────────────────────────────────────
-- What the tenant's policy wants a person to approve before it is memory: a fact or an episode, as
-- it would be written. Decided ones stay for audit, without what they said: of approved ones the
-- memory says it that came of them.
CREATE TABLE pal.memory_candidates (
    id          text COLLATE "C" NOT NULL,
    tenant_id   text COLLATE "C" NOT NULL REFERENCES pal.tenants,
    tier        text NOT NULL CHECK (tier IN ('episodic', 'semantic')),
    person_id   text COLLATE "C",
    group_id    text,
    session_id  text COLLATE "C",
    content     text,
    content_key bytea NOT NULL,
    proposal    jsonb,                   -- what `candidates` writes once it is approved
    status      text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'approved', 'denied')),
    memory_id   text COLLATE "C",        -- what came of it
    key_id      text COLLATE "C",        -- of whoever decided
    created_at  timestamptz NOT NULL DEFAULT now(),
    decided_at  timestamptz,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, person_id) REFERENCES pal.people (tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, session_id) REFERENCES pal.sessions (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX memory_candidates_pending ON pal.memory_candidates (tenant_id, status, id);
CREATE INDEX memory_candidates_content ON pal.memory_candidates (tenant_id, content_key);
CREATE INDEX memory_candidates_person ON pal.memory_candidates (tenant_id, person_id)
    WHERE person_id IS NOT NULL;
CREATE INDEX memory_candidates_session ON pal.memory_candidates (tenant_id, session_id)
    WHERE session_id IS NOT NULL;

-- What goes with a session that is deleted, or changes with it, locked in everyone's order: a cascade
-- takes it in the order of the constraints, and triggers lock narratives amid it.
CREATE FUNCTION pal.hold_memory(session text) RETURNS void LANGUAGE plpgsql
SET search_path = pal, pg_temp AS $$
BEGIN
    PERFORM FROM sessions WHERE id = session FOR UPDATE;
    PERFORM FROM memory_events WHERE tenant_id = pal.tenant() AND session_id = session
        ORDER BY id FOR UPDATE;
    PERFORM FROM memory_distillates WHERE tenant_id = pal.tenant() AND session_id = session
        ORDER BY id FOR NO KEY UPDATE;
    PERFORM FROM memory_episodes WHERE tenant_id = pal.tenant() AND session_id = session
        ORDER BY id FOR UPDATE;
    PERFORM FROM memory_candidates WHERE tenant_id = pal.tenant() AND session_id = session
        ORDER BY id FOR UPDATE;
END $$;

-- ── row-level security ──────────────────────────────────────────────────────────────────────
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['memory_episodes', 'memory_narratives', 'memory_candidates'] LOOP
        EXECUTE format('ALTER TABLE pal.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE pal.%I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY tenant ON pal.%I TO pal_app, pal_owner'
            ' USING (tenant_id = pal.tenant()) WITH CHECK (tenant_id = pal.tenant())', name);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON pal.%I TO pal_app', name);
    END LOOP;
END $$;

-- ── what pal_search does ────────────────────────────────────────────────────────────────────
-- As `find_facts`, and as carefully: episodes that hold the words, in all of the tenant.
GRANT SELECT (tenant_id, id, keys) ON pal.memory_episodes TO pal_search;
CREATE POLICY search_read ON pal.memory_episodes FOR SELECT TO pal_search USING (true);
CREATE FUNCTION pal.find_episodes(words text[], parts integer[], cap integer)
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
        SELECT one, e.id FROM pal.memory_episodes e
        WHERE e.keys && wanted AND e.tenant_id || '' = tenant
        LIMIT cap + 1;
    END LOOP;
END $$;

GRANT CREATE ON SCHEMA pal TO pal_search;
ALTER FUNCTION pal.find_episodes(text[], integer[], integer) OWNER TO pal_search;
SET LOCAL ROLE pal_search;
REVOKE ALL ON FUNCTION pal.find_episodes(text[], integer[], integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pal.find_episodes(text[], integer[], integer) TO pal_owner, pal_app;
RESET ROLE;
REVOKE CREATE ON SCHEMA pal FROM pal_search;
