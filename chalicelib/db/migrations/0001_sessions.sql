-- Tenants, keys, sessions, turns, messages and the event log.
-- Applied as pal_owner: no superuser, no BYPASSRLS. FORCE ROW LEVEL SECURITY binds it as well.

-- ── the tenant of a transaction ─────────────────────────────────────────────────────────────
-- A function, since RDS Proxy pins a connection whose client sends SET or set_config itself.
CREATE FUNCTION pal.enter(tenant text, process text) RETURNS void
LANGUAGE plpgsql SET search_path = pal AS $$
BEGIN
    IF NOT row_security_active('pal.sessions') THEN
        RAISE EXCEPTION '% is above row-level security; connect as pal_app', current_user
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM set_config('pal.tenant', tenant, true), set_config('pal.process', process, true);
END $$;

CREATE FUNCTION pal.tenant() RETURNS text LANGUAGE sql STABLE AS
$$ SELECT current_setting('pal.tenant', true) $$;

-- ── tenants and keys ────────────────────────────────────────────────────────────────────────
CREATE TABLE pal.tenants (
    id              text COLLATE "C" PRIMARY KEY,
    name            text NOT NULL UNIQUE,
    -- off: a session of an agent that no one has defined is a 404
    undefined_agents boolean NOT NULL DEFAULT true,
    created_at      timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE pal.api_keys (
    id           text COLLATE "C" PRIMARY KEY,
    tenant_id    text COLLATE "C" NOT NULL REFERENCES pal.tenants,
    name         text NOT NULL,
    hash         bytea NOT NULL UNIQUE,
    hint         text NOT NULL,   -- the key's last four characters, so that a person can tell keys apart
    scopes       text[] NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    last_used_at timestamptz,
    revoked_at   timestamptz,
    UNIQUE (tenant_id, id)
);

-- One salt a database: keys and tokens are found by their hash, so the salt cannot be a row's own.
-- Only pal_system may read it.
CREATE TABLE pal.salt (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    value bytea NOT NULL
);
INSERT INTO pal.salt (value)
VALUES (sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())));

-- The process that this transaction is of, by which it is known among a session's watchers.
CREATE FUNCTION pal.process() RETURNS text LANGUAGE sql STABLE AS
$$ SELECT current_setting('pal.process', true) $$;

-- Whether another process than this one has readers; entries past their time do not count.
CREATE FUNCTION pal.watched(watchers jsonb) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT watchers <> '{}' AND EXISTS (
        SELECT FROM jsonb_each(watchers) w
        WHERE w.key <> pal.process() AND w.value::double precision > extract(epoch FROM now()))
$$;

-- ── sessions ────────────────────────────────────────────────────────────────────────────────
CREATE TABLE pal.sessions (
    id          text COLLATE "C" PRIMARY KEY,
    tenant_id   text COLLATE "C" NOT NULL REFERENCES pal.tenants,
    agent_name  text NOT NULL,
    environment text,
    user_id     text,
    group_id    text,
    metadata    jsonb,
    -- what the model sees; EXTERNAL: appending 15 ms with compression, 8 without, at 1,000 messages
    messages    jsonb NOT NULL DEFAULT '[]',
    summary     text,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    -- the order of lists, and what a session's rows refer to: policies do not bind foreign keys, so
    -- without the tenant in them one tenant's row could hang on another's session
    UNIQUE (tenant_id, id)
);
-- in a statement of its own, since Postgres 15 does not know it in CREATE TABLE
ALTER TABLE pal.sessions ALTER COLUMN messages SET STORAGE EXTERNAL;
CREATE INDEX sessions_group ON pal.sessions (tenant_id, group_id, id DESC) WHERE group_id IS NOT NULL;

-- The narrow row that accept, claim, commit, stop, cancel and delete lock first. It is written
-- several times a turn, so no index holds a column of it but the key (updates stay on the page).
CREATE TABLE pal.session_heads (
    session_id       text COLLATE "C" PRIMARY KEY,
    tenant_id        text COLLATE "C" NOT NULL,
    status           text NOT NULL DEFAULT 'active' CHECK (status IN
        ('active', 'processing', 'awaiting_approval', 'interrupted', 'stopped', 'ended')),
    generation       bigint NOT NULL DEFAULT 0,
    running_turn     text COLLATE "C",
    queued_turn      text COLLATE "C",
    cut_turn         text COLLATE "C",   -- its messages go into the next turn that is claimed
    cuts             integer NOT NULL DEFAULT 0,
    turn_count       integer NOT NULL DEFAULT 0,
    lease_until      timestamptz,
    queued_at        timestamptz,
    cancel_requested boolean NOT NULL DEFAULT false,
    next_seq         bigint NOT NULL DEFAULT 1,
    turn_seq         bigint NOT NULL DEFAULT 1,   -- where the running turn starts in the event log
    kept_seq         bigint NOT NULL DEFAULT 1,   -- events below it have been deleted
    watchers         jsonb NOT NULL DEFAULT '{}', -- process id -> epoch until which it has readers
    FOREIGN KEY (tenant_id, session_id) REFERENCES pal.sessions (tenant_id, id) ON DELETE CASCADE
) WITH (fillfactor = 60);

