"""A table's metadata: the fields of its JSON, each decoded when it is asked for.

A table that commits every few seconds has hundreds of snapshots. Our own commits carry them from file to file as bytes,
so that a commit costs the same with ten past ones and with a thousand (bench/table_commits.py). The catalog, whose
clients may write anything, has every field checked first (`documents.checked`). Unknown fields survive either way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec

from lakestream.data.tables.iceberg.metadata.names import unpacked
from lakestream.errors import Corrupt

MAIN = "main"
_NEEDED = ("table-uuid", "location", "last-sequence-number", "schemas", "current-schema-id", "partition-specs")
Part = Any
"""The value of a field: as JSON (`msgspec.Raw`), as a list of items in JSON, or decoded."""
_RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAWS = msgspec.json.Decoder(list[msgspec.Raw] | None)


class SummaryHead(msgspec.Struct, frozen=True, gc=False):
    """The part of a snapshot's summary that tells its author and its operation (summaries.py)."""

    operation: str | None = None
    ranges: str | None = msgspec.field(default=None, name="lakestream.ranges")
    care: str | None = msgspec.field(default=None, name="lakestream.care")
    added_records: str | None = msgspec.field(default=None, name="added-records")
    deleted_records: str | None = msgspec.field(default=None, name="deleted-records")


NO_SUMMARY = SummaryHead()


