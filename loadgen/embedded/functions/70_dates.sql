-- Dates and times. Units are the full names of normal_unit(): 'year' … 'nanosecond', 'epoch_second' … With a constant
-- unit the planner keeps one branch of each CASE. Weeks are ISO weeks and start on Monday, and Sunday is day 0, as with
-- WEEK_START = 0 and WEEK_OF_YEAR_POLICY = 0.

-- The clock: one instant per statement. In a transaction, now() would return the start of the transaction.
CREATE OR REPLACE FUNCTION sf.current_timestamp() RETURNS timestamptz LANGUAGE sql STABLE RETURN statement_timestamp();
CREATE OR REPLACE FUNCTION sf.sysdate() RETURNS timestamp
LANGUAGE sql STABLE RETURN statement_timestamp() AT TIME ZONE 'UTC';
CREATE OR REPLACE FUNCTION sf.current_date() RETURNS date LANGUAGE sql STABLE RETURN statement_timestamp()::date;
CREATE OR REPLACE FUNCTION sf.current_time() RETURNS time LANGUAGE sql STABLE RETURN statement_timestamp()::time;

-- DATEADD. sf.dateadd is for units of at least a day, and a DATE remains a DATE; sf.dateadd_time is for smaller units,
-- and a DATE becomes a TIMESTAMP_NTZ. Fractions of a count are rounded.

CREATE OR REPLACE FUNCTION sf.span(unit text, count numeric) RETURNS interval
LANGUAGE sql IMMUTABLE
RETURN CASE unit WHEN 'year' THEN make_interval(years => count::integer)
    WHEN 'quarter' THEN make_interval(months => count::integer * 3)
    WHEN 'month' THEN make_interval(months => count::integer)
    WHEN 'week' THEN make_interval(days => count::integer * 7)
    WHEN 'day' THEN make_interval(days => count::integer)
    WHEN 'hour' THEN make_interval(hours => count::integer)
    WHEN 'minute' THEN make_interval(mins => count::integer)
    WHEN 'second' THEN make_interval(secs => round(count)::double precision)
    WHEN 'millisecond' THEN make_interval(secs => round(count)::double precision / 1000)
    WHEN 'microsecond' THEN make_interval(secs => round(count)::double precision / 1000000)
    WHEN 'nanosecond' THEN make_interval(secs => trunc(count / 1000)::double precision / 1000000) END;

