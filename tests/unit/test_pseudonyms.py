"""Pseudonyms: consistent, of the same type, and nothing real is left in what they make."""

import json
import random
import re
import string
import uuid
from collections import Counter
from datetime import date, datetime, timedelta

import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.capture.pseudonyms import KEY_BYTES, Pseudonyms
from loadgen.capture.sql_pieces import LITERALS, cut, pieces_of
from loadgen.capture.statement_text import StatementCleaner, StatementLeftOut
from loadgen.model.capture import LeftOutReason, StatementRole

KEY = bytes(range(KEY_BYTES))
pseudonyms = Pseudonyms(KEY)
texts = st.text(max_size=80)


def cleaner(*, keep_values: bool = False, hide_names: bool = False) -> StatementCleaner:
    return StatementCleaner(Pseudonyms(KEY), keep_values=keep_values, hide_names=hide_names)


def cleaned(sql: str, **options: bool) -> str:
    return cleaner(**options).clean(sql).text


# --- values ----------------------------------------------------------------------------------------------------------


@given(texts)
def test_a_text_has_one_pseudonym_of_its_length(value):
    made = Pseudonyms(KEY).text(value)

    assert made == pseudonyms.text(value)
    assert len(made) == len(value) or value[:1] in ("{", "[")


@pytest.mark.parametrize("length", [1, 2, 3])
def test_different_numbers_and_words_stay_different(length):
    numbers = [str(number) for number in range(10 ** (length - 1), 10**length)]
    words = ["".join(letters) for letters in zip(*[string.ascii_lowercase] * length, strict=True)]

    assert len({pseudonyms.number(number) for number in numbers}) == len(numbers)
    assert all(len(pseudonyms.number(number)) == length for number in numbers)
    assert len({pseudonyms.text(word) for word in words}) == len(words)


@pytest.mark.parametrize(
    "notation",
    [
        *("%d.%m.%Y", "%m/%d/%Y", "%Y/%m/%d", "%Y.%m.%d", "%d-%b-%Y", "%d.%m.%Y 10:30:00", "%Y-%m-%d"),
        *("%Y%m%d", "%Y%m%d1030", "%Y%m%d103059"),
    ],
)
def test_dates_of_every_notation_are_moved_by_the_same_weeks(notation):
    days = [date(1987, 1, 1) + timedelta(days=7 * number) for number in range(500)]

    moved = [datetime.strptime(pseudonyms.text(day.strftime(notation)), notation).date() for day in days]  # noqa: DTZ007

    ((shift, _),) = Counter(before - after for before, after in zip(days, moved, strict=True)).most_common()
    assert (shift.days % 7, shift.days > 0) == (0, True)
    assert shift.days == (days[0] - date.fromisoformat(pseudonyms.text(days[0].isoformat()))).days


