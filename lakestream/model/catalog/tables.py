"""The catalog: namespaces, tables by the place of their newest metadata file, and how far topics have landed.

A commit to any number of tables is one command: each change names the metadata file that it was made from, and all
swap their pointers together or none does (T17). When records of a topic land, the same command moves the topic's
progress and drops the entries below it, so no one ever sees a row twice or not at all (T6). A topic's table is bound
to it by the topic's id here and by the table's uuid there (T2); it is renamed or dropped with the topic only (T13).
"""

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from lakestream.model.catalog.landed import Departed, LandedRange, Landing, advance, landing_problem, removal_problem
from lakestream.model.catalog.names import STREAMS, name_problem, root_of, shown
from lakestream.model.catalog.views import CatalogView, Views
from lakestream.model.commands import Body
from lakestream.model.levels import BOUNDED, FIRST
from lakestream.model.members import Member
from lakestream.model.reasons import No, Reason
from lakestream.model.stored import row_of

if TYPE_CHECKING:
    from lakestream.model.state import State
    from lakestream.model.topics import Topic

MAX_CHANGES = 1000
ON_DELETE = "lakestream.table.on.delete"

TableKey = tuple[str, str]


class TableChange(msgspec.Struct, frozen=True, array_like=True):
    """One table moves from metadata file `expected` ("": it is new) to `location` ("": it goes)."""

    namespace: str
    name: str
    uuid: str
    expected: str
    location: str
    rename_to: tuple[str, str] | None = None
    topic_id: bytes = b""
    landed: list[LandedRange] = []
    snapshot: int = 0
    purge: bool = False
    removed: list[LandedRange] = []
    """Rows of a topic's table that this change takes away (T16)."""
    accounted: int = 0
    """All snapshots up to this sequence number are ours, or accounted for; 0: nothing new is known of that."""


class CommitTables(Body, frozen=True, array_like=True):
    """All of these changes or none."""

    KIND: ClassVar[int] = 43
    changes: list[TableChange]


class TablesPurged(Body, frozen=True, array_like=True):
    """The files of these dropped tables are deleted, or the tables are gone from another catalog: forget them."""

    KIND: ClassVar[int] = 47
    uuids: list[str]


class CatalogTable(NamedTuple):
    """A table: its uuid, its newest metadata file, and the topic whose rows it holds (none: a user's own)."""

    uuid: str
    location: str
    topic_id: bytes = b""


class Purge(NamedTuple):
    """A dropped table whose files have to go, and when it was dropped, in cluster time."""

    location: str
    time_ms: int


