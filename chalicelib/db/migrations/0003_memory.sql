-- People, the handles they are known by on each channel, and the timeline of what was said.

-- ── people ──────────────────────────────────────────────────────────────────────────────────
CREATE TABLE pal.people (
    id          text COLLATE "C" NOT NULL,
    tenant_id   text COLLATE "C" NOT NULL REFERENCES pal.tenants,
    name        text,
    name_key    text COLLATE "C",   -- the name folded, as `memory.handles.fold_name` does
    metadata    jsonb,
    merged_into text COLLATE "C",   -- who this was found to be: never one who was merged as well
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, merged_into) REFERENCES pal.people (tenant_id, id) ON DELETE CASCADE,
    CHECK (merged_into <> id)
);
CREATE INDEX people_names ON pal.people (tenant_id, name_key)
    WHERE name_key IS NOT NULL AND merged_into IS NULL;
CREATE INDEX people_merged ON pal.people (tenant_id, merged_into) WHERE merged_into IS NOT NULL;

CREATE TABLE pal.person_handles (
    tenant_id  text COLLATE "C" NOT NULL,
    channel    text COLLATE "C" NOT NULL,
    handle     text COLLATE "C" NOT NULL,   -- normalised, as `memory.handles.read_handle` does
    given      text NOT NULL,               -- as it first came
    contact    text COLLATE "C",            -- the number or address it is, whatever its channel
    person_id  text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, channel, handle),
    FOREIGN KEY (tenant_id, person_id) REFERENCES pal.people (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX person_handles_person ON pal.person_handles (tenant_id, person_id);
CREATE INDEX person_handles_contact ON pal.person_handles (tenant_id, contact)
    WHERE contact IS NOT NULL;

-- Who `user_id` is: the owner of that handle on channel `user`.
ALTER TABLE pal.sessions ADD COLUMN person_id text COLLATE "C",
    ADD FOREIGN KEY (tenant_id, person_id) REFERENCES pal.people (tenant_id, id);
CREATE INDEX sessions_person ON pal.sessions (tenant_id, person_id) WHERE person_id IS NOT NULL;

-- ── the timeline ────────────────────────────────────────────────────────────────────────────
-- What came in from outside, and one row a completed turn (kind `turn`, with session and turn id).
-- Its order of ingest is (ingest_tx, id). A reader that keeps its place takes only rows with
-- ingest_tx < pg_snapshot_xmin(pg_current_snapshot()): nothing can still be committed before those.
CREATE TABLE pal.memory_events (
    id          text COLLATE "C" NOT NULL,
    tenant_id   text COLLATE "C" NOT NULL REFERENCES pal.tenants,
    ingest_tx   xid8 NOT NULL DEFAULT pg_current_xact_id(),
    ingested_at timestamptz NOT NULL DEFAULT now(),
    occurred_at timestamptz NOT NULL,   -- the caller's word; late and future ones stand as they are
    channel     text NOT NULL,
    kind        text NOT NULL,
    direction   text CHECK (direction IN ('inbound', 'outbound')),
    external_id text,
    once        bytea,                  -- SHA-256 of (channel, group_id, kind, external_id), if the last is there
    group_id    text,
    person_id   text COLLATE "C",
    session_id  text COLLATE "C",
    turn_id     text COLLATE "C",
    content     text NOT NULL,
    metadata    jsonb,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, person_id) REFERENCES pal.people (tenant_id, id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES pal.sessions (tenant_id, id) ON DELETE CASCADE
);
-- a hash, since the four together may be longer than an index takes
CREATE UNIQUE INDEX memory_events_once ON pal.memory_events (tenant_id, once)
    WHERE once IS NOT NULL;
CREATE INDEX memory_events_ingest ON pal.memory_events (tenant_id, ingest_tx, id);
CREATE INDEX memory_events_person ON pal.memory_events (tenant_id, person_id, occurred_at)
    WHERE person_id IS NOT NULL;
CREATE INDEX memory_events_session ON pal.memory_events (tenant_id, session_id)
    WHERE session_id IS NOT NULL;

-- A message as the content of a turn's event tells it: its role, and no line but the first at the
-- margin, so that no text can pass for a message of another role.
CREATE FUNCTION pal.told(role text, said text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT role || ': '
        || regexp_replace(said, '\r\n?|[\n\v\f\x1c-\x1e\u0085\u2028\u2029]', E'\n  ', 'g')
$$;

-- ── row-level security ──────────────────────────────────────────────────────────────────────
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['people', 'person_handles', 'memory_events'] LOOP
        EXECUTE format('ALTER TABLE pal.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE pal.%I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY tenant ON pal.%I TO pal_app, pal_owner'
            ' USING (tenant_id = pal.tenant()) WITH CHECK (tenant_id = pal.tenant())', name);
    END LOOP;
END $$;
GRANT SELECT, INSERT, UPDATE, DELETE ON pal.people, pal.person_handles, pal.memory_events TO pal_app;
