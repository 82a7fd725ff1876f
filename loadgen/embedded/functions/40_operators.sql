-- Operators between types that Snowflake compares and calculates with and PostgreSQL does not. Each is a plain SQL
-- function over the native operator, which the planner puts in its place, so that indexes serve `d < '2024-01-01'` too.
-- They are found only when the schema sf is in the search_path.

CREATE OR REPLACE PROCEDURE sf.make_operator(name text, operator text, a text, b text, result text, volatility text, body text)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE OR REPLACE FUNCTION sf.%I(a %s, b %s) RETURNS %s LANGUAGE sql %s RETURN %s',
        'op_' || name, a, b, result, volatility, body);
    IF to_regoperator(format('sf.%s(%s, %s)', operator, a, b)) IS NULL THEN
        EXECUTE format('CREATE OPERATOR sf.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = sf.%I)', operator, a, b, 'op_' || name);
    END IF;
END
$$;

-- Comparisons: the other side decides what text or a VARIANT is read as.
DO $$
DECLARE
    kind record;
    other text;
    op record;
BEGIN
    FOR kind IN SELECT * FROM (VALUES ('numeric', 'cast_number', 'IMMUTABLE'), ('double precision', 'cast_float', 'IMMUTABLE'),
        ('text', 'cast_text', 'IMMUTABLE'), ('boolean', 'cast_boolean', 'IMMUTABLE'), ('bytea', 'cast_binary', 'IMMUTABLE'),
        ('date', 'cast_date', 'IMMUTABLE'), ('time', 'cast_time', 'IMMUTABLE'), ('timestamp', 'cast_ntz', 'IMMUTABLE'),
        ('timestamptz', 'cast_ltz', 'STABLE'), ('sf.timestamp_tz', 'cast_tz', 'STABLE')) AS k(type, reader, volatility)
    LOOP
        FOREACH other IN ARRAY CASE kind.type WHEN 'text' THEN ARRAY['jsonb'] ELSE ARRAY['jsonb', 'text'] END
        LOOP
            FOR op IN SELECT * FROM (VALUES ('eq', '='), ('ne', '<>'), ('lt', '<'), ('le', '<='), ('gt', '>'), ('ge', '>='))
                AS o(name, sign)
            LOOP
                CALL sf.make_operator(op.name, op.sign, kind.type, other, 'boolean', kind.volatility, format('a %s sf.%s(b)',
                    CASE kind.type WHEN 'sf.timestamp_tz' THEN format('OPERATOR(sf.%s)', op.sign) ELSE op.sign END, kind.reader));
                CALL sf.make_operator(op.name, op.sign, other, kind.type, 'boolean', kind.volatility, format('sf.%s(a) %s b',
                    kind.reader, CASE kind.type WHEN 'sf.timestamp_tz' THEN format('OPERATOR(sf.%s)', op.sign) ELSE op.sign END));
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
BEGIN
    FOR pair IN SELECT * FROM (VALUES ('jsonb', 'numeric'), ('numeric', 'jsonb'), ('jsonb', 'double precision'),
        ('double precision', 'jsonb'), ('jsonb', 'jsonb'), ('double precision', 'text'), ('text', 'double precision'),
        ('numeric', 'text'), ('text', 'numeric'), ('text', 'text')) AS p(a, b)
    LOOP
        result := CASE WHEN 'double precision' IN (pair.a, pair.b) THEN 'double precision' ELSE 'numeric' END;
        FOR op IN SELECT * FROM (VALUES ('add', '+'), ('subtract', '-'), ('multiply', '*')) AS o(name, sign) LOOP
            CALL sf.make_operator(op.name, op.sign, pair.a, pair.b, result, 'IMMUTABLE',
                format('sf.%1$s(a) %2$s sf.%1$s(b)', CASE result WHEN 'numeric' THEN 'cast_number' ELSE 'cast_float' END, op.sign));
        END LOOP;
    END LOOP;
END
$$;

-- Dates count in days; TIMESTAMP_TZ takes an interval at its own offset.
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

-- `||` with anything that is not text, written as Snowflake writes it.
DO $$
DECLARE
    type text;
BEGIN
    FOREACH type IN ARRAY ARRAY['numeric', 'integer', 'bigint', 'double precision', 'boolean', 'date', 'time', 'timestamp',
        'timestamptz', 'sf.timestamp_tz', 'jsonb']
    LOOP
        CALL sf.make_operator('concat', '||', 'text', type, 'text', 'STABLE', 'a || sf.cast_text(b)');
        CALL sf.make_operator('concat', '||', type, 'text', 'text', 'STABLE', 'sf.cast_text(a) || b');
    END LOOP;
END
$$;
