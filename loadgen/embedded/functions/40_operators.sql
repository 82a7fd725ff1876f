-- Operators between types that Snowflake combines and PostgreSQL does not. Each is an SQL function with the native
-- operator. The planner inlines it, so `d < '2024-01-01'` can use an index. PostgreSQL finds these operators only if
-- the schema sf is in the search_path.

DROP PROCEDURE IF EXISTS sf.make_operator;
CREATE PROCEDURE sf.make_operator(name text, sign text, a text, b text, result text, volatility text,
    body text)
LANGUAGE plpgsql AS $$
DECLARE
    function text := 'sf.op_' || name;
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION %s(a %s, b %s) RETURNS %s LANGUAGE sql %s RETURN %s',
        function, a, b, result, volatility, body);
    IF to_regoperator(format('sf.%s(%s, %s)', sign, a, b)) IS NULL THEN
        EXECUTE format('CREATE OPERATOR sf.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = %s)', sign, a, b, function);
    END IF;
END
$$;

-- Comparisons: text or a VARIANT is converted to the type of the other side.
DO $$
DECLARE
    kind record;
    other text;
    op record;
    native text;
BEGIN
    FOR kind IN SELECT * FROM (VALUES ('numeric', 'sf.cast_number', 'IMMUTABLE'), ('text', 'sf.cast_text', 'IMMUTABLE'),
        ('double precision', 'sf.cast_float', 'IMMUTABLE'), ('boolean', 'sf.cast_boolean', 'IMMUTABLE'),
        ('bytea', 'sf.cast_binary', 'IMMUTABLE'), ('date', 'sf.cast_date', 'IMMUTABLE'),
        ('time', 'sf.cast_time', 'IMMUTABLE'), ('timestamp', 'sf.cast_ntz', 'IMMUTABLE'),
        ('timestamptz', 'sf.cast_ltz', 'STABLE'), ('sf.timestamp_tz', 'sf.cast_tz', 'STABLE'))
        AS k(type, reader, volatility)
    LOOP
        FOR op IN SELECT * FROM (VALUES ('eq', '='), ('ne', '<>'), ('lt', '<'), ('le', '<='), ('gt', '>'), ('ge', '>='))
            AS o(name, sign)
        LOOP
            native := format('OPERATOR(%s.%s)',
                CASE kind.type WHEN 'sf.timestamp_tz' THEN 'sf' ELSE 'pg_catalog' END, op.sign);
            FOREACH other IN ARRAY ARRAY['jsonb', 'text'] LOOP
                CONTINUE WHEN other = kind.type;
                CALL sf.make_operator(op.name, op.sign, kind.type, other, 'boolean', kind.volatility,
                    format('a %s %s(b)', native, kind.reader));
                CALL sf.make_operator(op.name, op.sign, other, kind.type, 'boolean', kind.volatility,
                    format('%s(a) %s b', kind.reader, native));
            END LOOP;
        END LOOP;
    END LOOP;
END
$$;

-- Arithmetic with a VARIANT or text. Division and remainder are functions (50).
DO $$
DECLARE
    pair record;
    op record;
    result text;
    reader text;
BEGIN
    FOR pair IN SELECT * FROM (VALUES ('jsonb', 'numeric'), ('numeric', 'jsonb'), ('jsonb', 'double precision'),
        ('double precision', 'jsonb'), ('jsonb', 'jsonb'), ('double precision', 'text'), ('text', 'double precision'),
        ('numeric', 'text'), ('text', 'numeric'), ('text', 'text')) AS p(a, b)
    LOOP
        result := CASE WHEN 'double precision' IN (pair.a, pair.b) THEN 'double precision' ELSE 'numeric' END;
        reader := CASE result WHEN 'numeric' THEN 'sf.cast_number' ELSE 'sf.cast_float' END;
        FOR op IN SELECT * FROM (VALUES ('add', '+'), ('subtract', '-'), ('multiply', '*')) AS o(name, sign) LOOP
            CALL sf.make_operator(op.name, op.sign, pair.a, pair.b, result, 'IMMUTABLE',
                format('%1$s(a) OPERATOR(pg_catalog.%2$s) %1$s(b)', reader, op.sign));
        END LOOP;
    END LOOP;
END
$$;

-- Arithmetic with a DATE counts days. An interval is added to a TIMESTAMP_TZ at its offset.
DO $$
BEGIN
    CALL sf.make_operator('add', '+', 'date', 'numeric', 'date', 'IMMUTABLE', 'a + round(b)::integer');
    CALL sf.make_operator('add', '+', 'numeric', 'date', 'date', 'IMMUTABLE', 'b + round(a)::integer');
    CALL sf.make_operator('subtract', '-', 'date', 'numeric', 'date', 'IMMUTABLE', 'a - round(b)::integer');
    CALL sf.make_operator('add', '+', 'sf.timestamp_tz', 'interval', 'sf.timestamp_tz', 'IMMUTABLE',
        'sf.at_offset(sf.wall(a) + b, (a).offset_minutes::integer)');
    CALL sf.make_operator('subtract', '-', 'sf.timestamp_tz', 'interval', 'sf.timestamp_tz', 'IMMUTABLE',
        'sf.at_offset(sf.wall(a) - b, (a).offset_minutes::integer)');
END
$$;

-- `||` with a value that is not text: the value in Snowflake's output format.
DO $$
DECLARE
    type text;
BEGIN
    FOREACH type IN ARRAY sf.formatted_types() LOOP
        CALL sf.make_operator('concat', '||', 'text', type, 'text', 'STABLE', 'a || sf.cast_text(b)');
        CALL sf.make_operator('concat', '||', type, 'text', 'text', 'STABLE', 'sf.cast_text(a) || b');
    END LOOP;
END
$$;

DROP PROCEDURE sf.make_operator;
