-- Text to values and back. The read_* functions return NULL for text that is not a value of the type; the casts (30)
-- raise an error. They call the input functions of the types by name, because `value::numeric` is the cast that calls
-- them.

CREATE OR REPLACE FUNCTION sf.read_number(value text) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value ~ '^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?\s*$' THEN numeric_in(textout(value), 0, -1) END;

CREATE OR REPLACE FUNCTION sf.read_float(value text) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    word text := lower(btrim(value));
BEGIN
    IF word ~ '^[+-]?(inf|infinity)$|^nan$' THEN
        RETURN float8in(textout(word));
    ELSIF sf.read_number(word) IS NOT NULL AND pg_input_is_valid(word, 'double precision') THEN
        RETURN float8in(textout(word));
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION sf.read_boolean(value text) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN CASE lower(btrim(value))
    WHEN 'true' THEN true WHEN 't' THEN true WHEN 'yes' THEN true WHEN 'y' THEN true
    WHEN 'on' THEN true WHEN '1' THEN true
    WHEN 'false' THEN false WHEN 'f' THEN false WHEN 'no' THEN false WHEN 'n' THEN false
    WHEN 'off' THEN false WHEN '0' THEN false END;

-- Seconds since 1970 as a wall-clock time in UTC, with microseconds.
CREATE OR REPLACE FUNCTION sf.from_epoch(seconds numeric) RETURNS timestamp
LANGUAGE sql IMMUTABLE
RETURN timestamp '1970-01-01' + make_interval(days => div(seconds, 86400)::integer)
    + make_interval(secs => trunc(mod(seconds, 86400), 6)::double precision);

-- A text of digits is an epoch. Its size determines the unit: seconds, milli-, micro- or nanoseconds.
CREATE OR REPLACE FUNCTION sf.from_digits(value numeric) RETURNS timestamp
LANGUAGE sql IMMUTABLE
RETURN sf.from_epoch(value / CASE WHEN abs(value) < 31536000000 THEN 1 WHEN abs(value) < 31536000000000 THEN 1000
    WHEN abs(value) < 31536000000000000 THEN 1000000 ELSE 1000000000 END);

-- '+0530', '-8', 'Z' in minutes; NULL if it is not an offset.
CREATE OR REPLACE FUNCTION sf.read_offset(value text) RETURNS integer
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN upper(value) = 'Z' THEN 0
    WHEN value ~ '^[+-]\d{1,2}(:?\d{2})?$' THEN (substr(value, 1, 1) || '1')::integer
        * (substring(value FROM '^.(\d{1,2})')::integer * 60
            + coalesce(substring(value FROM '^.\d{1,2}:?(\d{2})$'), '0')::integer)
    END;

-- A date or timestamp in one of the notations that are recognised without a format. `minutes` is the offset in the
-- text; an epoch is in UTC. Fractions below a microsecond are truncated.
CREATE OR REPLACE FUNCTION sf.read_moment(value text, OUT wall timestamp, OUT minutes integer)
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    parts text[];
    plain text;
BEGIN
    IF value ~ '^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?$' THEN
        plain := value;
    ELSIF value ~ '^\s*-?\d+\s*$' THEN
        wall := sf.from_digits(sf.read_number(value));
        minutes := 0;
        RETURN;
    ELSE
        parts := regexp_match(btrim(value), '^(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}/\d{1,2}/\d{4}|\d{1,2}-[a-z]{3}-\d{4}'
            '|(?:[a-z]{3}, )?\d{1,2} [a-z]{3} \d{4})'
            '(?:(?:t| +)(\d{1,2}(?::\d{1,2}(?::\d{1,2})?)?)(\.\d*)?\s*(am|pm)?\s*(z|[+-]\d{1,2}(?::?\d{2})?)?)?$', 'i');
        IF parts IS NULL THEN
            RETURN;
        END IF;
        plain := concat_ws(' ', parts[1], parts[2] || CASE WHEN strpos(parts[2], ':') > 0 THEN '' ELSE ':00' END
            || left(coalesce(nullif(parts[3], '.'), ''), 7), parts[4]);
        minutes := sf.read_offset(parts[5]);
    END IF;
    IF plain !~ '[ T]24' AND pg_input_is_valid(plain, 'timestamp') THEN
        wall := timestamp_in(textout(plain), 0, -1);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION sf.read_time(value text) RETURNS time
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    plain text := btrim(value);
BEGIN
    IF plain ~* '^\d{1,2}:\d{1,2}(:\d{1,2}(\.\d*)?)?\s*(am|pm)?$' THEN
        plain := regexp_replace(plain, '(\.\d{6})\d+', '\1');
        RETURN CASE WHEN pg_input_is_valid(plain, 'time') AND plain !~ '^24' THEN time_in(textout(plain), 0, -1) END;
    END IF;
    RETURN (SELECT wall::time FROM sf.read_moment(plain));
