"""When a round is due, and how a topic that fails waits without holding the others."""

import pytest

from lakestream.model import state as state_module
from lakestream.model.state import State
from lakestream.pipeline.landing.freshness import RETRY_MAX_S, Freshness, FreshnessLimits
from lakestream.pipeline.tables.waiting import ENABLED, FRESHNESS
from tests.support.planned_state import World

LIMITS = FreshnessLimits(freshness_s=5.0, waiting_bytes=1000)


def configure(world: World, topic_id: bytes, name: str, value: str) -> None:
    world.state.topics.by_id[topic_id].configs = {name: value}


def test_nothing_is_due_while_nothing_waits() -> None:
    world = World()
    world.topic("a")
    assert Freshness(LIMITS).due(world.state, 100.0, 0.0) == ([], float("inf"))


def test_a_round_is_due_so_early_that_its_end_is_in_time() -> None:
    world, freshness = World(), Freshness(LIMITS)
    a = world.topic("a")
    world.append((a, 0, 1, 10))
    # Five seconds, less the round and a quarter of it in reserve, less what noticing takes.
    assert freshness.due(world.state, 100.0, 1.5) == ([], pytest.approx(2.825))
    assert freshness.due(world.state, 103.6, 1.5) == ([a], float("inf"))


def test_much_to_do_is_due_at_once() -> None:
    world, freshness = World(), Freshness(LIMITS)
    a = world.topic("a")
    world.append((a, 0, 1, 2000))
    assert freshness.due(world.state, 100.0, 0.5)[0] == [a]


def test_each_topic_has_its_own_freshness_and_may_opt_out_C8() -> None:
    world, freshness = World(), Freshness(LIMITS)
    quick, never = world.topic("quick"), world.topic("never")
    configure(world, quick, FRESHNESS, "100")
    configure(world, never, ENABLED, "false")
    world.append((quick, 0, 1, 10), (never, 0, 1, 10))
    assert freshness.due(world.state, 100.0, 0.5) == ([quick], float("inf"))


def test_a_topic_that_opts_in_again_is_found_within_seconds() -> None:
    world, freshness = World(), Freshness(LIMITS)
    a = world.topic("a")
    configure(world, a, ENABLED, "false")
    world.append((a, 0, 1, 10))
    freshness.due(world.state, 100.0, 0.5)
    configure(world, a, ENABLED, "true")
    freshness.due(world.state, 111.0, 0.5)
    assert freshness.due(world.state, 117.0, 0.5)[0] == [a]


def test_a_failing_topic_waits_longer_and_longer_alone() -> None:
    world, freshness = World(), Freshness(LIMITS)
    bad, good = world.topic("bad"), world.topic("good")
    world.append((bad, 0, 1, 10), (good, 0, 1, 10))
    freshness.look(world.state, 100.0)
    assert freshness.due(world.state, 110.0, 0.5)[0] == [bad, good]
    since = freshness.began([bad, good])
    assert since == {bad: 100.0, good: 100.0}
    pauses = [freshness.failed(bad, "broken", since[bad], 110.0).again_at - 110.0 for _ in range(8)]
    assert pauses[:3] == [1.0, 2.0, 4.0] and pauses[-1] == RETRY_MAX_S
    assert freshness.due(world.state, 111.0, 0.5)[0] == []
    world.append((good, 0, 1, 10))
    assert freshness.due(world.state, 112.0, 0.5)[0] == []
    assert freshness.due(world.state, 120.0, 0.5)[0] == [good]
    assert freshness.due(world.state, 180.0, 0.5)[0] == [bad, good]
    assert freshness.lag_s(180.0) == 80.0


def test_what_came_during_a_round_waits_since_it_began() -> None:
    world, freshness = World(), Freshness(LIMITS)
    a = world.topic("a")
    world.append((a, 0, 1, 10))
    freshness.look(world.state, 100.0)
    freshness.began([a])
    world.append((a, 0, 1, 10))
    world.state.streams.by_id[world.stream(a)].landed = 1
    freshness.landed(world.state, a, 104.0)
    assert freshness.due(world.state, 106.0, 0.0) == ([], pytest.approx(2.7))
    world.state.streams.by_id[world.stream(a)].landed = 2
    freshness.began([a])
    freshness.landed(world.state, a, 109.0)
    assert freshness.due(world.state, 200.0, 0.0)[0] == []


def test_a_deleted_topic_is_forgotten() -> None:
    world, freshness = World(), Freshness(LIMITS)
    a = world.topic("a")
    world.append((a, 0, 1, 10))
    freshness.look(world.state, 100.0)
    world.delete(a)
    assert freshness.due(world.state, 200.0, 0.0) == ([], float("inf"))


def test_a_state_that_nobody_looks_at_names_no_more_moved_streams_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_module, "MOVED_MAX", 10)
    world = World()
    a, b = world.topic("a"), world.topic("b")
    world.append((b, 0, 1, 10))
    for _ in range(50):
        world.append((a, 0, 1, 10))
    assert len(world.state.moved) <= 10 and world.state.all_moved
    freshness = Freshness(LIMITS)
    freshness.look(State(), 99.0)
    freshness._state, freshness._scanned = world.state, 99.0
    assert freshness.due(world.state, 100.0, 0.0)[1] < float("inf")
    assert freshness.due(world.state, 200.0, 0.0)[0] == [a, b], "those that were not named are found too"
    assert not world.state.all_moved
