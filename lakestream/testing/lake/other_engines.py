"""Other engines that use streams' tables through the catalog: they delete, update, rewrite and expire.

Each engine pauses between reading and committing, so the table may have changed meanwhile. It notes at the witness
beforehand which rows its snapshot changes. After a refusal it deletes its files and begins anew; if the outcome is
unknown it sends the same commit again (T17).
"""

import asyncio
from dataclasses import dataclass

import pyarrow as pa

from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.errors import Fenced, LakestreamError, Missing, Rejected, Retry, Unknown
from lakestream.model.catalog.names import STREAMS
from lakestream.model.reasons import Reason
from lakestream.protocol.http.iceberg.drafts import CommitRequest
from lakestream.testing.lake.cluster import LakeCluster
from lakestream.testing.lake.foreign_snapshots import Prepared, SnapshotWriter
from lakestream.testing.lake.live_files import Rows, SnapshotFile, live_files, reachable
from lakestream.testing.lake.table_witness import Cell, Intent, contents
from lakestream.testing.simulation.clients import Client
from lakestream.testing.simulation.event_loop import WALL_START_MS
from lakestream.testing.simulation.ledger import Violation
from lakestream.testing.simulation.node import Node

PAUSE_S = (0.02, 0.5)
THINK_S = (0.0, 0.0, 0.01, 0.2, 1.0)
"""The pause between reading and committing."""
SNAPSHOT_AGE_MS = "2000"


@dataclass(slots=True)
class CommitCounts:
    """How many commits of each kind were made, and how many were refused."""

    deletes: int = 0
    updates: int = 0
    rewrites: int = 0
    expiries: int = 0
    refused: int = 0