END
$$;

-- The elements of a date or time format, in order; all other characters are literals.
CREATE OR REPLACE FUNCTION sf.format_elements(format text) RETURNS text[]
LANGUAGE sql IMMUTABLE
RETURN ARRAY(SELECT m.element[1] FROM regexp_matches(format,
    '("[^"]*"|YYYY|YY|MMMM|MON|MM|DD|DY|HH24|HH12|AM|PM|MI|SS|FF[0-9]?|TZH:?TZM|TZH|TZM|UUUU|.)', 'gi')
    WITH ORDINALITY AS m(element, position) ORDER BY m.position);

CREATE OR REPLACE FUNCTION sf.month_number(name text) RETURNS integer
LANGUAGE sql IMMUTABLE
RETURN array_position(ARRAY['jan', 'feb', 'mar', 'apr', 'may', 'jun', 'jul', 'aug', 'sep', 'oct', 'nov', 'dec'],
    lower(left(name, 3)));

-- A date or time, read by a format; NULL if it does not match. Missing parts are those of 1970-01-01 00:00.
CREATE OR REPLACE FUNCTION sf.read_format(value text, format text, OUT wall timestamp, OUT minutes integer)
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    rest text := value;
    element text;
    key text;
    found text;
    plain text;
    fields jsonb := '{"YYYY": 1970, "MM": 1, "DD": 1, "HH": 0, "MI": 0, "SS": 0, "FF": "0"}';
BEGIN
    IF upper(format) = 'AUTO' THEN
        SELECT m.wall, m.minutes INTO wall, minutes FROM sf.read_moment(value) AS m;
        RETURN;
    END IF;
    FOREACH element IN ARRAY sf.format_elements(format) LOOP
        key := upper(element);
        found := CASE
            WHEN key IN ('YYYY', 'UUUU') THEN substring(rest FROM '^\d{4}')
            WHEN key = 'YY' THEN substring(rest FROM '^\d{2}')
            WHEN key IN ('MM', 'DD', 'HH24', 'HH12', 'MI', 'SS') THEN substring(rest FROM '^\d{1,2}')
            WHEN key ~ '^FF' THEN substring(rest FROM '^\d{1,9}')
            WHEN key IN ('MON', 'DY') THEN substring(rest FROM '^[A-Za-z]{3}')
            WHEN key = 'MMMM' THEN substring(rest FROM '^[A-Za-z]{3,9}')
            WHEN key IN ('AM', 'PM') THEN substring(rest FROM '^[AaPp][Mm]')
            WHEN key ~ '^TZ' THEN substring(rest FROM '^(?:[Zz]|[+-]\d{1,2}(?::?\d{2})?)')
            WHEN starts_with(rest, btrim(element, '"')) THEN btrim(element, '"')
        END;
        IF found IS NULL THEN
            RETURN;
        END IF;
        rest := substr(rest, length(found) + 1);
        CASE
            WHEN key IN ('YYYY', 'UUUU', 'MM', 'DD', 'MI', 'SS') THEN
                fields := fields || jsonb_build_object(CASE key WHEN 'UUUU' THEN 'YYYY' ELSE key END, found::integer);
            WHEN key = 'YY' THEN  -- 70 to 99 are 1970 to 1999, 00 to 69 are 2000 to 2069
                fields := fields || jsonb_build_object('YYYY',
                    found::integer + CASE WHEN found::integer < 70 THEN 2000 ELSE 1900 END);
            WHEN key IN ('HH24', 'HH12') THEN
                fields := fields || jsonb_build_object('HH', found::integer);
            WHEN key IN ('MON', 'MMMM') THEN
                fields := fields || jsonb_build_object('MM', coalesce(sf.month_number(found), 0));
            WHEN key ~ '^FF' THEN
                fields := fields || jsonb_build_object('FF', left(found, 6));
            WHEN key IN ('AM', 'PM') THEN
                fields := fields || jsonb_build_object('HALF', upper(found));
            WHEN key ~ '^TZ' THEN
                minutes := sf.read_offset(found);
            ELSE
                NULL;
        END CASE;
    END LOOP;
    plain := format('%s-%s-%s %s:%s:%s.%s %s', lpad(fields->>'YYYY', 4, '0'), fields->>'MM', fields->>'DD',
        fields->>'HH', fields->>'MI', fields->>'SS', fields->>'FF', fields->>'HALF');
    IF rest = '' AND (fields->>'HH')::integer < 24 AND pg_input_is_valid(plain, 'timestamp') THEN
        wall := timestamp_in(textout(plain), 0, -1);
    END IF;
