"""A small optimizer for simulations: some files of a topic's table become one sorted file, by the committer's rewrite.

    read the live rows of some files -> write them as one file -> commit on top of what the table is then

The commit is allowed over our own appends only (T8); the files belong to a round of the pipeline, which sweeps them if
they were for nothing (T12). All blocking work runs in threads.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import TypeVar

import pyarrow as pa

from lakestream.data.tables.iceberg import Commit, Committer, Stale
from lakestream.data.tables.manifests import NewFile
from lakestream.data.tables.parquet import write_parquet
from lakestream.data.tables.store import TableStore
from lakestream.data.tables.table_metadata import Table
from lakestream.data.tables.topic_table import STREAM_ORDER
from lakestream.errors import LakestreamError, Unknown
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.catalog import CommitTables, TableChange
from lakestream.model.catalog_names import STREAMS
from lakestream.model.reasons import No
from lakestream.pipeline.land import Lander
from lakestream.pipeline.sweep import RoundName
from lakestream.testing.live_files import LiveFile, live_files

T = TypeVar("T")
TAKES_S = (0.0, 0.0, 0.5, 1.5)
"""How long a rewrite takes; a large one takes minutes."""


class Optimizer:
    """Rewrites files of the tables that there are."""

    def __init__(
        self, replica: Replica, store: TableStore, clock: Clock, random: Random, lander: Lander, often: float
    ) -> None:
        self.rewrites = 0
        self._replica = replica
        self._store = store
        self._clock = clock
        self._random = random
        self.often = often
        self._lander = lander
        self._committer = Committer(store, random)

    def wants(self) -> bool:
        return self._random.random() < self.often and bool(self._replica.state.catalog.landings)

    async def rewrite_one(self, name: RoundName) -> None:
        """One table, if it goes well; nothing depends on it."""
        topic_id = self._random.choice([*self._replica.state.catalog.landings])
        try:
            await self._rewrite(topic_id, name)
        except LakestreamError:
            return

    async def _rewrite(self, topic_id: bytes, name: RoundName) -> None:
        bound = self._replica.state.catalog.of_topic(topic_id)
        if bound is None:
            return
        read = bound.location
        table = await self._off(lambda: self._committer.load(read))
        base = table.metadata.current_snapshot_id
        found = await self._off(lambda: live_files(self._store, table.metadata))
        chosen = self._random.sample(found, min(len(found), self._random.randint(1, 4)))
        if base is None or not chosen:
            return
        files = await self._off(lambda: self._write(table, chosen, name))
        await asyncio.sleep(self._random.choice(TAKES_S))
        await self._replica.catch_up()
        topic = self._replica.state.topics.by_id.get(topic_id)
        bound = self._replica.state.catalog.of_topic(topic_id)
        if topic is None or bound is None or self._replica.epoch != name.epoch:
            return
        place = bound.location
        commit = await self._off(lambda: self._commit(place, base, chosen, files))
        change = TableChange(
            STREAMS, topic.name, bound.uuid, commit.base, commit.table.metadata_location, topic_id=topic_id,
            snapshot=commit.snapshot_id,
        )  # fmt: skip
        if self._replica.epoch != name.epoch:
            return
        outcome = await self._replica.propose(CommitTables([change]))
        if isinstance(outcome, No):
            await self._off(lambda: self._store.delete(commit.written))
        else:
            self.rewrites += 1
            self._lander.obsolete.append((self._clock.monotonic(), commit.obsolete))

    def _write(self, table: Table, chosen: list[LiveFile], name: RoundName) -> list[NewFile]:
        rows = pa.concat_tables([one.live(self._store) for one in chosen])
        if not rows.num_rows:
            return []
        rows = rows.sort_by([("stream_partition", "ascending"), ("stream_offset", "ascending")])
        folder = f"{table.metadata.location}/data/{name.member}-{name.epoch}-{name.round}"
        uri = f"{folder}/care-{self._random.getrandbits(40):x}.parquet"
        sink = pa.BufferOutputStream()
        stats = write_parquet(rows, uri, sink)
        try:
            self._store.put(uri, sink.getvalue().to_pybytes())
        except Unknown as error:
            raise Stale(str(error)) from error
        return [NewFile(stats=stats, sort_order_id=STREAM_ORDER)]

    def _commit(self, place: str, base: int, chosen: list[LiveFile], files: list[NewFile]) -> Commit:
        table = self._committer.load(place)
        removed = frozenset(one.path for one in chosen)
        return self._committer.rewrite(table, base, removed, files, now_ms=self._clock.wall_ms())

    async def _off(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, work)