def test_digits_are_moved_as_dates_in_numbers_too_and_stay_different():
    dates = ["20261231", "19000101", "20991231", "20240229"]
    others = [
        str(number) for number in (*range(20_261_232, 20_261_299), 18_991_231, 21_000_101, 20_230_229, 99_999_999)
    ]

    made = {value: pseudonyms.number(value) for value in (*dates, *others)}

    assert all(date.fromisoformat(made[value]).weekday() is not None for value in dates)
    assert len(set(made.values())) == len(made)
    assert not any(re.fullmatch(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|1\d|2[0-8])", made[value]) for value in others)
    assert Pseudonyms(KEY, keep_moments=True).number("20261231") == "20261231"
    assert Pseudonyms(KEY, keep_moments=True).number("20261299") != "20261299"


@pytest.mark.parametrize("value", ["99.99.1987", "05-XYZ-1987", "1987/13/41", "90/80/1987"])
def test_what_only_looks_like_a_date_is_a_text(value):
    made = pseudonyms.text(value)

    assert made != value
    assert re.sub(r"\w", "x", made) == re.sub(r"\w", "x", value)


def test_another_key_makes_other_pseudonyms():
    other = Pseudonyms(bytes(KEY_BYTES))

    assert other.text("Catherine Johnson") != pseudonyms.text("Catherine Johnson")
    assert other.number("4111111111111111") != pseudonyms.number("4111111111111111")


def test_spellings_of_one_name_stay_one_name():
    assert pseudonyms.text("john").upper() == pseudonyms.text("JOHN") == pseudonyms.text("John").upper()
    assert pseudonyms.text("John Smith").split()[0] == pseudonyms.text("John")


@given(st.dates(date(1, 2, 1), date(9999, 1, 1)), st.integers(0, 3000))
def test_dates_stay_dates_with_the_same_distance_and_weekday(first, days):
    second = date.fromordinal(min(first.toordinal() + days, date(9999, 12, 31).toordinal()))
    if first.year == 1 != second.year:  # what would move out of the calendar moves the other way
        return

    moved = [date.fromisoformat(pseudonyms.text(moment.isoformat())) for moment in (first, second)]

    assert moved[1] - moved[0] == second - first
    assert moved[0] != first
    assert moved[0].weekday() == first.weekday()


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ("2024-02-29 13:45:12.123 +0200", r"\d{4}-\d\d-\d\d 13:45:12.123 \+0200"),
        ("2024-02-29T13:45:12Z", r"\d{4}-\d\d-\d\dT13:45:12Z"),
        ("13:45:12", r"([01]\d|2[0-3]):45:12"),
        ("01/31/2024", r"(0[1-9]|1[0-2])/[0-3][0-9]/202[34]"),
        ("a.b%_c@d.org", r"[a-z]\.[a-z]%_[a-z]@[a-z]\.[a-z]{3}"),
        ("TRUE", "TRUE"),
        ("", ""),
    ],
)
def test_texts_keep_their_shape(value, shape):
    assert re.fullmatch(shape, pseudonyms.text(value))


def test_uuids_and_json_stay_what_they_are():
    original = '{"name": "Bob", "n": [15, 0, -2.50], "ok": true, "none": null}'

    made = json.loads(pseudonyms.text(original))

    assert uuid.UUID(pseudonyms.text("550e8400-e29b-41d4-a716-446655440000")) != uuid.UUID(int=0)
    assert list(made.values())[2:] == [True, None]
    assert list(made) == [pseudonyms.text(name) for name in ("name", "n", "ok", "none")]
    assert 10 <= list(made.values())[1][0] <= 99


@pytest.mark.parametrize(
    ("value", "type_name", "shape"),
    [
        ("4111", "FIXED", r"\d{4}"),
        ("-12.50", "REAL", r"-\d\d\.\d\d"),
        ("1700000000000000000", "TIMESTAMP_NTZ", r"1[67]\d{17}"),
        ("3600000000000", "TIME", r"\d{13,14}"),
        ("hello world", "TEXT", r"[a-z]{5} [a-z]{5}"),
        ("true", "BOOLEAN", "true"),
    ],
)
def test_bind_values_keep_their_type(value, type_name, shape):
    assert re.fullmatch(shape, str(pseudonyms.bound(value, type_name)))


@pytest.mark.parametrize("value", [None, True, 0, 1])
def test_values_that_are_no_data_stay(value):
    assert pseudonyms.bound(value, "FIXED") is value or pseudonyms.bound(value, "FIXED") == value


def test_plain_numbers_are_bound_as_numbers():
    assert isinstance(pseudonyms.bound(4711, "FIXED"), int)
    assert isinstance(pseudonyms.bound(47.11, "REAL"), float)


# --- texts -----------------------------------------------------------------------------------------------------------


def test_structural_literals_are_unchanged():
    sql = (
        "SELECT TO_CHAR(d, 'YYYY-MM'), DATE_TRUNC('month', b), DATEADD(day, -7000, c), INTERVAL '3 days', x:a.b,"
        " g['k'], ROUND(y, 2), CAST(z AS NUMBER(38, 10)) FROM t SAMPLE (10) WHERE f = ? GROUP BY 1 ORDER BY 2"
        " LIMIT 10000 OFFSET 500"
    )

    assert cleaned(sql) == sql