END
$$;

-- Snowflake's format as a template of to_char. TZH and TZM remain, for format_moment.
CREATE OR REPLACE FUNCTION sf.template(format text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN (SELECT string_agg(CASE
        WHEN e.key IN ('YYYY', 'YY', 'MM', 'DD', 'HH24', 'HH12', 'MI', 'SS') OR e.key ~ '^TZ' THEN e.key
        WHEN e.key = 'UUUU' THEN 'YYYY'
        WHEN e.key = 'MMMM' THEN 'FMMonth'
        WHEN e.key = 'MON' THEN 'Mon'
        WHEN e.key = 'DY' THEN 'Dy'
        WHEN e.key IN ('AM', 'PM') THEN 'AM'
        WHEN e.key = 'FF0' THEN ''
        WHEN e.key ~ '^FF[1-6]$' THEN e.key
        WHEN e.key ~ '^FF[7-9]?$' THEN
            'FF6"' || repeat('0', coalesce(nullif(right(e.key, 1), 'F'), '9')::integer - 6) || '"'
        ELSE '"' || replace(replace(btrim(e.element, '"'), '\', '\\'), '"', '\"') || '"' END, '' ORDER BY e.position)
    FROM (SELECT u.element, u.position, upper(u.element) AS key
          FROM unnest(sf.format_elements(format)) WITH ORDINALITY AS u(element, position)) AS e);

-- +0530, or Z for UTC.
CREATE OR REPLACE FUNCTION sf.offset_text(minutes integer, separator text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN minutes = 0 THEN 'Z' ELSE CASE WHEN minutes < 0 THEN '-' ELSE '+' END
    || lpad((abs(minutes) / 60)::text, 2, '0') || separator || lpad((abs(minutes) % 60)::text, 2, '0') END;

CREATE OR REPLACE FUNCTION sf.format_moment(wall timestamp, minutes integer, template text) RETURNS text
LANGUAGE sql STABLE
RETURN to_char(wall, CASE WHEN strpos(template, 'TZ') = 0 THEN template ELSE
    replace(replace(replace(replace(template,
        'TZH:TZM', '"' || sf.offset_text(minutes, ':') || '"'),
        'TZHTZM', '"' || sf.offset_text(minutes, '') || '"'),
        'TZH', '"' || CASE WHEN minutes < 0 THEN '-' ELSE '+' END || lpad((abs(minutes) / 60)::text, 2, '0') || '"'),
        'TZM', '"' || lpad((abs(minutes) % 60)::text, 2, '0') || '"') END);

-- A number by a number format. PostgreSQL's to_char supports the elements; the differences are corrected here.
CREATE OR REPLACE FUNCTION sf.format_number(value numeric, format text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    model text := upper(replace(format, '$', ''));
    shown text;
BEGIN
    IF model IN ('TM', 'TM9') THEN
        RETURN value::text;
    ELSIF model = 'TME' THEN
        RETURN regexp_replace(btrim(to_char(value, '9.9999999999EEEE')), '\.?0*e\+?(-?)0*(\d)', 'E\1\2');
    ELSIF model ~ '^(FM)?0*X+$' THEN
        shown := to_hex(round(value)::bigint);
        IF format ~ 'X' THEN
            shown := upper(shown);
        END IF;
        RETURN CASE WHEN model ~ '^FM' THEN shown WHEN model ~ '^0' THEN lpad(shown, length(model), '0')
            ELSE lpad(shown, length(model)) END;
    END IF;
    IF model !~ '0' THEN  -- a whole part of zero shows one digit
        model := regexp_replace(model, '9(?=[.D])', '0');
    END IF;
    shown := to_char(value, model);
    IF model ~ '[.D]9+$' AND model !~ '^FM' AND shown !~ '#' THEN  -- trailing zeros under a 9 are blanks
        shown := rpad(regexp_replace(shown, '0+$', ''), length(shown));
    END IF;
    RETURN CASE WHEN strpos(format, '$') > 0 THEN regexp_replace(shown, '[0-9.]', '$\&') ELSE shown END;
END
$$;

-- JSON without blanks, keys in order, numbers without trailing zeros.
CREATE OR REPLACE FUNCTION sf.json_scalar(value jsonb) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE jsonb_typeof(value) WHEN 'number' THEN trim_scale(pg_catalog."numeric"(value))::text
    ELSE format('%s', value) END;
CREATE OR REPLACE FUNCTION sf.json_text(value jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    kind text := jsonb_typeof(value);
    inside text;
BEGIN
    IF kind = 'object' THEN
        SELECT string_agg(to_json(e.key)::text || ':' || CASE WHEN jsonb_typeof(e.value) IN ('object', 'array')
            THEN sf.json_text(e.value) ELSE sf.json_scalar(e.value) END, ',' ORDER BY e.key)
        INTO inside FROM jsonb_each(value) AS e;
        RETURN '{' || coalesce(inside, '') || '}';
    ELSIF kind = 'array' THEN
        SELECT string_agg(CASE WHEN jsonb_typeof(e.value) IN ('object', 'array')
            THEN sf.json_text(e.value) ELSE sf.json_scalar(e.value) END, ',' ORDER BY e.position)
        INTO inside FROM jsonb_array_elements(value) WITH ORDINALITY AS e(value, position);
        RETURN '[' || coalesce(inside, '') || ']';
    END IF;
    RETURN sf.json_scalar(value);
END
$$;

-- Whether JSON has more than 1,000 levels. Above some depth PostgreSQL's parser raises an error, which is expensive to
-- catch. Each iteration removes the innermost level.
CREATE OR REPLACE FUNCTION sf.is_too_deep(value text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    brackets text;
    before integer;
BEGIN
    IF length(value) <= 1000 OR 2 * length(value) - length(replace(value, '[', '')) - length(replace(value, '{', ''))
        <= 1000 THEN
        RETURN false;
    END IF;
    brackets := regexp_replace(regexp_replace(value, '"(?:[^"\\]|\\.)*"', '', 'g'), '[^][{}]+', '', 'g');
    brackets := translate(brackets, '{}', '[]');
    FOR level IN 1..1000 LOOP
        IF strpos(brackets, repeat('[', 1001)) > 0 THEN
            RETURN true;
        END IF;
        before := length(brackets);
        brackets := replace(brackets, '[]', '');
        EXIT WHEN length(brackets) = before;
    END LOOP;
    RETURN length(brackets) > 1000 OR brackets LIKE '%[]%';
END
$$;

-- In PL/pgSQL: in SQL the planner would parse a constant text before the check.
CREATE OR REPLACE FUNCTION sf.read_json(value text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF btrim(value, E' \t\r\n') <> '' AND NOT sf.is_too_deep(value) AND pg_input_is_valid(value, 'jsonb') THEN
        RETURN jsonb_in(textout(value));
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION sf.json_problem(value text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN sf.is_too_deep(value) THEN 'the value has more than 1,000 levels' ELSE (SELECT CASE
        WHEN i.message LIKE '%numeric%' THEN 'a number is out of range'
        WHEN i.detail LIKE '\\u0000%' THEN 'a string has the character \u0000'
        WHEN i.detail LIKE 'Unicode%' THEN 'a string has half of a surrogate pair'
        ELSE coalesce(regexp_replace(i.detail, '^Token "(.*)" is invalid\.$', 'unknown keyword "\1"'), 'not a JSON value')
        END
    FROM pg_input_error_info(value, 'jsonb') AS i) END;

CREATE OR REPLACE FUNCTION sf.read_hex(value text) RETURNS bytea
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value ~ '^([0-9A-Fa-f]{2})*$' THEN decode(value, 'hex') END;

CREATE OR REPLACE FUNCTION sf.read_base64(value text) RETURNS bytea
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN length(value) % 4 = 0 AND value ~ '^[A-Za-z0-9+/]*={0,2}$' THEN decode(value, 'base64') END;
