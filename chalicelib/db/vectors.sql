-- Vectors, where the server has pgvector 0.7 or newer. Applied after the migrations, each time: the
-- extension may come later than they do. It does nothing where all is done, and then waits for no
-- lock; what is changed here needs a condition of its own.
DO $do$
BEGIN
    IF to_regtype('halfvec') IS NULL OR to_regclass('pal.memory_vectors') IS NOT NULL
       OR to_regclass('pal.memory_index') IS NULL THEN
        RETURN;
    END IF;

    -- all locks at first, as in the migrations
    LOCK TABLE pal.tenants, pal.memory_events IN SHARE ROW EXCLUSIVE MODE;
    LOCK TABLE pal.memory_distillates IN ACCESS EXCLUSIVE MODE;

    CREATE TABLE pal.memory_vectors (
        tenant_id text COLLATE "C" NOT NULL,
        event_id  text COLLATE "C" NOT NULL,
        model     text COLLATE "C" NOT NULL,   -- vectors of two models have nothing in common
        vec       halfvec(256) NOT NULL,       -- of length 1; zeros: nothing is said
        bits      bit(256) NOT NULL GENERATED ALWAYS AS (binary_quantize(vec)::bit(256)) STORED,
        PRIMARY KEY (tenant_id, event_id),
        FOREIGN KEY (tenant_id, event_id) REFERENCES pal.memory_events (tenant_id, id)
            ON DELETE CASCADE
    );
    -- for the large tenants: their signs are read from it alone, without the rows
    CREATE INDEX memory_vectors_bits ON pal.memory_vectors (tenant_id, model)
        INCLUDE (event_id, bits);
    CREATE TABLE pal.memory_distillate_vectors (
        tenant_id     text COLLATE "C" NOT NULL,
        distillate_id text COLLATE "C" NOT NULL,
        model         text COLLATE "C" NOT NULL,
        vec           halfvec(256) NOT NULL,
        PRIMARY KEY (tenant_id, distillate_id),
        FOREIGN KEY (tenant_id, distillate_id) REFERENCES pal.memory_distillates (tenant_id, id)
            ON DELETE CASCADE
    );

    -- How far a tenant's rows have been looked through for vectors of the present model: those that
    -- were there at first from the newest down, those that came later in the order of their coming.
    CREATE TABLE pal.memory_embedded (
        tenant_id text COLLATE "C" PRIMARY KEY REFERENCES pal.tenants,
        model     text COLLATE "C" NOT NULL,
        new_tx    xid8 NOT NULL,               -- events above (new_tx, new_id) are to be looked at
        new_id    text COLLATE "C" NOT NULL DEFAULT '',
        old_tx    xid8,                        -- and those below (old_tx, old_id); NULL: there are none
        old_id    text COLLATE "C" NOT NULL DEFAULT '',
        fact_id   text COLLATE "C" NOT NULL DEFAULT '',   -- and distillates above this one
        tried_at  timestamptz,
        failures  integer NOT NULL DEFAULT 0   -- in a row
    );

    -- Tenants in which something may lack a vector of this model; where it failed, not before 1, 2,
    -- 4, … minutes have passed. A look into two or three indexes for each tenant.
    CREATE FUNCTION pal.tenants_to_embed(wanted text, most integer) RETURNS TABLE (tenant_id text)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pal, pg_temp AS $fn$
        SELECT t.id FROM pal.tenants t
        LEFT JOIN pal.memory_embedded s ON s.tenant_id = t.id AND s.model = wanted
        WHERE (coalesce(s.failures, 0) = 0
               OR s.tried_at < now() - interval '1 minute' * 2 ^ least(s.failures - 1, 6))
          AND (s.old_tx IS NOT NULL
               OR EXISTS (SELECT FROM pal.memory_events e WHERE e.tenant_id = t.id
                            AND (e.ingest_tx, e.id) > (coalesce(s.new_tx, '0'), coalesce(s.new_id, ''))
                            AND e.ingest_tx < pg_snapshot_xmin(pg_current_snapshot()))
               OR EXISTS (SELECT FROM pal.memory_distillates d WHERE d.tenant_id = t.id
                            AND d.id > coalesce(s.fact_id, '') AND d.superseded_by IS NULL))
        ORDER BY s.tried_at NULLS FIRST LIMIT most
    $fn$;

    ALTER TABLE pal.memory_vectors ENABLE ROW LEVEL SECURITY;
    ALTER TABLE pal.memory_vectors FORCE ROW LEVEL SECURITY;
    ALTER TABLE pal.memory_distillate_vectors ENABLE ROW LEVEL SECURITY;
    ALTER TABLE pal.memory_distillate_vectors FORCE ROW LEVEL SECURITY;
    ALTER TABLE pal.memory_embedded ENABLE ROW LEVEL SECURITY;
    ALTER TABLE pal.memory_embedded FORCE ROW LEVEL SECURITY;
    CREATE POLICY tenant ON pal.memory_vectors TO pal_app, pal_owner
        USING (tenant_id = pal.tenant()) WITH CHECK (tenant_id = pal.tenant());
    CREATE POLICY tenant ON pal.memory_distillate_vectors TO pal_app, pal_owner
        USING (tenant_id = pal.tenant()) WITH CHECK (tenant_id = pal.tenant());
    CREATE POLICY tenant ON pal.memory_embedded TO pal_app, pal_owner
        USING (tenant_id = pal.tenant()) WITH CHECK (tenant_id = pal.tenant());
    GRANT SELECT, INSERT, UPDATE, DELETE
        ON pal.memory_vectors, pal.memory_distillate_vectors, pal.memory_embedded TO pal_app;

    GRANT SELECT ON pal.memory_embedded TO pal_system;
    GRANT SELECT (tenant_id, id, superseded_by) ON pal.memory_distillates TO pal_system;
    CREATE POLICY system_read ON pal.memory_embedded FOR SELECT TO pal_system USING (true);
    CREATE POLICY system_look ON pal.memory_distillates FOR SELECT TO pal_system USING (true);

    GRANT CREATE ON SCHEMA pal TO pal_system;
    ALTER FUNCTION pal.tenants_to_embed(text, integer) OWNER TO pal_system;
    SET LOCAL ROLE pal_system;
    REVOKE ALL ON FUNCTION pal.tenants_to_embed(text, integer) FROM PUBLIC;
    GRANT EXECUTE ON FUNCTION pal.tenants_to_embed(text, integer) TO pal_owner, pal_app;
    RESET ROLE;
    REVOKE CREATE ON SCHEMA pal FROM pal_system;
END $do$;
