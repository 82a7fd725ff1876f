-- Aggregates. Most are those of PostgreSQL. The functions here correct scales, and results of empty groups.

-- MIN and MAX for every type, with the native functions and sort operators, so that an index can be used.
DO $$
DECLARE
    kind record;
BEGIN
    FOR kind IN SELECT k.*, CASE k.type WHEN 'sf.timestamp_tz' THEN 'sf' ELSE 'pg_catalog' END AS home FROM (VALUES
        ('numeric', 'numeric_'), ('double precision', 'float8'), ('text', 'text_'), ('bytea', 'bytea_'),
        ('date', 'date_'), ('time', 'time_'), ('timestamp', 'timestamp_'), ('timestamptz', 'timestamptz_'),
        ('bigint', 'int8'), ('integer', 'int4'), ('sf.timestamp_tz', 'timestamp_tz_')) AS k(type, step)
    LOOP
        EXECUTE format('CREATE OR REPLACE AGGREGATE sf.min(%1$s) '
            '(SFUNC = %3$s.%2$ssmaller, STYPE = %1$s, SORTOP = OPERATOR(%3$s.<))', kind.type, kind.step, kind.home);
        EXECUTE format('CREATE OR REPLACE AGGREGATE sf.max(%1$s) '
            '(SFUNC = %3$s.%2$slarger, STYPE = %1$s, SORTOP = OPERATOR(%3$s.>))', kind.type, kind.step, kind.home);
    END LOOP;
END
$$;
CREATE OR REPLACE AGGREGATE sf.min(boolean) (SFUNC = booland_statefunc, STYPE = boolean);
CREATE OR REPLACE AGGREGATE sf.max(boolean) (SFUNC = boolor_statefunc, STYPE = boolean);
CREATE OR REPLACE FUNCTION sf.jsonb_smaller(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE STRICT RETURN CASE WHEN b < a THEN b ELSE a END;
CREATE OR REPLACE FUNCTION sf.jsonb_larger(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE STRICT RETURN CASE WHEN b > a THEN b ELSE a END;
CREATE OR REPLACE AGGREGATE sf.min(jsonb) (SFUNC = sf.jsonb_smaller, STYPE = jsonb, SORTOP = OPERATOR(pg_catalog.<));
CREATE OR REPLACE AGGREGATE sf.max(jsonb) (SFUNC = sf.jsonb_larger, STYPE = jsonb, SORTOP = OPERATOR(pg_catalog.>));

-- AVG of NUMBER has six decimals more than its input, variances have min(12, 2s + 6). The sum has the scale of the
-- input.
CREATE OR REPLACE FUNCTION sf.average(sum numeric, count bigint) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN count > 0 THEN round((sum + 0.0000000000000) / count, scale(sum) + 6) END;
CREATE OR REPLACE FUNCTION sf.average(sum double precision, count bigint) RETURNS double precision
LANGUAGE sql IMMUTABLE RETURN sum / nullif(count, 0);
CREATE OR REPLACE FUNCTION sf.variance(value numeric, sum numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN round(value, least(12, 2 * scale(sum) + 6));
CREATE OR REPLACE FUNCTION sf.variance(value double precision, sum double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE RETURN value;

-- Functions of all values of a group or window, collected by array_agg. NULLs are ignored.
CREATE OR REPLACE FUNCTION sf.percentile_cont(items numeric[], part numeric, descending boolean DEFAULT false)
RETURNS numeric
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    sorted numeric[] := ARRAY(SELECT i FROM unnest(items) AS i WHERE i IS NOT NULL ORDER BY i);
    place numeric := CASE WHEN descending THEN 1 - part ELSE part END * (cardinality(sorted) - 1);
    low integer := floor(place)::integer + 1;
BEGIN
    PERFORM sf.check_fraction(part);
    RETURN round(sorted[low] + (sorted[least(low + 1, cardinality(sorted))] - sorted[low]) * (place - floor(place)),
        (SELECT max(scale(i)) FROM unnest(sorted) AS i) + 3);
END
$$;
CREATE OR REPLACE FUNCTION sf.percentile_cont(items double precision[], part numeric, descending boolean DEFAULT false)
RETURNS double precision
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    PERFORM sf.check_fraction(part);
    RETURN (SELECT percentile_cont((CASE WHEN descending THEN 1 - part ELSE part END)::double precision)
        WITHIN GROUP (ORDER BY i) FROM unnest(items) AS i);
END
$$;
CREATE OR REPLACE FUNCTION sf.percentile_disc(items anyarray, part numeric, descending boolean DEFAULT false)
RETURNS anyelement
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    count integer := (SELECT count(*) FROM unnest(items) AS i WHERE i IS NOT NULL);
    place integer := greatest(ceil(part * count), 1)::integer;
BEGIN
    PERFORM sf.check_fraction(part);
    RETURN (SELECT i FROM unnest(items) AS i WHERE i IS NOT NULL ORDER BY i
        OFFSET CASE WHEN descending THEN count - place ELSE place - 1 END LIMIT 1);
END
$$;
CREATE OR REPLACE FUNCTION sf.check_fraction(part numeric) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF part IS NULL OR NOT part BETWEEN 0 AND 1 THEN
        PERFORM sf.fail(100183, '22023',
            format('Invalid value [%s]: percentile must be between 0 and 1 inclusive.', part));
    END IF;
END
$$;
CREATE OR REPLACE FUNCTION sf.mode(items anyarray) RETURNS anyelement
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (SELECT u.item FROM unnest(items) WITH ORDINALITY AS u(item, position) WHERE u.item IS NOT NULL
        GROUP BY u.item ORDER BY count(*) DESC, min(u.position) LIMIT 1);
END
$$;
CREATE OR REPLACE FUNCTION sf.skew(items double precision[]) RETURNS double precision
LANGUAGE sql IMMUTABLE
RETURN (SELECT CASE WHEN m.n > 2 AND m.deviation > 0 THEN m.n / ((m.n - 1) * (m.n - 2))
        * (SELECT sum(power((i - m.mean) / m.deviation, 3)) FROM unnest(items) AS i) END
    FROM (SELECT count(i)::double precision AS n, avg(i) AS mean, stddev_samp(i) AS deviation
        FROM unnest(items) AS i) AS m);
CREATE OR REPLACE FUNCTION sf.kurtosis(items double precision[]) RETURNS double precision
LANGUAGE sql IMMUTABLE
RETURN (SELECT CASE WHEN m.n > 3 AND m.deviation > 0 THEN m.n * (m.n + 1) / ((m.n - 1) * (m.n - 2) * (m.n - 3))
        * (SELECT sum(power((i - m.mean) / m.deviation, 4)) FROM unnest(items) AS i)
        - 3 * power(m.n - 1, 2) / ((m.n - 2) * (m.n - 3)) END
    FROM (SELECT count(i)::double precision AS n, avg(i) AS mean, stddev_samp(i) AS deviation
        FROM unnest(items) AS i) AS m);

-- HASH_AGG: the sum of 64-bit hashes, modulo 2^64. It depends on the number of equal rows, not on their order.
CREATE OR REPLACE FUNCTION sf.wrapped(value numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN mod(mod(value, 18446744073709551616) + 27670116110564327424, 18446744073709551616) - 9223372036854775808;