class ForeignEngine(Client):
    """Makes random commits to a topic's table at random times until `stopped`."""

    def __init__(self, cluster: LakeCluster, name: str, topic: str, expires: bool) -> None:
        super().__init__(cluster, name)
        self.timeout_s = 1.5
        self.lake = cluster
        self.figures = CommitCounts()
        self.stopped = False
        self._expires = expires
        self._unsure = False
        self._key = (STREAMS, topic)

    async def run(self) -> None:
        acts = [self._delete, self._delete, self._delete_places, self._update, self._rewrite, self._set]
        if self._expires:
            self.lake.witness.unprovable = True
            acts.append(self._expire)
        while not self.stopped:
            await asyncio.sleep(self.chance.uniform(*PAUSE_S))
            try:
                await self.chance.choice(acts)()
            except Missing:
                continue  # a file that it reads was rewritten and expired meanwhile

    # -- commits ----------------------------------------------------------------------------------------------------

    async def _delete(self) -> None:
        """Delete rows by copy on write."""
        table, chosen = await self._choose_files()
        rows = self._rows(chosen)
        cells = [cell for cell, _ in contents(rows)]
        if not cells:
            return
        gone = set(self.chance.sample(cells, self.chance.randint(1, len(cells))))
        kept = self._shuffled(rows, [at for at, cell in enumerate(cells) if cell not in gone])
        prepared = self._engine(table).replace({one.path for one in chosen}, kept, "overwrite", self._now_ms())
        if await self._commit(prepared, Intent(frozenset(gone))):
            self.figures.deletes += 1

    async def _delete_places(self) -> None:
        """Delete rows by merge on read."""
        table, chosen = await self._choose_files()
        places: dict[str, list[int]] = {}
        gone: set[Cell] = set()
        for one in chosen:
            dead = one.dead(self.lake.tables)
            cells = [cell for cell, _ in contents(SnapshotFile(one.path, one.sequence, ()).live(self.lake.tables))]
            live = [at for at in range(len(cells)) if at not in dead]
            places[one.path] = self.chance.sample(live, self.chance.randint(0, min(len(live), 3)))
            gone |= {cells[at] for at in places[one.path]}
        if not gone:
            return
        if await self._commit(self._engine(table).delete(places, self._now_ms()), Intent(frozenset(gone))):
            self.figures.deletes += 1

    async def _update(self) -> None:
        """Redact one value; the row keeps its offset."""
        table, chosen = await self._choose_files()
        rows = self._rows(chosen)
        if not rows.num_rows:
            return
        place = self.chance.randrange(rows.num_rows)
        values = rows.column("value").to_pylist()
        values[place] = f"redacted {self.chance.getrandbits(60):x}".encode()
        at = rows.schema.get_field_index("value")
        rows = rows.set_column(at, rows.schema.field(at), [values])
        cell, content = contents(rows)[place]
        prepared = self._engine(table).replace({one.path for one in chosen}, rows, "overwrite", self._now_ms())
        if await self._commit(prepared, Intent(changed={cell: content})):
            self.figures.updates += 1

    async def _rewrite(self) -> None:
        """Rewrite files with the same rows, perhaps in another order."""
        table, chosen = await self._choose_files()
        rows = self._rows(chosen)
        rows = self._shuffled(rows, list(range(rows.num_rows)))
        prepared = self._engine(table).replace({one.path for one in chosen}, rows, "replace", self._now_ms())
        if chosen and await self._commit(prepared, Intent()):
            self.figures.rewrites += 1

    async def _expire(self) -> None:
        """Expire old snapshots, and delete the files that only they need at once."""
        table = await self._load()
        metadata = table.metadata
        old = [head.snapshot_id for head in metadata.snapshots if head.snapshot_id != metadata.current_snapshot_id]
        if not old:
            return
        before = reachable(self.lake.tables, metadata)
        await asyncio.sleep(self.chance.choice(THINK_S))
        gone = self.chance.sample(old, self.chance.randint(1, len(old)))
        request = CommitRequest(
            [{"type": "assert-table-uuid", "uuid": metadata.uuid}],
            [{"action": "remove-snapshots", "snapshot-ids": gone}],
        )
        after = await self._send(request)
        if after is None:
            return
        self.figures.expiries += 1
        await asyncio.sleep(self.chance.choice(THINK_S))
        kept = reachable(self.lake.tables, after.metadata) | {after.metadata_location}
        self.lake.tables.delete_at_once(sorted(before - kept))

    async def _set(self) -> None:
        """Set a maximum age of snapshots, by which the pipeline's own commits expire snapshots too."""
        await self._load()
        updates = {"history.expire.max-snapshot-age-ms": SNAPSHOT_AGE_MS}
        await self._send(CommitRequest([], [{"action": "set-properties", "updates": updates}]))

    # -- parts of a commit ------------------------------------------------------------------------------------------

    async def _choose_files(self) -> tuple[Table, list[SnapshotFile]]:
        table = await self._load()
        found = live_files(self.lake.tables, table.metadata)
        await asyncio.sleep(self.chance.choice(THINK_S))
        return table, self.chance.sample(found, min(len(found), self.chance.randint(1, 3)))

    async def _load(self) -> Table:
        async def load(node: Node) -> Table:
            assert node.catalog is not None
            return await node.catalog.load(self._key)

        while True:
            try:
                return await self.ask(load)
            except Rejected:  # there is no table yet
                await asyncio.sleep(self.chance.uniform(*PAUSE_S))

    def _engine(self, table: Table) -> SnapshotWriter:
        return SnapshotWriter(self.lake.tables, table, self.chance)

    def _rows(self, chosen: list[SnapshotFile]) -> Rows:
        return pa.concat_tables([ARROW_SCHEMA.empty_table(), *(one.live(self.lake.tables) for one in chosen)])

    def _shuffled(self, rows: Rows, places: list[int]) -> Rows:
        if self.chance.random() < 0.5:
            self.chance.shuffle(places)
        return rows.take(pa.array(places, pa.int64())).combine_chunks()

    def _now_ms(self) -> int:
        return WALL_START_MS + int(self.cluster.loop.time() * 1000)

    async def _commit(self, prepared: Prepared, intent: Intent) -> bool:
        self.lake.witness.intents[prepared.snapshot_id] = intent
        await asyncio.sleep(self.chance.choice(THINK_S))
        done = await self._send(prepared.request)
        if done is None and not self._unsure:
            self.lake.tables.delete_at_once(prepared.written)
        return done is not None

    async def _send(self, request: CommitRequest) -> Table | None:
        """Send a commit; returns the new table, or None if it was refused. `_unsure` says that an answer was lost."""
        self._unsure = False

        async def commit(node: Node) -> Table:
            assert node.catalog is not None
            return await node.catalog.commit(self._key, request)

        while True:
            try:
                return await self.wire().call(commit, self.timeout_s)
            except Rejected as error:
                if error.reason != Reason.STALE_PREMISE:
                    self.figures.refused += 1
                    raise Violation(f"{self.name} may commit this, but was refused: {error}") from error
                return None
            except (Retry, Fenced, Unknown) as error:
                self._unsure |= isinstance(error, Unknown)
                self.drop_wire()
                await asyncio.sleep(self.chance.uniform(0.05, 0.3))
            except LakestreamError as error:
                raise Violation(f"{self.name} got {error!r}") from error
