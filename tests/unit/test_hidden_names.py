"""--hide-names: no name stays readable, wherever it stands, and one name stays one name."""

import re

import pytest

from loadgen.capture.pseudonyms import KEY_BYTES, Pseudonyms
from loadgen.capture.statement_text import StatementCleaner, StatementLeftOut
from loadgen.model.capture import LeftOutReason


def hiding(*, keep_values: bool = False) -> StatementCleaner:
    return StatementCleaner(Pseudonyms(bytes(range(KEY_BYTES))), keep_values=keep_values, hide_names=True)


@pytest.mark.parametrize("keep_values", [False, True])
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM IDENTIFIER('PAYROLL')",
        "SELECT * FROM IDENTIFIER('a.payroll.\"Payroll x\"') WHERE b = 5",
        "SELECT * FROM IDENTIFIER($$payroll$$)",
        "SELECT * FROM TABLE('payroll')",
        "SELECT * FROM @PAYROLL/p/PAYROLL.csv",
        "SELECT $1 FROM @~/date/payroll.csv",
        "SELECT $1 FROM @a.b.%payroll (FILE_FORMAT => payroll)",
        "SELECT J['PAYROLL'] FROM CUST",
        "SELECT j['a']['payroll'].payroll, k[0].payroll FROM CUST",
        'SELECT J:payroll.b[0].payroll:"Payroll" FROM t',
        "BEGIN TRANSACTION NAME PAYROLL",
        "BEGIN NAME payroll",
        "BEGIN NAME secret",  # a function of the parser
        "SELECT $PAYROLL",
        "SET payroll = 5",
        "SET (payroll, b) = (5, $payroll)",
        "SELECT payroll(a), b.payroll.payroll2(c) FROM TABLE(payroll(1)) s",
        "SELECT a FROM t AT(STREAM => 'payroll')",
        "USE DATABASE payroll",
        "SELECT a FROM t WHERE CONTAINS(b, IDENTIFIER($payroll))",
    ],
)
def test_names_are_hidden_wherever_they_stand(sql, keep_values):
    made = hiding(keep_values=keep_values).clean(sql)

    assert not re.search("(?i)payroll|secret", made.text + made.template)


def names(sql: str) -> list[str]:
    return re.findall(r"(?i)n_[0-9a-f]{10}", hiding().clean(sql).text)


def test_one_name_stays_one_name():
    (variable,) = names("SET x = 5")
    table = names("SELECT 1 FROM db.t")

    assert names("SELECT $X") == [variable]
    assert names("SELECT 1 FROM IDENTIFIER('DB.T')") == names("SELECT 1 FROM IDENTIFIER('db.t')") == table
    assert names("SELECT j:key") == names("SELECT j['key']") == names('SELECT j:"key"') != names("SELECT j:KEY")
    assert names("SELECT j:KEY") == names("SELECT j['KEY']")


def test_vocabulary_stays():
    sql = (
        "SELECT DATEADD(day, -7, {}), LISTAGG({}, ',') WITHIN GROUP (ORDER BY {}), SUM({}) OVER (ROWS BETWEEN UNBOUNDED"
        " PRECEDING AND CURRENT ROW), {}::NUMBER(10, 2) FROM {} SAMPLE BERNOULLI (10) WHERE {} > INTERVAL '3 days'"
    )

    made = hiding().clean(sql.format(*"abcdefg")).text

    assert re.sub("N_[0-9A-F]{10}", "{}", made) == sql


def test_a_statement_whose_table_is_a_bind_value_is_left_out():
    with pytest.raises(StatementLeftOut) as caught:
        hiding().clean("SELECT * FROM IDENTIFIER(?)")

    assert caught.value.reason is LeftOutReason.NAMES
