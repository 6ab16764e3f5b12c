"""What must hold of tables when all is healed and quiet: they are the stream, to the row, and nothing lies about."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from lakestream.data.tables.table_metadata import TableMetadata
from lakestream.model.catalog_names import root_of
from lakestream.model.topics import Topic
from lakestream.pipeline.sweep import round_of
from lakestream.testing.judgement import judge
from lakestream.testing.lake_cluster import LakeCluster
from lakestream.testing.ledger import Violation
from lakestream.testing.live_files import reachable
from lakestream.testing.table_witness import Watched

ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Allowed:
    """What may lie about in the end.

    dead        WAL objects without entries: where wall clocks were set back cluster time stood still (L14)
    dropped     files where a dropped table was: written late, or by who died of it
    metadata    metadata files that nobody refers to: of commits whose author died or lost its epoch, or whose
                snapshots somebody else expired; they are for the search for orphans
    """

    dead: bool
    dropped: bool
    metadata: bool


async def judge_lake(cluster: LakeCluster, topics: Sequence[bytes], allowed: Allowed) -> None:
    """Raises Violation."""
    await judge(cluster, topics, allowed.dead)
    state = cluster.auditor.state
    for topic_id in topics:
        _judge_rows(cluster, state.topics.by_id[topic_id], cluster.witness.watched[topic_id])
        _judge_memory(cluster, state.topics.by_id[topic_id], cluster.witness.watched[topic_id])
    await _judge_files(cluster, allowed)
    cluster.check()


def _judge_rows(cluster: LakeCluster, topic: Topic, watched: Watched) -> None:
    """Every record has its row, or was deleted, or was below the log start before it could land."""
    for partition, stream_id in enumerate(topic.streams):
        stream = cluster.auditor.state.streams.by_id[stream_id]
        for offset in range(stream.next):
            cell, place = (partition, offset), ((topic.id, partition), offset)
            row = watched.cells.get(cell)
            if cell not in watched.landed:
                if row is not None or offset >= stream.start:
                    raise Violation(f"offset {offset} of partition {partition} never landed (row: {row})")
            elif row != cluster.ledger.current(place):
                raise Violation(f"the row {cell} is {row}, and should be {cluster.ledger.current(place)}")
    if len(watched.cells) > len(watched.landed):
        raise Violation("the table has rows that never landed")


def _judge_memory(cluster: LakeCluster, topic: Topic, watched: Watched) -> None:
    """What the state remembers of each partition is the sum of what landed (T16)."""
    landing = cluster.auditor.state.catalog.landings[topic.id]
    if landing.held:
        raise Violation(f"topic {topic.name} is still held: {landing.held}")
    for partition in range(len(topic.streams)):
        marks, ranges = [*landing.marks(partition)], [one for one in watched.ranges if one.partition == partition]
        told = sum(mark.records for mark in marks), sum(mark.digest for mark in marks) % 2**64
        true = sum(one.records for one in ranges), sum(one.digest for one in ranges) % 2**64
        if told != true:
            raise Violation(f"the state remembers {told} of partition {partition}, but {true} landed")


async def _judge_files(cluster: LakeCluster, allowed: Allowed) -> None:
    """After a sweep no data file of ours is left that no snapshot of a table needs (T12)."""
    left: list[str] = []
    for _ in range(ROUNDS):
        for seat in cluster.pipelines:
            node = cluster.landers[seat.name]
            if seat.process is not None and node.driver is not None and node.replica.epoch:
                await seat.process.start(node.driver.sweep())
        left = _left_over(cluster, allowed)
        if not left:
            return
        await asyncio.sleep(1.0)
    raise Violation(f"files that no table needs were not removed: {left[:5]} ({len(left)})")


def _left_over(cluster: LakeCluster, allowed: Allowed) -> list[str]:
    """Data files of ours that no snapshot needs, and what else is not allowed."""
    tables = cluster.auditor.state.catalog.tables.values()
    needed: set[str] = set()
    for table in tables:
        metadata = TableMetadata.parse(cluster.tables.get(table.location))
        needed |= reachable(cluster.tables, metadata) | {table.location}
    roots = tuple(f"{root_of(table.location)}/" for table in tables)
    unneeded = [uri for uri in cluster.tables.files if uri not in needed]
    left = [uri for uri in unneeded if uri.startswith(roots) and round_of(uri) is not None]
    if not allowed.metadata:
        left += [uri for uri in unneeded if uri.startswith(roots) and "/metadata/" in uri]
    if not allowed.dropped:
        left += [uri for uri in unneeded if not uri.startswith(roots) and "/metadata/00000-" not in uri]
    return left
