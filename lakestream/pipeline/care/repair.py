"""Repairs a topic's table that has lost landed rows: files and metadata are restored, or the loss is accepted (T9).

The result of a repair is judged like any commit: it never brings a deleted row back, never takes a foreign row for a
record, and never lands records again that the state says have landed. Offsets whose rows are lost stay, as gaps.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from lakestream.data.tables.foreign.allowed_changes import Refused, lakestream_properties
from lakestream.data.tables.foreign.rows import Contents, contents, judge_rows
from lakestream.data.tables.iceberg.commit import Stale
from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.metadata.documents import checked, parse_any
from lakestream.data.tables.iceberg.metadata.schemas import Json
from lakestream.data.tables.iceberg.metadata.table_metadata import MAIN, Table, TableMetadata
from lakestream.data.tables.iceberg.progress import PROGRESS_PROPERTY, LandedOffsets, pack_progress
from lakestream.data.tables.iceberg.topic_table import TOPIC_ID_PROPERTY, new_topic_table
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, Missing, Rejected, Retry
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.landed import HoldTopic, Land, Landing, NoteRemoved
from lakestream.model.catalog.names import STREAMS, canonical, root_of
from lakestream.model.catalog.rebinding import Rebind
from lakestream.model.catalog.tables import CatalogTable, CommitTables, TableChange
from lakestream.model.reasons import No, Reason
from lakestream.model.topics import Topic
from lakestream.pipeline.tables.external_catalog import ExternalCatalog, check_place
from lakestream.pipeline.tables.failure import Failed
from lakestream.pipeline.tables.holds import HELD_BY_US
from lakestream.pipeline.tables.topic_tables import TopicTables

log = logging.getLogger(__name__)

ACCEPT = "accept the loss to go on without it"
ATTEMPTS = 8
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tools:
    """The parts that a repair uses."""

    replica: Replica
    tables: TopicTables
    clock: Clock
    random: Random

    @property
    def store(self) -> TableStore:
        return self.tables.files.store

    @property
    def committer(self) -> Committer:
        return self.tables.format.committer


async def repair(tools: Tools, topic_name: str, accept_loss: bool) -> list[str]:
    """Repair a topic's table; the steps that were taken. Raises Rejected with what the operator has to do."""
    await tools.replica.catch_up()
    topic = tools.replica.state.topics.by_name.get(topic_name)
    landing = tools.replica.state.catalog.landings.get(topic.id) if topic is not None else None
    if topic is None or landing is None or not landing.uuid:
        raise _no(f"there is no table of a topic {topic_name!r}")
    done: list[str] = []
    if landing.location:
        external = tools.tables.catalogs.external
        if external is None:
            raise _no("the table is in an external catalog, and the setting `catalog` is empty")
        done += await _ExternalTable(tools, external, topic, landing, accept_loss).mend()
    else:
        done += await _metadata_back(tools, topic, accept_loss)
    done += await _without_lost_files(tools, topic, accept_loss)
    held = tools.replica.state.catalog.landings[topic.id].held
    if done and held.startswith(HELD_BY_US):
        await tools.replica.propose(HoldTopic(topic.id, ""))
    return done


# -- files that are gone ---------------------------------------------------------------------------------------------


async def _without_lost_files(tools: Tools, topic: Topic, accept_loss: bool) -> list[str]:
    """Remove data files that are gone from the table, if the loss is accepted."""
    for _ in range(ATTEMPTS):
        bound = tools.replica.state.catalog.of_topic(topic.id)
        assert bound is not None
        table = await _off(tools.committer.load, bound.location)
        lost = await _off(lost_files, tools.store, table)
        if not lost:
            return []
        if not accept_loss:
            raise _no(f"{len(lost)} files of the table are gone, such as {min(lost)}: put them back, or {ACCEPT}")
        base = table.metadata.current_snapshot_id
        assert base is not None, "a table without snapshots has no files"
        catalog = tools.tables.catalogs.of(topic.id)
        # The removed rows are not noted: lost files cannot be read, so the state cannot account for them (T16).
        commit = await _off(
            tools.committer.rewrite, table, base, frozenset(lost), [], now_ms=tools.clock.wall_ms(),
            operation="delete", write_metadata=not catalog.external,
        )  # fmt: skip
        outcome = await catalog.commit(topic, commit)
        if not isinstance(outcome, No):
            return [f"{len(lost)} files that are gone are not in the table any more"]
        await _off(tools.store.delete, commit.written)
        await tools.replica.catch_up()
    raise Retry("other writers commit all the time: try again")


def lost_files(store: TableStore, table: Table) -> set[str]:
    """The data and delete files of the current snapshot that are missing. Blocks; raises Missing, Corrupt."""
    metadata = checked(table.metadata)
    current = metadata.snapshot_fields(metadata.main_id)
    if current is None:
        return set()
    live = contents(store, current, {})
    named = live.data.keys() | live.deletes.keys()
    folders = {canonical(uri).rpartition("/")[0] for uri in named}
    there = {uri for folder in sorted(folders) for uri, _ in store.list(f"{folder}/")}
    return {uri for uri in named if canonical(uri) not in there}


