-- Semi-structured values. SQL NULL: there is no value. JSON null is a value, until it is converted to a number or text.

CREATE OR REPLACE FUNCTION sf.parse_json(value text) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    result jsonb := sf.read_json(value);
BEGIN
    IF result IS NULL AND btrim(value, E' \t\r\n') <> '' THEN
        IF sf.is_too_deep(value) THEN
            PERFORM sf.fail(100069, '22P02', 'Semi-structured value is nested too deeply: the limit is 1,000 levels.');
        END IF;
        PERFORM sf.fail(100069, '22P02', 'Error parsing JSON: ' || sf.json_problem(value));
    END IF;
    RETURN result;
END
$$;
CREATE OR REPLACE FUNCTION sf.check_json(value text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN btrim(value, E' \t\r\n') <> '' AND sf.read_json(value) IS NULL THEN sf.json_problem(value) END;

-- Access. Indexes start at 0; a negative index gives NULL.
CREATE OR REPLACE FUNCTION sf.get(value jsonb, key text) RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN value -> key;
CREATE OR REPLACE FUNCTION sf.get(value jsonb, index numeric) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN CASE WHEN index >= 0 THEN value -> trunc(index)::integer END;
CREATE OR REPLACE FUNCTION sf.get(value jsonb, key jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN CASE jsonb_typeof(key) WHEN 'number' THEN sf.get(value, sf.cast_number(key)) ELSE value -> (key #>> '{}') END;
CREATE OR REPLACE FUNCTION sf.get_ignore_case(value jsonb, key text) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN coalesce(value -> key, (SELECT e.value
    FROM jsonb_each(CASE jsonb_typeof(value) WHEN 'object' THEN value ELSE '{}' END) AS e
    WHERE sf.lower(e.key) = sf.lower($2) ORDER BY e.key LIMIT 1));
-- a.b[0]['c d']."e f" as a path for #>.
CREATE OR REPLACE FUNCTION sf.path_steps(path text) RETURNS text[]
LANGUAGE sql IMMUTABLE
RETURN ARRAY(SELECT coalesce(m.step[1], m.step[2], m.step[3], m.step[4])
    FROM regexp_matches(path, '"([^"]*)"|\[''([^'']*)''\]|\[(\d+)\]|([^.\[\]":]+)', 'g')
        WITH ORDINALITY AS m(step, position)
    ORDER BY m.position);
CREATE OR REPLACE FUNCTION sf.get_path(value jsonb, path text) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN value #> sf.path_steps(path);
CREATE OR REPLACE FUNCTION sf.json_extract_path_text(value text, path text) RETURNS text
LANGUAGE sql IMMUTABLE RETURN sf.cast_text(sf.get_path(sf.parse_json(value), path));

-- The type of a value.
CREATE OR REPLACE FUNCTION sf.typeof(value jsonb) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE jsonb_typeof(value) WHEN 'string' THEN 'VARCHAR' WHEN 'null' THEN 'NULL_VALUE'
    WHEN 'number' THEN CASE WHEN scale(trim_scale(sf.cast_number(value))) = 0 THEN 'INTEGER' ELSE 'DECIMAL' END
    ELSE upper(jsonb_typeof(value)) END;
CREATE OR REPLACE FUNCTION sf.is_type(value jsonb, type_name text) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN jsonb_typeof(value) = type_name;
CREATE OR REPLACE FUNCTION sf.is_integer(value jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN sf.typeof(value) = 'INTEGER';
CREATE OR REPLACE FUNCTION sf.strip_null_value(value jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN CASE WHEN value <> 'null' THEN value END;
CREATE OR REPLACE FUNCTION sf.as_type(value jsonb, type_name text) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN CASE WHEN jsonb_typeof(value) = type_name THEN value END;
CREATE OR REPLACE FUNCTION sf.as_integer(value jsonb) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN CASE WHEN sf.typeof(value) = 'INTEGER' THEN sf.cast_number(value) END;

-- Objects. A pair whose key or value is SQL NULL is left out.
CREATE OR REPLACE FUNCTION sf.object_construct(keys text[], "values" jsonb[]) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    result jsonb := '{}';
BEGIN
    FOR i IN 1..cardinality(keys) LOOP
        IF keys[i] IS NULL OR "values"[i] IS NULL THEN
            CONTINUE;
        ELSIF result ? keys[i] THEN
            PERFORM sf.fail(100103, '22000', format('Duplicate field key ''%s''', keys[i]));
        END IF;
        result := result || jsonb_build_object(keys[i], "values"[i]);
    END LOOP;
    RETURN result;
END
$$;
CREATE OR REPLACE FUNCTION sf.object_insert(value jsonb, key text, part jsonb, change boolean DEFAULT false)
RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF value IS NULL THEN
        RETURN NULL;
    ELSIF jsonb_typeof(value) <> 'object' THEN
        PERFORM sf.cast_failed(value, 'OBJECT');
    ELSIF key IS NULL THEN
        RETURN value;
    ELSIF value ? key AND change IS NOT TRUE THEN
        PERFORM sf.fail(100103, '22000', format('Duplicate field key ''%s''', key));
    ELSIF part IS NULL THEN
        RETURN value - key;
    END IF;
    RETURN value || jsonb_build_object(key, part);
END
$$;
CREATE OR REPLACE FUNCTION sf.object_delete(value jsonb, VARIADIC keys text[]) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN value - keys;
CREATE OR REPLACE FUNCTION sf.object_pick(value jsonb, VARIADIC keys text[]) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value IS NOT NULL THEN coalesce((SELECT jsonb_object_agg(e.key, e.value) FROM jsonb_each(value) AS e
    WHERE e.key = ANY (keys)), '{}') END;
CREATE OR REPLACE FUNCTION sf.object_pick(value jsonb, keys jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN sf.object_pick(value, VARIADIC ARRAY(SELECT jsonb_array_elements_text(keys)));
CREATE OR REPLACE FUNCTION sf.object_keys(value jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN CASE jsonb_typeof(value) WHEN 'object' THEN
    coalesce((SELECT jsonb_agg(k ORDER BY k COLLATE "C") FROM jsonb_object_keys(value) AS k), '[]') END;

-- Arrays. An element that is SQL NULL becomes JSON null.
CREATE OR REPLACE FUNCTION sf.array_construct_compact(VARIADIC items jsonb[]) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN to_jsonb(array_remove(items, NULL));
CREATE OR REPLACE FUNCTION sf.array_size(value jsonb) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN CASE jsonb_typeof(value) WHEN 'array' THEN jsonb_array_length(value)::numeric END;
CREATE OR REPLACE FUNCTION sf.array_append(value jsonb, item jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN value || jsonb_build_array(item);
CREATE OR REPLACE FUNCTION sf.array_prepend(value jsonb, item jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN jsonb_build_array(item) || value;
CREATE OR REPLACE FUNCTION sf.array_cat(a jsonb, b jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE RETURN a || b;
CREATE OR REPLACE FUNCTION sf.array_insert(value jsonb, index numeric, item jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN jsonb_insert(value, ARRAY[trunc(index)::integer::text], coalesce(item, 'null'));
CREATE OR REPLACE FUNCTION sf.array_contains(item jsonb, value jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN value @> jsonb_build_array(item) AND item IN (SELECT jsonb_array_elements(value));
CREATE OR REPLACE FUNCTION sf.array_position(item jsonb, value jsonb) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN (SELECT min(e.position) - 1 FROM jsonb_array_elements(value) WITH ORDINALITY AS e(element, position)
    WHERE e.element = item)::numeric;
-- Negative positions count from the end.
CREATE OR REPLACE FUNCTION sf.array_slice(value jsonb, first numeric, last numeric) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value IS NOT NULL AND first IS NOT NULL AND last IS NOT NULL THEN coalesce((
    SELECT jsonb_agg(e.element ORDER BY e.position)
    FROM jsonb_array_elements(value) WITH ORDINALITY AS e(element, position)
    WHERE e.position > CASE WHEN first < 0 THEN jsonb_array_length(value) + first ELSE first END
        AND e.position <= CASE WHEN last < 0 THEN jsonb_array_length(value) + last ELSE last END), '[]') END;
CREATE OR REPLACE FUNCTION sf.array_to_string(value jsonb, separator text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value IS NOT NULL AND separator IS NOT NULL THEN coalesce((
    SELECT string_agg(coalesce(sf.cast_text(e.element), ''), separator ORDER BY e.position)
    FROM jsonb_array_elements(value) WITH ORDINALITY AS e(element, position)), '') END;
CREATE OR REPLACE FUNCTION sf.array_distinct(value jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value IS NOT NULL THEN coalesce((SELECT jsonb_agg(d.element ORDER BY d.position)
    FROM (SELECT e.element, min(e.position) AS position
          FROM jsonb_array_elements(value) WITH ORDINALITY AS e(element, position) GROUP BY e.element) AS d), '[]') END;
CREATE OR REPLACE FUNCTION sf.array_compact(value jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value IS NOT NULL THEN coalesce((SELECT jsonb_agg(e.element ORDER BY e.position)
    FROM jsonb_array_elements(value) WITH ORDINALITY AS e(element, position) WHERE e.element <> 'null'), '[]') END;
CREATE OR REPLACE FUNCTION sf.array_reverse(value jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value IS NOT NULL THEN coalesce((SELECT jsonb_agg(e.element ORDER BY e.position DESC)
    FROM jsonb_array_elements(value) WITH ORDINALITY AS e(element, position)), '[]') END;
CREATE OR REPLACE FUNCTION sf.array_sort(value jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value IS NOT NULL THEN coalesce((SELECT jsonb_agg(e.element ORDER BY e.element = 'null', e.element)
    FROM jsonb_array_elements(value) AS e(element)), '[]') END;
CREATE OR REPLACE FUNCTION sf.array_sort(value jsonb, ascending boolean) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN ascending THEN sf.array_sort(value) ELSE sf.array_reverse(sf.array_sort(value)) END;
CREATE OR REPLACE FUNCTION sf.array_min(value jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN sf.array_sort(value) -> 0;
CREATE OR REPLACE FUNCTION sf.array_max(value jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN sf.array_sort(value) -> -1;
CREATE OR REPLACE FUNCTION sf.array_intersection(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN a IS NOT NULL AND b IS NOT NULL THEN coalesce((SELECT jsonb_agg(e) FROM (
    SELECT jsonb_array_elements(a) AS e INTERSECT ALL SELECT jsonb_array_elements(b)) AS both_), '[]') END;
CREATE OR REPLACE FUNCTION sf.array_except(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN a IS NOT NULL AND b IS NOT NULL THEN coalesce((SELECT jsonb_agg(e) FROM (
    SELECT jsonb_array_elements(a) AS e EXCEPT ALL SELECT jsonb_array_elements(b)) AS rest), '[]') END;
CREATE OR REPLACE FUNCTION sf.arrays_overlap(a jsonb, b jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN a IS NOT NULL AND b IS NOT NULL THEN jsonb_array_length(sf.array_intersection(a, b)) > 0 END;
CREATE OR REPLACE FUNCTION sf.array_generate_range(first numeric, behind numeric, step numeric DEFAULT 1) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN first IS NOT NULL AND behind IS NOT NULL THEN coalesce((SELECT jsonb_agg(n)
    FROM generate_series(first, behind, step) AS n WHERE n <> behind), '[]') END;
CREATE OR REPLACE FUNCTION sf.array_flatten(value jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value IS NOT NULL THEN coalesce((SELECT jsonb_agg(i.item ORDER BY e.position, i.position)
    FROM jsonb_array_elements(value) WITH ORDINALITY AS e(element, position),
        jsonb_array_elements(e.element) WITH ORDINALITY AS i(item, position)), '[]') END;

-- FLATTEN. SEQ is the number of the call.

CREATE SEQUENCE IF NOT EXISTS sf.flatten_seq CACHE 1000;

CREATE OR REPLACE FUNCTION sf.step_text(path text, key text, index bigint) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN index IS NOT NULL THEN path || '[' || index || ']'
    WHEN key ~ '^[A-Za-z_][A-Za-z0-9_]*$' THEN CASE WHEN path = '' THEN key ELSE path || '.' || key END
    ELSE path || '[''' || key || ''']' END;

CREATE OR REPLACE FUNCTION sf.flatten_level(value jsonb, path text, mode text)
RETURNS TABLE (key text, path_ text, index bigint, element jsonb)
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF jsonb_typeof(value) = 'array' AND mode <> 'OBJECT' THEN
        RETURN QUERY SELECT NULL::text, sf.step_text(path, NULL, e.position - 1), e.position - 1, e.item
            FROM jsonb_array_elements(value) WITH ORDINALITY AS e(item, position) ORDER BY e.position;
    ELSIF jsonb_typeof(value) = 'object' AND mode <> 'ARRAY' THEN
        RETURN QUERY SELECT e.key, sf.step_text(path, e.key, NULL), NULL::bigint, e.value
            FROM jsonb_each(value) AS e ORDER BY e.key COLLATE "C";
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION sf.flatten_tree(value jsonb, path text, mode text, deep boolean)
RETURNS TABLE (key text, path_ text, index bigint, element jsonb, parent jsonb)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    row_ record;
BEGIN
    FOR row_ IN SELECT * FROM sf.flatten_level(value, path, CASE WHEN deep THEN 'BOTH' ELSE mode END) LOOP
        IF mode = 'BOTH' OR (mode = 'ARRAY') = (row_.index IS NOT NULL) THEN
            key := row_.key;
            path_ := row_.path_;
            index := row_.index;
            element := row_.element;
            parent := value;
            RETURN NEXT;
        END IF;
        IF deep AND jsonb_typeof(row_.element) IN ('array', 'object') THEN
            RETURN QUERY SELECT t.* FROM sf.flatten_tree(row_.element, row_.path_, mode, deep) AS t;
        END IF;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION sf.flatten(input jsonb, path text DEFAULT NULL, outer_ boolean DEFAULT false,
    recursive_ boolean DEFAULT false, mode text DEFAULT 'BOTH')
RETURNS TABLE ("SEQ" numeric, "KEY" text, "PATH" text, "INDEX" numeric, "VALUE" jsonb, "THIS" jsonb)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    number numeric := nextval('sf.flatten_seq');
    root jsonb := CASE WHEN coalesce(path, '') = '' THEN input ELSE sf.get_path(input, path) END;
BEGIN
    RETURN QUERY SELECT number, t.key, t.path_, t.index::numeric, t.element, t.parent
        FROM sf.flatten_tree(root, coalesce(path, ''), upper(mode), recursive_) AS t;
    IF NOT FOUND AND outer_ THEN
        RETURN QUERY SELECT number, NULL::text, coalesce(path, ''), NULL::numeric, NULL::jsonb, root;
    END IF;
END
$$;
