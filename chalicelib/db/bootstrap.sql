-- Run once as the master user, on the database itself and not through a pooler; safe to run again.
-- Makes the roles and what only a master may give. Nothing in the schema is owned by a superuser.
DO $$
DECLARE wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['pal_owner', 'pal_app', 'pal_system'] LOOP
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

-- pal_owner hands functions over to pal_system; NOINHERIT keeps pal_system's policies from it
GRANT pal_system TO pal_owner;

-- poolers drop start-up options, so limits belong to the role
ALTER ROLE pal_app SET search_path = pal;
ALTER ROLE pal_app SET statement_timeout = '30s';
ALTER ROLE pal_app SET lock_timeout = '5s';
ALTER ROLE pal_app SET idle_in_transaction_session_timeout = '15s';
ALTER ROLE pal_owner SET search_path = pal;
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
