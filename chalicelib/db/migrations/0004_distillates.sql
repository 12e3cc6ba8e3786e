-- Distillates: what is known of people, one active row a topic and person, and how far each tenant's
-- timeline has been read for it.

-- All locks at first, in the order in which everyone takes them and as strong as any below: one that
-- was raised later could wait for a request that waits for this.
LOCK TABLE pal.tenants, pal.people, pal.sessions IN SHARE ROW EXCLUSIVE MODE;
LOCK TABLE pal.memory_events IN ACCESS EXCLUSIVE MODE;

-- ── distillates ─────────────────────────────────────────────────────────────────────────────
CREATE TABLE pal.memory_distillates (
    id            text COLLATE "C" NOT NULL,
    tenant_id     text COLLATE "C" NOT NULL REFERENCES pal.tenants,
    person_id     text COLLATE "C",      -- whom it is about
    said_by       text COLLATE "C",      -- who said it, where that is known
    group_id      text,                  -- the group it was said in; NULL: in private
    topic         text NOT NULL CHECK (char_length(topic) BETWEEN 1 AND 80),
    -- the topic folded, as `memory.topics.fold_topic` does; of no one known as `unattached_key` does
    topic_key     text COLLATE "C" NOT NULL,
    content       text NOT NULL CHECK (char_length(content) BETWEEN 1 AND 2000),
    confidence    double precision NOT NULL CHECK (confidence BETWEEN 0 AND 1),
    origin        text NOT NULL CHECK (origin IN ('stated', 'observed', 'inferred', 'promoted')),
    source_kind   text NOT NULL CHECK (source_kind IN ('session', 'events', 'run', 'remember')),
    session_id    text COLLATE "C",      -- where it was said, as far as that is still there
    event_id      text COLLATE "C",
    key_id        text COLLATE "C",      -- the API key that had it remembered
    said_at       timestamptz NOT NULL,  -- by which the newest wins: the message's time, never later than its ingest
    created_at    timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now(),
    superseded_by text COLLATE "C",
    superseded_at timestamptz,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, person_id) REFERENCES pal.people (tenant_id, id),
    FOREIGN KEY (tenant_id, said_by) REFERENCES pal.people (tenant_id, id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES pal.sessions (tenant_id, id)
        ON DELETE SET NULL (session_id),
    FOREIGN KEY (tenant_id, event_id) REFERENCES pal.memory_events (tenant_id, id)
        ON DELETE SET NULL (event_id),
    -- deferred: a row is superseded before the one that does it is written, since one is active
    FOREIGN KEY (tenant_id, superseded_by) REFERENCES pal.memory_distillates (tenant_id, id)
        DEFERRABLE INITIALLY DEFERRED,
    CHECK (superseded_by <> id),
    CHECK ((superseded_by IS NULL) = (superseded_at IS NULL))
);
CREATE UNIQUE INDEX memory_distillates_active ON pal.memory_distillates
    (tenant_id, person_id, topic_key) WHERE superseded_by IS NULL AND person_id IS NOT NULL;
CREATE UNIQUE INDEX memory_distillates_active_of_no_one ON pal.memory_distillates
    (tenant_id, coalesce(group_id, ''), topic_key) WHERE superseded_by IS NULL AND person_id IS NULL;
-- by the time of saying, since a turn is given the newest
CREATE INDEX memory_distillates_person ON pal.memory_distillates (tenant_id, person_id, said_at, id);
CREATE INDEX memory_distillates_said_by ON pal.memory_distillates (tenant_id, said_by, said_at, id)
    WHERE said_by IS NOT NULL;
CREATE INDEX memory_distillates_group ON pal.memory_distillates (tenant_id, group_id, said_at, id)
    WHERE group_id IS NOT NULL;
CREATE INDEX memory_distillates_of_tenant ON pal.memory_distillates (tenant_id, said_at, id)
    WHERE person_id IS NULL AND group_id IS NULL AND said_by IS NULL AND superseded_by IS NULL;
CREATE INDEX memory_distillates_chain ON pal.memory_distillates (tenant_id, superseded_by)
    WHERE superseded_by IS NOT NULL;
CREATE INDEX memory_distillates_session ON pal.memory_distillates (tenant_id, session_id)
    WHERE session_id IS NOT NULL;
