"""Leaders spread evenly over the live brokers, and only a dead broker's partitions move."""

from collections import Counter

from lakestream.model.placement import leader_of, rankings

TOPIC = bytes(range(16))


def test_nobody_leads_when_nobody_lives() -> None:
    assert leader_of([], TOPIC, 0) == -1
    assert rankings([], TOPIC, range(2)) == [[], []]


def test_the_leader_is_the_first_in_rank_whatever_the_order_of_brokers() -> None:
    orders = rankings([4, 0, 9, 2], TOPIC, range(50))
    assert orders == rankings([0, 2, 4, 9], TOPIC, range(50))
    for partition, order in enumerate(orders):
        assert sorted(order) == [0, 2, 4, 9]
        assert leader_of([9, 4, 2, 0], TOPIC, partition) == order[0]


def test_partitions_spread_evenly() -> None:
    for brokers in ([0, 1], [0, 1, 2], [0, 1, 2, 3, 4], list(range(1, 9))):
        counts = Counter(leader_of(brokers, TOPIC, partition) for partition in range(4000))
        fair = 4000 / len(brokers)
        assert all(0.8 * fair < counts[broker] < 1.2 * fair for broker in brokers), counts


def test_topics_of_one_partition_spread_too() -> None:
    counts = Counter(leader_of([0, 1, 2], number.to_bytes(16, "big"), 0) for number in range(3000))
    assert min(counts.values()) > 800


def test_a_dead_brokers_partitions_go_to_all_others() -> None:
    before = [leader_of([0, 1, 2, 3], TOPIC, partition) for partition in range(1000)]
    after = [leader_of([0, 1, 3], TOPIC, partition) for partition in range(1000)]
    moved = [(then, now) for then, now in zip(before, after, strict=True) if then != now]
    assert {then for then, _ in moved} == {2}
    assert {now for _, now in moved} == {0, 1, 3}


def test_the_choice_never_changes_between_versions() -> None:
    """Brokers of different versions have to agree, or clients are sent to and fro."""
    assert [leader_of([0, 1, 2], TOPIC, partition) for partition in range(12)] == [0, 2, 1, 1, 1, 0, 2, 1, 0, 0, 0, 0]
