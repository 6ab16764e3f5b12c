"""The planner: what a round lands, and how it is divided among tasks (T18, T20)."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.pipeline.landing.planner import TURN_STREAMS, RoundLimits, Share, choose, choosing, divide, working
from lakestream.stream.long_work import Steps, at_once
from tests.support.planned_state import World

LIMITS = RoundLimits(round_bytes=1000, task_bytes=300, small_task_bytes=100, file_weight_bytes=10)


def offsets(shares: list[list[Share]], topic_id: bytes) -> Counter[tuple[int, int]]:
    return Counter(
        (one.partition, offset)
        for task in shares
        for share in task
        if share.topic_id == topic_id
        for one in share.slices
        for offset in range(one.first, one.end)
    )


def test_a_round_takes_everything_that_is_not_in_the_tables() -> None:
    world = World()
    a, b = world.topic("a", 2), world.topic("b")
    world.append((a, 0, 3, 30), (a, 1, 2, 20), (b, 0, 1, 10))
    world.append((a, 0, 1, 10))
    works = choose(world.state, [a, b], LIMITS)
    assert [work.topic_id for work in works] == [a, b]
    assert works[0].ranges == ((0, 0, 4), (1, 0, 2)) and works[0].size == 60
    assert offsets(divide(works, 2, LIMITS), a) == Counter([(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)])


def test_topics_with_nothing_new_and_unknown_topics_are_left_out() -> None:
    world = World()
    a = world.topic("a")
    assert choose(world.state, [a, b"gone".ljust(16)], LIMITS) == []


def test_small_topics_share_a_task_and_a_large_one_is_cut_in_the_order_of_its_objects() -> None:
    world = World()
    small = [world.topic(f"small{n}") for n in range(3)]
    large = world.topic("large", 2)
    for _ in range(10):
        world.append(*((one, 0, 1, 5) for one in small), (large, 0, 1, 40), (large, 1, 1, 40))
    works = choose(world.state, [*small, large], LIMITS)
    tasks = divide(works, 2, LIMITS)
    together = [task for task in tasks if len(task) > 1]
    assert len(together) == 1 and [share.topic_id for share in together[0]] == small
    cut = [task[0] for task in tasks if task[0].topic_id == large]
    assert len(cut) > 1
    assert all(sum(one.length for one in share.slices) <= LIMITS.task_bytes for share in cut)
    spans = [{one.object for one in share.slices} for share in cut]
    assert all(max(before) <= min(after) for before, after in pairwise(spans))


def test_a_little_work_is_one_task_however_many_slots_there_are() -> None:
    world = World()
    a = world.topic("a", 8)
    world.append(*((a, partition, 1, 5) for partition in range(8)))
    assert len(divide(choose(world.state, [a], LIMITS), 16, LIMITS)) == 1


def test_a_topic_with_a_backlog_leaves_the_others_their_share() -> None:
    world = World()
    busy, calm = world.topic("busy"), world.topic("calm")
    for _ in range(50):
        world.append((busy, 0, 1, 100))
    world.append((calm, 0, 1, 100))
    works = {work.topic_id: work for work in choose(world.state, [busy, calm], LIMITS)}
    assert works[calm].size == 100
    assert works[busy].size == 900


def test_a_record_larger_than_any_limit_still_goes_t20() -> None:
    world = World()
    a = world.topic("a")
    world.append((a, 0, 1, 100_000))
    world.append((a, 0, 1, 10))
    works = choose(world.state, [a], LIMITS)
    assert [one.length for one in works[0].slices] == [100_000]
    assert len(divide(works, 2, LIMITS)) == 1


def test_progress_in_the_middle_of_a_merged_entry_cuts_off_what_landed() -> None:
    world = World()
    a = world.topic("a")
    for _ in range(4):
        world.append((a, 0, 10, 50))
    world.merge(a)
    world.state.streams.by_id[world.stream(a)].landed = 15
    [work] = choose(world.state, [a], LIMITS)
    assert work.ranges == ((0, 15, 40),)
    assert (work.slices[0].base, work.slices[0].first, work.slices[0].end) == (0, 15, 40)


def test_records_below_the_log_start_do_not_land() -> None:
    world = World()
    a = world.topic("a")
    world.append((a, 0, 10, 50))
    world.advance(a, 4)
    [work] = choose(world.state, [a], LIMITS)
    assert work.ranges == ((0, 4, 10),)


def test_a_merged_object_is_taken_before_the_younger_entries_behind_it() -> None:
    world = World()
    a = world.topic("a", 2)
    for _ in range(3):
        world.append((a, 0, 1, 10), (a, 1, 1, 10))
    world.merge(a, 0)
    world.append((a, 0, 1, 10), (a, 1, 1, 10))
    work = at_once(working(world.state, a, 70, LIMITS, {}))
    assert work is not None
    for partition in (0, 1):
        taken = [one for one in work.slices if one.partition == partition]
        assert all(before.end == after.base for before, after in pairwise(taken))
        assert not taken or taken[0].base == 0


def test_of_too_many_partitions_those_land_first_that_wait_for_longest() -> None:
    world = World()
    a = world.topic("a", 5)
    for partition in (3, 1, 4, 0, 2):
        world.append((a, partition, 1, 10))
    world.append(*((a, partition, 1, 10) for partition in range(5)))
    limits = replace(LIMITS, topic_partitions=2)
    [work] = choose(world.state, [a], limits)
    assert work.ranges == ((1, 0, 2), (3, 0, 2)), "a commit lands no more than so many partitions, each whole"


T = TypeVar("T")


def with_change(steps: Steps[T], change: Callable[[], None]) -> tuple[T, int]:
    """The result where something happens in the first turn of others; and how many turns others had."""
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, turns
        if not turns:
            change()
        turns += 1


def test_choosing_from_very_many_partitions_leaves_others_their_turn() -> None:
    world = World()
    a = world.topic("a", 5 * TURN_STREAMS)
    world.append(*((a, partition, 1, 1) for partition in range(5 * TURN_STREAMS)))
    limits = replace(LIMITS, round_bytes=1 << 30, topic_partitions=3 * TURN_STREAMS)
    plan, turns = with_change(choosing(world.state, [a], limits), lambda: world.append((a, 0, 1, 1)))
    assert turns >= 10 and len(plan.works[0].ranges) == 3 * TURN_STREAMS
    assert {one.object for one in plan.works[0].slices} == plan.objects.keys()


def test_a_topic_that_goes_while_a_round_is_chosen_is_left_out() -> None:
    world = World()
    a, b = world.topic("a", TURN_STREAMS), world.topic("b")
    world.append((a, 0, 1, 10), (b, 0, 1, 10))
    plan, turns = with_change(choosing(world.state, [a, b], LIMITS), lambda: world.delete(a))
    assert turns and [work.topic_id for work in plan.works] == [b]


def test_slices_are_those_of_one_moment_whatever_is_merged_while_they_are_ordered() -> None:
    world = World()
    a = world.topic("a")
    for _ in range(2500):
        world.append((a, 0, 1, 1))
    before = dict(world.state.streams.objects)
    plan, turns = with_change(
        choosing(world.state, [a], replace(LIMITS, round_bytes=1 << 30)), lambda: world.merge(a)
    )
    [work] = plan.works
    assert turns and len(work.slices) == 2500 and work.ranges == ((0, 0, 2500),)
    assert all(plan.objects[one.object] is before[one.object] for one in work.slices)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 5), st.integers(1, 200)), min_size=1),
        max_size=25,
    ),
    st.integers(1, 5),
    st.integers(50, 3000),
)
def test_every_offset_of_the_ranges_is_in_exactly_one_task(
    objects: list[list[tuple[int, int, int, int]]], slots: int, round_bytes: int
) -> None:
    world = World()
    topics = [world.topic(f"t{n}", 3) for n in range(4)]
    for one in objects:
        rows = {(topic, partition): (records, size) for topic, partition, records, size in one}
        world.append(*((topics[t], p, records, size) for (t, p), (records, size) in rows.items()))
    limits = RoundLimits(round_bytes=round_bytes, task_bytes=300, small_task_bytes=100, file_weight_bytes=10)
    works = choose(world.state, topics, limits)
    tasks = divide(works, slots, limits)
    for work in works:
        wanted = Counter((r.partition, offset) for r in work.ranges for offset in range(r.start, r.end))
        assert offsets(tasks, work.topic_id) == wanted
        for share in (share for task in tasks for share in task if share.topic_id == work.topic_id):
            assert list(share.slices) == sorted(share.slices)
    bytes_read = Counter(
        (one.object, byte)
        for task in tasks
        for share in task
        for one in share.slices
        for byte in range(one.position, one.position + one.length)
    )
    assert all(times == 1 for times in bytes_read.values())