class Catalog:
    """All namespaces and tables. `keys` finds a table by its uuid; `departed` are tables of other catalogs."""

    __slots__ = ("departed", "keys", "landings", "namespaces", "purges", "tables", "views")

    def __init__(self) -> None:
        self.namespaces: dict[str, dict[str, str]] = {STREAMS: {}}
        self.tables: dict[TableKey, CatalogTable] = {}
        self.keys: dict[str, TableKey] = {}
        self.landings: dict[bytes, Landing] = {}
        self.purges: dict[str, Purge] = {}
        self.departed: dict[str, Departed] = {}
        self.views = Views()

    def of_topic(self, topic_id: bytes) -> CatalogTable | None:
        """The table that is bound to a topic, in this catalog or in another."""
        landing = self.landings.get(topic_id)
        if landing is not None and landing.location:
            return CatalogTable(landing.uuid, landing.location, topic_id)
        key = self.keys.get(landing.uuid) if landing is not None else None
        return self.tables[key] if key is not None else None

    def places(self) -> set[str]:
        """The folders of tables and views that there are, or that are being purged."""
        return self.homes() | {root_of(one.location) for one in list(self.purges.values())}

    def homes(self) -> set[str]:
        """The folders of existing tables and views. Safe to call from other threads."""
        held: list[CatalogTable | CatalogView] = [*list(self.tables.values()), *list(self.views.by_key.values())]
        return {root_of(one.location) for one in held}

    def to_purge(self, uuid: str, location: str, now_ms: int) -> None:
        """Note that the files of a dropped table or view have to be deleted."""
        self.purges[uuid] = Purge(location, now_ms)

    def put(self, key: TableKey, table: CatalogTable) -> None:
        self.tables[key] = table
        self.keys[table.uuid] = key

    def remove(self, key: TableKey) -> CatalogTable:
        table = self.tables.pop(key)
        del self.keys[table.uuid]
        return table

    def forget_topic(self, topic: "Topic", now_ms: int) -> None:
        """A topic was deleted: its table goes too, or stays under another name and belongs to no topic."""
        table = self.of_topic(topic.id)
        keep = topic.configs.get(ON_DELETE) == "keep"
        landing = self.landings.pop(topic.id, None)
        if table is None:
            return
        if landing is not None and landing.location:
            self.departed[table.uuid] = Departed(topic.name, topic.id, keep)
            return
        self.remove(self.keys[table.uuid])
        if keep:
            self.put((STREAMS, f"{topic.name}-{topic.id.hex()}"), table._replace(topic_id=b""))
        else:
            self.to_purge(table.uuid, table.location, now_ms)

    def dump(self, level: int = FIRST) -> list[Any]:
        """The fields that members at this level know."""
        return [
            self.namespaces,
            [[*key, *table] for key, table in self.tables.items()],
            [[topic_id, landing.dump()] for topic_id, landing in self.landings.items()],
            [[uuid, *purge] for uuid, purge in self.purges.items()],
            [[uuid, *departed] for uuid, departed in self.departed.items()],
            *([self.views.dump()] if level >= BOUNDED else []),
        ]

    @classmethod
    def load(cls, fields: list[Any]) -> "Catalog":
        catalog = cls()
        catalog.namespaces = fields[0]
        for namespace, name, *table in fields[1]:
            catalog.put((namespace, name), row_of(CatalogTable, table))
        catalog.landings = {topic_id: Landing.load(landing) for topic_id, landing in fields[2]}
        catalog.purges = {uuid: row_of(Purge, purge) for uuid, *purge in fields[3]}
        if len(fields) > 4:
            catalog.departed = {uuid: row_of(Departed, departed) for uuid, *departed in fields[4]}
        if len(fields) > 5:
            catalog.views = Views.load(fields[5])
        return catalog


# -- tables ---------------------------------------------------------------------------------------------------------