CREATE OR REPLACE FUNCTION sf.dateadd(unit text, count numeric, value date) RETURNS date
LANGUAGE sql IMMUTABLE RETURN (value + sf.span(unit, count))::date;
CREATE OR REPLACE FUNCTION sf.dateadd(unit text, count numeric, value timestamp) RETURNS timestamp
LANGUAGE sql IMMUTABLE RETURN value + sf.span(unit, count);
CREATE OR REPLACE FUNCTION sf.dateadd(unit text, count numeric, value timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE RETURN value + sf.span(unit, count);
CREATE OR REPLACE FUNCTION sf.dateadd(unit text, count numeric, value sf.timestamp_tz) RETURNS sf.timestamp_tz
LANGUAGE sql IMMUTABLE RETURN sf.at_offset(sf.wall(value) + sf.span(unit, count), (value).offset_minutes::integer);
CREATE OR REPLACE FUNCTION sf.dateadd_time(unit text, count numeric, value date) RETURNS timestamp
LANGUAGE sql IMMUTABLE RETURN value + sf.span(unit, count);
CREATE OR REPLACE FUNCTION sf.dateadd_time(unit text, count numeric, value time) RETURNS time
LANGUAGE sql IMMUTABLE RETURN value + sf.span(unit, count);
CREATE OR REPLACE FUNCTION sf.dateadd_time(unit text, count numeric, value timestamp) RETURNS timestamp
LANGUAGE sql IMMUTABLE RETURN value + sf.span(unit, count);
CREATE OR REPLACE FUNCTION sf.dateadd_time(unit text, count numeric, value timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE RETURN value + sf.span(unit, count);
CREATE OR REPLACE FUNCTION sf.dateadd_time(unit text, count numeric, value sf.timestamp_tz) RETURNS sf.timestamp_tz
LANGUAGE sql IMMUTABLE RETURN sf.at_offset(sf.wall(value) + sf.span(unit, count), (value).offset_minutes::integer);

-- DATEDIFF counts the boundaries of a unit between two times: the difference of their numbers in this unit.

CREATE OR REPLACE FUNCTION sf.unit_number(unit text, value timestamp) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN CASE unit WHEN 'year' THEN extract(year FROM value)
    WHEN 'quarter' THEN extract(year FROM value) * 4 + extract(quarter FROM value)
    WHEN 'month' THEN extract(year FROM value) * 12 + extract(month FROM value)
    WHEN 'week' THEN ((value::date - date '0001-01-01') / 7)::numeric
    WHEN 'day' THEN (value::date - date '0001-01-01')::numeric
    WHEN 'hour' THEN floor(extract(epoch FROM value) / 3600)
    WHEN 'minute' THEN floor(extract(epoch FROM value) / 60)
    WHEN 'second' THEN floor(extract(epoch FROM value))
    WHEN 'millisecond' THEN floor(extract(epoch FROM value) * 1000)
    WHEN 'microsecond' THEN floor(extract(epoch FROM value) * 1000000)
    WHEN 'nanosecond' THEN floor(extract(epoch FROM value) * 1000000000) END;

CREATE OR REPLACE FUNCTION sf.datediff(unit text, a timestamp, b timestamp) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN sf.unit_number(unit, b) - sf.unit_number(unit, a);
CREATE OR REPLACE FUNCTION sf.datediff(unit text, a date, b date) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN CASE unit WHEN 'day' THEN (b - a)::numeric ELSE sf.datediff(unit, a::timestamp, b::timestamp) END;
CREATE OR REPLACE FUNCTION sf.datediff(unit text, a timestamptz, b timestamptz) RETURNS numeric
LANGUAGE sql STABLE
RETURN CASE WHEN unit IN ('year', 'quarter', 'month', 'week', 'day') THEN sf.datediff(unit, a::timestamp, b::timestamp)
    ELSE sf.datediff(unit, a AT TIME ZONE 'UTC', b AT TIME ZONE 'UTC') END;
CREATE OR REPLACE FUNCTION sf.datediff(unit text, a time, b time) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN sf.datediff(unit, date '1970-01-01' + a, date '1970-01-01' + b);

-- DATE_PART, EXTRACT, YEAR … SECOND.

CREATE OR REPLACE FUNCTION sf.date_part(unit text, value timestamp) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN CASE unit WHEN 'year' THEN extract(year FROM value) WHEN 'quarter' THEN extract(quarter FROM value)
    WHEN 'month' THEN extract(month FROM value) WHEN 'week' THEN extract(week FROM value)
    WHEN 'weekiso' THEN extract(week FROM value) WHEN 'day' THEN extract(day FROM value)
    WHEN 'dayofweek' THEN extract(dow FROM value) WHEN 'dayofweekiso' THEN extract(isodow FROM value)
    WHEN 'dayofyear' THEN extract(doy FROM value) WHEN 'yearofweek' THEN extract(isoyear FROM value)
    WHEN 'yearofweekiso' THEN extract(isoyear FROM value) WHEN 'hour' THEN extract(hour FROM value)
    WHEN 'minute' THEN extract(minute FROM value) WHEN 'second' THEN trunc(extract(second FROM value))
    WHEN 'nanosecond' THEN trunc(mod(extract(second FROM value), 1) * 1000000000)
    WHEN 'epoch_second' THEN floor(extract(epoch FROM value))
    WHEN 'epoch_millisecond' THEN floor(extract(epoch FROM value) * 1000)
    WHEN 'epoch_microsecond' THEN floor(extract(epoch FROM value) * 1000000)
    WHEN 'epoch_nanosecond' THEN floor(extract(epoch FROM value) * 1000000000) END;
CREATE OR REPLACE FUNCTION sf.date_part(unit text, value date) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN sf.date_part(unit, value::timestamp);
CREATE OR REPLACE FUNCTION sf.date_part(unit text, value time) RETURNS numeric
LANGUAGE sql IMMUTABLE RETURN sf.date_part(unit, date '1970-01-01' + value);
CREATE OR REPLACE FUNCTION sf.date_part(unit text, value sf.timestamp_tz) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN starts_with(unit, 'epoch') THEN sf.date_part(unit, (value).instant AT TIME ZONE 'UTC')
    WHEN unit = 'timezone_hour' THEN trunc((value).offset_minutes::numeric / 60)
    WHEN unit = 'timezone_minute' THEN mod((value).offset_minutes::numeric, 60)
    ELSE sf.date_part(unit, sf.wall(value)) END;
CREATE OR REPLACE FUNCTION sf.date_part(unit text, value timestamptz) RETURNS numeric
LANGUAGE sql STABLE
RETURN CASE WHEN starts_with(unit, 'epoch') THEN sf.date_part(unit, value AT TIME ZONE 'UTC')
    WHEN unit = 'timezone_hour' THEN extract(timezone_hour FROM value)
    WHEN unit = 'timezone_minute' THEN extract(timezone_minute FROM value)
    ELSE sf.date_part(unit, value::timestamp) END;

CREATE OR REPLACE FUNCTION sf.date_trunc(unit text, value timestamp) RETURNS timestamp
LANGUAGE sql IMMUTABLE RETURN CASE unit WHEN 'nanosecond' THEN value ELSE date_trunc(unit, value) END;
CREATE OR REPLACE FUNCTION sf.date_trunc(unit text, value date) RETURNS date
LANGUAGE sql IMMUTABLE RETURN sf.date_trunc(unit, value::timestamp)::date;
CREATE OR REPLACE FUNCTION sf.date_trunc(unit text, value time) RETURNS time
LANGUAGE sql IMMUTABLE RETURN sf.date_trunc(unit, date '1970-01-01' + value)::time;
CREATE OR REPLACE FUNCTION sf.date_trunc(unit text, value timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE RETURN CASE unit WHEN 'nanosecond' THEN value ELSE date_trunc(unit, value) END;
CREATE OR REPLACE FUNCTION sf.date_trunc(unit text, value sf.timestamp_tz) RETURNS sf.timestamp_tz
LANGUAGE sql IMMUTABLE RETURN sf.at_offset(sf.date_trunc(unit, sf.wall(value)), (value).offset_minutes::integer);

-- The calendar. LAST_DAY, NEXT_DAY and PREVIOUS_DAY always return a DATE.

CREATE OR REPLACE FUNCTION sf.last_day(value date, unit text DEFAULT 'month') RETURNS date
LANGUAGE sql IMMUTABLE RETURN sf.dateadd(unit, 1, sf.date_trunc(unit, value)) - 1;
-- The number of a weekday by its first two letters; Sunday is 0.
CREATE OR REPLACE FUNCTION sf.weekday(name text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    number integer := array_position(ARRAY['su', 'mo', 'tu', 'we', 'th', 'fr', 'sa'], lower(left(btrim(name), 2))) - 1;
BEGIN
    IF number IS NULL THEN
        PERFORM sf.fail(100183, '22023', format('Invalid day of week ''%s''', name));
    END IF;
    RETURN number;
END
$$;
CREATE OR REPLACE FUNCTION sf.next_day(value date, weekday text) RETURNS date
LANGUAGE sql IMMUTABLE RETURN value + 1 + (sf.weekday(weekday) - extract(dow FROM value)::integer + 6) % 7;
CREATE OR REPLACE FUNCTION sf.previous_day(value date, weekday text) RETURNS date
LANGUAGE sql IMMUTABLE RETURN value - 1 - (extract(dow FROM value)::integer - sf.weekday(weekday) + 6) % 7;
CREATE OR REPLACE FUNCTION sf.dayname(value date) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN (ARRAY['Sun', 'Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat'])[extract(dow FROM value)::integer + 1];
CREATE OR REPLACE FUNCTION sf.monthname(value date) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN (ARRAY['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov',
    'Dec'])[extract(month FROM value)::integer];

-- ADD_MONTHS of the last day of a month gives the last day of a month.
CREATE OR REPLACE FUNCTION sf.add_months(value timestamp, count numeric) RETURNS timestamp
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN value::date = sf.last_day(value::date)
    THEN sf.last_day((value + make_interval(months => count::integer))::date) + value::time
    ELSE value + make_interval(months => count::integer) END;
CREATE OR REPLACE FUNCTION sf.add_months(value date, count numeric) RETURNS date
LANGUAGE sql IMMUTABLE RETURN sf.add_months(value::timestamp, count)::date;
CREATE OR REPLACE FUNCTION sf.add_months(value timestamptz, count numeric) RETURNS timestamptz
LANGUAGE sql STABLE RETURN sf.add_months(value::timestamp, count)::timestamptz;
CREATE OR REPLACE FUNCTION sf.add_months(value sf.timestamp_tz, count numeric) RETURNS sf.timestamp_tz
LANGUAGE sql IMMUTABLE RETURN sf.at_offset(sf.add_months(sf.wall(value), count), (value).offset_minutes::integer);
-- MONTHS_BETWEEN: whole months if both are the same day of the month, or both the last one; else each day is 1/31.
CREATE OR REPLACE FUNCTION sf.months_between(a timestamp, b timestamp) RETURNS numeric
LANGUAGE sql IMMUTABLE
RETURN round(sf.datediff('month', b, a) + CASE WHEN extract(day FROM a) = extract(day FROM b)
        OR (a::date = sf.last_day(a::date) AND b::date = sf.last_day(b::date)) THEN 0
    ELSE (extract(day FROM a) - extract(day FROM b) + extract(epoch FROM a::time - b::time) / 86400) / 31 END, 6);

-- TIME_SLICE: slices of equal length, counted from 1970-01-01 (weeks: from the Monday of that week).
CREATE OR REPLACE FUNCTION sf.time_slice(value timestamp, length numeric, unit text, edge text DEFAULT 'START')
RETURNS timestamp
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN unit IN ('year', 'quarter', 'month') THEN timestamp '1970-01-01' + sf.span(unit,
        (floor(sf.datediff(unit, timestamp '1970-01-01', value) / length) + (upper(edge) = 'END')::integer) * length)
    ELSE date_bin(sf.span(unit, length), value, timestamp '1970-01-01' - make_interval(days =>
        CASE unit WHEN 'week' THEN 3 ELSE 0 END)) + sf.span(unit, length * (upper(edge) = 'END')::integer) END;
CREATE OR REPLACE FUNCTION sf.time_slice(value date, length numeric, unit text, edge text DEFAULT 'START') RETURNS date
LANGUAGE sql IMMUTABLE RETURN sf.time_slice(value::timestamp, length, unit, edge)::date;
CREATE OR REPLACE FUNCTION sf.time_slice(value timestamptz, length numeric, unit text, edge text DEFAULT 'START')
RETURNS timestamptz
LANGUAGE sql STABLE RETURN sf.time_slice(value::timestamp, length, unit, edge)::timestamptz;

-- Time zones. Only names of the zone database are accepted; PostgreSQL also accepts abbreviations and POSIX rules.
CREATE OR REPLACE FUNCTION sf.zone(name text) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF name ~ '^[A-Za-z]+(/[A-Za-z0-9_+-]+)+$|^(UTC|GMT|CET|EET|MET|WET|EST|MST|HST|Japan|Singapore)$' THEN
        PERFORM timestamptz '2000-01-01 00:00+00' AT TIME ZONE name;
        RETURN name;
    END IF;
    RETURN sf.fail(100183, '22023', format('Unknown timezone: ''%s''', name));
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN sf.fail(100183, '22023', format('Unknown timezone: ''%s''', name));
END
$$;
-- CONVERT_TIMEZONE: two arguments convert an instant to a zone, three convert a wall-clock time between zones.
CREATE OR REPLACE FUNCTION sf.convert_timezone(target text, value timestamptz) RETURNS sf.timestamp_tz
LANGUAGE sql IMMUTABLE RETURN sf.in_zone(value, sf.zone(target));
CREATE OR REPLACE FUNCTION sf.convert_timezone(source text, target text, value timestamp) RETURNS timestamp
LANGUAGE sql IMMUTABLE RETURN value AT TIME ZONE sf.zone(source) AT TIME ZONE sf.zone(target);

-- From parts. A month or day out of range is added to the beginning of the year or month.

CREATE OR REPLACE FUNCTION sf.date_from_parts(year numeric, month numeric, day numeric) RETURNS date
LANGUAGE sql IMMUTABLE
RETURN (make_date(year::integer, 1, 1) + make_interval(months => month::integer - 1))::date + day::integer - 1;
CREATE OR REPLACE FUNCTION sf.seconds(hour numeric, minute numeric, second numeric, nanosecond numeric) RETURNS interval
LANGUAGE sql IMMUTABLE
RETURN make_interval(secs => (hour * 3600 + minute * 60 + second)::double precision)
    + make_interval(secs => trunc(nanosecond / 1000)::double precision / 1000000);
CREATE OR REPLACE FUNCTION sf.time_from_parts(hour numeric, minute numeric, second numeric,
    nanosecond numeric DEFAULT 0) RETURNS time
LANGUAGE sql IMMUTABLE RETURN time '00:00' + sf.seconds(hour, minute, second, nanosecond);
CREATE OR REPLACE FUNCTION sf.ntz_from_parts(year numeric, month numeric, day numeric, hour numeric, minute numeric,
    second numeric, nanosecond numeric DEFAULT 0) RETURNS timestamp
LANGUAGE sql IMMUTABLE
RETURN sf.date_from_parts(year, month, day) + sf.seconds(hour, minute, second, nanosecond);
CREATE OR REPLACE FUNCTION sf.ntz_from_parts(day date, clock time) RETURNS timestamp
LANGUAGE sql IMMUTABLE RETURN day + clock;
CREATE OR REPLACE FUNCTION sf.ltz_from_parts(year numeric, month numeric, day numeric, hour numeric, minute numeric,
    second numeric, nanosecond numeric DEFAULT 0) RETURNS timestamptz
LANGUAGE sql STABLE RETURN sf.ntz_from_parts(year, month, day, hour, minute, second, nanosecond)::timestamptz;
CREATE OR REPLACE FUNCTION sf.tz_from_parts(year numeric, month numeric, day numeric, hour numeric, minute numeric,
    second numeric, nanosecond numeric DEFAULT 0, zone text DEFAULT current_setting('TimeZone')) RETURNS sf.timestamp_tz
LANGUAGE sql STABLE
RETURN sf.in_zone(sf.ntz_from_parts(year, month, day, hour, minute, second, nanosecond) AT TIME ZONE sf.zone(zone),
    zone);
