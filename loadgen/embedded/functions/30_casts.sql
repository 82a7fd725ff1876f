-- Conversions. sf.cast_<type>(value) is the explicit cast of the emitter (`x::NUMBER`) and raises Snowflake's errors;
-- sf.try_cast_<type>(text) returns NULL instead. A value that already has the type is not changed, so a cast around an
-- expression of unknown type is free after planning. JSON null becomes SQL NULL.

CREATE OR REPLACE FUNCTION sf.cast_failed(value jsonb, type_name text) RETURNS text
LANGUAGE sql
RETURN sf.fail(100071, '22000', 'Failed to cast variant value ' || sf.json_text(value) || ' to ' || type_name);

-- Numbers. as_number converts an operand of an arithmetic operator; FLOAT remains FLOAT.

CREATE OR REPLACE FUNCTION sf.cast_number(value text) RETURNS numeric
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    number numeric := sf.read_number(value);
BEGIN
    IF number IS NULL THEN
        PERFORM sf.fail(100038, '22018', format('Numeric value ''%s'' is not recognized', btrim(value)));
    ELSIF abs(number) >= 1e38 THEN
        PERFORM sf.fail(100039, '22003', format('Numeric value ''%s'' is out of range', btrim(value)));
    END IF;
    RETURN number;
END
$$;
CREATE OR REPLACE FUNCTION sf.cast_number(value numeric) RETURNS numeric LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.cast_number(value bigint) RETURNS numeric LANGUAGE sql IMMUTABLE RETURN value::numeric;
CREATE OR REPLACE FUNCTION sf.cast_number(value integer) RETURNS numeric LANGUAGE sql IMMUTABLE RETURN value::numeric;
CREATE OR REPLACE FUNCTION sf.cast_number(value boolean) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN CASE value WHEN true THEN 1::numeric WHEN false THEN 0::numeric END;
CREATE OR REPLACE FUNCTION sf.cast_number(value double precision) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN value::numeric;
CREATE OR REPLACE FUNCTION sf.cast_number(value jsonb) RETURNS numeric
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    number numeric;
BEGIN
    CASE jsonb_typeof(value)
        WHEN 'number' THEN RETURN pg_catalog."numeric"(value);
        WHEN 'null' THEN RETURN NULL;
        WHEN 'boolean' THEN RETURN CASE WHEN value = 'true' THEN 1 ELSE 0 END;
        WHEN 'string' THEN number := sf.read_number(value #>> '{}');
        ELSE NULL;
    END CASE;
    IF number IS NULL THEN
        PERFORM sf.cast_failed(value, 'FIXED');
    END IF;
    RETURN number;
END
$$;
CREATE OR REPLACE FUNCTION sf.try_cast_number(value text) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN CASE WHEN abs(sf.read_number(value)) < 1e38 THEN sf.read_number(value) END;

CREATE OR REPLACE FUNCTION sf.as_number(value numeric) RETURNS numeric LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.as_number(value double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.as_number(value bigint) RETURNS numeric LANGUAGE sql IMMUTABLE RETURN value::numeric;
CREATE OR REPLACE FUNCTION sf.as_number(value integer) RETURNS numeric LANGUAGE sql IMMUTABLE RETURN value::numeric;
CREATE OR REPLACE FUNCTION sf.as_number(value text) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN sf.cast_number(value);
CREATE OR REPLACE FUNCTION sf.as_number(value jsonb) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN sf.cast_number(value);

-- TO_NUMBER with a format; PostgreSQL's to_number alone would ignore a part that does not match.
CREATE OR REPLACE FUNCTION sf.try_cast_number(value text, format text) RETURNS numeric
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    model text := upper(format);
    plain text := btrim(value);
BEGIN
    IF model ~ '^(FM)?0*X+$' THEN
        RETURN CASE WHEN plain ~ '^[0-9A-Fa-f]{1,15}$' THEN ('x' || lpad(plain, 16, '0'))::bit(64)::bigint END;
    ELSIF model LIKE 'TM%' THEN
        RETURN sf.read_number(plain);
    ELSIF (strpos(plain, ',') > 0 AND model !~ '[,G]') OR (strpos(plain, '$') > 0 AND strpos(model, '$') = 0)
        OR (strpos(plain, '.') > 0 AND model !~ '[.D]')
        OR length(regexp_replace(split_part(plain, '.', 1), '\D', '', 'g'))
            > length(regexp_replace(split_part(translate(model, 'D', '.'), '.', 1), '[^09]', '', 'g'))
        OR length(regexp_replace(split_part(plain, '.', 2), '\D', '', 'g'))
            > length(regexp_replace(split_part(translate(model, 'D', '.'), '.', 2), '[^09]', '', 'g')) THEN
        RETURN NULL;
    END IF;
    RETURN sf.read_number(translate(plain, '$, ', ''));
END
$$;
CREATE OR REPLACE FUNCTION sf.cast_number(value text, format text) RETURNS numeric
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    number numeric := sf.try_cast_number(value, format);
BEGIN
    IF number IS NULL THEN
        PERFORM sf.fail(100140, '22007', format('Can''t parse ''%s'' as number with format ''%s''', value, format));
    END IF;
    RETURN number;
END
$$;

-- NULL for a number that is out of the range of NUMBER(digits, places).
CREATE OR REPLACE FUNCTION sf.within(value numeric, digits numeric, places numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN abs(round(value, places::integer)) < power(10::numeric, digits - places)
    THEN round(value, places::integer) END;

-- FLOAT.

CREATE OR REPLACE FUNCTION sf.cast_float(value text) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    number double precision := sf.read_float(value);
BEGIN
    IF number IS NULL THEN
        PERFORM sf.fail(100038, '22018', format('Numeric value ''%s'' is not recognized', btrim(value)));
    END IF;
    RETURN number;
END
$$;
CREATE OR REPLACE FUNCTION sf.cast_float(value double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.cast_float(value boolean) RETURNS double precision
LANGUAGE sql IMMUTABLE RETURN value::integer::double precision;
CREATE OR REPLACE FUNCTION sf.cast_float(value jsonb) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    number double precision;
BEGIN
    CASE jsonb_typeof(value)
        WHEN 'null' THEN RETURN NULL;
        WHEN 'number' THEN RETURN pg_catalog.float8(value);
        WHEN 'boolean' THEN RETURN CASE WHEN value = 'true' THEN 1 ELSE 0 END;
        WHEN 'string' THEN number := sf.read_float(value #>> '{}');
        ELSE NULL;
    END CASE;
    IF number IS NULL THEN
        PERFORM sf.cast_failed(value, 'REAL');
    END IF;
    RETURN number;
END
$$;
CREATE OR REPLACE FUNCTION sf.try_cast_float(value text) RETURNS double precision
LANGUAGE sql IMMUTABLE RETURN sf.read_float(value);

-- BOOLEAN.

CREATE OR REPLACE FUNCTION sf.cast_boolean(value text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    answer boolean := sf.read_boolean(value);
BEGIN
    IF answer IS NULL THEN
        PERFORM sf.fail(100037, '22018', format('Boolean value ''%s'' is not recognized', value));
    END IF;
    RETURN answer;
END
$$;
CREATE OR REPLACE FUNCTION sf.cast_boolean(value boolean) RETURNS boolean LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.cast_boolean(value numeric) RETURNS boolean LANGUAGE sql IMMUTABLE RETURN value <> 0;
CREATE OR REPLACE FUNCTION sf.cast_boolean(value double precision) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN value <> 0;
CREATE OR REPLACE FUNCTION sf.cast_boolean(value jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    answer boolean;
BEGIN
    CASE jsonb_typeof(value)
        WHEN 'null' THEN RETURN NULL;
        WHEN 'boolean' THEN RETURN value = 'true';
        WHEN 'string' THEN answer := sf.read_boolean(value #>> '{}');
        ELSE NULL;
    END CASE;
    IF answer IS NULL THEN
        PERFORM sf.cast_failed(value, 'BOOLEAN');
    END IF;
    RETURN answer;
END
$$;
CREATE OR REPLACE FUNCTION sf.try_cast_boolean(value text) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN sf.read_boolean(value);

-- BINARY. Text is hexadecimal, unless a format is given.

CREATE OR REPLACE FUNCTION sf.try_cast_binary(value text, format text) RETURNS bytea
LANGUAGE sql IMMUTABLE
RETURN CASE replace(upper(format), '-', '') WHEN 'HEX' THEN sf.read_hex(value) WHEN 'BASE64' THEN sf.read_base64(value)
    WHEN 'UTF8' THEN convert_to(value, 'UTF8') END;
CREATE OR REPLACE FUNCTION sf.try_cast_binary(value text) RETURNS bytea
LANGUAGE sql IMMUTABLE RETURN sf.read_hex(value);
CREATE OR REPLACE FUNCTION sf.cast_binary(value text, format text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    bytes bytea := sf.try_cast_binary(value, format);
BEGIN
    IF bytes IS NULL THEN
        PERFORM sf.fail(100115, '22000', format('The following string is not a legal %s-encoded value: ''%s''',
            lower(format), value));
    END IF;
    RETURN bytes;
END
$$;
CREATE OR REPLACE FUNCTION sf.cast_binary(value text) RETURNS bytea
LANGUAGE sql IMMUTABLE RETURN sf.cast_binary(value, 'hex'::text);
CREATE OR REPLACE FUNCTION sf.cast_binary(value bytea) RETURNS bytea LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.cast_binary(value jsonb) RETURNS bytea
LANGUAGE sql IMMUTABLE RETURN CASE WHEN value <> 'null' THEN sf.cast_binary(value #>> '{}') END;

-- Dates and times. An NTZ is a wall-clock time, an LTZ is an instant. Text without an offset is in the session's zone.

CREATE OR REPLACE FUNCTION sf.try_cast_ntz(value text) RETURNS timestamp
LANGUAGE sql IMMUTABLE RETURN (sf.read_moment(value)).wall;
CREATE OR REPLACE FUNCTION sf.try_cast_date(value text) RETURNS date
LANGUAGE sql IMMUTABLE RETURN (sf.read_moment(value)).wall::date;
CREATE OR REPLACE FUNCTION sf.try_cast_time(value text) RETURNS time LANGUAGE sql IMMUTABLE RETURN sf.read_time(value);
CREATE OR REPLACE FUNCTION sf.try_cast_ltz(value text) RETURNS timestamptz
LANGUAGE plpgsql STABLE STRICT AS $$
DECLARE
    moment record;
BEGIN
    moment := sf.read_moment(value);
    RETURN CASE WHEN moment.minutes IS NULL THEN moment.wall::timestamptz
        ELSE (sf.at_offset(moment.wall, moment.minutes)).instant END;
END
$$;
CREATE OR REPLACE FUNCTION sf.try_cast_tz(value text) RETURNS sf.timestamp_tz
LANGUAGE plpgsql STABLE STRICT AS $$
DECLARE
    moment record;
BEGIN
    moment := sf.read_moment(value);
    RETURN CASE WHEN moment.minutes IS NULL THEN sf.in_session_zone(moment.wall::timestamptz)
        ELSE sf.at_offset(moment.wall, moment.minutes) END;
END
$$;

-- The same with a format: sf.try_cast_<type>(text, text). For a number as the second argument see below.
CREATE OR REPLACE FUNCTION sf.try_cast_ntz(value text, format text) RETURNS timestamp
LANGUAGE sql IMMUTABLE RETURN (sf.read_format(value, format)).wall;
CREATE OR REPLACE FUNCTION sf.try_cast_date(value text, format text) RETURNS date
LANGUAGE sql IMMUTABLE RETURN (sf.read_format(value, format)).wall::date;
CREATE OR REPLACE FUNCTION sf.try_cast_time(value text, format text) RETURNS time
LANGUAGE sql IMMUTABLE
RETURN CASE upper(format) WHEN 'AUTO' THEN sf.read_time(value) ELSE (sf.read_format(value, format)).wall::time END;
CREATE OR REPLACE FUNCTION sf.try_cast_tz(value text, format text) RETURNS sf.timestamp_tz
LANGUAGE plpgsql STABLE STRICT AS $$
DECLARE
    moment record;
BEGIN
    moment := sf.read_format(value, format);
    RETURN CASE WHEN moment.minutes IS NULL THEN sf.in_session_zone(moment.wall::timestamptz)
        ELSE sf.at_offset(moment.wall, moment.minutes) END;
END
$$;
CREATE OR REPLACE FUNCTION sf.try_cast_ltz(value text, format text) RETURNS timestamptz
LANGUAGE sql STABLE RETURN (sf.try_cast_tz(value, format)).instant;

-- Between date and time types.
CREATE OR REPLACE FUNCTION sf.cast_date(value date) RETURNS date LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.cast_date(value timestamp) RETURNS date LANGUAGE sql IMMUTABLE RETURN value::date;
CREATE OR REPLACE FUNCTION sf.cast_date(value timestamptz) RETURNS date LANGUAGE sql STABLE RETURN value::date;
CREATE OR REPLACE FUNCTION sf.cast_date(value sf.timestamp_tz) RETURNS date
LANGUAGE sql IMMUTABLE RETURN sf.wall(value)::date;
CREATE OR REPLACE FUNCTION sf.cast_time(value time) RETURNS time LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.cast_time(value date) RETURNS time LANGUAGE sql IMMUTABLE RETURN value::timestamp::time;
CREATE OR REPLACE FUNCTION sf.cast_time(value timestamp) RETURNS time LANGUAGE sql IMMUTABLE RETURN value::time;
CREATE OR REPLACE FUNCTION sf.cast_time(value timestamptz) RETURNS time LANGUAGE sql STABLE RETURN value::time;
CREATE OR REPLACE FUNCTION sf.cast_time(value sf.timestamp_tz) RETURNS time
LANGUAGE sql IMMUTABLE RETURN sf.wall(value)::time;
CREATE OR REPLACE FUNCTION sf.cast_ntz(value timestamp) RETURNS timestamp LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.cast_ntz(value date) RETURNS timestamp LANGUAGE sql IMMUTABLE RETURN value::timestamp;
CREATE OR REPLACE FUNCTION sf.cast_ntz(value timestamptz) RETURNS timestamp LANGUAGE sql STABLE RETURN value::timestamp;
CREATE OR REPLACE FUNCTION sf.cast_ntz(value sf.timestamp_tz) RETURNS timestamp
LANGUAGE sql IMMUTABLE RETURN sf.wall(value);
CREATE OR REPLACE FUNCTION sf.cast_ltz(value timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.cast_ltz(value timestamp) RETURNS timestamptz
LANGUAGE sql STABLE RETURN value::timestamptz;
CREATE OR REPLACE FUNCTION sf.cast_ltz(value date) RETURNS timestamptz LANGUAGE sql STABLE RETURN value::timestamptz;
CREATE OR REPLACE FUNCTION sf.cast_ltz(value sf.timestamp_tz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE RETURN (value).instant;
CREATE OR REPLACE FUNCTION sf.cast_tz(value sf.timestamp_tz) RETURNS sf.timestamp_tz
LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.cast_tz(value timestamptz) RETURNS sf.timestamp_tz
LANGUAGE sql STABLE RETURN sf.in_session_zone(value);
CREATE OR REPLACE FUNCTION sf.cast_tz(value timestamp) RETURNS sf.timestamp_tz
LANGUAGE sql STABLE RETURN sf.in_session_zone(value::timestamptz);
CREATE OR REPLACE FUNCTION sf.cast_tz(value date) RETURNS sf.timestamp_tz
LANGUAGE sql STABLE RETURN sf.in_session_zone(value::timestamptz);

-- From numbers: seconds, or 10^-scale seconds. The session's zone affects only the output of the instant.
CREATE OR REPLACE FUNCTION sf.cast_ntz(value numeric, scale numeric) RETURNS timestamp
LANGUAGE sql IMMUTABLE RETURN sf.from_epoch(value / power(10::numeric, scale));
CREATE OR REPLACE FUNCTION sf.cast_ltz(value numeric, scale numeric) RETURNS timestamptz
LANGUAGE sql IMMUTABLE RETURN sf.from_epoch(value / power(10::numeric, scale)) AT TIME ZONE 'UTC';
CREATE OR REPLACE FUNCTION sf.cast_tz(value numeric, scale numeric) RETURNS sf.timestamp_tz
LANGUAGE sql STABLE RETURN sf.in_session_zone(sf.cast_ltz(value, scale));
CREATE OR REPLACE FUNCTION sf.cast_ntz(value numeric) RETURNS timestamp
LANGUAGE sql IMMUTABLE RETURN sf.from_epoch(value);
CREATE OR REPLACE FUNCTION sf.cast_ltz(value numeric) RETURNS timestamptz
LANGUAGE sql IMMUTABLE RETURN sf.from_epoch(value) AT TIME ZONE 'UTC';
CREATE OR REPLACE FUNCTION sf.cast_tz(value numeric) RETURNS sf.timestamp_tz
LANGUAGE sql STABLE RETURN sf.in_session_zone(sf.cast_ltz(value));

-- From text and from variants, with Snowflake's errors: cast_x(text), cast_x(text, format), cast_x(jsonb) for each x.
DO $$
DECLARE
    kind record;
BEGIN
    FOR kind IN SELECT * FROM (VALUES
        ('date', 'date', 'DATE', 'Date', 100040, 'IMMUTABLE'), ('time', 'time', 'TIME', 'Time', 100108, 'IMMUTABLE'),
        ('ntz', 'timestamp', 'TIMESTAMP_NTZ', 'Timestamp', 100035, 'IMMUTABLE'),
        ('ltz', 'timestamptz', 'TIMESTAMP_LTZ', 'Timestamp', 100035, 'STABLE'),
        ('tz', 'sf.timestamp_tz', 'TIMESTAMP_TZ', 'Timestamp', 100035, 'STABLE'))
        AS k(name, type, snowflake, word, errno, volatility)
    LOOP
        EXECUTE format($f$
            CREATE OR REPLACE FUNCTION sf.cast_%1$s(value text) RETURNS %2$s
            LANGUAGE plpgsql %6$s STRICT AS $b$
            DECLARE
                result %2$s := sf.try_cast_%1$s(value);
            BEGIN
                IF result IS NULL THEN
                    PERFORM sf.fail(%5$s, '22007', format('%4$s ''%%s'' is not recognized', value));
                END IF;
                RETURN result;
            END $b$;
            CREATE OR REPLACE FUNCTION sf.cast_%1$s(value text, format text) RETURNS %2$s
            LANGUAGE plpgsql %6$s STRICT AS $b$
            DECLARE
                result %2$s := sf.try_cast_%1$s(value, format);
            BEGIN
                IF result IS NULL THEN
                    PERFORM sf.fail(100096, '22007', format('Can''t parse ''%%s'' as %%s with format ''%%s''',
                        value, lower('%4$s'), format));
                END IF;
                RETURN result;
            END $b$;
            CREATE OR REPLACE FUNCTION sf.cast_%1$s(value jsonb) RETURNS %2$s
            LANGUAGE plpgsql %6$s STRICT AS $b$
            DECLARE
                result %2$s;
            BEGIN
                IF value = 'null' THEN
                    RETURN NULL;
                ELSIF jsonb_typeof(value) = 'string' THEN
                    result := sf.try_cast_%1$s(value #>> '{}');
                ELSIF jsonb_typeof(value) = 'number' AND '%2$s' LIKE '%%timestamp%%' THEN
                    result := sf.cast_%1$s(sf.from_epoch(pg_catalog."numeric"(value)) AT TIME ZONE
                        CASE WHEN '%1$s' = 'ntz' THEN current_setting('TimeZone') ELSE 'UTC' END);
                END IF;
                IF result IS NULL THEN
                    PERFORM sf.cast_failed(value, '%3$s');
                END IF;
                RETURN result;
            END $b$;
            $f$, kind.name, kind.type, kind.snowflake, kind.word, kind.errno, kind.volatility);
    END LOOP;
END
$$;

-- TIMESTAMP_NTZ(3) and similar types truncate the fraction; PostgreSQL's timestamp(3) would round it.
CREATE OR REPLACE FUNCTION sf.cut(value timestamp, places integer) RETURNS timestamp
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN places >= 6 THEN value ELSE date_trunc('second', value)
    + make_interval(secs => trunc(mod(extract(second FROM value), 1), places)::double precision) END;
CREATE OR REPLACE FUNCTION sf.cut(value time, places integer) RETURNS time
LANGUAGE sql IMMUTABLE RETURN sf.cut(date '1970-01-01' + value, places)::time;
CREATE OR REPLACE FUNCTION sf.cut(value timestamptz, places integer) RETURNS timestamptz
LANGUAGE sql IMMUTABLE RETURN sf.cut(value AT TIME ZONE 'UTC', places) AT TIME ZONE 'UTC';
CREATE OR REPLACE FUNCTION sf.cut(value sf.timestamp_tz, places integer) RETURNS sf.timestamp_tz
LANGUAGE sql IMMUTABLE RETURN sf.at_offset(sf.cut(sf.wall(value), places), (value).offset_minutes::integer);

-- DATEADD and DATEDIFF also accept text; dates and timestamps keep their type.
CREATE OR REPLACE FUNCTION sf.as_moment(value text) RETURNS timestamp LANGUAGE sql IMMUTABLE RETURN sf.cast_ntz(value);
CREATE OR REPLACE FUNCTION sf.as_moment(value jsonb) RETURNS timestamp LANGUAGE sql IMMUTABLE RETURN sf.cast_ntz(value);
CREATE OR REPLACE FUNCTION sf.as_moment(value date) RETURNS date LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.as_moment(value time) RETURNS time LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.as_moment(value timestamp) RETURNS timestamp LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.as_moment(value timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.as_moment(value sf.timestamp_tz) RETURNS sf.timestamp_tz
LANGUAGE sql IMMUTABLE RETURN value;

-- The other date functions accept no text: the day, and the wall-clock time, of a date or timestamp.
DO $$
DECLARE
    type text;
BEGIN
    FOREACH type IN ARRAY ARRAY['date', 'timestamp', 'timestamptz', 'sf.timestamp_tz'] LOOP
        EXECUTE format($f$
            CREATE OR REPLACE FUNCTION sf.as_date(value %1$s) RETURNS date
            LANGUAGE sql %2$s RETURN sf.cast_date(value);
            CREATE OR REPLACE FUNCTION sf.as_wall(value %1$s) RETURNS timestamp
            LANGUAGE sql %2$s RETURN sf.cast_ntz(value);
            $f$, type, CASE type WHEN 'timestamptz' THEN 'STABLE' ELSE 'IMMUTABLE' END);
    END LOOP;
END
$$;

-- VARCHAR: values in Snowflake's default output formats.

CREATE OR REPLACE FUNCTION sf.cast_text(value text) RETURNS text LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.cast_text(value numeric) RETURNS text LANGUAGE sql IMMUTABLE RETURN value::text;
CREATE OR REPLACE FUNCTION sf.cast_text(value bigint) RETURNS text LANGUAGE sql IMMUTABLE RETURN value::text;
CREATE OR REPLACE FUNCTION sf.cast_text(value integer) RETURNS text LANGUAGE sql IMMUTABLE RETURN value::text;
CREATE OR REPLACE FUNCTION sf.cast_text(value boolean) RETURNS text LANGUAGE sql IMMUTABLE RETURN value::text;
CREATE OR REPLACE FUNCTION sf.cast_text(value double precision) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE value WHEN 'Infinity' THEN 'inf' WHEN '-Infinity' THEN '-inf' ELSE value::text END;
CREATE OR REPLACE FUNCTION sf.cast_text(value bytea) RETURNS text
LANGUAGE sql IMMUTABLE RETURN upper(encode(value, 'hex'));
CREATE OR REPLACE FUNCTION sf.cast_text(value date) RETURNS text
LANGUAGE sql STABLE RETURN to_char(value, 'YYYY-MM-DD');
CREATE OR REPLACE FUNCTION sf.cast_text(value time) RETURNS text
LANGUAGE sql STABLE RETURN to_char(value, 'HH24:MI:SS');
CREATE OR REPLACE FUNCTION sf.cast_text(value timestamp) RETURNS text
LANGUAGE sql STABLE RETURN to_char(value, 'YYYY-MM-DD HH24:MI:SS.MS');
CREATE OR REPLACE FUNCTION sf.cast_text(value sf.timestamp_tz) RETURNS text
LANGUAGE sql STABLE
RETURN sf.format_moment(sf.wall(value), (value).offset_minutes::integer, 'YYYY-MM-DD HH24:MI:SS.MS TZHTZM');
CREATE OR REPLACE FUNCTION sf.cast_text(value timestamptz) RETURNS text
LANGUAGE sql STABLE RETURN sf.cast_text(sf.in_session_zone(value));
CREATE OR REPLACE FUNCTION sf.cast_text(value jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    CASE jsonb_typeof(value)
        WHEN 'string', 'null' THEN RETURN value #>> '{}';
        ELSE RETURN sf.json_text(value);
    END CASE;
END
$$;
CREATE OR REPLACE FUNCTION sf.try_cast_text(value text) RETURNS text LANGUAGE sql IMMUTABLE RETURN value;

CREATE OR REPLACE FUNCTION sf.cast_text(value numeric, format text) RETURNS text
LANGUAGE sql IMMUTABLE RETURN sf.format_number(value, format);
CREATE OR REPLACE FUNCTION sf.cast_text(value double precision, format text) RETURNS text
LANGUAGE sql IMMUTABLE RETURN sf.format_number(value::numeric, format);
CREATE OR REPLACE FUNCTION sf.cast_text(value date, format text) RETURNS text
LANGUAGE sql STABLE RETURN sf.format_moment(value::timestamp, 0, sf.template(format));
CREATE OR REPLACE FUNCTION sf.cast_text(value time, format text) RETURNS text
LANGUAGE sql STABLE RETURN sf.format_moment(date '1970-01-01' + value, 0, sf.template(format));
CREATE OR REPLACE FUNCTION sf.cast_text(value timestamp, format text) RETURNS text
LANGUAGE sql STABLE RETURN sf.format_moment(value, 0, sf.template(format));
CREATE OR REPLACE FUNCTION sf.cast_text(value sf.timestamp_tz, format text) RETURNS text
LANGUAGE sql STABLE RETURN sf.format_moment(sf.wall(value), (value).offset_minutes::integer, sf.template(format));
CREATE OR REPLACE FUNCTION sf.cast_text(value timestamptz, format text) RETURNS text
LANGUAGE sql STABLE RETURN sf.cast_text(sf.in_session_zone(value), format);
CREATE OR REPLACE FUNCTION sf.cast_text(value bytea, format text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE replace(upper(format), '-', '') WHEN 'BASE64' THEN replace(encode(value, 'base64'), E'\n', '')
    WHEN 'UTF8' THEN convert_from(value, 'UTF8') ELSE upper(encode(value, 'hex')) END;

-- Arguments of string functions that also accept bytes, and of digests.
CREATE OR REPLACE FUNCTION sf.as_string(value text) RETURNS text LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.as_string(value bytea) RETURNS bytea LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.as_bytes(value bytea) RETURNS bytea LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.as_bytes(value text) RETURNS bytea
LANGUAGE sql IMMUTABLE RETURN convert_to(value, 'UTF8');
-- The types whose values sf.cast_text() writes in Snowflake's output format.
CREATE OR REPLACE FUNCTION sf.formatted_types() RETURNS text[] LANGUAGE sql IMMUTABLE
RETURN ARRAY['numeric', 'integer', 'bigint', 'double precision', 'boolean', 'date', 'time', 'timestamp', 'timestamptz',
    'sf.timestamp_tz', 'jsonb'];
DO $$
DECLARE
    type text;
BEGIN
    FOREACH type IN ARRAY sf.formatted_types() LOOP
        EXECUTE format($f$
            CREATE OR REPLACE FUNCTION sf.as_string(value %1$s) RETURNS text
            LANGUAGE sql STABLE RETURN sf.cast_text(value);
            CREATE OR REPLACE FUNCTION sf.as_bytes(value %1$s) RETURNS bytea
            LANGUAGE sql STABLE RETURN sf.as_bytes(sf.cast_text(value));
            $f$, type);
    END LOOP;
END
$$;

-- VARIANT, OBJECT, ARRAY. Dates, times and bytes become strings; numbers lose trailing zeros.

CREATE OR REPLACE FUNCTION sf.cast_variant(value jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN value;
CREATE OR REPLACE FUNCTION sf.cast_variant(value text) RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN to_jsonb(value);
CREATE OR REPLACE FUNCTION sf.cast_variant(value numeric) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN to_jsonb(trim_scale(value));
CREATE OR REPLACE FUNCTION sf.cast_variant(value bigint) RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN to_jsonb(value);
CREATE OR REPLACE FUNCTION sf.cast_variant(value integer) RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN to_jsonb(value);
CREATE OR REPLACE FUNCTION sf.cast_variant(value double precision) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN to_jsonb(value);
CREATE OR REPLACE FUNCTION sf.cast_variant(value boolean) RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN to_jsonb(value);
CREATE OR REPLACE FUNCTION sf.cast_variant(value bytea) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN to_jsonb(sf.cast_text(value));
CREATE OR REPLACE FUNCTION sf.cast_variant(value date) RETURNS jsonb
LANGUAGE sql STABLE RETURN to_jsonb(sf.cast_text(value));
CREATE OR REPLACE FUNCTION sf.cast_variant(value time) RETURNS jsonb
LANGUAGE sql STABLE RETURN to_jsonb(sf.cast_text(value));
CREATE OR REPLACE FUNCTION sf.cast_variant(value timestamp) RETURNS jsonb
LANGUAGE sql STABLE RETURN to_jsonb(sf.cast_text(value));
CREATE OR REPLACE FUNCTION sf.cast_variant(value timestamptz) RETURNS jsonb
LANGUAGE sql STABLE RETURN to_jsonb(sf.cast_text(value));
CREATE OR REPLACE FUNCTION sf.cast_variant(value sf.timestamp_tz) RETURNS jsonb
LANGUAGE sql STABLE RETURN to_jsonb(sf.cast_text(value));
CREATE OR REPLACE FUNCTION sf.try_cast_variant(value text) RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN to_jsonb(value);

CREATE OR REPLACE FUNCTION sf.cast_object(value jsonb) RETURNS sf.object
LANGUAGE sql IMMUTABLE
RETURN CASE coalesce(jsonb_typeof(value), 'null') WHEN 'object' THEN value WHEN 'null' THEN NULL
    ELSE sf.cast_failed(value, 'OBJECT')::jsonb END;
CREATE OR REPLACE FUNCTION sf.cast_array(value jsonb) RETURNS sf."array"
LANGUAGE sql IMMUTABLE
RETURN CASE coalesce(jsonb_typeof(value), 'null') WHEN 'array' THEN value WHEN 'null' THEN NULL
    ELSE jsonb_build_array(value) END;
CREATE OR REPLACE FUNCTION sf.cast_array(value text) RETURNS sf."array"
LANGUAGE sql IMMUTABLE RETURN CASE WHEN value IS NOT NULL THEN jsonb_build_array(value) END;
CREATE OR REPLACE FUNCTION sf.cast_array(value numeric) RETURNS sf."array"
LANGUAGE sql IMMUTABLE RETURN CASE WHEN value IS NOT NULL THEN jsonb_build_array(value) END;

-- Casts that PostgreSQL applies automatically. Only text to NUMBER is IMPLICIT, so that `id = '5'` and `'2' + 1` are
-- not ambiguous. Comparisons of text with other types have separate operators (40), and columns accept text by
-- ASSIGNMENT.
DO $$
DECLARE
    pair record;
BEGIN
    FOR pair IN
        SELECT s.source, t.target, t.reader,
            CASE WHEN t.target = 'numeric' THEN 'IMPLICIT' ELSE 'ASSIGNMENT' END AS context
        FROM unnest(ARRAY['text', 'varchar', 'jsonb']) AS s(source), (VALUES ('numeric', 'number'),
            ('double precision', 'float'), ('boolean', 'boolean'), ('bytea', 'binary'), ('date', 'date'),
            ('time', 'time'), ('timestamp', 'ntz'), ('timestamptz', 'ltz'), ('sf.timestamp_tz', 'tz'))
            AS t(target, reader)
        UNION ALL VALUES ('jsonb', 'text', 'text', 'ASSIGNMENT'), ('jsonb', 'varchar', 'text', 'ASSIGNMENT'),
            ('numeric', 'boolean', 'boolean', 'ASSIGNMENT'), ('sf.timestamp_tz', 'timestamptz', 'ltz', 'IMPLICIT'),
            ('sf.timestamp_tz', 'timestamp', 'ntz', 'ASSIGNMENT'), ('sf.timestamp_tz', 'date', 'date', 'ASSIGNMENT'),
            ('sf.timestamp_tz', 'time', 'time', 'ASSIGNMENT'), ('sf.timestamp_tz', 'text', 'text', 'ASSIGNMENT'),
            ('timestamptz', 'sf.timestamp_tz', 'tz', 'ASSIGNMENT'),
            ('timestamp', 'sf.timestamp_tz', 'tz', 'ASSIGNMENT'), ('date', 'sf.timestamp_tz', 'tz', 'ASSIGNMENT')
    LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_cast
            WHERE castsource = pair.source::regtype AND casttarget = pair.target::regtype)
        THEN
            EXECUTE format('CREATE CAST (%s AS %s) WITH FUNCTION sf.cast_%s(%s) AS %s', pair.source, pair.target,
                pair.reader, CASE pair.source WHEN 'varchar' THEN 'text' ELSE pair.source END, pair.context);
        END IF;
    END LOOP;
END
$$;

-- PostgreSQL has explicit casts from jsonb to these three types, which reject strings. Columns of these types must
-- accept a VARIANT like all others. No command changes a built-in cast.
UPDATE pg_catalog.pg_cast SET castcontext = 'a', castfunc = own.function
FROM (VALUES ('numeric'::regtype, 'sf.cast_number(jsonb)'::regprocedure),
    ('double precision'::regtype, 'sf.cast_float(jsonb)'::regprocedure),
    ('boolean'::regtype, 'sf.cast_boolean(jsonb)'::regprocedure)) AS own(type, function)
WHERE castsource = 'jsonb'::regtype AND casttarget = own.type AND castfunc <> own.function;