CREATE TABLE pal.turns (
    id            text COLLATE "C" PRIMARY KEY,
    tenant_id     text COLLATE "C" NOT NULL,
    session_id    text COLLATE "C" NOT NULL,
    ordinal       integer NOT NULL,
    status        text NOT NULL DEFAULT 'queued' CHECK (status IN
        ('queued', 'running', 'completed', 'failed', 'cut')),
    generation    bigint,
    resumes_turn  text COLLATE "C",
    accepted_at   timestamptz NOT NULL DEFAULT now(),
    started_at    timestamptz,
    ended_at      timestamptz,
    provider      text,
    model         text,
    tokens_in     integer,
    tokens_out    integer,
    cost_usd      numeric,
    finish_reason text,
    message_id    text COLLATE "C",
    error_code    text,
    error         text,
    UNIQUE (session_id, ordinal),
    FOREIGN KEY (tenant_id, session_id) REFERENCES pal.sessions (tenant_id, id) ON DELETE CASCADE
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX turns_one_running ON pal.turns (session_id) WHERE status = 'running';
CREATE INDEX turns_open ON pal.turns (session_id) WHERE status IN ('queued', 'running');

-- The whole transcript, append-only. Order: (turn_ordinal, seq), so that a message which arrived
-- in mid-turn stands after that turn's reply.
CREATE TABLE pal.messages (
    id           text COLLATE "C" PRIMARY KEY,
    tenant_id    text COLLATE "C" NOT NULL,
    session_id   text COLLATE "C" NOT NULL,
    turn_id      text COLLATE "C" NOT NULL,
    turn_ordinal integer NOT NULL,
    seq          bigint NOT NULL,   -- of its event; ids are made before the head is locked
    role         text NOT NULL CHECK (role IN ('user', 'assistant', 'tool')),
    content      text NOT NULL,
    attachments  jsonb,
    tool_calls   jsonb,
    hints        jsonb,
    created_at   timestamptz NOT NULL DEFAULT now(),
    FOREIGN KEY (tenant_id, session_id) REFERENCES pal.sessions (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX messages_order ON pal.messages (session_id, turn_ordinal, seq);

-- The event log, truth for every reader. `data` is the JSON text a reader gets; a delta row holds
-- `text` from `start` (in characters) of its turn instead.
CREATE TABLE pal.session_events (
    session_id text COLLATE "C" NOT NULL,
    seq        bigint NOT NULL,
    tenant_id  text COLLATE "C" NOT NULL,
    kind       text NOT NULL,
    turn_id    text COLLATE "C",
    generation bigint,
    start      integer,
    text       text,
    data       text,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_id, seq),
    FOREIGN KEY (tenant_id, session_id) REFERENCES pal.sessions (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX session_events_age ON pal.session_events USING brin (created_at) WITH (pages_per_range = 32);

CREATE TABLE pal.stream_tokens (
    hash       bytea PRIMARY KEY,
    tenant_id  text COLLATE "C" NOT NULL REFERENCES pal.tenants,
    session_id text COLLATE "C" NOT NULL,
    key_id     text COLLATE "C" NOT NULL,
    expires_at timestamptz NOT NULL,
    FOREIGN KEY (tenant_id, session_id) REFERENCES pal.sessions (tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, key_id) REFERENCES pal.api_keys (tenant_id, id)
);

CREATE TABLE pal.open_streams (
    id        text COLLATE "C" PRIMARY KEY,
    tenant_id text COLLATE "C" NOT NULL REFERENCES pal.tenants,
    key_id    text COLLATE "C" NOT NULL,
    until     timestamptz NOT NULL,
    FOREIGN KEY (tenant_id, key_id) REFERENCES pal.api_keys (tenant_id, id)
);
CREATE INDEX open_streams_key ON pal.open_streams (key_id);

CREATE TABLE pal.idempotency_keys (
    tenant_id  text COLLATE "C" NOT NULL REFERENCES pal.tenants,
    scope      text NOT NULL,   -- method and path, so a key used on two sessions is two keys
    key        text NOT NULL,
    body_hash  bytea NOT NULL,
    answer     jsonb,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, scope, key)
);

-- ── row-level security ──────────────────────────────────────────────────────────────────────
DO $$
DECLARE name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['api_keys', 'sessions', 'session_heads', 'turns', 'messages',
        'session_events', 'stream_tokens', 'open_streams', 'idempotency_keys', 'tenants', 'salt'] LOOP
        EXECUTE format('ALTER TABLE pal.%I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE pal.%I FORCE ROW LEVEL SECURITY', name);
        CONTINUE WHEN name = 'salt';
        EXECUTE format('CREATE POLICY tenant ON pal.%I TO pal_app, pal_owner'
            ' USING (%I = pal.tenant()) WITH CHECK (%2$I = pal.tenant())',
            name, CASE name WHEN 'tenants' THEN 'id' ELSE 'tenant_id' END);
    END LOOP;
END $$;

GRANT SELECT ON pal.tenants, pal.api_keys TO pal_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON pal.sessions, pal.session_heads, pal.turns, pal.messages,
    pal.session_events, pal.stream_tokens, pal.open_streams, pal.idempotency_keys TO pal_app;

-- What pal_system sees across tenants: just these tables, just these commands.
GRANT SELECT ON pal.tenants, pal.salt TO pal_system;
GRANT SELECT, UPDATE ON pal.api_keys, pal.session_heads TO pal_system;
GRANT SELECT ON pal.turns TO pal_system;
GRANT SELECT, DELETE ON pal.stream_tokens, pal.open_streams, pal.idempotency_keys,
    pal.session_events TO pal_system;
CREATE POLICY system_read ON pal.tenants FOR SELECT TO pal_system USING (true);
CREATE POLICY system_read ON pal.salt FOR SELECT TO pal_system USING (true);
CREATE POLICY system_read ON pal.api_keys FOR SELECT TO pal_system USING (true);
CREATE POLICY system_touch ON pal.api_keys FOR UPDATE TO pal_system USING (true);
CREATE POLICY system_read ON pal.session_heads FOR SELECT TO pal_system USING (true);
CREATE POLICY system_touch ON pal.session_heads FOR UPDATE TO pal_system USING (true);
CREATE POLICY system_read ON pal.turns FOR SELECT TO pal_system USING (true);
CREATE POLICY system_read ON pal.stream_tokens FOR SELECT TO pal_system USING (true);
CREATE POLICY system_purge ON pal.stream_tokens FOR DELETE TO pal_system USING (true);
CREATE POLICY system_read ON pal.open_streams FOR SELECT TO pal_system USING (true);
CREATE POLICY system_purge ON pal.open_streams FOR DELETE TO pal_system USING (true);
CREATE POLICY system_read ON pal.idempotency_keys FOR SELECT TO pal_system USING (true);
CREATE POLICY system_purge ON pal.idempotency_keys FOR DELETE TO pal_system USING (true);
CREATE POLICY system_read ON pal.session_events FOR SELECT TO pal_system USING (true);
CREATE POLICY system_purge ON pal.session_events FOR DELETE TO pal_system USING (true);

-- ── the few needs across tenants ────────────────────────────────────────────────────────────
-- `digest` is the SHA-256 of a key, so that the key itself never reaches a statement log.
CREATE FUNCTION pal.salted(digest bytea) RETURNS bytea
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pal, pg_temp AS
$$ SELECT sha256(value || digest) FROM pal.salt $$;

CREATE FUNCTION pal.authenticate(digest bytea)
RETURNS TABLE (key_id text, tenant_id text, scopes text[], undefined_agents boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pal, pg_temp AS $$
DECLARE wanted bytea := pal.salted(digest);
BEGIN
    RETURN QUERY
        SELECT k.id, k.tenant_id, k.scopes, t.undefined_agents
        FROM pal.api_keys k JOIN pal.tenants t ON t.id = k.tenant_id
        WHERE k.hash = wanted AND k.revoked_at IS NULL;
    IF FOUND THEN
        UPDATE pal.api_keys k SET last_used_at = now()
        WHERE k.hash = wanted
          AND (k.last_used_at IS NULL OR k.last_used_at < now() - interval '10 seconds');
    END IF;
END $$;

CREATE FUNCTION pal.key_is_live(key text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pal, pg_temp AS
$$ SELECT EXISTS (SELECT FROM pal.api_keys WHERE id = key AND revoked_at IS NULL) $$;

CREATE FUNCTION pal.read_stream_token(digest bytea)
RETURNS TABLE (key_id text, tenant_id text, session_id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pal, pg_temp AS $$
    SELECT s.key_id, s.tenant_id, s.session_id
    FROM pal.stream_tokens s JOIN pal.api_keys k ON k.id = s.key_id
    WHERE s.hash = pal.salted(digest) AND s.expires_at > now() AND k.revoked_at IS NULL
$$;

CREATE FUNCTION pal.list_tenants()
RETURNS TABLE (id text, name text, undefined_agents boolean, created_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pal, pg_temp AS
$$ SELECT id, name, undefined_agents, created_at FROM pal.tenants ORDER BY id $$;

-- Sessions whose running turn's lease lapsed, and those whose queued turn no one claimed.
CREATE FUNCTION pal.due_sessions(unclaimed_for interval, most integer)
RETURNS TABLE (tenant_id text, session_id text, lapsed boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pal, pg_temp AS $$
    SELECT DISTINCT h.tenant_id, h.session_id, h.running_turn IS NOT NULL
    FROM pal.turns t JOIN pal.session_heads h ON h.session_id = t.session_id
    WHERE t.status IN ('queued', 'running')
      AND ((h.running_turn IS NOT NULL AND h.lease_until < now())
        OR (h.running_turn IS NULL AND h.queued_turn IS NOT NULL AND h.status <> 'interrupted'
            AND h.queued_at < now() - unclaimed_for))
    LIMIT most
$$;

-- How far the logs of these sessions reach, for a process that cannot LISTEN.
CREATE FUNCTION pal.feed_heads(wanted text[])
RETURNS TABLE (session_id text, next_seq bigint, busy boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pal, pg_temp AS $$
    SELECT session_id, next_seq, running_turn IS NOT NULL OR queued_turn IS NOT NULL
    FROM pal.session_heads WHERE session_id = ANY (wanted)
$$;

-- Renews a process's entry in `watchers`; in key order, as every many-row lock of heads.
CREATE FUNCTION pal.renew_watch(wanted text[], process text, until double precision)
RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pal, pg_temp AS $$
    UPDATE pal.session_heads h
    SET watchers = h.watchers || jsonb_build_object(process, until)
    FROM (SELECT session_id FROM pal.session_heads WHERE session_id = ANY (wanted)
          ORDER BY session_id FOR NO KEY UPDATE SKIP LOCKED) AS own
    WHERE h.session_id = own.session_id
$$;

-- Deletes up to `most` events older than `age` of turns that have ended, and what else has expired.
CREATE FUNCTION pal.purge(age interval, most integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pal, pg_temp AS $$
DECLARE gone integer;
BEGIN
    WITH old AS (
        SELECT e.session_id, e.seq FROM pal.session_events e
        JOIN pal.session_heads h ON h.session_id = e.session_id
        WHERE e.created_at < now() - age
          AND (h.running_turn IS NULL OR e.seq < h.turn_seq)
          AND (e.turn_id IS NULL OR NOT EXISTS (
              SELECT FROM pal.turns t WHERE t.id = e.turn_id
                AND (t.ended_at IS NULL OR t.ended_at > now() - age)))
        LIMIT most
    ), own AS (
        -- the head first, as everywhere; one that is busy is left for the next time
        SELECT h.session_id FROM pal.session_heads h
        WHERE h.session_id IN (SELECT session_id FROM old)
        ORDER BY h.session_id FOR NO KEY UPDATE SKIP LOCKED
    ), deleted AS (
        DELETE FROM pal.session_events e USING old JOIN own USING (session_id)
        WHERE e.session_id = old.session_id AND e.seq = old.seq
        RETURNING e.session_id, e.seq
    ), edge AS (
        SELECT session_id, max(seq) + 1 AS kept FROM deleted GROUP BY session_id
    ), moved AS (
        UPDATE pal.session_heads h SET kept_seq = greatest(h.kept_seq, edge.kept)
        FROM edge WHERE h.session_id = edge.session_id
    )
    SELECT count(*) INTO gone FROM deleted;
    DELETE FROM pal.stream_tokens WHERE expires_at < now();
    DELETE FROM pal.open_streams WHERE until < now();
    DELETE FROM pal.idempotency_keys WHERE created_at < now() - interval '24 hours';
    RETURN gone;
END $$;

-- pal_system owns them; to hand them over it needs CREATE for this moment only.
GRANT CREATE ON SCHEMA pal TO pal_system;
DO $$
DECLARE sig text;
BEGIN
    FOREACH sig IN ARRAY ARRAY['salted(bytea)', 'authenticate(bytea)', 'key_is_live(text)',
        'read_stream_token(bytea)', 'list_tenants()', 'due_sessions(interval, integer)',
        'feed_heads(text[])', 'renew_watch(text[], text, double precision)',
        'purge(interval, integer)'] LOOP
        EXECUTE 'ALTER FUNCTION pal.' || sig || ' OWNER TO pal_system';
        -- what the old owner had granted went to the new one, so the new one grants
        SET LOCAL ROLE pal_system;
        EXECUTE 'REVOKE ALL ON FUNCTION pal.' || sig || ' FROM PUBLIC';
        EXECUTE 'GRANT EXECUTE ON FUNCTION pal.' || sig || ' TO pal_owner';
        IF sig <> 'list_tenants()' THEN
            EXECUTE 'GRANT EXECUTE ON FUNCTION pal.' || sig || ' TO pal_app';
        END IF;
        RESET ROLE;
    END LOOP;
END $$;
REVOKE CREATE ON SCHEMA pal FROM pal_system;
