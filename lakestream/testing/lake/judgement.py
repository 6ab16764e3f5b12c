"""The checks of tables after all faults have ended: rows equal the records of the stream, and no file is left over."""

import asyncio
from collections.abc import Sequence

from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.iceberg.snapshots_since import runs_to_compare, unaccounted_snapshots
from lakestream.model.catalog.care import DONE
from lakestream.model.catalog.names import root_of
from lakestream.model.topics import Topic
from lakestream.pipeline.care.kept_rows import keep_from
from lakestream.testing.lake.cluster import LakeCluster
from lakestream.testing.lake.live_files import live_files, reachable
from lakestream.testing.lake.operators import Operator
from lakestream.testing.lake.table_witness import Watched, contents
from lakestream.testing.simulation.judgement import judge
from lakestream.testing.simulation.ledger import Violation

ROUNDS = 5
PURGES_S = 60


async def judge_lake(cluster: LakeCluster, operator: Operator, topics: Sequence[bytes]) -> None:
    """Raise Violation unless all holds."""
    await judge(cluster, topics)
    state = cluster.auditor.state
    for topic_id in topics:
        _judge_rows(cluster, state.topics.by_id[topic_id], cluster.witness.watched[topic_id])
        _judge_marks(cluster, state.topics.by_id[topic_id], cluster.witness.watched[topic_id])
    await _judge_files(cluster, operator, topics)
    _judge_accounts(cluster, topics)
    cluster.check()


def _judge_rows(cluster: LakeCluster, topic: Topic, watched: Watched) -> None:
    """Every record has its row, unless it was deleted, or fell below the log start before it landed."""
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
        raise Violation("the table has rows that did not land from the stream")


def _judge_marks(cluster: LakeCluster, topic: Topic, watched: Watched) -> None:
    """The marks in the state add up to the records that landed, for each partition (T16)."""
    landing = cluster.auditor.state.catalog.landings[topic.id]
    if landing.held:
        raise Violation(f"topic {topic.name} is still held: {landing.held}")
    for partition in range(len(topic.streams)):
        marks, ranges = [*landing.marks(partition)], [one for one in watched.ranges if one.partition == partition]
        told = sum(mark.records for mark in marks), sum(mark.digest for mark in marks) % 2**64
        true = sum(one.records for one in ranges), sum(one.digest for one in ranges) % 2**64
        if told != true:
            raise Violation(f"the marks of partition {partition} add up to {told}, but {true} landed")


async def _judge_files(cluster: LakeCluster, operator: Operator, topics: Sequence[bytes]) -> None:
    """After an operator's request no file is left that no snapshot of a table needs (C10, T12)."""
    left: list[str] = []
    await _purged(cluster)
    for _ in range(ROUNDS):
        asked = [await operator.request(topic_id, "orphans", older_than_ms="0") for topic_id in topics]
        for request in asked:
            answer = await operator.answer(request)
            if answer.status != DONE:
                raise Violation(f"orphans cannot be removed though all faults have ended: {answer.text}")
        left = _left_over(cluster) + _rows_below_retention(cluster, topics)
        if not left:
            return
        await asyncio.sleep(1.5)
    raise Violation(f"files that no table needs were not removed: {left[:5]} ({len(left)})")


async def _purged(cluster: LakeCluster) -> None:
    """Wait until all dropped tables are purged."""
    for _ in range(PURGES_S):
        if not cluster.auditor.state.catalog.purges:
            return
        await asyncio.sleep(1.0)
    raise Violation(f"dropped tables are not purged: {cluster.auditor.state.catalog.purges}")


def _rows_below_retention(cluster: LakeCluster, topics: Sequence[bytes]) -> list[str]:
    """Files all of whose rows are below the first offset that their table keeps (T21)."""
    state, found = cluster.auditor.state, []
    for topic_id in topics:
        kept = keep_from(state, state.topics.by_id[topic_id])
        table = state.catalog.of_topic(topic_id)
        assert table is not None
        for file in live_files(cluster.tables, TableMetadata.parse(cluster.tables.get(table.location))):
            rows = contents(file.live(cluster.tables))
            if rows and all(offset < kept.get(partition, 0) for (partition, offset), _ in rows):
                found.append(file.path)
    return found


def _judge_accounts(cluster: LakeCluster, topics: Sequence[bytes]) -> None:
    """All commits of other engines are accounted for; the witness checks the sums (T16)."""
    for topic_id in topics:
        landing, watched = cluster.auditor.state.catalog.landings[topic_id], cluster.witness.watched[topic_id]
        metadata = TableMetadata.parse(cluster.tables.get(watched.location))
        unaccounted = unaccounted_snapshots(metadata, landing.accounted)
        if others := runs_to_compare(unaccounted, metadata, landing.accounted, external=False):
            raise Violation(f"snapshots of other engines are not accounted for: {others}")


def _left_over(cluster: LakeCluster) -> list[str]:
    """Files that no snapshot needs, outside of the folders of dropped tables."""
    tables = cluster.auditor.state.catalog.tables.values()
    needed: set[str] = set()
    for table in tables:
        metadata = TableMetadata.parse(cluster.tables.get(table.location))
        needed |= reachable(cluster.tables, metadata) | {table.location}
    dropped = tuple(f"{root_of(purge.location)}/" for purge in cluster.auditor.state.catalog.purges.values())
    return [uri for uri in cluster.tables.files if uri not in needed and not uri.startswith(dropped)]