CREATE INDEX memory_distillates_event ON pal.memory_distillates (tenant_id, event_id)
    WHERE event_id IS NOT NULL;

-- What was forgotten, without its words: no material from before may bring it back.
CREATE TABLE pal.memory_forgotten (
    id           text COLLATE "C" NOT NULL,    -- the row's that was active
    tenant_id    text COLLATE "C" NOT NULL REFERENCES pal.tenants,
    person_id    text COLLATE "C",
    group_id     text,
    topic_key    text COLLATE "C" NOT NULL,
    contents     bytea[] NOT NULL,             -- SHA-256 of each content of the chain, folded
    forgotten_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, person_id) REFERENCES pal.people (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX memory_forgotten_person ON pal.memory_forgotten (tenant_id, person_id);

-- ── passes ──────────────────────────────────────────────────────────────────────────────────
-- How far a tenant's timeline has been read, in its order of ingest, and who reads on right now.
CREATE TABLE pal.memory_passes (
    tenant_id    text COLLATE "C" PRIMARY KEY REFERENCES pal.tenants,
    read_tx      xid8 NOT NULL DEFAULT '0',
    read_id      text COLLATE "C" NOT NULL DEFAULT '',
    lease        text COLLATE "C",       -- the pass's own word; NULL: no pass is running
    lease_until  timestamptz,
    began_at     timestamptz,            -- the last slice's begin and end, failed ones included
    ended_at     timestamptz,
    more         boolean NOT NULL DEFAULT false,   -- that slice did not catch up
    failures     integer NOT NULL DEFAULT 0,       -- in a row
    error_code   text
);

-- Tenants with something to read whose last pass began an interval ago, or a tenth less: whoever asks
-- each minute, and is a second early once, should not skip one. Sooner, where it failed (after 1, 2,
-- 4, … minutes) or left something and no one went on (after one).
CREATE FUNCTION pal.tenants_due(every interval, most integer DEFAULT 1000) RETURNS TABLE (tenant_id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pal, pg_temp AS $$
    SELECT t.id FROM pal.tenants t LEFT JOIN pal.memory_passes p ON p.tenant_id = t.id
    WHERE (p.lease IS NULL OR p.lease_until < now())
      AND CASE
          WHEN p.ended_at IS NULL THEN true
          WHEN p.failures > 0 THEN p.ended_at <= now()
              - least(every, interval '1 minute' * 2 ^ least(p.failures - 1, 16))
          WHEN p.more THEN p.ended_at <= now() - least(every, interval '1 minute')
          ELSE p.began_at <= now() - every * 0.9 END
      AND EXISTS (
          SELECT FROM pal.memory_events e WHERE e.tenant_id = t.id
            AND (e.ingest_tx, e.id) > (coalesce(p.read_tx, '0'), coalesce(p.read_id, ''))
            AND e.ingest_tx < pg_snapshot_xmin(pg_current_snapshot()))
    ORDER BY p.ended_at NULLS FIRST LIMIT most
$$;

-- ── row-level security ──────────────────────────────────────────────────────────────────────
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['memory_distillates', 'memory_forgotten', 'memory_passes'] LOOP
        EXECUTE format('ALTER TABLE pal.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE pal.%I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY tenant ON pal.%I TO pal_app, pal_owner'
            ' USING (tenant_id = pal.tenant()) WITH CHECK (tenant_id = pal.tenant())', name);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON pal.%I TO pal_app', name);
    END LOOP;
END $$;
GRANT SELECT ON pal.memory_passes TO pal_system;
GRANT SELECT (tenant_id, ingest_tx, id) ON pal.memory_events TO pal_system;
CREATE POLICY system_read ON pal.memory_passes FOR SELECT TO pal_system USING (true);
CREATE POLICY system_read ON pal.memory_events FOR SELECT TO pal_system USING (true);

GRANT CREATE ON SCHEMA pal TO pal_system;
ALTER FUNCTION pal.tenants_due(interval, integer) OWNER TO pal_system;
SET LOCAL ROLE pal_system;
REVOKE ALL ON FUNCTION pal.tenants_due(interval, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pal.tenants_due(interval, integer) TO pal_owner, pal_app;
RESET ROLE;
REVOKE CREATE ON SCHEMA pal FROM pal_system;