async def _metadata_back(tools: Tools, topic: Topic, accept_loss: bool) -> list[str]:
    """Set a table of our catalog whose metadata file is gone to an older one, if the loss is accepted."""
    bound = tools.replica.state.catalog.of_topic(topic.id)
    if bound is None:
        raise _no("the catalog has no table of the topic")
    try:
        await _off(tools.committer.load, bound.location)
        return []
    except (Missing, Corrupt) as error:
        if not accept_loss:
            raise _no(f"{error}: put it back, or {ACCEPT}") from error
    older = await _off(_newest_readable, tools, bound)
    progress = pack_progress(_landed(tools, topic))
    values = {"properties": {**older.metadata.properties, PROGRESS_PROPERTY: progress}}
    made = await _off(tools.committer.create, older.metadata.replaced(values))
    outcome = await _swap(tools, topic, bound, made.metadata_location)
    if isinstance(outcome, No):
        raise Retry(outcome.message)
    await _unproven(tools, topic)
    return [f"the table is what it was at {older.metadata_location}: rows that landed later are lost"]


def _newest_readable(tools: Tools, bound: CatalogTable) -> Table:
    folder = f"{root_of(bound.location)}/metadata/"
    found = [uri for uri, _ in tools.store.list(folder) if uri.endswith(".metadata.json") and uri != bound.location]
    for uri in sorted(found, reverse=True):
        try:
            table = tools.committer.load(uri)
            metadata = checked(table.metadata)
            current = metadata.snapshot_fields(metadata.main_id)
            if current is not None:
                contents(tools.store, current, {})
        except (Missing, Corrupt, Refused):
            continue
        if table.metadata.uuid == bound.uuid:
            return table
    raise _no(f"no older metadata file in {folder} can be read either: delete the topic")


async def _swap(tools: Tools, topic: Topic, bound: CatalogTable, location: str) -> Any:
    change = TableChange(STREAMS, topic.name, bound.uuid, bound.location, location, topic_id=topic.id)
    return await tools.replica.propose(CommitTables([change]))


# -- tables in an external catalog -----------------------------------------------------------------------------------


class _ExternalTable:
    """The repair of a table in an external catalog that was dropped, rolled back, or changed in a way not allowed."""

    def __init__(
        self, tools: Tools, catalog: ExternalCatalog, topic: Topic, landing: Landing, accept_loss: bool
    ) -> None:
        self._tools = tools
        self._catalog = catalog
        self._topic = topic
        self._landing = landing
        self._accept_loss = accept_loss

    async def mend(self) -> list[str]:
        table = await self._catalog.table(self._topic)
        if not isinstance(table, Failed):
            return []
        if not table.lasting:
            raise Retry(table.reason)
        done = await self._back_in_the_catalog()
        if done and not isinstance(await self._catalog.table(self._topic), Failed):
            return done
        return [*done, *await self._as_it_was()]

    async def _back_in_the_catalog(self) -> list[str]:
        external, topic = self._catalog, self._topic
        try:
            await external.asked(external.catalog.load, topic.name)
            return []
        except Missing:
            pass
        try:
            await external.asked(external.store.get, self._landing.location)
        except (Missing, Corrupt) as error:
            if not self._accept_loss:
                problem = f"the table was dropped, and its files are gone ({error}): put them back, or {ACCEPT}"
                raise _no(problem) from error
            return await self._another_table()
        await external.asked(external.catalog.register, topic.name, self._landing.location)
        return ["the table was dropped, and is registered again"]

    async def _another_table(self) -> list[str]:
        """Make an empty table with the state's progress: all landed rows are lost."""
        external, topic, random = self._catalog, self._topic, self._tools.random
        uuid = str(UUID(int=random.getrandbits(128), version=4))
        place = await external.asked(external.catalog.place_for, topic.name, uuid)
        now_ms = self._tools.clock.wall_ms()
        metadata = new_topic_table(table_uuid=uuid, topic_id=topic.id, location=place, now_ms=now_ms)
        progress = {**metadata.properties, PROGRESS_PROPERTY: pack_progress(_landed(self._tools, topic))}
        found = await external.asked(external.catalog.create, topic.name, metadata.replaced({"properties": progress}))
        outcome = await self._tools.replica.propose(Rebind(topic.id, self._landing.uuid, uuid, found.location))
        if isinstance(outcome, No):
            raise Retry(outcome.message)
        return ["the table is lost: the topic has another one, and goes on where it was"]

    async def _as_it_was(self) -> list[str]:
        """Undo the changes; with an accepted loss, keep the rows that are left."""
        external, topic = self._catalog, self._topic
        landing = self._tools.replica.state.catalog.landings[topic.id]
        found = await external.asked(external.catalog.load, topic.name)
        check_place(root_of(landing.location), found.location)
        try:
            updates, steps, requirements = await external.asked(self._plan, landing, found.location)
            location = await external.asked(external.catalog.commit, found.handle, requirements, updates)
        except Refused as error:
            raise _no(str(error)) from error
        except Stale as error:
            raise Retry(str(error)) from error
        told_state = Land(topic.id, landing.uuid, 0, [], location, landing.location)
        outcome = await self._tools.replica.propose(told_state)
        if isinstance(outcome, No):
            raise Retry(outcome.message)
        if self._accept_loss:
            await _unproven(self._tools, topic)
        return steps

    def _plan(self, landing: Landing, location: str) -> tuple[list[Json], list[str], list[Json]]:
        """The updates, a sentence about each, and their requirements. Blocks; raises Refused."""
        external = self._catalog
        good = checked(external.committer.load(landing.location).metadata)
        now = parse_any(external.store.get(location))
        if now.uuid != good.uuid or now.value("format-version") != good.value("format-version"):
            raise Refused("it is another table, or of another format version: put the table back that it was")
        updates, steps = _form(good, now)
        if good.main_id != now.main_id:
            if self._accept_loss:
                steps.append(self._rows_left(good, now))
            elif _restorable(external.store, good, now):
                updates.append(_main_to(good.main_id))
                steps.append("the main branch is at the last good snapshot again")
            else:
                raise Refused(
                    "it was rolled back or replaced, and changed since: deleted rows must not come back; "
                    + ACCEPT
                )
        bound = {
            **lakestream_properties(good.properties),
            TOPIC_ID_PROPERTY: str(UUID(bytes=self._topic.id)),
            PROGRESS_PROPERTY: pack_progress(_landed(self._tools, self._topic)),
        }
        if lakestream_properties(now.properties) != bound:
            steps.append("the properties of Lakestream are what they were")
        updates.append({"action": "set-properties", "updates": bound})
        return updates, steps, [{"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": now.main_id}]

    def _rows_left(self, good: TableMetadata, now: TableMetadata) -> str:
        """A sentence about the rows that are left. Raises Refused if some never were records."""
        after = now.snapshot_fields(now.main_id)
        if after is None:
            raise Refused("its main branch is gone: make one, at any snapshot")
        before = good.snapshot_fields(good.main_id)
        judge_rows(self._catalog.store, good.location, before, after, self._tools.random)
        return "the rows that are left are what there is"