def test_values_are_replaced_wherever_they_stand():
    sql = "SELECT 'red', CASE WHEN a = 77 THEN 'blue' END, f(4711) FROM t WHERE b IN ('c', 5.25) AND d LIKE 'gree%'"

    made = cleaner().clean(sql)

    assert made.template == ("SELECT ?, CASE WHEN a = ? THEN ? END, f(?) FROM t WHERE b IN (?, ?) AND d LIKE ?")
    assert not re.search("red|blue|77|4711|5.25|gree", made.text)
    assert made.text.endswith("%'")


@pytest.mark.parametrize(
    ("sql", "unit_s"),
    [
        ("SELECT TO_TIMESTAMP({})", 1.0),
        ("SELECT * FROM t WHERE a > TO_TIMESTAMP_NTZ({}000, 3)", 1e-3),
        ("SELECT TO_DATE('{}000000000')", 1e-9),
        ("SELECT '{}'::TIMESTAMP_LTZ, 1", 1.0),
        ("SELECT TRY_TO_TIMESTAMP('{}')", 1.0),
    ],
)
def test_numbers_that_become_moments_are_moved_like_dates(sql, unit_s):
    made = cleaned(sql.format(1_700_006_400))

    number = next(int(found) for found in re.findall(r"\d+", made) if len(found) > 8)
    shift_s = 1_700_006_400 - round(number * unit_s)
    assert date(2023, 11, 15) - timedelta(seconds=shift_s) == date.fromisoformat(pseudonyms.text("2023-11-15"))
    assert len(made) == len(sql.format(1_700_006_400))


@pytest.mark.parametrize("sql", ["SELECT a FROM t WHERE b > {}", "SELECT TO_TIMESTAMP(b) FROM t WHERE c = {}"])
def test_an_epoch_that_nothing_marks_as_a_moment_is_a_number_like_any_other(sql):
    epoch, work = "1700000000", cleaner()

    made = work.clean(sql.format(epoch)).text.split()[-1]

    assert made == Pseudonyms(KEY).number(epoch) == work.bound(epoch, "FIXED")
    assert (len(made), made != epoch) == (10, True)
    moved = work.clean(f"SELECT TO_TIMESTAMP({epoch})").text
    assert made not in moved
    assert work.clean("SELECT TO_TIMESTAMP(86400)").text == f"SELECT TO_TIMESTAMP({Pseudonyms(KEY).number('86400')})"


def test_equal_values_of_different_statements_stay_equal():
    one, other = cleaned("SELECT 1 FROM a WHERE x = 'Acme Corp'"), cleaned("SELECT 2 FROM b WHERE y = 'Acme Corp'")

    assert one.split("=")[1] == other.split("=")[1]


def test_templates_do_not_depend_on_values_or_comments():
    texts = ["SELECT a FROM t WHERE b = 5", "SELECT a FROM t WHERE b = 77123", "SELECT a FROM t WHERE b = 9 -- for Bob"]

    assert len({cleaner().clean(text).template_id for text in texts}) == 1
    assert cleaner().clean("SELECT a FROM t WHERE c = 5").template_id != cleaner().clean(texts[0]).template_id


