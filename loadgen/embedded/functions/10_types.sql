-- Types. VARIANT, OBJECT and ARRAY are jsonb. TIMESTAMP_TZ is an instant with the offset with which it was written.
-- All scripts run also on databases created by an older version. So the parameter names and the result type of a
-- released function never change: CREATE OR REPLACE cannot change them.

CREATE SCHEMA IF NOT EXISTS sf;

DO $$
BEGIN
    IF to_regtype('sf.variant') IS NULL THEN
        CREATE DOMAIN sf.variant AS jsonb;
        CREATE DOMAIN sf.object AS jsonb;
        CREATE DOMAIN sf."array" AS jsonb;
        CREATE TYPE sf.timestamp_tz AS (instant timestamptz, offset_minutes smallint);
    END IF;
END
$$;

-- Raises an error with Snowflake's text. The server reads number and SQLSTATE from DETAIL. With this result type the
-- call can be used wherever a value is expected. Not IMMUTABLE: the planner would call it in branches that are never
-- executed.
CREATE OR REPLACE FUNCTION sf.fail(errno integer, state text, message text) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'SF000', MESSAGE = message, DETAIL = errno || ' ' || state;
END
$$;

-- TIMESTAMP_TZ: equality and order depend on the instant only.

CREATE OR REPLACE FUNCTION sf.timestamp_tz_eq(a sf.timestamp_tz, b sf.timestamp_tz) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN (a).instant = (b).instant;
CREATE OR REPLACE FUNCTION sf.timestamp_tz_ne(a sf.timestamp_tz, b sf.timestamp_tz) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN (a).instant <> (b).instant;
CREATE OR REPLACE FUNCTION sf.timestamp_tz_lt(a sf.timestamp_tz, b sf.timestamp_tz) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN (a).instant < (b).instant;
CREATE OR REPLACE FUNCTION sf.timestamp_tz_le(a sf.timestamp_tz, b sf.timestamp_tz) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN (a).instant <= (b).instant;
CREATE OR REPLACE FUNCTION sf.timestamp_tz_gt(a sf.timestamp_tz, b sf.timestamp_tz) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN (a).instant > (b).instant;
CREATE OR REPLACE FUNCTION sf.timestamp_tz_ge(a sf.timestamp_tz, b sf.timestamp_tz) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN (a).instant >= (b).instant;
-- In PL/pgSQL, because support functions of operator classes are called by cached handles.
CREATE OR REPLACE FUNCTION sf.timestamp_tz_cmp(a sf.timestamp_tz, b sf.timestamp_tz) RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT AS $$ BEGIN RETURN timestamptz_cmp(a.instant, b.instant); END $$;
CREATE OR REPLACE FUNCTION sf.timestamp_tz_hash(a sf.timestamp_tz) RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT AS $$ BEGIN RETURN timestamptz_hash(a.instant); END $$;
CREATE OR REPLACE FUNCTION sf.timestamp_tz_hash_extended(a sf.timestamp_tz, seed bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE STRICT AS $$ BEGIN RETURN timestamptz_hash_extended(a.instant, seed); END $$;

DO $$
BEGIN
    IF to_regoperator('sf.=(sf.timestamp_tz, sf.timestamp_tz)') IS NOT NULL THEN
        RETURN;
    END IF;
    CREATE OPERATOR sf.= (LEFTARG = sf.timestamp_tz, RIGHTARG = sf.timestamp_tz, FUNCTION = sf.timestamp_tz_eq,
        COMMUTATOR = OPERATOR(sf.=), NEGATOR = OPERATOR(sf.<>), RESTRICT = eqsel, JOIN = eqjoinsel, HASHES, MERGES);
    CREATE OPERATOR sf.<> (LEFTARG = sf.timestamp_tz, RIGHTARG = sf.timestamp_tz, FUNCTION = sf.timestamp_tz_ne,
        COMMUTATOR = OPERATOR(sf.<>), NEGATOR = OPERATOR(sf.=), RESTRICT = neqsel, JOIN = neqjoinsel);
    CREATE OPERATOR sf.< (LEFTARG = sf.timestamp_tz, RIGHTARG = sf.timestamp_tz, FUNCTION = sf.timestamp_tz_lt,
        COMMUTATOR = OPERATOR(sf.>), NEGATOR = OPERATOR(sf.>=), RESTRICT = scalarltsel, JOIN = scalarltjoinsel);
    CREATE OPERATOR sf.<= (LEFTARG = sf.timestamp_tz, RIGHTARG = sf.timestamp_tz, FUNCTION = sf.timestamp_tz_le,
        COMMUTATOR = OPERATOR(sf.>=), NEGATOR = OPERATOR(sf.>), RESTRICT = scalarlesel, JOIN = scalarlejoinsel);
    CREATE OPERATOR sf.> (LEFTARG = sf.timestamp_tz, RIGHTARG = sf.timestamp_tz, FUNCTION = sf.timestamp_tz_gt,
        COMMUTATOR = OPERATOR(sf.<), NEGATOR = OPERATOR(sf.<=), RESTRICT = scalargtsel, JOIN = scalargtjoinsel);
    CREATE OPERATOR sf.>= (LEFTARG = sf.timestamp_tz, RIGHTARG = sf.timestamp_tz, FUNCTION = sf.timestamp_tz_ge,
        COMMUTATOR = OPERATOR(sf.<=), NEGATOR = OPERATOR(sf.<), RESTRICT = scalargesel, JOIN = scalargejoinsel);
    CREATE OPERATOR CLASS sf.timestamp_tz_ops DEFAULT FOR TYPE sf.timestamp_tz USING btree AS
        OPERATOR 1 sf.<, OPERATOR 2 sf.<=, OPERATOR 3 sf.=, OPERATOR 4 sf.>=, OPERATOR 5 sf.>,
        FUNCTION 1 sf.timestamp_tz_cmp(sf.timestamp_tz, sf.timestamp_tz);
    CREATE OPERATOR CLASS sf.timestamp_tz_hash_ops DEFAULT FOR TYPE sf.timestamp_tz USING hash AS
        OPERATOR 1 sf.=,
        FUNCTION 1 sf.timestamp_tz_hash(sf.timestamp_tz),
        FUNCTION 2 sf.timestamp_tz_hash_extended(sf.timestamp_tz, bigint);
END
$$;

CREATE OR REPLACE FUNCTION sf.timestamp_tz_smaller(a sf.timestamp_tz, b sf.timestamp_tz) RETURNS sf.timestamp_tz
LANGUAGE sql IMMUTABLE STRICT RETURN CASE WHEN (b).instant < (a).instant THEN b ELSE a END;
CREATE OR REPLACE FUNCTION sf.timestamp_tz_larger(a sf.timestamp_tz, b sf.timestamp_tz) RETURNS sf.timestamp_tz
LANGUAGE sql IMMUTABLE STRICT RETURN CASE WHEN (b).instant > (a).instant THEN b ELSE a END;

-- The wall-clock time of a TIMESTAMP_TZ, at its offset.
CREATE OR REPLACE FUNCTION sf.wall(value sf.timestamp_tz) RETURNS timestamp
LANGUAGE sql IMMUTABLE
RETURN ((value).instant AT TIME ZONE 'UTC') + make_interval(mins => (value).offset_minutes::integer);

-- A TIMESTAMP_TZ from a wall-clock time and an offset, or from an instant and a time zone.
CREATE OR REPLACE FUNCTION sf.at_offset(wall timestamp, minutes integer) RETURNS sf.timestamp_tz
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN wall IS NOT NULL AND minutes IS NOT NULL THEN
    ROW((wall - make_interval(mins => minutes)) AT TIME ZONE 'UTC', minutes::smallint)::sf.timestamp_tz END;

CREATE OR REPLACE FUNCTION sf.offset_minutes(instant timestamptz, zone text) RETURNS integer
LANGUAGE sql IMMUTABLE
RETURN (extract(epoch FROM (instant AT TIME ZONE zone) - (instant AT TIME ZONE 'UTC')) / 60)::integer;

CREATE OR REPLACE FUNCTION sf.in_zone(instant timestamptz, zone text) RETURNS sf.timestamp_tz
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN instant IS NOT NULL AND zone IS NOT NULL THEN
    ROW(instant, sf.offset_minutes(instant, zone)::smallint)::sf.timestamp_tz END;

CREATE OR REPLACE FUNCTION sf.in_session_zone(instant timestamptz) RETURNS sf.timestamp_tz
LANGUAGE sql STABLE
RETURN CASE WHEN instant IS NOT NULL THEN
    ROW(instant, (extract(timezone FROM instant) / 60)::smallint)::sf.timestamp_tz END;

-- TIMESTAMP_TZ(n): a domain per scale, because a composite type has no type modifier.
DO $$
BEGIN
    FOR scale IN 0..6 LOOP
        IF to_regtype('sf.timestamp_tz_' || scale) IS NULL THEN
            EXECUTE format('CREATE DOMAIN sf.timestamp_tz_%s AS sf.timestamp_tz', scale);
        END IF;
    END LOOP;
END
$$;
