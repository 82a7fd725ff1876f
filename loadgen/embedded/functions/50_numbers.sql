-- Numbers. NUMBER is numeric, FLOAT is double precision. Functions whose results differ exist for both.

-- Division. A quotient of NUMBER has max(s, min(s + 6, 12)) decimals, where s is the scale of the dividend. The
-- dividend gets 13 decimals first, because PostgreSQL computes fewer decimals of a large quotient.
CREATE OR REPLACE FUNCTION sf.div(a numeric, b numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN round((a + 0.0000000000000) / b, greatest(scale(a), least(scale(a) + 6, 12)));
CREATE OR REPLACE FUNCTION sf.div(a double precision, b double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE RETURN a / b;
CREATE OR REPLACE FUNCTION sf.mod(a numeric, b numeric) RETURNS numeric LANGUAGE sql IMMUTABLE RETURN a % b;
CREATE OR REPLACE FUNCTION sf.mod(a double precision, b double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE RETURN a - b * trunc(a / b);

-- The same for operands that must be converted first. FLOAT has precedence over NUMBER.
DO $$
DECLARE
    pair record;
    name text;
    reader text;
BEGIN
    FOR pair IN SELECT * FROM (VALUES ('jsonb', 'numeric'), ('numeric', 'jsonb'), ('jsonb', 'jsonb'), ('jsonb', 'text'),
        ('text', 'jsonb'), ('text', 'numeric'), ('numeric', 'text'), ('text', 'text'), ('bigint', 'bigint'),
        ('jsonb', 'double precision'), ('double precision', 'jsonb'), ('text', 'double precision'),
        ('double precision', 'text')) AS p(a, b)
    LOOP
        reader := CASE WHEN 'double precision' IN (pair.a, pair.b) THEN 'cast_float' ELSE 'cast_number' END;
        FOREACH name IN ARRAY ARRAY['div', 'mod'] LOOP
            EXECUTE format('CREATE OR REPLACE FUNCTION sf.%1$s(a %2$s, b %3$s) RETURNS %5$s LANGUAGE sql IMMUTABLE'
                ' RETURN sf.%1$s(sf.%4$s(a), sf.%4$s(b))', name, pair.a, pair.b, reader,
                CASE reader WHEN 'cast_float' THEN 'double precision' ELSE 'numeric' END);
        END LOOP;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION sf.div0(a numeric, b numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN b = 0 THEN round(0 * a, greatest(scale(a), least(scale(a) + 6, 12))) ELSE sf.div(a, b) END;
CREATE OR REPLACE FUNCTION sf.div0(a double precision, b double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE RETURN CASE WHEN b = 0 THEN 0 * a ELSE a / b END;
CREATE OR REPLACE FUNCTION sf.div0null(a numeric, b numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN CASE WHEN b IS NULL THEN sf.div0(a, 0::numeric) ELSE sf.div0(a, b) END;
CREATE OR REPLACE FUNCTION sf.div0null(a double precision, b double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE RETURN CASE WHEN b IS NULL THEN 0 * a ELSE sf.div0(a, b) END;

-- Rounding never adds decimals to a NUMBER. Halves are rounded away from zero, also for FLOAT.
CREATE OR REPLACE FUNCTION sf.round(value numeric, places numeric DEFAULT 0) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN round(value, least(round(places)::integer, scale(value)));
CREATE OR REPLACE FUNCTION sf.round(value double precision, places numeric DEFAULT 0) RETURNS double precision
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN abs(value) < 1e15 THEN round(value::numeric, round(places)::integer)::double precision ELSE value END;
CREATE OR REPLACE FUNCTION sf.round(value numeric, places numeric, mode text) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN CASE upper(mode) WHEN 'HALF_TO_EVEN' THEN
    CASE WHEN abs(value - trunc(value, round(places)::integer)) * power(10::numeric, round(places)) = 0.5
        AND mod(trunc(value * power(10::numeric, round(places))), 2) = 0 THEN trunc(value, round(places)::integer)
        ELSE sf.round(value, places) END
    WHEN 'HALF_AWAY_FROM_ZERO' THEN sf.round(value, places)
    ELSE sf.fail(100183, '22023', 'Invalid value [' || mode || '] for function ''ROUND''')::numeric END;
CREATE OR REPLACE FUNCTION sf.trunc(value numeric, places numeric DEFAULT 0) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN trunc(value, least(round(places)::integer, scale(value)));
CREATE OR REPLACE FUNCTION sf.trunc(value double precision, places numeric DEFAULT 0) RETURNS double precision
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN abs(value) < 1e15 THEN trunc(value::numeric, round(places)::integer)::double precision ELSE value END;
CREATE OR REPLACE FUNCTION sf.floor(value numeric, places numeric DEFAULT 0) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN places = 0 THEN floor(value) WHEN round(places) >= scale(value) THEN value
    ELSE round(floor(value * power(10::numeric, round(places))) / power(10::numeric, round(places)),
        greatest(round(places)::integer, 0)) END;
CREATE OR REPLACE FUNCTION sf.floor(value double precision, places numeric DEFAULT 0) RETURNS double precision
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN places = 0 OR abs(value) >= 1e15 THEN floor(value)
    ELSE sf.floor(value::numeric, places)::double precision END;
CREATE OR REPLACE FUNCTION sf.ceil(value numeric, places numeric DEFAULT 0) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN - sf.floor(- value, places);
CREATE OR REPLACE FUNCTION sf.ceil(value double precision, places numeric DEFAULT 0) RETURNS double precision
LANGUAGE sql IMMUTABLE RETURN - sf.floor(- value, places);

CREATE OR REPLACE FUNCTION sf.sign(value numeric) RETURNS numeric LANGUAGE sql IMMUTABLE RETURN sign(value);
CREATE OR REPLACE FUNCTION sf.sign(value double precision) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN sign(value)::numeric;
CREATE OR REPLACE FUNCTION sf.negate(value numeric) RETURNS numeric LANGUAGE sql IMMUTABLE RETURN - value;
CREATE OR REPLACE FUNCTION sf.negate(value double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE RETURN - value;
CREATE OR REPLACE FUNCTION sf.factorial(value numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value BETWEEN 0 AND 33 THEN factorial(value::bigint)
    ELSE sf.fail(100183, '22023', 'Invalid value [' || value || '] for function ''FACTORIAL''')::numeric END;
CREATE OR REPLACE FUNCTION sf.log(base double precision, value double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE RETURN CASE base WHEN 10 THEN log(value) ELSE ln(value) / ln(base) END;
CREATE OR REPLACE FUNCTION sf.width_bucket(value numeric, low numeric, high numeric, count numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN width_bucket(value, low, high, count::integer)::numeric;
CREATE OR REPLACE FUNCTION sf.haversine(lat1 double precision, lon1 double precision, lat2 double precision,
    lon2 double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE
RETURN 2 * 6371 * asin(sqrt(power(sind((lat2 - lat1) / 2), 2)
    + cosd(lat1) * cosd(lat2) * power(sind((lon2 - lon1) / 2), 2)));

-- Bit functions, on 64-bit integers.
CREATE OR REPLACE FUNCTION sf.bitand(a numeric, b numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN (a::bigint & b::bigint)::numeric;
CREATE OR REPLACE FUNCTION sf.bitor(a numeric, b numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN (a::bigint | b::bigint)::numeric;
CREATE OR REPLACE FUNCTION sf.bitxor(a numeric, b numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN (a::bigint # b::bigint)::numeric;
CREATE OR REPLACE FUNCTION sf.bitnot(a numeric) RETURNS numeric LANGUAGE sql IMMUTABLE RETURN (~ a::bigint)::numeric;
CREATE OR REPLACE FUNCTION sf.bitshiftleft(a numeric, n numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN (a::bigint << n::integer)::numeric;
CREATE OR REPLACE FUNCTION sf.bitshiftright(a numeric, n numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN (a::bigint >> n::integer)::numeric;
CREATE OR REPLACE FUNCTION sf.bitcount(a numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN bit_count(a::bigint::bit(64))::numeric;
CREATE OR REPLACE FUNCTION sf.getbit(a numeric, n numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN (a::bigint >> n::integer & 1)::numeric;

-- Numbers as conditions: zero is false.
CREATE OR REPLACE FUNCTION sf.booland(a numeric, b numeric) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN a <> 0 AND b <> 0;
CREATE OR REPLACE FUNCTION sf.boolor(a numeric, b numeric) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN a <> 0 OR b <> 0;
CREATE OR REPLACE FUNCTION sf.boolxor(a numeric, b numeric) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN (a <> 0) <> (b <> 0);
CREATE OR REPLACE FUNCTION sf.boolnot(a numeric) RETURNS boolean LANGUAGE sql IMMUTABLE RETURN a = 0;
