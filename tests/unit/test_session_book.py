"""User sessions: created, used, expired, and never lost count of."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from loadgen.model.counts import UserSessionCounts
from loadgen.workload.users import UserSession, UserSessionTable

TTL_NS = 100
USERS = 3


def made(user: int, incarnation: int) -> UserSession:
    return UserSession(user=user, incarnation=incarnation, values=(f"{user}.{incarnation}",), tag="")


def book() -> UserSessionTable:
    return UserSessionTable(USERS, TTL_NS, made)


def use(book: UserSessionTable, user: int, now_ns: int, lasting_ns: int = 0) -> UserSession:
    """A statement of this user."""
    session = book.prepare(user, now_ns)
    assert book.begin(session, now_ns)
    book.end(now_ns + lasting_ns)
    return session


def figures(book: UserSessionTable) -> tuple[int, int, int]:
    counts = book.counts
    return counts.created, counts.expired, counts.current


def test_a_user_keeps_a_session_and_its_remembered_values():
    sessions = book()

    first, other, again = use(sessions, 0, 0), use(sessions, 1, 10), use(sessions, 0, 20)

    assert again is first
    assert other.values != first.values
    assert figures(sessions) == (2, 0, 2)


def test_a_session_that_is_only_prepared_was_not_created():
    sessions = book()

    sessions.prepare(0, 0)

    assert figures(sessions) == (0, 0, 0)


def test_the_time_to_live_slides_with_every_use():
    sessions = book()
    first = use(sessions, 0, 0)

    assert use(sessions, 0, 99) is first
    assert use(sessions, 0, 198) is first
    late = use(sessions, 0, 298)

    assert late.incarnation == 1
    assert late.values != first.values
    assert figures(sessions) == (2, 1, 1)


def test_it_counts_from_the_end_of_a_statement_and_never_passes_during_one():
    sessions = book()
    session = sessions.prepare(0, 0)
    sessions.begin(session, 0)

    sessions.sweep(10 * TTL_NS)
    sessions.end(10 * TTL_NS)

    assert use(sessions, 0, 11 * TTL_NS - 1) is session
    assert figures(sessions) == (1, 0, 1)


def test_a_sweep_takes_what_is_over_and_nothing_else():
    sessions = book()
    use(sessions, 0, 0)
    use(sessions, 1, 50)

    sessions.sweep(99)
    assert figures(sessions) == (2, 0, 2)
    sessions.sweep(100)

    assert figures(sessions) == (2, 1, 1)


def test_a_session_that_expires_between_drawing_and_sending_is_not_used():
    sessions = book()
    use(sessions, 0, 0)
    drawn = sessions.prepare(0, 99)

    sessions.sweep(100)

    assert not sessions.begin(drawn, 101)
    assert sessions.begin(sessions.prepare(0, 101), 101)
    assert figures(sessions) == (2, 1, 1)


def test_of_two_that_were_prepared_only_the_one_that_began_is_the_users():
    sessions = book()
    first, second = sessions.prepare(0, 0), sessions.prepare(0, 0)

    assert sessions.begin(second, 1)
    sessions.end(1)

    assert not sessions.begin(first, 2)
    assert sessions.prepare(0, 2) is second
    assert figures(sessions) == (1, 0, 1)


def test_with_its_connection_every_session_is_lost():
    sessions = book()
    before = [use(sessions, user, 0) for user in range(USERS)]

    sessions.lose()

    assert figures(sessions) == (USERS, USERS, 0)
    assert use(sessions, 1, 1).values != before[1].values


def test_counts_of_books_add_up():
    whole = UserSessionCounts(created=5, expired=2) + UserSessionCounts(created=1)

    assert whole.document() == {"created": 6, "expired": 2, "current": 4}


class Machine(RuleBasedStateMachine):
    """Random events in any order, against a model that knows each living session and its last use."""

    def __init__(self) -> None:
        super().__init__()
        self.book, self.now_ns, self.created, self.expired = book(), 0, 0, 0
        self.used_ns: dict[int, int] = {}  # by user
        self.incarnation = dict.fromkeys(range(USERS), -1)
        self.drawn: UserSession | None = None
        self.busy: UserSession | None = None

    def _pass(self) -> None:
        """The sessions that the model expires at the next access."""
        over = [
            user
            for user, used_ns in self.used_ns.items()
            if self.now_ns - used_ns >= TTL_NS and not (self.busy and self.busy.user == user)
        ]
        self._expire(over)

    def _expire(self, users: list[int]) -> None:
        for user in users:
            del self.used_ns[user]
            self.expired += 1

    @rule(ns=st.integers(0, 2 * TTL_NS))
    def time_passes(self, ns: int) -> None:
        self.now_ns += ns

    @precondition(lambda self: self.busy is None)
    @rule(user=st.integers(0, USERS - 1))
    def draw(self, user: int) -> None:
        self.drawn = self.book.prepare(user, self.now_ns)

    @precondition(lambda self: self.busy is None and self.drawn is not None)
    @rule()
    def begin(self) -> None:
        session = self.drawn
        assert session is not None
        user = session.user
        if user in self.used_ns and self.now_ns - self.used_ns[user] >= TTL_NS:
            self._expire([user])
        if user in self.used_ns:
            wanted = session.incarnation == self.incarnation[user]
        else:
            wanted = session.incarnation == self.incarnation[user] + 1
        assert self.book.begin(session, self.now_ns) is wanted
        self.drawn = None
        if not wanted:
            return
        self.created += user not in self.used_ns
        self.incarnation[user] = session.incarnation
        self.used_ns[user] = self.now_ns
        self.busy = session
        assert session.values == (f"{user}.{self.incarnation[user]}",)

    @precondition(lambda self: self.busy is not None)
    @rule()
    def end(self) -> None:
        assert self.busy is not None
        self.book.end(self.now_ns)
        if self.busy.user in self.used_ns:
            self.used_ns[self.busy.user] = self.now_ns
        self.busy = None

    @rule()
    def sweep(self) -> None:
        self.book.sweep(self.now_ns)
        self._pass()

    @precondition(lambda self: self.busy is None)
    @rule()
    def lose(self) -> None:
        self.book.lose()
        self._expire(list(self.used_ns))

    @invariant()
    def the_counts_add_up(self) -> None:
        counts = self.book.counts
        assert (counts.created, counts.expired) == (self.created, self.expired)
        assert counts.current == len(self.used_ns) <= USERS


TestAnyOrder = Machine.TestCase
TestAnyOrder.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
