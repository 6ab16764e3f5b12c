"""The checks after all faults have ended: every broker serves every acknowledged batch, and no object is left over."""

import asyncio
from collections.abc import Iterable, Sequence

from lakestream.model.batches.wal_object import checkpoint_prefix
from lakestream.model.state import State
from lakestream.testing.simulation.cluster import SimulatedCluster
from lakestream.testing.simulation.ledger import Violation
from lakestream.testing.simulation.node import Node

ROUNDS = 5


async def judge(cluster: SimulatedCluster, topics: Sequence[bytes]) -> None:
    """Raise Violation unless all holds. Dead objects must be collected after wrong clocks, too (L14)."""
    for seat in cluster.seats:
        assert seat.node is not None and seat.process is not None
        await seat.process.start(_read_all(cluster, seat.node, topics))
        cluster.auditor.check_whole(seat.process.name, seat.node.replica.state)
    _check_topics(cluster.auditor.state)
    if lost := sorted(cluster.auditor.referenced().keys() - cluster.wal.keys):
        raise Violation(f"entries point to objects that do not exist: {lost}")
    await _check_leaks(cluster)
    cluster.check()


def _check_topics(state: State) -> None:
    """Every topic is whole, and no producer or group names a stream of a deleted topic."""
    if unfinished := [*state.topics.forming, *state.topics.doomed]:
        raise Violation(f"topics were not created, or not deleted, to the end: {unfinished}")
    known: list[Iterable[int]] = [one.streams for one in state.producers.by_id.values()]
    known += [group.offsets for group in state.groups.by_name.values()]
    if gone := {stream for streams in known for stream in streams} - state.streams.by_id.keys():
        raise Violation(f"producers or groups name streams that are deleted: {sorted(gone)}")


async def _read_all(cluster: SimulatedCluster, node: Node, topics: Sequence[bytes]) -> None:
    """Read every offset from start to end through one broker."""
    for topic in topics:
        for number in range(len(cluster.auditor.state.topics.by_id[topic].streams)):
            await _read_partition(cluster, node, topic, number)


async def _read_partition(cluster: SimulatedCluster, node: Node, topic: bytes, number: int) -> None:
    ledger, partition = cluster.ledger, (topic, number)
    start, end = await node.bounds(topic, number)
    bases, position = [], start
    while position < end:
        fetched = await node.fetch(topic, number, position, 1 << 20, 0.0)
        following = ledger.observe(partition, position, fetched.data, fetched.sequence)
        if following == position:
            raise Violation(f"broker {node.id} serves no batch at {position}, before the end {end}")
        bases += [base for base in ledger.read[partition] if position <= base < following]
        position = following
    # Retention may have moved the start during the reading.
    ledger.check_whole(partition, (await node.bounds(topic, number))[0], end, bases, f"broker {node.id}")


async def _check_leaks(cluster: SimulatedCluster) -> None:
    """After some rounds of the collector no object without an entry is left."""
    leaked: set[str] = set()
    for _ in range(ROUNDS):
        for seat in cluster.seats:
            assert seat.node is not None and seat.process is not None
            await seat.process.start(seat.node.collector.collect())
        state, notes = cluster.auditor.state, await cluster.log.checkpoints()
        oldest = min((note.key for note in notes), default="")
        prefix = checkpoint_prefix(state.cluster)
        kept = {key for key in cluster.wal.keys if key.startswith(prefix) and key >= oldest}
        leaked = cluster.wal.keys - cluster.auditor.referenced().keys() - kept
        if not leaked:
            return
        await asyncio.sleep(1.0)
    raise Violation(f"objects without an entry were not collected: {sorted(leaked)[:5]} ({len(leaked)})")
