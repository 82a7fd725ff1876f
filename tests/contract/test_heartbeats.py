"""Heartbeats through the real driver: their content, and that no content can stop them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loadgen.control.session import TRUNCATION_MARK, ControlFailed, ControlSession
from loadgen.control.tables.run_status import server_time
from loadgen.control.tables.worker_heartbeats import LAST_ERROR_MAX, WorkerHeartbeat, beat, find, read, register
from loadgen.model.run import Phase, WorkerStatus
from tests.contract.heartbeat_builders import LOST, NEVER_SENT, SILENT_MS, grow_old, my_row, said
from tests.control_plane import retries
from tests.processes import wait_until

# --- beating ---------------------------------------------------------------------------------------------------------


FULL = WorkerHeartbeat(
    status=WorkerStatus.DRAINING,
    phase=Phase.COOLDOWN,
    count=2,
    active_connections=3,
    open_connections=25,
    target_connections=50,
    last_error='it\'s "late"',
    error_count=12,
    live_metrics='{"windows":[{"id":1,"buckets":{"5":7}}]}',
    last_sequence_id=2**40,
    cpu_percent=99.5,
    memory_percent=0.125,
)


def test_a_heartbeat_has_every_value_and_the_next_one_replaces_it(session, me):
    register(session, retries(), me, silent_ms=SILENT_MS)

    assert beat(session, me, FULL)
    assert my_row(session, me).beat == FULL
    assert beat(session, me, said(3, phase=None))
    assert my_row(session, me).beat == said(3, phase=None)


def test_a_beat_touches_only_its_own_row(session, me):
    other = replace(me, worker_id="w1", worker_group_id=1)
    for one in (me, other):
        register(session, retries(), one, silent_ms=SILENT_MS)

    beat(session, me, FULL)

    first, second = read(session, me.run_id)
    assert (first.beat, second.beat.count) == (FULL, 1)


def test_a_beat_that_was_held_up_never_overwrites_a_later_one(session, me):
    register(session, retries(), me, silent_ms=SILENT_MS)
    beat(session, me, said(5, error_count=5))

    late = [beat(session, me, said(count, error_count=99)) for count in (4, 5, 1, 0)]

    assert late == [False] * 4
    assert my_row(session, me).beat == said(5, error_count=5)


@pytest.mark.parametrize("kind", LOST + NEVER_SENT)
def test_a_lost_beat_loses_nothing(server, session, me, kind):
    """One attempt: the next heartbeat, with the next number, contains everything."""
    register(session, retries(), me, silent_ms=SILENT_MS)
    server.fault(match="UPDATE WORKER_HEARTBEATS", kind=kind, count=1)

    with pytest.raises(ControlFailed) as lost:
        beat(session, me, said(2))

    assert lost.value.failure.retryable
    assert beat(session, me, said(3, error_count=1))
    assert my_row(session, me).beat == said(3, error_count=1)


def test_a_beat_arrives_on_its_way_late_and_changes_nothing(plane, server, session, me):
    """Its client gave up and went on; the server executes it after the next one."""
    since_ms = server.now_ms()
    register(session, retries(), me, silent_ms=SILENT_MS)
    impatient = ControlSession(plane.place, role="test", environ=plane.environ, statement_limit_s=1)
    server.fault(match="UPDATE WORKER_HEARTBEATS", kind="latency", ms=4_000, count=1)
    with pytest.raises(ControlFailed):
        beat(impatient, me, said(2, error_count=2))
    assert beat(session, me, said(3, error_count=3))

    def arrived() -> bool:
        lines = server.ask(f"/__loadgen/journal?match=UPDATE%20WORKER_HEARTBEATS&since={since_ms}")
        return any(line["outcome"] == "fault latency" for line in lines)

    wait_until(arrived, "the first one has arrived")
    assert my_row(session, me).beat == said(3, error_count=3)
    impatient.close()


def test_a_worker_without_a_row_gets_an_error(session, me):
    assert beat(session, me, said(2)) is False


def test_a_session_that_expired_is_replaced_for_the_next_beat(server, session, me):
    register(session, retries(), me, silent_ms=SILENT_MS)
    server.fault(match="UPDATE WORKER_HEARTBEATS", kind="expire_session", count=1)

    outcomes = []
    for count in (2, 3):
        try:
            outcomes.append(beat(session, me, said(count)))
        except ControlFailed as error:
            outcomes.append(error.failure.retryable)

    assert outcomes == [True, True]
    assert my_row(session, me).beat.count == 3


# --- the content of heartbeats ---------------------------------------------------------------------------------------


TEXTS = {
    "quotes": ("it's \"quoted\" \\ ''' ; -- ? %s", None),
    "lines": ("a\nb\r\nc\td", None),
    "escapes": ("\x1b[31mred\x07 [/dim] </script>", None),
    "emoji": ("😀👩‍👩‍👧 é ß 漢字 \u202e", None),
    "nothing": ("", None),
    "NUL": ("a\0b", "a\ufffdb"),
    "half a character": ("a\ud800b\udfff", "a\ufffdb\ufffd"),
    "two halves": ("\ud83d\ude00", "\ufffd\ufffd"),
    "all of them": ("\0\ud800😀'" * 200, None),
}


@pytest.mark.parametrize(("written", "stored"), TEXTS.values(), ids=TEXTS)
def test_no_error_text_can_stop_a_beat(session, me, written, stored):
    register(session, retries(), me, silent_ms=SILENT_MS)

    assert beat(session, me, said(2, last_error=written, live_metrics=f'{{"error":"{written}"}}'))

    expected = written.replace("\0", "\ufffd").replace("\ud800", "\ufffd") if stored is None else stored
    assert my_row(session, me).beat.last_error == expected


@pytest.mark.parametrize("character", ["x", "é", "😀", "\0"], ids=["ASCII", "é", "emoji", "NUL"])
@pytest.mark.parametrize("length", [LAST_ERROR_MAX - 1, LAST_ERROR_MAX, LAST_ERROR_MAX + 1, 1_000_000])
def test_an_error_text_is_cut_at_1000_characters_and_marked(session, me, character, length):
    register(session, retries(), me, silent_ms=SILENT_MS)

    assert beat(session, me, said(2, last_error=character * length))

    stored = my_row(session, me).beat.last_error
    assert stored is not None
    assert len(stored) == min(length, LAST_ERROR_MAX)
    assert stored.endswith(TRUNCATION_MARK) is (length > LAST_ERROR_MAX)


def test_64_kilobytes_of_metrics_ride_on_a_beat(session, me):
    metrics = '{"buckets":"' + "0123456789abcdef" * 4_095 + '"}'
    register(session, retries(), me, silent_ms=SILENT_MS)

    assert beat(session, me, said(2, live_metrics=metrics))
    assert my_row(session, me).beat.live_metrics == metrics


# --- reading ---------------------------------------------------------------------------------------------------------


def test_the_age_of_a_heartbeat_is_computed_by_the_server(plane, session, me):
    register(session, retries(), me, silent_ms=SILENT_MS)
    began = server_time(session)
    grow_old(plane, me, 90_250)

    old_ms, passed_ms = my_row(session, me).age_ms, plane.passed_ms(began)
    began = server_time(session)
    beat(session, me, said(2))

    assert 90_250 <= old_ms <= 90_250 + passed_ms
    assert 0 <= my_row(session, me).age_ms <= plane.passed_ms(began)


def test_all_workers_of_a_run_are_read_at_once_in_the_order_of_their_numbers(server, session, me):
    for number in (10, 2, 0):
        register(session, retries(), replace(me, worker_id=f"w{number}", worker_group_id=number), silent_ms=SILENT_MS)

    assert [row.identity.worker_id for row in read(session, me.run_id)] == ["w0", "w2", "w10"]
    assert find(session, me.run_id, "w3") is None
    assert read(session, "another run") == ()


def test_a_leader_that_cannot_read_gets_an_error_and_no_empty_list(server, session, me):
    register(session, retries(), me, silent_ms=SILENT_MS)
    server.fault(match="FROM WORKER_HEARTBEATS", kind="http_status", status=503)

    with pytest.raises(ControlFailed):
        read(session, me.run_id)


def test_no_beat_is_a_merge(server, plane, me):
    register(plane.session, retries(), me, silent_ms=SILENT_MS)
    beat(plane.session, me, said(2))

    texts = [line["sql_text"] for line in server.ask("/__loadgen/journal?match=WORKER_HEARTBEATS")]

    assert {text.split()[0] for text in texts} <= {"CREATE", "INSERT", "UPDATE", "SELECT", "DELETE"}
