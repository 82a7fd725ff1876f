-- Strings. Positions and lengths count characters, or bytes for BINARY. Their type is NUMBER.

CREATE OR REPLACE FUNCTION sf.upper(value text) RETURNS text
LANGUAGE sql IMMUTABLE RETURN upper(value COLLATE "pg_c_utf8");
CREATE OR REPLACE FUNCTION sf.lower(value text) RETURNS text
LANGUAGE sql IMMUTABLE RETURN lower(value COLLATE "pg_c_utf8");
CREATE OR REPLACE FUNCTION sf.initcap(value text) RETURNS text
LANGUAGE sql IMMUTABLE RETURN initcap(value COLLATE "pg_c_utf8");
CREATE OR REPLACE FUNCTION sf.initcap(value text, delimiters text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN (SELECT string_agg(CASE WHEN c.position = 1 OR strpos(delimiters, substr(value, c.position - 1, 1)) > 0
        THEN sf.upper(substr(value, c.position, 1)) ELSE sf.lower(substr(value, c.position, 1)) END, ''
        ORDER BY c.position)
    FROM generate_series(1, length(value)) AS c(position));

CREATE OR REPLACE FUNCTION sf.length(value text) RETURNS numeric LANGUAGE sql IMMUTABLE RETURN length(value)::numeric;
CREATE OR REPLACE FUNCTION sf.length(value bytea) RETURNS numeric LANGUAGE sql IMMUTABLE RETURN length(value)::numeric;
CREATE OR REPLACE FUNCTION sf.octet_length(value text) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN octet_length(value)::numeric;
CREATE OR REPLACE FUNCTION sf.octet_length(value bytea) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN octet_length(value)::numeric;

-- SUBSTR: 0 means 1, a negative start counts from the end, a negative length gives an empty string.
CREATE OR REPLACE FUNCTION sf.substr(value text, start numeric) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN start >= 0 THEN substr(value, greatest(round(start)::integer, 1))
    WHEN - round(start) > length(value) THEN '' ELSE right(value, - round(start)::integer) END;
CREATE OR REPLACE FUNCTION sf.substr(value text, start numeric, length numeric) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN length < 0 THEN '' WHEN start > 0 THEN substr(value, round(start)::integer, round(length)::integer)
    ELSE left(sf.substr(value, start), round(length)::integer) END;
CREATE OR REPLACE FUNCTION sf.substr(value bytea, start numeric) RETURNS bytea
LANGUAGE sql IMMUTABLE
RETURN substr(value, CASE WHEN start >= 0 THEN greatest(start::integer, 1) ELSE length(value) + start::integer + 1 END);
CREATE OR REPLACE FUNCTION sf.substr(value bytea, start numeric, length numeric) RETURNS bytea
LANGUAGE sql IMMUTABLE
RETURN substr(sf.substr(value, start), 1, greatest(length::integer, 0));
CREATE OR REPLACE FUNCTION sf."left"(value text, length numeric) RETURNS text
LANGUAGE sql IMMUTABLE RETURN left(value, greatest(round(length), 0)::integer);
CREATE OR REPLACE FUNCTION sf."right"(value text, length numeric) RETURNS text
LANGUAGE sql IMMUTABLE RETURN right(value, greatest(round(length), 0)::integer);
CREATE OR REPLACE FUNCTION sf."left"(value bytea, length numeric) RETURNS bytea
LANGUAGE sql IMMUTABLE RETURN substr(value, 1, greatest(length, 0)::integer);
CREATE OR REPLACE FUNCTION sf."right"(value bytea, length numeric) RETURNS bytea
LANGUAGE sql IMMUTABLE RETURN substr(value, greatest(length(value) - greatest(length, 0)::integer, 0) + 1);

CREATE OR REPLACE FUNCTION sf.position(part text, value text) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN strpos(value, part)::numeric;
CREATE OR REPLACE FUNCTION sf.position(part text, value text, start numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN strpos(substr(value, greatest(start::integer, 1)), part) > 0
    THEN strpos(substr(value, greatest(start::integer, 1)), part)::numeric + greatest(start, 1) - 1 ELSE 0 * start END;
CREATE OR REPLACE FUNCTION sf.contains(value text, part text) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN strpos(value, part) > 0;
CREATE OR REPLACE FUNCTION sf.endswith(value text, part text) RETURNS boolean
LANGUAGE sql IMMUTABLE RETURN right(value, length(part)) = part;

CREATE OR REPLACE FUNCTION sf.replace(value text, part text, other text DEFAULT '') RETURNS text
LANGUAGE sql IMMUTABLE RETURN replace(value, part, other);
CREATE OR REPLACE FUNCTION sf.insert(value text, start numeric, length numeric, part text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN left(value, greatest(start - 1, 0)::integer) || part || sf.substr(value, start + length);

-- A string has at most 128 MB; a longer result is rejected before it is computed.
CREATE OR REPLACE FUNCTION sf.fitting(times numeric, size numeric) RETURNS integer
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN times * size <= 134217728 THEN greatest(times, 0)::integer
    ELSE sf.fail(100145, '54000', 'String would be too long: the maximum is 134217728 bytes')::integer END;
CREATE OR REPLACE FUNCTION sf.lpad(value text, length numeric, fill text DEFAULT ' ') RETURNS text
LANGUAGE sql IMMUTABLE RETURN lpad(value, sf.fitting(length, 1), fill);
CREATE OR REPLACE FUNCTION sf.rpad(value text, length numeric, fill text DEFAULT ' ') RETURNS text
LANGUAGE sql IMMUTABLE RETURN rpad(value, sf.fitting(length, 1), fill);
CREATE OR REPLACE FUNCTION sf.repeat(value text, times numeric) RETURNS text
LANGUAGE sql IMMUTABLE RETURN repeat(value, sf.fitting(times, octet_length(value)));
CREATE OR REPLACE FUNCTION sf.space(times numeric) RETURNS text
LANGUAGE sql IMMUTABLE RETURN repeat(' ', sf.fitting(times, 1));
CREATE OR REPLACE FUNCTION sf.rtrimmed_length(value text) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN length(rtrim(value))::numeric;

-- ASCII returns the first byte, UNICODE the first character.
CREATE OR REPLACE FUNCTION sf.ascii(value text) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value = '' THEN 0 ELSE get_byte(convert_to(left(value, 1), 'UTF8'), 0) END::numeric;
CREATE OR REPLACE FUNCTION sf.unicode(value text) RETURNS numeric LANGUAGE sql IMMUTABLE RETURN ascii(value)::numeric;
CREATE OR REPLACE FUNCTION sf.chr(code numeric) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN code BETWEEN 1 AND 1114111 AND NOT code BETWEEN 55296 AND 57343 THEN chr(code::integer)
    ELSE sf.fail(100183, '22023', 'Invalid character code ' || code || ' in the CHR input') END;

-- SPLIT_PART: a negative number counts from the end, 0 means 1. STRTOK has a set of separators, and skips empty parts.
CREATE OR REPLACE FUNCTION sf.split_part(value text, delimiter text, part numeric) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN part = 0 THEN split_part(value, delimiter, 1) ELSE split_part(value, delimiter, part::integer) END;
CREATE OR REPLACE FUNCTION sf.split(value text, delimiter text) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value = '' OR delimiter = '' THEN jsonb_build_array(value)
    WHEN delimiter IS NOT NULL THEN to_jsonb(string_to_array(value, delimiter)) END;
CREATE OR REPLACE FUNCTION sf.tokens(value text, delimiters text) RETURNS text[]
LANGUAGE sql IMMUTABLE
RETURN array_remove(string_to_array(translate(value, delimiters, repeat(left(delimiters, 1), length(delimiters))),
    left(delimiters, 1)), '');
CREATE OR REPLACE FUNCTION sf.strtok(value text, delimiters text DEFAULT ' ', part numeric DEFAULT 1) RETURNS text
LANGUAGE sql IMMUTABLE RETURN (sf.tokens(value, delimiters))[part::integer];
CREATE OR REPLACE FUNCTION sf.strtok_to_array(value text, delimiters text DEFAULT ' ') RETURNS jsonb
LANGUAGE sql IMMUTABLE RETURN to_jsonb(sf.tokens(value, delimiters));

CREATE OR REPLACE FUNCTION sf.editdistance(a text, b text, most numeric DEFAULT NULL) RETURNS numeric
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    above integer[];
    here integer[];
BEGIN
    IF a IS NULL OR b IS NULL THEN
        RETURN NULL;
    END IF;
    IF length(a)::bigint * length(b) > 1000000 THEN -- its time grows with this, and it cannot be interrupted by limits
        PERFORM sf.fail(1008, '22023', 'EDITDISTANCE takes texts of up to 1,000 by 1,000 characters here');
    END IF;
    above := ARRAY(SELECT generate_series(0, length(b)));
    FOR i IN 1..length(a) LOOP
        here := ARRAY[i];
        FOR j IN 1..length(b) LOOP
            here := here || least(here[j] + 1, above[j + 1] + 1,
                above[j] + (substr(a, i, 1) <> substr(b, j, 1))::integer);
        END LOOP;
        above := here;
    END LOOP;
    RETURN least(above[length(b) + 1], CASE WHEN most IS NOT NULL THEN greatest(round(most), 0) END);
END
$$;

-- Regular expressions. REGEXP_LIKE matches the whole string. The letters of `parameters` are translated: by default a
-- dot does not match a newline; with `s` it does; with `m`, ^ and $ match at each line; `e` returns a group.

CREATE OR REPLACE FUNCTION sf.regexp_flags(parameters text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN parameters ~ 'i[^c]*$' THEN 'i' ELSE '' END
    || CASE WHEN parameters ~ 'm' AND parameters ~ 's' THEN 'w' WHEN parameters ~ 'm' THEN 'n'
        WHEN parameters ~ 's' THEN 's' ELSE 'p' END;
-- \b is a word boundary in Snowflake, and a backspace in PostgreSQL.
CREATE OR REPLACE FUNCTION sf.regexp_pattern(pattern text) RETURNS text
LANGUAGE sql IMMUTABLE RETURN regexp_replace(pattern, '(^|[^\\])((?:\\\\)*)\\b', '\1\2\\y', 'g');

CREATE OR REPLACE FUNCTION sf.regexp_like(value text, pattern text, parameters text DEFAULT 'c') RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN regexp_like(value, '^(?:' || sf.regexp_pattern(pattern) || ')$', sf.regexp_flags(parameters));
CREATE OR REPLACE FUNCTION sf.regexp_count(value text, pattern text, start numeric DEFAULT 1,
    parameters text DEFAULT 'c') RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN regexp_count(value, sf.regexp_pattern(pattern), start::integer, sf.regexp_flags(parameters))::numeric;
CREATE OR REPLACE FUNCTION sf.regexp_replace(value text, pattern text, other text DEFAULT '', start numeric DEFAULT 1,
    occurrence numeric DEFAULT 0, parameters text DEFAULT 'c') RETURNS text
LANGUAGE sql IMMUTABLE
RETURN regexp_replace(value, sf.regexp_pattern(pattern), other, start::integer, occurrence::integer,
    sf.regexp_flags(parameters));
CREATE OR REPLACE FUNCTION sf.regexp_instr(value text, pattern text, start numeric DEFAULT 1,
    occurrence numeric DEFAULT 1, behind numeric DEFAULT 0, parameters text DEFAULT 'c', part numeric DEFAULT NULL)
RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN regexp_instr(value, sf.regexp_pattern(pattern), start::integer, occurrence::integer, behind::integer,
    sf.regexp_flags(parameters), coalesce(part, CASE WHEN parameters ~ 'e' THEN 1 ELSE 0 END)::integer)::numeric;
CREATE OR REPLACE FUNCTION sf.regexp_substr(value text, pattern text, start numeric DEFAULT 1,
    occurrence numeric DEFAULT 1, parameters text DEFAULT 'c', part numeric DEFAULT NULL) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN regexp_substr(value, sf.regexp_pattern(pattern), start::integer, occurrence::integer,
    sf.regexp_flags(parameters), coalesce(part, CASE WHEN parameters ~ 'e' THEN 1 ELSE 0 END)::integer);
CREATE OR REPLACE FUNCTION sf.regexp_substr_all(value text, pattern text, start numeric DEFAULT 1,
    occurrence numeric DEFAULT 1, parameters text DEFAULT 'c', part numeric DEFAULT NULL) RETURNS jsonb
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value IS NOT NULL AND pattern IS NOT NULL THEN coalesce((
    SELECT jsonb_agg(sf.regexp_substr(value, pattern, start, n::numeric, parameters, part) ORDER BY n)
    FROM generate_series(occurrence::integer, sf.regexp_count(value, pattern, start, parameters)::integer) AS n),
    '[]') END;

-- Encodings and digests. The digest of a text is that of its UTF-8 bytes.

CREATE OR REPLACE FUNCTION sf.hex_encode(value bytea, letters numeric DEFAULT 1) RETURNS text
LANGUAGE sql IMMUTABLE RETURN CASE WHEN letters = 0 THEN encode(value, 'hex') ELSE upper(encode(value, 'hex')) END;
CREATE OR REPLACE FUNCTION sf.hex_decode_string(value text) RETURNS text
LANGUAGE sql IMMUTABLE RETURN convert_from(sf.cast_binary(value), 'UTF8');
CREATE OR REPLACE FUNCTION sf.base64_encode(value bytea) RETURNS text
LANGUAGE sql IMMUTABLE RETURN replace(encode(value, 'base64'), E'\n', '');
CREATE OR REPLACE FUNCTION sf.base64_decode_binary(value text) RETURNS bytea
LANGUAGE sql IMMUTABLE RETURN sf.cast_binary(value, 'base64'::text);
CREATE OR REPLACE FUNCTION sf.base64_decode_string(value text) RETURNS text
LANGUAGE sql IMMUTABLE RETURN convert_from(sf.base64_decode_binary(value), 'UTF8');
CREATE OR REPLACE FUNCTION sf.utf8_or_null(value bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN convert_from(value, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire THEN
    RETURN NULL;
END
$$;
CREATE OR REPLACE FUNCTION sf.try_hex_decode_string(value text) RETURNS text
LANGUAGE sql IMMUTABLE RETURN sf.utf8_or_null(sf.read_hex(value));
CREATE OR REPLACE FUNCTION sf.try_base64_decode_string(value text) RETURNS text
LANGUAGE sql IMMUTABLE RETURN sf.utf8_or_null(sf.read_base64(value));

CREATE OR REPLACE FUNCTION sf.md5(value bytea) RETURNS text LANGUAGE sql IMMUTABLE RETURN md5(value);
CREATE OR REPLACE FUNCTION sf.md5_binary(value bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE RETURN decode(md5(value), 'hex');
CREATE OR REPLACE FUNCTION sf.md5_number(value bytea, half integer) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN ('0x' || substr(md5(value), 1 + 16 * half, 8))::bigint::numeric * 4294967296
    + ('0x' || substr(md5(value), 9 + 16 * half, 8))::bigint;
-- Not in SQL: a function that uses its argument twice is not inlined, and the call of an SQL function costs more than
-- the digest. Each generated text calls it three times.
CREATE OR REPLACE FUNCTION sf.sha2_binary(value bytea, bits numeric DEFAULT 256) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE bits WHEN 512 THEN sha512(value) WHEN 256 THEN sha256(value) WHEN 0 THEN sha256(value)
        WHEN 224 THEN sha224(value) WHEN 384 THEN sha384(value) END;
END
$$;
CREATE OR REPLACE FUNCTION sf.sha2(value bytea, bits numeric DEFAULT 256) RETURNS text
LANGUAGE sql IMMUTABLE RETURN encode(sf.sha2_binary(value, bits), 'hex');

-- SHA-1 (FIPS 180-4), because PostgreSQL has no function for it.
CREATE OR REPLACE FUNCTION sf.sha1_binary(value bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    low CONSTANT bigint := 4294967295;
    padded bytea := value || '\x80'::bytea || decode(repeat('00', (119 - length(value) % 64) % 64), 'hex')
        || int8send(length(value)::bigint * 8);
    h bigint[] := ARRAY[1732584193, 4023233417, 2562383102, 271733878, 3285377520];
    w bigint[];
    a bigint; b bigint; c bigint; d bigint; e bigint; f bigint; k bigint; t bigint;
BEGIN
    FOR block IN 0..length(padded) / 64 - 1 LOOP
        FOR i IN 0..15 LOOP
            w[i] := ('x' || encode(substr(padded, block * 64 + i * 4 + 1, 4), 'hex'))::bit(32)::bigint & low;
        END LOOP;
        FOR i IN 16..79 LOOP
            t := w[i - 3] # w[i - 8] # w[i - 14] # w[i - 16];
            w[i] := ((t << 1) | (t >> 31)) & low;
        END LOOP;
        a := h[1]; b := h[2]; c := h[3]; d := h[4]; e := h[5];
        FOR i IN 0..79 LOOP
            IF i < 20 THEN
                f := (b & c) | (~ b & low & d); k := 1518500249;
            ELSIF i < 40 THEN
                f := b # c # d; k := 1859775393;
            ELSIF i < 60 THEN
                f := (b & c) | (b & d) | (c & d); k := 2400959708;
            ELSE
                f := b # c # d; k := 3395469782;
            END IF;
            t := ((((a << 5) | (a >> 27)) & low) + f + e + k + w[i]) & low;
            e := d; d := c; c := ((b << 30) | (b >> 2)) & low; b := a; a := t;
        END LOOP;
        h := ARRAY[(h[1] + a) & low, (h[2] + b) & low, (h[3] + c) & low, (h[4] + d) & low, (h[5] + e) & low];
    END LOOP;
    RETURN (SELECT string_agg(substr(int8send(part), 5), '' ORDER BY position)
        FROM unnest(h) WITH ORDINALITY AS u(part, position));
END
$$;
CREATE OR REPLACE FUNCTION sf.sha1(value bytea) RETURNS text
LANGUAGE sql IMMUTABLE RETURN encode(sf.sha1_binary(value), 'hex');

CREATE OR REPLACE FUNCTION sf.uuid_string() RETURNS text LANGUAGE sql VOLATILE RETURN gen_random_uuid()::text;
-- Version 5 of RFC 4122: the digest of namespace and name, with version and variant set.
CREATE OR REPLACE FUNCTION sf.uuid_string(namespace text, name text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN (SELECT encode(set_byte(set_byte(d.digest, 6, get_byte(d.digest, 6) & 15 | 80), 8,
        get_byte(d.digest, 8) & 63 | 128), 'hex')::uuid::text
    FROM (SELECT substr(sf.sha1_binary(uuid_send(namespace::uuid) || convert_to(name, 'UTF8')), 1, 16) AS digest) AS d);
