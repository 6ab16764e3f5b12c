"""Fetch sessions: who gets one, and whose gives way."""

from random import Random

import pytest

from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.fetch_sessions import UNUSED_S, Sessions
from lakestream.protocol.kafka.hot import ParsedFetch, Topic, Wanted


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


def request(session_id: int, epoch: int, topic: Topic = "t") -> tuple[ParsedFetch, bool]:
    """A request, and whether it names topics by their ids."""
    wanted = [(topic, [Wanted(0, -1, 0, -1, -1, 1)])] if epoch <= 0 else []
    asked = ParsedFetch(
        max_wait_ms=0, min_bytes=1, max_bytes=1, isolation_level=0, session_id=session_id, session_epoch=epoch,
        topics=wanted, forgotten=[], rack_id="",
    )  # fmt: skip
    return asked, isinstance(topic, bytes)


def test_a_session_in_use_never_gives_way_and_the_newcomer_gets_none() -> None:
    clock = HandClock()
    sessions = Sessions(Random(1), clock, limit=2)
    first, second = (sessions.resolve(*request(0, 0))[0] for _ in range(2))
    assert first is not None and second is not None
    for epoch in range(1, 4):
        clock.now += UNUSED_S
        for one in (first, second):
            assert sessions.resolve(*request(one.id, epoch))[::2] == (one, 0)
        none, wanted, error = sessions.resolve(*request(0, 0))
        assert none is None and list(wanted) == [("t", 0)] and not error
    assert len(sessions) == 2


def test_the_session_that_was_not_used_for_longest_gives_way_once_that_is_long() -> None:
    clock = HandClock()
    sessions = Sessions(Random(1), clock, limit=2)
    first, second = (sessions.resolve(*request(0, 0))[0] for _ in range(2))
    assert first is not None and second is not None
    clock.now += UNUSED_S + 1
    assert sessions.resolve(*request(first.id, 1))[0] is first
    assert sessions.resolve(*request(0, 0))[0] is not None
    assert sessions.resolve(*request(second.id, 1))[2] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.resolve(*request(first.id, 2))[0] is first
    assert sessions.resolve(*request(0, 0))[0] is None


@pytest.mark.parametrize(("begun", "continued"), [("t", b"t" * 16), (b"t" * 16, "t")])
def test_a_session_goes_on_naming_topics_as_it_began(begun: Topic, continued: Topic) -> None:
    sessions = Sessions(Random(1), HandClock())
    session = sessions.resolve(*request(0, 0, begun))[0]
    assert session is not None
    assert sessions.resolve(*request(session.id, 2, continued))[2] == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    refused = sessions.resolve(*request(session.id, 1, continued))
    assert refused == (None, {}, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
    assert sessions.resolve(*request(session.id, 1, begun))[0] is session
