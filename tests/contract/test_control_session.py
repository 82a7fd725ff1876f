"""Sessions to the control plane: replaced when they are lost; missing objects are errors with a hint to run setup."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from loadgen.control.location import ControlPlaneLocation
from loadgen.control.session import ControlFailed, ControlSession, NamedQuery
from loadgen.control.tables import run_leases
from loadgen.control.tables.run_leases import renew
from loadgen.errors import ConfigurationError
from loadgen.snowflake.profile_lookup import EMBEDDED_ADDRESS
from tests.contract.lease_builders import TTL_S


def test_a_lost_session_is_replaced_with_the_next_call(plane, run_id):
    session = plane.open("lost")
    term = plane.claim(run_id)
    assert renew(session, term, TTL_S)
    ((session_id,),) = session.fetch(NamedQuery(name="test", sql="SELECT CURRENT_SESSION()", binds=0))

    assert session._connection is not None
    session._connection.close()  # as after a restart of the server
    with pytest.raises(ControlFailed) as raised:
        renew(session, term, TTL_S)

    assert raised.value.failure.session_lost
    assert renew(session, term, TTL_S)
    assert session.fetch(NamedQuery(name="test", sql="SELECT CURRENT_SESSION()", binds=0)) != [(session_id,)]


def test_a_session_that_was_closed_opens_again(plane, run_id):
    session = plane.open("closed")
    term = plane.claim(run_id)

    session.close()
    session.close()
    assert renew(session, term, TTL_S)
    session.close()
    assert renew(session, term, TTL_S)


def test_a_session_belongs_to_one_thread(plane, run_id):
    session = plane.open("shared")
    term = plane.claim(run_id)
    assert renew(session, term, TTL_S)

    with ThreadPoolExecutor(1, thread_name_prefix="other") as pool, pytest.raises(AssertionError, match="one thread"):
        pool.submit(renew, session, term, TTL_S).result()

    assert renew(session, term, TTL_S)


def test_missing_tables_are_made_by_setup(plane):
    elsewhere = replace(plane.place, schema="EMPTY")
    session = ControlSession(elsewhere, role="test", environ=plane.environ)

    with pytest.raises(ControlFailed) as raised:
        run_leases.read(session, "r")

    assert "loadgen setup" in raised.value.remedy
    assert f"{elsewhere.database}.EMPTY" in str(raised.value)
    assert raised.value.exit_code == 3
    session.close()


def test_a_missing_schema_is_made_by_setup_too(plane):
    elsewhere = replace(plane.place, schema="GONE")
    session = ControlSession(elsewhere, role="test", environ=plane.environ)
    session.execute(NamedQuery(name="test", sql=f"DROP SCHEMA {elsewhere.database}.GONE", binds=0))

    with pytest.raises(ControlFailed) as raised:
        run_leases.read(session, "r")

    assert "loadgen setup" in raised.value.remedy
    session.close()


def test_a_missing_connection_is_reported_as_such():
    session = ControlSession(ControlPlaneLocation(connection="no_such"), role="test", environ={})

    with pytest.raises(ConfigurationError) as raised:
        run_leases.read(session, "r")

    assert raised.value.__cause__ is not raised.value


def test_an_unreachable_server_is_retried():
    session = ControlSession(
        ControlPlaneLocation(connection="embedded"), role="test", environ={EMBEDDED_ADDRESS: "127.0.0.1:1"}
    )

    with pytest.raises(ControlFailed) as raised:
        run_leases.read(session, "r")

    assert raised.value.failure.retryable
