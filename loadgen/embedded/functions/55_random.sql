-- Data generation. UNIFORM, NORMAL, ZIPF and RANDSTR depend on their generator argument only: the same argument gives
-- the same value, and RANDOM() as the argument gives a new value for each row.

CREATE OR REPLACE FUNCTION sf.random() RETURNS numeric
LANGUAGE sql VOLATILE RETURN random(-9223372036854775808, 9223372036854775807::bigint)::numeric;

-- RANDOM(seed): the same sequence in every statement. A setting of the session contains the statement and its position
-- in the sequence.
CREATE OR REPLACE FUNCTION sf.random(seed numeric) RETURNS numeric
LANGUAGE plpgsql VOLATILE STRICT AS $$
DECLARE
    setting text := 'sf.random_' || translate(trim_scale(seed)::text, '-.', 'mp');
    statement text := extract(epoch FROM statement_timestamp())::text;
    state text := current_setting(setting, true);
    position bigint := 0;
BEGIN
    IF split_part(state, ' ', 1) = statement THEN
        position := split_part(state, ' ', 2)::bigint + 1;
    END IF;
    PERFORM set_config(setting, statement || ' ' || position, false);
    RETURN hashint8extended(position, hash_numeric_extended(seed, 0));
END
$$;

-- Draw number `draw` of a generator value, in [0, 1); not 0 if its logarithm is needed.
CREATE OR REPLACE FUNCTION sf.fraction(generator numeric, draw bigint) RETURNS double precision
LANGUAGE sql IMMUTABLE
RETURN ((hash_numeric_extended(generator, draw) >> 11) + 4503599627370496) / 9007199254740992::double precision;

-- With NUMBER bounds, values have the larger scale of the two, both bounds included; with FLOAT bounds, any value
-- between them. The generator occurs once, so that the planner can inline the function.
CREATE OR REPLACE FUNCTION sf.uniform(low numeric, high numeric, generator numeric) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN low + div((hash_numeric_extended(generator, 1)::numeric + 9223372036854775808)
        * ((high - low) * trim_scale(power(10::numeric, greatest(scale(low), scale(high)))) + 1), 18446744073709551616)
    * round(power(0.1, greatest(scale(low), scale(high))), greatest(scale(low), scale(high)));
CREATE OR REPLACE FUNCTION sf.uniform(low double precision, high double precision, generator numeric)
RETURNS double precision
LANGUAGE sql IMMUTABLE RETURN low + sf.fraction(generator, 1) * (high - low);

CREATE OR REPLACE FUNCTION sf.normal(mean double precision, deviation double precision, generator numeric)
RETURNS double precision
LANGUAGE sql IMMUTABLE
RETURN mean + deviation * sqrt(-2 * ln(1 - sf.fraction(generator, 2))) * cos(2 * pi() * sf.fraction(generator, 3));

-- Rejection-inversion over 1 … count (Hörmann and Derflinger); s is the exponent.
CREATE OR REPLACE FUNCTION sf.zipf_integral(x double precision, s double precision) RETURNS double precision
LANGUAGE sql IMMUTABLE RETURN CASE WHEN s = 1 THEN ln(x) ELSE (power(x, 1 - s) - 1) / (1 - s) END;
CREATE OR REPLACE FUNCTION sf.zipf(s double precision, count numeric, generator numeric) RETURNS numeric
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    low double precision := sf.zipf_integral(1.5, s) - 1;
    high double precision := sf.zipf_integral(count::double precision + 0.5, s);
    u double precision;
    x double precision;
    k double precision;
BEGIN
    FOR draw IN 4..99 LOOP
        u := high + sf.fraction(generator, draw) * (low - high);
        x := CASE WHEN s = 1 THEN exp(u) ELSE power(1 + u * (1 - s), 1 / (1 - s)) END;
        k := greatest(1, least(round(x), count::double precision));
        EXIT WHEN u >= sf.zipf_integral(k + 0.5, s) - power(k, - s);
    END LOOP;
    RETURN k::numeric;
END
$$;

-- Letters and digits, 86 from one digest. The two other characters of base64 are mapped to letters.
CREATE OR REPLACE FUNCTION sf.randstr_part(generator numeric, part integer) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN translate(encode(sha512(int8send(hash_numeric_extended(generator, part))
    || int8send(hash_numeric_extended(generator, part + 1000000))), 'base64'), E'+/=\n', 'kR');
CREATE OR REPLACE FUNCTION sf.randstr(length numeric, generator numeric) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    text text := sf.randstr_part(generator, 0);
BEGIN
    IF length > 134217728 THEN
        PERFORM sf.fail(100145, '54000', 'String would be too long: the maximum is 134217728 bytes');
    END IF;
    FOR part IN 1..(length::integer - 1) / 86 LOOP
        text := text || sf.randstr_part(generator, part);
    END LOOP;
    RETURN left(text, greatest(length::integer, 0));
END
$$;
