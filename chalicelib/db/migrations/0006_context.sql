-- Working and execution state of sessions: pins, the execution tree, and what keeps the context small.

-- All locks at first, as in 0004; the hot tables themselves stay as they are.
LOCK TABLE pal.tenants, pal.sessions IN SHARE ROW EXCLUSIVE MODE;

-- ── a session's state ───────────────────────────────────────────────────────────────────────
-- Beside the head, which a turn writes several times: this is written once behind each reply. There
-- is none of a session from before it was made; then all is as the defaults say.
CREATE TABLE pal.session_states (
    session_id     text COLLATE "C" PRIMARY KEY,
    tenant_id      text COLLATE "C" NOT NULL,
    pins           jsonb NOT NULL DEFAULT '[]',     -- [{"text"}] or [{"text", "messageId"}]
    -- the tree as the prompt tells it, so that a claim reads no nodes
    tree           text NOT NULL DEFAULT '',
    active_node    integer,                         -- where the conversation is; NULL: at the root
    node_count     integer NOT NULL DEFAULT 0,
    tree_ordinal   integer NOT NULL DEFAULT 0,      -- turns up to this one are in the tree
    -- messages there must be before a summary is tried for again, once one was refused
    compact_at     integer NOT NULL DEFAULT 0,
    compactions    integer NOT NULL DEFAULT 0,
    -- tokens by the provider's count, over our estimate of the same request; of this model
    calibration    real NOT NULL DEFAULT 1,
    counted_model  text,
    -- who does the work behind the reply right now, one at a time
    worker         text COLLATE "C",
    work_until     timestamptz,
    touched_at     timestamptz NOT NULL DEFAULT now(),
    sealed_at      timestamptz,
    promoted       integer NOT NULL DEFAULT 0,      -- what `end` answered
    cleared_at     timestamptz,                     -- since when retention has left nothing of it
    FOREIGN KEY (tenant_id, session_id) REFERENCES pal.sessions (tenant_id, id) ON DELETE CASCADE
) WITH (fillfactor = 70);
CREATE INDEX session_states_idle ON pal.session_states (touched_at) WHERE sealed_at IS NULL;
CREATE INDEX session_states_sealed ON pal.session_states (tenant_id, sealed_at)
    WHERE sealed_at IS NOT NULL AND cleared_at IS NULL;

-- ── the execution tree ──────────────────────────────────────────────────────────────────────
-- All nodes that there ever were; those that are folded are no more in the prompt but as a line of
-- their parent's outcome.
CREATE TABLE pal.session_nodes (
    session_id text COLLATE "C" NOT NULL,
    number     integer NOT NULL,
    tenant_id  text COLLATE "C" NOT NULL,
    parent     integer,                             -- NULL: right below the root
    kind       text NOT NULL CHECK (kind IN ('topic', 'decision', 'open_question', 'task')),
    text       text NOT NULL,
    status     text NOT NULL CHECK (status IN ('open', 'resolved', 'abandoned')),
    outcome    text,
    sources    text[] NOT NULL DEFAULT '{}',        -- ids of the messages it came from
    folded     boolean NOT NULL DEFAULT false,
    opened_at  timestamptz NOT NULL,
    closed_at  timestamptz,
    PRIMARY KEY (session_id, number),
    FOREIGN KEY (tenant_id, session_id) REFERENCES pal.sessions (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX session_nodes_shown ON pal.session_nodes (session_id, number) WHERE NOT folded;

-- ── what a tenant has decided ───────────────────────────────────────────────────────────────
-- `memory` as `memory.policy` reads it. A tenant without a row has the defaults.
CREATE TABLE pal.tenant_policies (
    tenant_id  text COLLATE "C" PRIMARY KEY REFERENCES pal.tenants,
    timezone   text NOT NULL DEFAULT 'UTC',
    memory     jsonb NOT NULL DEFAULT '{}',
    swept_at   timestamptz,                         -- when what is past its time was last deleted
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- Sessions that nothing has happened in for so long, and that can be ended.
CREATE FUNCTION pal.idle_sessions(idle interval, most integer)
RETURNS TABLE (tenant_id text, session_id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pal, pg_temp AS $$
    SELECT s.tenant_id, s.session_id
    FROM pal.session_states s JOIN pal.session_heads h USING (session_id)
    WHERE s.sealed_at IS NULL AND s.touched_at < now() - idle
      AND h.running_turn IS NULL AND (h.queued_turn IS NULL OR h.status = 'interrupted')
      AND h.status NOT IN ('ended', 'awaiting_approval')
    ORDER BY s.touched_at LIMIT most
$$;

-- Tenants that keep some tier for a time only, and that have not been looked at for `every`.
CREATE FUNCTION pal.tenants_keeping(every interval, most integer)
RETURNS TABLE (tenant_id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pal, pg_temp AS $$
    SELECT p.tenant_id FROM pal.tenant_policies p
    WHERE p.memory ? 'keep_days' AND p.memory -> 'keep_days' <> '{}'
      AND (p.swept_at IS NULL OR p.swept_at < now() - every)
    ORDER BY p.swept_at NULLS FIRST LIMIT most
$$;

-- ── row-level security ──────────────────────────────────────────────────────────────────────
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['session_states', 'session_nodes', 'tenant_policies'] LOOP
        EXECUTE format('ALTER TABLE pal.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE pal.%I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY tenant ON pal.%I TO pal_app, pal_owner'
            ' USING (tenant_id = pal.tenant()) WITH CHECK (tenant_id = pal.tenant())', name);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON pal.%I TO pal_app', name);
    END LOOP;
END $$;
GRANT SELECT (tenant_id, session_id, touched_at, sealed_at) ON pal.session_states TO pal_system;
GRANT SELECT (tenant_id, memory, swept_at) ON pal.tenant_policies TO pal_system;
CREATE POLICY system_read ON pal.session_states FOR SELECT TO pal_system USING (true);
CREATE POLICY system_read ON pal.tenant_policies FOR SELECT TO pal_system USING (true);

GRANT CREATE ON SCHEMA pal TO pal_system;
DO $$
DECLARE sig text;
BEGIN
    FOREACH sig IN ARRAY ARRAY['idle_sessions(interval, integer)',
                               'tenants_keeping(interval, integer)'] LOOP
        EXECUTE 'ALTER FUNCTION pal.' || sig || ' OWNER TO pal_system';
        SET LOCAL ROLE pal_system;
        EXECUTE 'REVOKE ALL ON FUNCTION pal.' || sig || ' FROM PUBLIC';
        EXECUTE 'GRANT EXECUTE ON FUNCTION pal.' || sig || ' TO pal_owner, pal_app';
        RESET ROLE;
    END LOOP;
END $$;
REVOKE CREATE ON SCHEMA pal FROM pal_system;