def test_names_are_hidden_when_asked_for():
    made = cleaned('SELECT Salary AS s, "Salary", "SALARY", doc:boss.name FROM hr.people p', hide_names=True)

    names = re.findall(r'N_[0-9A-F]{10}|"n_[0-9a-f]{10}"', made)
    assert not re.search("(?i)salary|people|boss|hr", made)
    assert names[0] == names[3] != names[2]
    assert sqlglot.parse_one(made, dialect="snowflake").key == "select"


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELEC 1 FRO", LeftOutReason.UNPARSED),
        ("SELECT 'unfinished", LeftOutReason.UNPARSED),
        ("SELECT x'AB'", LeftOutReason.UNPARSED),
        ("CREATE USER u PASSWORD = 'hunter2'", LeftOutReason.NOT_REPLAYABLE),
        ("ALTER SESSION SET QUERY_TAG = 'bob'", LeftOutReason.NOT_REPLAYABLE),
        ("COPY INTO t FROM @s CREDENTIALS = (AWS_KEY_ID = 'x')", LeftOutReason.NOT_REPLAYABLE),
        ("CREATE OR REPLACE TEMP TABLE x AS SELECT 1", LeftOutReason.TEMPORARY_TABLE),
        ("CALL p('hunter2')", LeftOutReason.NOT_REPLAYABLE),
        ("EXECUTE IMMEDIATE 'SELECT 1'", LeftOutReason.NOT_REPLAYABLE),
        ('SELECT "SYSTEM$CANCEL_ALL_QUERIES"(1)', LeftOutReason.SYSTEM_FUNCTION),
        ("SELECT IDENTIFIER('SYSTEM$CANCEL_ALL_QUERIES')(1)", LeftOutReason.SYSTEM_FUNCTION),
        ("SELECT 1; SELECT 2", LeftOutReason.SEVERAL),
        ("", LeftOutReason.UNPARSED),
    ],
)
def test_statements_that_cannot_be_cleaned_are_left_out_with_the_reason(sql, reason):
    with pytest.raises(StatementLeftOut) as caught:
        cleaner().clean(sql)

    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("sql", "role"),
    [
        ("WITH a AS (SELECT 1) SELECT * FROM a", StatementRole.READ),
        ("(SELECT 1) UNION ALL SELECT 2", StatementRole.READ),
        ("SELECT s.NEXTVAL", StatementRole.WRITE),
        ("SET v = (SELECT s.NEXTVAL)", StatementRole.WRITE),
        ("SELECT * FROM TABLE(GETNEXTVAL(s))", StatementRole.WRITE),
        ("SELECT a FROM t WHERE b = 1 FOR UPDATE", StatementRole.WRITE),
        ("SET x = (SELECT a FROM t WHERE b = 1 FOR UPDATE)", StatementRole.WRITE),
        ("MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN UPDATE SET b = 1", StatementRole.WRITE),
        ("DELETE FROM t", StatementRole.WRITE),
        ("USE SCHEMA a.b", StatementRole.CONTEXT),
        ("SET v = 5", StatementRole.CONTEXT),
        ("ALTER SESSION SET TIMEZONE = 'Europe/Berlin', WEEK_START = 1", StatementRole.CONTEXT),
        ("ALTER SESSION SET AUTOCOMMIT = FALSE", StatementRole.TRANSACTION),
        ("BEGIN", StatementRole.TRANSACTION),
        ("COMMIT", StatementRole.TRANSACTION),
    ],
)
def test_statements_have_a_role(sql, role):
    made = cleaner().clean(sql)

    assert made.role is role
    if role is StatementRole.CONTEXT and "SESSION" in sql:
        assert made.text == sql


@pytest.mark.parametrize(
    ("sql", "binds"), [("SELECT ?, ?", 2), ("SELECT :1, a:b FROM t", 1), ("SELECT '?'", 0), ("SELECT ?::DATE, ?", 2)]
)
def test_binds_are_counted(sql, binds):
    assert cleaner().clean(sql).binds == binds


def test_kept_values_are_kept_but_for_secrets():
    made = cleaned(
        "SELECT 'red', 77 /* Bob */ FROM t WHERE u = 'bob@acme.org' AND k = 'password=hunter2'", keep_values=True
    )

    assert made.startswith("SELECT 'red', 77")
    assert not re.search("(?i)bob|acme|hunter2", made)


# --- secrets ---------------------------------------------------------------------------------------------------------

TEMPLATES = (
    "SELECT * FROM users WHERE email = '{}' -- asked by {}",
    "SELECT /* {} */ name FROM t WHERE token = $${}$$ AND note LIKE '%{}%'",
    "INSERT INTO logs (a, b) SELECT PARSE_JSON('{{\"user\": \"{}\"}}'), '{}' // {}",
    "UPDATE t SET pw = '{}' WHERE id IN (SELECT id FROM u WHERE n = '{}')",
    "SET session_value = '{}'",
    "SELECT f('{}', x => '{}'), 'it''s {}' FROM t QUALIFY ROW_NUMBER() OVER (ORDER BY a) = 1 LIMIT 10",
    "SELECT CASE WHEN c = '{}' THEN {} ELSE {} END FROM t WHERE card BETWEEN {} AND {}",
)