class DraftCatalog:
    """The tables as they would be after the changes so far, over the catalog as it is."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.tables: dict[TableKey, CatalogTable | None] = {}
        self.uuids: dict[str, bool] = {}
        self.bound: dict[bytes, str] = {}

    def get(self, key: TableKey) -> CatalogTable | None:
        return self.tables[key] if key in self.tables else self.catalog.tables.get(key)

    def knows(self, uuid: str) -> bool:
        return self.uuids.get(uuid, uuid in self.catalog.keys)

    def put(self, key: TableKey, table: CatalogTable) -> None:
        self.tables[key] = table
        self.uuids[table.uuid] = True

    def remove(self, key: TableKey, table: CatalogTable) -> None:
        self.tables[key] = None
        self.uuids[table.uuid] = False


def commit_tables(state: "State", member: Member, body: CommitTables) -> int | No:
    """The number of changes made. Decided as a whole before anything moves."""
    if len(body.changes) > MAX_CHANGES:
        return No(Reason.MALFORMED, f"one command changes at most {MAX_CHANGES} tables")
    draft = DraftCatalog(state.catalog)
    topics: set[bytes] = set()
    for change in body.changes:
        if problem := _make(draft, change) if not change.expected else _change(draft, change):
            return problem
        if change.topic_id:
            if problem := _bind(state, draft, change):
                return problem
            if change.topic_id in topics:
                return No(Reason.MALFORMED, "a topic lands once in one command")
            topics.add(change.topic_id)
        elif change.landed or change.removed:
            return No(Reason.MALFORMED, "only a topic's table can be landed in")
    _settle(state, draft, body.changes)
    return len(body.changes)


def _make(draft: DraftCatalog, change: TableChange) -> No | None:
    key = (change.namespace, change.name)
    if taken := _free(draft, key):
        return taken
    if problem := name_problem(change.name):
        return No(Reason.INVALID_REQUEST, problem)
    if not change.uuid or not change.location or change.rename_to is not None:
        return No(Reason.MALFORMED, "a new table needs a uuid and a metadata file, and has one name")
    if draft.knows(change.uuid) or change.uuid in draft.catalog.views.keys:
        return No(Reason.TABLE_EXISTS, f"Table already exists: one with the uuid {change.uuid}")
    if change.namespace == STREAMS and not change.topic_id:
        return No(Reason.TABLE_BOUND, f"the namespace {STREAMS} belongs to the topics")
    draft.put(key, CatalogTable(change.uuid, change.location, change.topic_id))
    return None


def _free(draft: DraftCatalog, key: TableKey) -> No | None:
    if key[0] not in draft.catalog.namespaces:
        return No(Reason.UNKNOWN_NAMESPACE, f"Namespace does not exist: {shown(key[0])}")
    if draft.get(key) is not None:
        return No(Reason.TABLE_EXISTS, f"Table already exists: {shown(*key)}")
    if key in draft.catalog.views.by_key:
        return No(Reason.VIEW_EXISTS, f"View with same name already exists: {shown(*key)}")
    return None


def _change(draft: DraftCatalog, change: TableChange) -> No | None:
    key = (change.namespace, change.name)
    table = draft.get(key)
    if table is None:
        return No(Reason.UNKNOWN_TABLE, f"Table does not exist: {shown(*key)}")
    if table.uuid != change.uuid or table.location != change.expected:
        return No(Reason.STALE_PREMISE, f"table {shown(*key)} has changed")
    if table.topic_id and (not change.location or change.rename_to is not None):
        return No(Reason.TABLE_BOUND, f"table {shown(*key)} belongs to a topic: delete the topic")
    if change.topic_id not in (b"", table.topic_id):
        return No(Reason.TABLE_BOUND, f"table {shown(*key)} is not that topic's")
    if not change.location:
        draft.remove(key, table)
        return None
    if change.rename_to is not None:
        target = change.rename_to
        if target in draft.catalog.views.by_key:
            return No(Reason.VIEW_EXISTS, f"Cannot rename {shown(*key)} to {shown(*target)}. View already exists")
        if taken := _free(draft, target):
            return taken
        if problem := name_problem(target[1]):
            return No(Reason.INVALID_REQUEST, problem)
        if target[0] == STREAMS:
            return No(Reason.TABLE_BOUND, f"the namespace {STREAMS} belongs to the topics")
        draft.remove(key, table)
        key = target
    draft.put(key, table._replace(location=change.location))
    return None


def _bind(state: "State", draft: DraftCatalog, change: TableChange) -> No | None:
    """The topic is there, the table is its only one, and its ranges go on where it stands."""
    topic = state.topics.by_id.get(change.topic_id)
    if topic is None:
        return No(Reason.UNKNOWN_TOPIC, "no topic has this id")
    if (change.namespace, change.name) != (STREAMS, topic.name):
        return No(Reason.TABLE_BOUND, "a topic's table has the topic's name")
    landing = state.catalog.landings.get(topic.id)
    if landing is not None and landing.uuid not in ("", change.uuid):
        return No(Reason.TABLE_BOUND, f"the topic is bound to the table {landing.uuid}")
    draft.bound[topic.id] = change.uuid
    return landing_problem(state, topic, change.landed) or removal_problem(change.removed)


def _settle(state: "State", draft: DraftCatalog, changes: list[TableChange]) -> None:
    """Apply the checked changes."""
    catalog = state.catalog
    gone = [key for key, table in draft.tables.items() if key in catalog.tables]
    for key in gone:
        catalog.remove(key)
    for key, table in draft.tables.items():
        if table is not None:
            catalog.put(key, table)
    for topic_id, uuid in draft.bound.items():
        catalog.landings.setdefault(topic_id, Landing()).uuid = uuid
    for change in changes:
        if not change.location and change.purge and change.uuid not in catalog.keys:
            catalog.to_purge(change.uuid, change.expected, state.members.time_ms)
        if change.topic_id:
            advance(state, change.topic_id, change.landed, change.snapshot)
            landing = catalog.landings[change.topic_id]
            landing.accounted = max(landing.accounted, change.accounted)
            for removed in change.removed:
                landing.note_removed(removed, state.members.time_ms, state.level)


def tables_purged(state: "State", member: Member, body: TablesPurged) -> int:
    """How many of them were still known."""
    known: tuple[dict[str, Any], ...] = (state.catalog.purges, state.catalog.departed)
    return sum(tables.pop(uuid, None) is not None for uuid in body.uuids for tables in known)


RULES = (
    (CommitTables, commit_tables),
    (TablesPurged, tables_purged),
)
