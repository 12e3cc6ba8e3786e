-- The microVMs of sessions: which there are, so that each is used by one session and ended in the end.

LOCK TABLE pal.tenants IN SHARE ROW EXCLUSIVE MODE;

-- A row is committed before its VM is started and goes when that has ended for sure. So it refers to
-- no session: one that is deleted would take along the only word of a VM that still runs.
CREATE TABLE pal.session_vms (
    id         text COLLATE "C" PRIMARY KEY,   -- also the token that its driver starts it by
    tenant_id  text COLLATE "C" NOT NULL REFERENCES pal.tenants,
    session_id text COLLATE "C" NOT NULL,
    driver     text NOT NULL,                  -- the name of the only one that can end it
    -- `ended` ones have no VM: they stay until the session has been told what became of it
    state      text NOT NULL DEFAULT 'starting' CHECK (state IN
        ('starting', 'running', 'ending', 'ended')),
    machine_id text,                           -- as its driver calls it, once that is known
    endpoint   text,
    -- why it ends; `closed`: with its session
    reason     text CHECK (reason IN ('idle', 'gone', 'expired', 'closed')),
    -- the reason of the one before it, and the turn that is told of it
    notice     text CHECK (notice IN ('idle', 'gone', 'expired')),
    told_turn  text COLLATE "C",
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,                    -- by the driver's clock
    running_at timestamptz,                    -- when that was written here
    expires_at timestamptz,
    used_until timestamptz,                    -- what was last asked of it ends by then; NULL: nothing
    ended_at   timestamptz,                    -- when its end began
    tried_at   timestamptz,                    -- when the sweep last tried to end it
    CHECK (state <> 'running' OR (machine_id, endpoint, running_at, expires_at) IS NOT NULL)
);
-- what makes it one VM a session
CREATE UNIQUE INDEX session_vms_live ON pal.session_vms (tenant_id, session_id)
    WHERE state IN ('starting', 'running');
CREATE INDEX session_vms_session ON pal.session_vms (tenant_id, session_id);
CREATE INDEX session_vms_machine ON pal.session_vms (machine_id) WHERE machine_id IS NOT NULL;

ALTER TABLE pal.session_vms ENABLE ROW LEVEL SECURITY;
ALTER TABLE pal.session_vms FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON pal.session_vms TO pal_app, pal_owner
    USING (tenant_id = pal.tenant()) WITH CHECK (tenant_id = pal.tenant());
GRANT SELECT, INSERT, UPDATE, DELETE ON pal.session_vms TO pal_app;
GRANT SELECT, DELETE ON pal.session_vms TO pal_system;
CREATE POLICY system_read ON pal.session_vms FOR SELECT TO pal_system USING (true);
CREATE POLICY system_purge ON pal.session_vms FOR DELETE TO pal_system USING (true);

-- Whether the session is there and may use a VM.
CREATE FUNCTION pal.session_is_open(session text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pal, pg_temp AS $$
    SELECT EXISTS (SELECT FROM session_heads
                   WHERE session_id = session AND status NOT IN ('stopped', 'ended'))
$$;

-- Why this VM is to be ended now, NULL while it is not. One that was replaced is left to whoever may
-- still be using it; one that has been starting for so long was given up by whoever started it.
CREATE FUNCTION pal.vm_due(vm pal.session_vms, idle interval) RETURNS text
LANGUAGE sql STABLE SET search_path = pal, pg_temp AS $$
    SELECT CASE
        WHEN vm.state = 'ended' THEN NULL
        WHEN vm.state = 'ending' AND vm.reason = 'expired' AND vm.used_until > now()
             AND vm.expires_at > now() AND pal.session_is_open(vm.session_id) THEN NULL
        WHEN vm.state = 'ending' THEN vm.reason
        WHEN NOT pal.session_is_open(vm.session_id) THEN 'closed'
        WHEN vm.state = 'starting' AND vm.created_at < now() - interval '8 minutes' THEN 'gone'
        WHEN vm.expires_at < now() THEN 'expired'
        WHEN coalesce(vm.used_until, vm.running_at) < now() - idle THEN 'idle'
    END
$$;

-- ── the few needs across tenants ────────────────────────────────────────────────────────────
CREATE FUNCTION pal.due_vms(own text, idle interval, most integer)
RETURNS TABLE (tenant_id text, id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pal, pg_temp AS $$
    SELECT v.tenant_id, v.id FROM pal.session_vms v
    WHERE v.driver = own AND v.state <> 'ended' AND pal.vm_due(v, idle) IS NOT NULL
      AND (v.tried_at IS NULL OR v.tried_at < now() - interval '20 seconds')
    ORDER BY v.tried_at NULLS FIRST, v.id LIMIT most
$$;

-- Which of these machines a row knows.
CREATE FUNCTION pal.known_machines(own text, found text[]) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pal, pg_temp AS $$
    SELECT v.machine_id FROM pal.session_vms v WHERE v.driver = own AND v.machine_id = ANY (found)
$$;

-- VMs that should run, and have for so long that their driver would know of them, but are not alive.
CREATE FUNCTION pal.lost_vms(own text, alive text[], settled interval, most integer)
RETURNS TABLE (tenant_id text, session_id text, id text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pal, pg_temp AS $$
    SELECT v.tenant_id, v.session_id, v.id FROM pal.session_vms v
    WHERE v.driver = own AND v.state = 'running' AND v.running_at < now() - settled
      AND v.machine_id <> ALL (alive)
    LIMIT most
$$;

-- What is left of sessions that are gone, and of drivers that no process has any more: no VM lives
-- for a day beyond its time.
CREATE FUNCTION pal.purge_vms() RETURNS integer
LANGUAGE sql SECURITY DEFINER SET search_path = pal, pg_temp AS $$
    WITH gone AS (
        DELETE FROM pal.session_vms v
        WHERE CASE WHEN v.state = 'ended' THEN NOT pal.session_is_open(v.session_id)
                   ELSE coalesce(v.expires_at, v.created_at) < now() - interval '1 day' END
        RETURNING v.id
    )
    SELECT count(*)::integer FROM gone
$$;

GRANT CREATE ON SCHEMA pal TO pal_system;
DO $$
DECLARE sig text;
BEGIN
    FOREACH sig IN ARRAY ARRAY['due_vms(text, interval, integer)', 'known_machines(text, text[])',
        'lost_vms(text, text[], interval, integer)', 'purge_vms()'] LOOP
        EXECUTE 'ALTER FUNCTION pal.' || sig || ' OWNER TO pal_system';
        SET LOCAL ROLE pal_system;
        EXECUTE 'REVOKE ALL ON FUNCTION pal.' || sig || ' FROM PUBLIC';
        EXECUTE 'GRANT EXECUTE ON FUNCTION pal.' || sig || ' TO pal_owner, pal_app';
        RESET ROLE;
    END LOOP;
END $$;
REVOKE CREATE ON SCHEMA pal FROM pal_system;