def planted(random_: random.Random, number: bool) -> str:
    if number:
        return "".join(random_.choices(string.digits[1:], k=16))
    alphabet = string.ascii_letters + string.digits + "-_.@!#%äöß"
    return "S" + "".join(random_.choices(alphabet, k=11)) + "".join(random_.choices(string.ascii_letters, k=6))


def test_a_thousand_planted_secrets_are_removed_and_every_text_parses():
    random_ = random.Random(20)
    secrets: list[str] = []
    made: list[str] = []
    bound: list[str] = []
    work = cleaner()
    while len(secrets) < 1_000:
        template = random_.choice(TEMPLATES)
        numbers = "card" in template
        new = [planted(random_, numbers and place > 0) for place in range(template.count("{}"))]
        secrets += new
        made.append(work.clean(template.format(*new)).text)
        secrets.append(planted(random_, number=False))
        bound.append(str(pseudonyms.bound(secrets[-1], "TEXT")))

    everything = "\n".join([*made, *bound])

    assert [secret for secret in secrets if secret in everything] == []
    assert len([sqlglot.parse_one(text, dialect="snowflake") for text in made]) == len(made) > 200


@settings(max_examples=30)
@given(st.lists(texts, min_size=3, max_size=3))
def test_any_literal_gives_a_text_of_the_same_shape(values):
    written = [value.replace("\\", "\\\\").replace("'", "''") for value in values]
    sql = "SELECT '{}' FROM t WHERE a = '{}' OR b LIKE '{}'".format(*written)

    made = cleaner().clean(sql)

    assert made.template == "SELECT ? FROM t WHERE a = ? OR b LIKE ?"
    assert len(list(sqlglot.parse_one(made.text, dialect="snowflake").find_all(sqlglot.exp.Literal))) == 3


FRAGMENTS = (
    *("'a b'", "'it''s'", "'\\''", "5", "1.5", ".5", "1e5", "٣", "$$x y$$", '"q\'1"', "--c 5\n", "/* 'x */", "//z\n"),
    *(":1", "?", "::", "a", "b1", "$", "$1", "'", '"', ".", "(", ",", "=", "\n", " ", "\\", "a$$", ";", "/", "-", "ä"),
)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
def test_the_cut_that_every_text_gets_finds_the_literals_of_the_one_that_is_parsed(text):
    key, literals = cut(text)
    pieces = pieces_of(text)

    assert literals == [piece for piece in pieces if piece.kind in LITERALS]
    rest = [piece.kind if piece.kind in LITERALS else piece for piece in pieces]
    again = "".join(piece.text if piece.kind not in LITERALS else _ANOTHER[piece.kind] for piece in pieces)
    if [piece.kind if piece.kind in LITERALS else piece for piece in pieces_of(again)] == rest and text.isascii():
        assert cut(again)[0] == cut("".join(piece.text for piece in pieces))[0]  # the key is of everything else
    assert cut(f"{text}\nx")[0] != key  # on a separate line: the text may end with a comment


_ANOTHER = {"string": "'another'", "raw": "$$another$$", "number": "77"}


@pytest.mark.parametrize("sql", ["SELECT ٣", "SELECT ٣ FROM t", "SELECT 5$$Ada$$", "SELECT a$$Ada b$$"])
def test_what_may_be_a_value_or_a_name_is_left_out_and_spoils_no_other_text(sql):
    work = cleaner()

    with pytest.raises(StatementLeftOut, match="parsed"):
        work.clean(sql)
    assert work.clean("SELECT 5").template == "SELECT ?"
    assert work.clean("SELECT 5 FROM t").template == "SELECT ? FROM t"
