"""Fetch sessions: who gets one, and whose gives way."""

from dataclasses import replace
from random import Random

import pytest

from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.fetch_sessions import UNUSED_S, Resolved, Sessions
from lakestream.protocol.kafka.wire.fast_requests import ParsedFetch, Topic, Wanted
from lakestream.stream.long_work import at_once


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


def resolve(sessions: Sessions, request: ParsedFetch, by_ids: bool) -> Resolved:
    return at_once(sessions.resolve(request, by_ids))


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
    first, second = (resolve(sessions, *request(0, 0))[0] for _ in range(2))
    assert first is not None and second is not None
    for epoch in range(1, 4):
        clock.now += UNUSED_S
        for one in (first, second):
            assert resolve(sessions, *request(one.id, epoch))[::2] == (one, 0)
        none, wanted, error = resolve(sessions, *request(0, 0))
        assert none is None and list(wanted) == [("t", 0)] and not error
    assert len(sessions) == 2


def test_the_session_that_was_not_used_for_longest_gives_way_once_that_is_long() -> None:
    clock = HandClock()
    sessions = Sessions(Random(1), clock, limit=2)
    first, second = (resolve(sessions, *request(0, 0))[0] for _ in range(2))
    assert first is not None and second is not None
    clock.now += UNUSED_S + 1
    assert resolve(sessions, *request(first.id, 1))[0] is first
    assert resolve(sessions, *request(0, 0))[0] is not None
    assert resolve(sessions, *request(second.id, 1))[2] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert resolve(sessions, *request(first.id, 2))[0] is first
    assert resolve(sessions, *request(0, 0))[0] is None


@pytest.mark.parametrize(("begun", "continued"), [("t", b"t" * 16), (b"t" * 16, "t")])
def test_a_session_goes_on_naming_topics_as_it_began(begun: Topic, continued: Topic) -> None:
    sessions = Sessions(Random(1), HandClock())
    session = resolve(sessions, *request(0, 0, begun))[0]
    assert session is not None
    assert resolve(sessions, *request(session.id, 2, continued))[2] == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    refused = resolve(sessions, *request(session.id, 1, continued))
    assert refused == (None, {}, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
    assert resolve(sessions, *request(session.id, 1, begun))[0] is session


def naming(session_id: int, epoch: int, partitions: range, forgotten: range = range(0)) -> ParsedFetch:
    return ParsedFetch(
        max_wait_ms=0, min_bytes=1, max_bytes=1, isolation_level=0, session_id=session_id, session_epoch=epoch,
        topics=[("t", [Wanted(one, -1, 0, -1, -1, 1) for one in partitions])], forgotten=[("t", list(forgotten))],
        rack_id="",
    )  # fmt: skip


def test_sessions_name_so_many_partitions_together_and_no_more() -> None:
    clock = HandClock()
    sessions = Sessions(Random(1), clock, most_partitions=10)
    first = resolve(sessions, naming(0, 0, range(6)), False)[0]
    assert first is not None and sessions.partitions == 6
    none, wanted, error = resolve(sessions, naming(0, 0, range(5)), False)
    assert none is None and len(wanted) == 5 and not error, "it is served, without a session"
    assert resolve(sessions, naming(first.id, 1, range(2, 8), range(2)), False)[0] is first
    assert sessions.partitions == 6
    second = resolve(sessions, naming(0, 0, range(4)), False)[0]
    assert second is not None and sessions.partitions == 10
    grown = resolve(sessions, naming(second.id, 1, range(5)), False)
    assert grown == (None, {}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND) and sessions.partitions == 6
    clock.now += UNUSED_S + 1
    assert resolve(sessions, naming(0, 0, range(10)), False)[0] is not None, "one that is not used gives way"
    assert len(sessions) == 1 and sessions.partitions == 10


def test_no_session_keeps_a_name_that_is_longer_than_topics_names() -> None:
    sessions = Sessions(Random(1), HandClock())
    longest, longer = "t" * 249, "t" * 250
    none, wanted, error = resolve(sessions, *request(0, 0, longer))
    assert none is None and list(wanted) == [(longer, 0)] and not error
    session = resolve(sessions, *request(0, 0, longest))[0]
    assert session is not None and len(sessions) == 1
    grown = replace(request(0, 0, longer)[0], session_id=session.id, session_epoch=1)
    assert resolve(sessions, grown, False) == (None, {}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert len(sessions) == sessions.partitions == 0


def test_a_session_that_ends_while_a_request_changes_it_takes_no_more_partitions() -> None:
    sessions = Sessions(Random(1), HandClock())
    session = resolve(sessions, naming(0, 0, range(1)), False)[0]
    assert session is not None
    changing = sessions.resolve(naming(session.id, 1, range(5_000)), False)
    while sessions.partitions == 1:
        next(changing)
    assert resolve(sessions, *request(session.id, -1))[0] is None and sessions.partitions == 0
    assert at_once(changing) == (None, {}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert len(sessions) == sessions.partitions == 0
