-- Agents, a tenant's own keys, what a turn's tool loop has done, and approvals.

CREATE TABLE pal.agents (
    id         text COLLATE "C" PRIMARY KEY,
    tenant_id  text COLLATE "C" NOT NULL REFERENCES pal.tenants,
    name       text NOT NULL,
    definition json NOT NULL,    -- in the order it was sent, as `chalicelib.agents.definition` reads it, without the name
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, name)
);

-- What a tenant brings of its own: keys of model vendors, and values its tools' headers refer to.
-- `sealed` is what the vault made of the secret; `hint` its last four characters.
CREATE TABLE pal.tenant_secrets (
    tenant_id  text COLLATE "C" NOT NULL REFERENCES pal.tenants,
    kind       text NOT NULL CHECK (kind IN ('provider', 'tool')),
    name       text COLLATE "C" NOT NULL,
    sealed     bytea NOT NULL,
    hint       text NOT NULL,
    base_url   text,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, kind, name)
);

-- ── the journal of the tool loop ────────────────────────────────────────────────────────────
-- A round is one answer of a model that asked for tools. It is written before any of its calls
-- starts, so that a turn which is cut is taken up behind what was done, not from its start.
CREATE TABLE pal.turn_rounds (
    turn_id       text COLLATE "C" NOT NULL,
    round         integer NOT NULL,
    tenant_id     text COLLATE "C" NOT NULL,
    session_id    text COLLATE "C" NOT NULL,
    content       text NOT NULL,
    reasoning     jsonb,
    provider      text NOT NULL,
    model         text NOT NULL,
    tokens_in     integer,
    tokens_out    integer,
    tokens_cached integer,
    cost_usd      numeric,
    created_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (turn_id, round),
    FOREIGN KEY (tenant_id, session_id) REFERENCES pal.sessions (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX turn_rounds_session ON pal.turn_rounds (session_id);

-- One row a call, and so one result a call. `arguments` is the text that was shown and is run.
CREATE TABLE pal.tool_calls (
    id          text COLLATE "C" PRIMARY KEY,
    tenant_id   text COLLATE "C" NOT NULL,
    session_id  text COLLATE "C" NOT NULL,
    turn_id     text COLLATE "C" NOT NULL,   -- the turn in which the model asked for it
    run_turn    text COLLATE "C",            -- the later turn that told the model of a decision
    round       integer NOT NULL,
    place       integer NOT NULL,            -- among the calls of its round
    name        text NOT NULL,
    arguments   text NOT NULL,               -- JSON: an object, or a string where it was none
    status      text NOT NULL CHECK (status IN
        ('asked', 'running', 'completed', 'failed', 'pending', 'approved', 'denied', 'expired',
         'superseded', 'unknown')),
    result      text,                        -- what the model was given
    output      text,                        -- the whole of it, where `result` is an excerpt
    started_at  timestamptz,
    ended_at    timestamptz,
    UNIQUE (tenant_id, id),
    FOREIGN KEY (tenant_id, session_id) REFERENCES pal.sessions (tenant_id, id) ON DELETE CASCADE
) WITH (fillfactor = 80);
CREATE INDEX tool_calls_session ON pal.tool_calls (session_id, turn_id);

-- A person's yes or no to one call: bound to that call and to a hash of what was shown, used once.
CREATE TABLE pal.approvals (
    id             text COLLATE "C" PRIMARY KEY,
    tenant_id      text COLLATE "C" NOT NULL,
    session_id     text COLLATE "C" NOT NULL,
    turn_id        text COLLATE "C" NOT NULL,
    call_id        text COLLATE "C" NOT NULL UNIQUE,
    tool           text NOT NULL,
    arguments      text NOT NULL,
    arguments_hash bytea NOT NULL,
    status         text NOT NULL DEFAULT 'pending' CHECK (status IN
        ('pending', 'approved', 'denied', 'expired', 'superseded')),
    created_at     timestamptz NOT NULL DEFAULT now(),
    expires_at     timestamptz NOT NULL,
    decided_at     timestamptz,
    decided_by     text COLLATE "C",         -- the key's id
    FOREIGN KEY (tenant_id, call_id) REFERENCES pal.tool_calls (tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, session_id) REFERENCES pal.sessions (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX approvals_session ON pal.approvals (session_id);
CREATE INDEX approvals_list ON pal.approvals (tenant_id, id DESC);
CREATE INDEX approvals_pending ON pal.approvals (expires_at) WHERE status = 'pending';

ALTER TABLE pal.session_heads ADD COLUMN open_approvals integer NOT NULL DEFAULT 0;
ALTER TABLE pal.turns ADD COLUMN tokens_cached integer;
ALTER TABLE pal.turns ADD COLUMN rounds integer;

-- The calls of a turn as its message shows them, in the order in which the model asked. Results are
-- shown as far as a transcript of many calls can be read in one answer.
CREATE FUNCTION pal.calls_of(turn text) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pal AS $$
    SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
            'id', c.id, 'name', c.name, 'round', c.round, 'status', c.status,
            'result', left(c.result, 4000),
            'resultCut', CASE WHEN length(c.result) > 4000 THEN true END,
            'startedAt', to_char(c.started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
            'endedAt', to_char(c.ended_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
            'approvalId', a.id,
            'expiresAt', to_char(a.expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')))
        || jsonb_build_object('arguments', c.arguments::jsonb) ORDER BY c.round, c.place)
    FROM tool_calls c LEFT JOIN approvals a ON a.call_id = c.id
    WHERE c.turn_id = turn
$$;

-- ── row-level security ──────────────────────────────────────────────────────────────────────
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['agents', 'tenant_secrets', 'turn_rounds', 'tool_calls',
        'approvals'] LOOP
        EXECUTE format('ALTER TABLE pal.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE pal.%I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY tenant ON pal.%I TO pal_app, pal_owner'
            ' USING (tenant_id = pal.tenant()) WITH CHECK (tenant_id = pal.tenant())', name);
    END LOOP;
END $$;
GRANT SELECT, INSERT, UPDATE, DELETE ON pal.agents, pal.tenant_secrets, pal.turn_rounds,
    pal.tool_calls, pal.approvals TO pal_app;
GRANT SELECT ON pal.approvals TO pal_system;
CREATE POLICY system_read ON pal.approvals FOR SELECT TO pal_system USING (true);

-- Sessions with a pending approval whose time is over.
CREATE FUNCTION pal.due_approvals(most integer) RETURNS TABLE (tenant_id text, session_id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pal, pg_temp AS $$
    SELECT DISTINCT tenant_id, session_id FROM pal.approvals
    WHERE status = 'pending' AND expires_at < now() LIMIT most
$$;
GRANT CREATE ON SCHEMA pal TO pal_system;
ALTER FUNCTION pal.due_approvals(integer) OWNER TO pal_system;
SET LOCAL ROLE pal_system;
REVOKE ALL ON FUNCTION pal.due_approvals(integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION pal.due_approvals(integer) TO pal_owner, pal_app;
RESET ROLE;
REVOKE CREATE ON SCHEMA pal FROM pal_system;
