-- Run once as the master user, on the database itself and not through a pooler; safe to run again.
-- Makes the roles and what only a master may give. Nothing in the schema is owned by a superuser.
DO $$
DECLARE wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['pal_owner', 'pal_app', 'pal_system', 'pal_search'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted) THEN
                EXECUTE format('CREATE ROLE %I NOINHERIT', wanted);
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;  -- another process made it in this moment
        END;
    END LOOP;
END $$;

ALTER ROLE pal_owner LOGIN NOINHERIT;
ALTER ROLE pal_app LOGIN NOINHERIT;
ALTER ROLE pal_system NOLOGIN NOINHERIT;
ALTER ROLE pal_search NOLOGIN NOINHERIT;

-- pal_owner hands functions over to these two; NOINHERIT keeps their policies from it
GRANT pal_system, pal_search TO pal_owner;

-- poolers drop start-up options, so limits belong to the role
ALTER ROLE pal_app SET search_path = pal, public;
ALTER ROLE pal_app SET statement_timeout = '30s';
ALTER ROLE pal_app SET lock_timeout = '5s';
ALTER ROLE pal_app SET idle_in_transaction_session_timeout = '15s';
ALTER ROLE pal_owner SET search_path = pal, public;
ALTER ROLE pal_owner SET lock_timeout = '5s';
-- a migration whose process was killed or frozen ends soon, and with it the others' wait for it
ALTER ROLE pal_owner SET client_connection_check_interval = '2s';
ALTER ROLE pal_owner SET idle_in_transaction_session_timeout = '60s';

DO $$
DECLARE
    -- since Postgres 16 the maker of a role is a member who may grant it and not yet act as it
    acting text := CASE WHEN current_setting('server_version_num')::integer < 160000
                        THEN 'MEMBER' ELSE 'SET' END;
BEGIN
    -- a master that is no superuser must be able to act as the owner it gives the schema to
    IF NOT pg_has_role(current_user, 'pal_owner', acting) THEN
        EXECUTE format('GRANT pal_owner TO %I', current_user);
    END IF;
    IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'pal') THEN
        CREATE SCHEMA pal AUTHORIZATION pal_owner;
    END IF;
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO pal_owner, pal_app', current_database());
END $$;

-- ── what search wants of the server ─────────────────────────────────────────────────────────
-- Extensions that are there already stay as and where they are.
DO $$
DECLARE
    wanted text;
    elsewhere text;
BEGIN
    FOR wanted IN SELECT name FROM pg_available_extensions
                  WHERE name IN ('pg_trgm', 'unaccent') AND installed_version IS NULL LOOP
        EXECUTE format('CREATE EXTENSION %I SCHEMA public', wanted);
    END LOOP;
    -- vectors are optional: not every server has them, and there a master who may install them
    IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector' AND installed_version IS NULL
               AND regexp_match(default_version, '^(\d+)\.(\d+)')::integer[] >= ARRAY[0, 7]) THEN
        BEGIN
            CREATE EXTENSION vector SCHEMA public;
        EXCEPTION WHEN insufficient_privilege THEN
            RAISE WARNING 'no vectors: % may not create the extension vector', current_user;
        END;
    END IF;
    SELECT string_agg(DISTINCT quote_ident(n.nspname), ', ') INTO elsewhere
    FROM pg_extension x JOIN pg_namespace n ON n.oid = x.extnamespace
    WHERE x.extname IN ('pg_trgm', 'unaccent', 'vector')
      AND n.nspname NOT IN ('pal', 'public', 'pg_catalog');
    FOREACH wanted IN ARRAY ARRAY['pal_app', 'pal_owner'] LOOP
        IF elsewhere IS NULL THEN
            EXECUTE format('ALTER ROLE %I IN DATABASE %I RESET search_path',
                           wanted, current_database());
        ELSE
            EXECUTE format('ALTER ROLE %I IN DATABASE %I SET search_path = pal, public, %s',
                           wanted, current_database(), elsewhere);
        END IF;
    END LOOP;
    IF elsewhere IS NOT NULL THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %s TO pal_app, pal_owner, pal_system, pal_search',
                       elsewhere);
    END IF;
END $$;

-- ── logins by IAM token, where the server knows them (RDS) ─────────────────────────────────────
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_iam') THEN
        GRANT rds_iam TO pal_owner, pal_app;
        -- members of members count: a master who acts as the owner would have no password, either
        EXECUTE format('REVOKE pal_owner FROM %I', current_user);
    END IF;
END $$;