class SnapshotHead(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    """The fields of a snapshot that our own code uses."""

    snapshot_id: int
    timestamp_ms: int
    sequence_number: int = 0
    parent_snapshot_id: int | None = None
    manifest_list: str = ""
    summary: SummaryHead | None = None

    @property
    def told(self) -> SummaryHead:
        return self.summary or NO_SUMMARY


class _LogEntry(msgspec.Struct, frozen=True, rename="kebab"):
    snapshot_id: int


_LOG_ENTRY = msgspec.json.Decoder(_LogEntry)
_HEAD = msgspec.json.Decoder(SnapshotHead)
_HEADS = msgspec.json.Decoder(list[SnapshotHead] | None)


class TableMetadata:
    """The metadata of a table. Immutable: callers never change a value that it returns."""

    def __init__(self, fields: Mapping[str, Part], known: Mapping[str, Any] | None = None) -> None:
        """`known` are values of properties below that the caller has already: they are not decoded again."""
        self.fields = dict(fields)
        self.__dict__.update(known or {})

    def __repr__(self) -> str:
        return f"TableMetadata({self.location!r}, snapshot {self.current_snapshot_id})"

    @classmethod
    def parse(cls, data: bytes) -> "TableMetadata":
        """Decodes only the few fields that show whether the file is whole. Raises Corrupt unless it is version 2."""
        try:
            found = cls(_RAW.decode(unpacked(data)))
            version = found.value("format-version")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt(f"a table's metadata cannot be read: {error}") from error
        if version != 2:
            raise Corrupt(f"a table of format version {version}; we read and write version 2")
        found._check()
        return found

    def _check(self) -> None:
        """Raises Corrupt if the file contradicts itself: a damaged one must never look like an empty table."""
        missing = [name for name in _NEEDED if name not in self.fields]
        if missing:
            raise Corrupt(f"a table's metadata has no {missing[0]}")
        try:
            main = self.refs.get(MAIN)
            current = self.current_snapshot_id
            if main is not None and main["snapshot-id"] != current:
                raise Corrupt(f"a table's current snapshot is {current}, but its main is at {main['snapshot-id']}")
            if current is not None and self.current is None:
                raise Corrupt(f"a table's current snapshot {current} is not among its snapshots")
        except (msgspec.DecodeError, UnicodeDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"a table's metadata cannot be read: {error}") from error

    def encode(self) -> bytes:
        """The file's JSON, not packed. Version 1 has two fields of its own, for its readers."""
        if self.value("format-version") != 1:
            return msgspec.json.encode(self.fields)
        spec = self.specs[self.value("default-spec-id")]
        return msgspec.json.encode({**self.fields, "schema": self.schema, "partition-spec": spec["fields"]})

    def value(self, name: str, default: Any = None) -> Any:
        part = self.fields.get(name)
        return default if part is None else _decoded(part)

    def value_all(self) -> dict[str, Any]:
        """All fields, decoded."""
        return {name: _decoded(part) for name, part in self.fields.items()}

    def replaced(self, values: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> "TableMetadata":
        """The metadata with other values. They are kept as JSON, lists whose items are JSON as they are."""
        changed = {name: part if _is_raw(part) else _encoded(part) for name, part in values.items()}
        return TableMetadata({**self.fields, **changed}, known)

    def with_refs(self, refs: Mapping[str, Any]) -> "TableMetadata":
        """The metadata with other branches and tags, and the same snapshots."""
        known = {name: getattr(self, name) for name in ("raw_snapshots", "snapshots", "raw_log", "log_ids")}
        return self.replaced({"refs": refs}, known)

    # -- fields -------------------------------------------------------------------------------------------------------

    @cached_property
    def uuid(self) -> str:
        return str(self.value("table-uuid"))

    @cached_property
    def location(self) -> str:
        return str(self.value("location")).rstrip("/")

    @cached_property
    def properties(self) -> dict[str, str]:
        return dict(self.value("properties") or {})

    @cached_property
    def refs(self) -> dict[str, dict[str, Any]]:
        return dict(self.value("refs") or {})

    @cached_property
    def last_sequence_number(self) -> int:
        return int(self.value("last-sequence-number", 0))

    @cached_property
    def current_snapshot_id(self) -> int | None:
        """None before the first commit, for which some writers have -1."""
        found = self.value("current-snapshot-id")
        return None if found in (None, -1) else int(found)

    @property
    def main_id(self) -> int | None:
        """The snapshot that the branch `main` is at."""
        main = self.refs.get(MAIN)
        return int(main["snapshot-id"]) if main else None

    @cached_property
    def schema(self) -> dict[str, Any]:
        wanted = self.value("current-schema-id")
        return next(dict(schema) for schema in self.value("schemas") if schema["schema-id"] == wanted)

    @cached_property
    def specs(self) -> dict[int, dict[str, Any]]:
        return {spec["spec-id"]: spec for spec in self.value("partition-specs")}

    # -- snapshots ----------------------------------------------------------------------------------------------------

    @cached_property
    def raw_snapshots(self) -> list[msgspec.Raw]:
        return _items(self.fields.get("snapshots"))

    @cached_property
    def snapshots(self) -> list[SnapshotHead]:
        """In the order of the file, which is that of their making; item i is item i of `raw_snapshots`."""
        part: Part = self.fields.get("snapshots") or []
        if isinstance(part, msgspec.Raw):
            return _HEADS.decode(part) or []
        return [_HEAD.decode(one) for one in part] if _is_raw(part) else [head_of(one) for one in part]

    @cached_property
    def raw_log(self) -> list[msgspec.Raw]:
        """The snapshot log."""
        return _items(self.fields.get("snapshot-log"))

    @cached_property
    def log_ids(self) -> list[int]:
        """The snapshots of the log; item i is of item i of `raw_log`."""
        return [_LOG_ENTRY.decode(entry).snapshot_id for entry in self.raw_log]

    @cached_property
    def line(self) -> list[SnapshotHead]:
        """The snapshots that `main` was at, oldest first, up to the current one; empty if the log is incomplete."""
        ids = self.log_ids
        places = dict(zip(ids, range(len(ids)), strict=True))
        if len(places) != len(ids) or not ids or ids[-1] != self.current_snapshot_id:
            return []
        heads = [head for head in self.snapshots if head.snapshot_id in places]
        ordered = all(places[one.snapshot_id] < places[two.snapshot_id] for one, two in pairwise(heads))
        return heads if ordered else []

    @cached_property
    def current(self) -> SnapshotHead | None:
        return None if self.current_snapshot_id is None else self.snapshot(self.current_snapshot_id)

    def snapshot(self, snapshot_id: int) -> SnapshotHead | None:
        return next((head for head in reversed(self.snapshots) if head.snapshot_id == snapshot_id), None)

    def snapshot_fields(self, snapshot_id: int | None) -> dict[str, Any] | None:
        """All fields of a snapshot."""
        part = self.fields.get("snapshots")
        listed = self.raw_snapshots if isinstance(part, msgspec.Raw) else part or []
        for head, one in zip(reversed(self.snapshots), reversed(listed), strict=True):
            if head.snapshot_id == snapshot_id:
                return dict(_decoded(one))
        return None

    def summary(self, snapshot_id: int) -> dict[str, str]:
        return dict((self.snapshot_fields(snapshot_id) or {}).get("summary") or {})

    def ancestors(self, snapshot_id: int | None) -> list[SnapshotHead]:
        """The snapshot, its parent and so on, as far as they are kept."""
        heads = {head.snapshot_id: head for head in self.snapshots}
        found: list[SnapshotHead] = []
        while snapshot_id is not None and (head := heads.pop(snapshot_id, None)) is not None:
            found.append(head)
            snapshot_id = head.parent_snapshot_id
        return found

    def ancestor_ids(self, snapshot_id: int | None) -> list[int]:
        return [head.snapshot_id for head in self.ancestors(snapshot_id)]


def head_of(snapshot: Mapping[str, Any]) -> SnapshotHead:
    """Raises msgspec.ValidationError."""
    return msgspec.convert(snapshot, SnapshotHead)


def _items(part: Part) -> list[msgspec.Raw]:
    if isinstance(part, msgspec.Raw):
        return _RAWS.decode(part) or []
    return part if _is_raw(part) else [_encoded(one) for one in part or []]


def _is_raw(part: Part) -> bool:
    return isinstance(part, list) and bool(part) and isinstance(part[0], msgspec.Raw)


def _decoded(part: Part) -> Any:
    if isinstance(part, msgspec.Raw):
        return msgspec.json.decode(part)
    return [msgspec.json.decode(one) for one in part] if _is_raw(part) else part


def _encoded(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


@dataclass(frozen=True, slots=True)
class Table:
    """A table at one moment: its metadata and the file it lies in."""

    metadata_location: str
    metadata: TableMetadata


@dataclass(frozen=True, slots=True)
class SnapshotChange:
    """The changes of a commit of ours: a new snapshot on main, properties, and the snapshots that expire."""

    snapshot: Mapping[str, Any]
    properties: Mapping[str, str]
    expired: frozenset[int]


def with_snapshot(
    table: Table, change: SnapshotChange, now_ms: int, keep_versions: int
) -> tuple[TableMetadata, list[str]]:
    """The metadata after the change, and the older metadata files that it no longer names."""
    before = table.metadata
    snapshot_id = change.snapshot["snapshot-id"]
    raw_snapshots, heads = before.raw_snapshots, before.snapshots
    if change.expired:
        kept = [place for place, head in enumerate(heads) if head.snapshot_id not in change.expired]
        raw_snapshots, heads = [raw_snapshots[place] for place in kept], [heads[place] for place in kept]
    new = msgspec.Raw(msgspec.json.encode(change.snapshot))
    raw_snapshots, heads = [*raw_snapshots, new], [*heads, _HEAD.decode(new)]
    entry = {"snapshot-id": snapshot_id, "timestamp-ms": change.snapshot["timestamp-ms"]}
    raw_log, log_ids = _log_after(before, change.expired)
    raw_log, log_ids = [*raw_log, msgspec.Raw(msgspec.json.encode(entry))], [*log_ids, snapshot_id]
    versions = [*before.value("metadata-log", []), _version(table)]
    main = {**before.refs.get(MAIN, {}), "snapshot-id": snapshot_id, "type": "branch"}
    values: dict[str, Any] = {
        "last-sequence-number": change.snapshot["sequence-number"],
        "last-updated-ms": max(now_ms, int(before.value("last-updated-ms", 0))),
        "current-snapshot-id": snapshot_id,
        "refs": {**before.refs, MAIN: main},
        "metadata-log": versions[-keep_versions:],
    }
    if change.properties:
        values["properties"] = {**before.properties, **change.properties}
    if change.expired:
        values |= _statistics_after(before, change.expired)
    after = before.replaced(
        {**values, "snapshots": raw_snapshots, "snapshot-log": raw_log},
        {"raw_snapshots": raw_snapshots, "snapshots": heads, "raw_log": raw_log, "log_ids": log_ids},
    )
    return after, [version["metadata-file"] for version in versions[:-keep_versions]]


def without_snapshots(
    table: Table, expired: frozenset[int], now_ms: int, keep_versions: int
) -> tuple[TableMetadata, list[str]]:
    """The metadata without some snapshots, and the older metadata files that it no longer names."""
    before = table.metadata
    kept = [place for place, head in enumerate(before.snapshots) if head.snapshot_id not in expired]
    raw_snapshots, heads = [before.raw_snapshots[at] for at in kept], [before.snapshots[at] for at in kept]
    versions = [*before.value("metadata-log", []), _version(table)]
    values = {
        "last-updated-ms": max(now_ms, int(before.value("last-updated-ms", 0))),
        "metadata-log": versions[-keep_versions:],
        **_statistics_after(before, expired),
    }
    raw_log, log_ids = _log_after(before, expired)
    after = before.replaced(
        {**values, "snapshots": raw_snapshots, "snapshot-log": raw_log},
        {"raw_snapshots": raw_snapshots, "snapshots": heads, "raw_log": raw_log, "log_ids": log_ids},
    )
    return after, [version["metadata-file"] for version in versions[:-keep_versions]]


def _statistics_after(before: TableMetadata, expired: frozenset[int]) -> dict[str, Any]:
    """What engines have counted goes with the snapshot that they counted."""
    names = ("statistics", "partition-statistics")
    told = {name: before.value(name) for name in names}
    return {name: [one for one in all_ if one["snapshot-id"] not in expired] for name, all_ in told.items() if all_}


def _version(table: Table) -> dict[str, Any]:
    return {
        "metadata-file": table.metadata_location,
        "timestamp-ms": int(table.metadata.value("last-updated-ms", 0)),
    }


def _log_after(before: TableMetadata, expired: frozenset[int]) -> tuple[list[msgspec.Raw], list[int]]:
    """The log without the expired snapshots. Between two that stay, it tells of the older one (snapshot_history.py)."""
    if not expired:
        return before.raw_log, before.log_ids
    kept = [place for place, snapshot_id in enumerate(before.log_ids) if snapshot_id not in expired]
    return [before.raw_log[place] for place in kept], [before.log_ids[place] for place in kept]