def _form(good: TableMetadata, now: TableMetadata) -> tuple[list[Json], list[str]]:
    """The updates that restore schema and location, and a sentence about each."""
    updates: list[Json] = []
    steps: list[str] = []
    if good.schema["fields"] != now.schema["fields"]:
        same = [one["schema-id"] for one in now.value("schemas") if one["fields"] == good.schema["fields"]]
        if not same:
            raise Refused("the schema that it had is gone: put the columns back")
        updates.append({"action": "set-current-schema", "schema-id": same[0]})
        steps.append("the schema is what it was")
    if good.value("location") != now.value("location"):
        updates.append({"action": "set-location", "location": good.value("location")})
        steps.append("the location is what it was")
    return updates, steps


def _main_to(snapshot_id: int | None) -> Json:
    return {"action": "set-snapshot-ref", "ref-name": MAIN, "type": "branch", "snapshot-id": snapshot_id}


def _restorable(store: TableStore, good: TableMetadata, now: TableMetadata) -> bool:
    """Whether the last good snapshot can be main again without bringing back rows that were deleted since.

    True after a plain rollback, and if the later snapshots only added rows that are no records.
    """
    before, after = good.main_id, now.main_id
    kept = now.snapshot_fields(before)
    if kept is None:
        return False
    if after is None or after in good.ancestor_ids(before):
        return True
    current = now.snapshot_fields(after)
    assert current is not None, "a reference has its snapshot"
    had, has = contents(store, kept, {}), contents(store, current, {})
    return _within(had, has)


def _within(one: Contents, other: Contents) -> bool:
    """Whether `other` has all data files of `one`, and no further delete files."""
    return one.data.keys() <= other.data.keys() and other.deletes.keys() <= one.deletes.keys()


# -- small things ----------------------------------------------------------------------------------------------------


def _landed(tools: Tools, topic: Topic) -> dict[int, LandedOffsets]:
    streams: Sequence[int] = topic.streams
    found = {number: tools.replica.state.streams.by_id[one].landed for number, one in enumerate(streams)}
    return {number: LandedOffsets(end) for number, end in found.items() if end}


async def _unproven(tools: Tools, topic: Topic) -> None:
    """Note that rows were given up that are in no account: the table is unproven from now on (T16)."""
    accounted = tools.replica.state.catalog.landings[topic.id].accounted
    await tools.replica.propose(NoteRemoved(topic.id, accounted, accounted, [], True))


def _no(message: str) -> Rejected:
    return Rejected(Reason.INVALID_REQUEST, message)


async def _off(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.to_thread(lambda: work(*args, **kwargs))
