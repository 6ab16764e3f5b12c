"""Applies the updates of a REST commit to a table's metadata, as the reference implementation does.

A new schema, spec or order gets its id here, unless an equal one exists; -1 refers to the last one added. Values of the
base are never changed in place.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lakestream.data.tables.iceberg.metadata.documents import (
    DEFAULT_VERSION,
    NEWEST_VERSION,
    Conflict,
    complete,
)
from lakestream.data.tables.iceberg.metadata.schemas import (
    FIRST_PARTITION_ID,
    Invalid,
    Json,
    check_order,
    check_schema,
    check_sources,
    check_spec,
    field_ids,
    id_of,
    need,
    same_schema,
    same_spec,
)
from lakestream.data.tables.iceberg.metadata.table_metadata import MAIN, TableMetadata

UNSORTED = 0
VERSIONS_MAX = "write.metadata.previous-versions-max"
VERSIONS_MAX_DEFAULT = 100


class Build:
    """Metadata in the making, with the snapshots that this commit adds, and the last added id of each kind."""

    def __init__(self, base: TableMetadata | None, now_ms: int, uuid: str = "") -> None:
        self.base = base
        self.now_ms = now_ms
        self.m: Json = base.value_all() if base is not None else _nothing(uuid, now_ms)
        self.last: dict[str, int] = {}
        self.added: dict[int, Json] = {}
        self.touched: int | None = None

    @property
    def version(self) -> int:
        return int(self.m["format-version"])

    def apply(self, updates: Iterable[Any]) -> None:
        for update in updates:
            action = need(update, dict, "an update").get("action")
            rule = _RULES.get(action) if isinstance(action, str) else None
            if rule is None:
                raise Invalid(f"unknown update {action!r}")
            rule(self, update)

    def finish(self, previous: str) -> TableMetadata:
        """The metadata after all updates; `previous` is the file that it was made from."""
        m = self.m
        if not m["location"]:
            raise Invalid("the table has no location")
        if not m["schemas"]:
            raise Invalid("the table has no schema")
        default = m["default-sort-order-id"]
        if default == UNSORTED and not any(order["order-id"] == UNSORTED for order in m["sort-orders"]):
            m["sort-orders"] = [{"order-id": UNSORTED, "fields": []}, *m["sort-orders"]]
        complete(m)
        schema = TableMetadata(m).schema
        for things, name, default in (
            ("partition-specs", "spec-id", "default-spec-id"), ("sort-orders", "order-id", "default-sort-order-id"),
        ):  # fmt: skip
            for thing in m[things]:
                if thing[name] == m[default]:
                    check_sources(thing, schema, "the default " + things.replace("-", " ").rstrip("s"))
        m["snapshot-log"] = self._snapshot_log()
        if previous and self.base is not None:
            entry = {"metadata-file": previous, "timestamp-ms": self.base.value("last-updated-ms")}
            m["metadata-log"] = [*m["metadata-log"], entry][-_versions_max(m["properties"]) :]
        m["last-updated-ms"] = self.now_ms if self.touched is None else self.touched
        return TableMetadata(m)

    def _snapshot_log(self) -> list[Json]:
        """Steps inside one commit were never current to anyone; what came before an expired one is forgotten."""
        current, known = self.m["current-snapshot-id"], {s["snapshot-id"] for s in self.m["snapshots"]}
        kept: list[Json] = []
        for entry in self.m["snapshot-log"]:
            snapshot = entry.get("snapshot-id")
            if snapshot in self.added and snapshot != current:
                continue
            kept = [*kept, entry] if snapshot in known else []
        return kept

    def snapshot(self, snapshot_id: int) -> Json | None:
        return next((one for one in self.m["snapshots"] if one.get("snapshot-id") == snapshot_id), None)

    def index(self, field: str, name: str, number: int) -> Json:
        """The schema, spec or order with this id; -1 is the last one that was added."""
        if number == -1:
            if field not in self.last:
                raise Invalid(f"-1 refers to a last added one of {field}, and none was added")
            number = self.last[field]
        found = next((thing for thing in self.m[field] if thing.get(name) == number), None)
        if found is None:
            raise Invalid(f"there is no {name} {number}")
        return found  # type: ignore[no-any-return]


def _nothing(uuid: str, now_ms: int) -> Json:
    return {
        "format-version": DEFAULT_VERSION, "table-uuid": uuid, "location": "", "last-sequence-number": 0,
        "last-updated-ms": now_ms, "last-column-id": 0, "current-schema-id": -1, "schemas": [], "default-spec-id": -1,
        "partition-specs": [], "last-partition-id": FIRST_PARTITION_ID - 1, "default-sort-order-id": 0,
        "sort-orders": [], "properties": {}, "current-snapshot-id": None, "refs": {},
        "snapshots": [], "snapshot-log": [], "metadata-log": [],
    }  # fmt: skip


def _versions_max(properties: Mapping[str, str]) -> int:
    text = properties.get(VERSIONS_MAX, "")
    return max(int(text), 1) if text.isascii() and text.isdigit() and len(text) < 6 else VERSIONS_MAX_DEFAULT


def _assign_uuid(b: Build, update: Json) -> None:
    uuid = str(need(update.get("uuid"), str, "uuid")).lower()
    if b.base is not None and uuid != b.m["table-uuid"].lower():
        raise Invalid("a table keeps its uuid")
    b.m["table-uuid"] = uuid


def _upgrade(b: Build, update: Json) -> None:
    version = id_of(update.get("format-version"), "format-version", 1)
    if version > NEWEST_VERSION:
        raise Invalid(f"format version {version} is not supported")
    if version < b.version and (b.base is not None or b.m["schemas"]):
        raise Invalid(f"a table of format version {b.version} cannot go back to {version}")
    if b.base is not None and b.version == 1 < version:
        b.m["snapshots"] = [{"sequence-number": 0, **snapshot} for snapshot in b.m["snapshots"]]
    b.m["format-version"] = version
    b.m.setdefault("last-sequence-number", 0)
    if version == 1:
        del b.m["last-sequence-number"]
    if version >= 3:
        b.m.setdefault("next-row-id", 0)


def _add_schema(b: Build, update: Json) -> None:
    schema = check_schema(update.get("schema"), b.version)
    ids = [s["schema-id"] for s in b.m["schemas"]]
    known = next((s["schema-id"] for s in b.m["schemas"] if same_schema(s, schema)), None)
    number = max(ids, default=-1) + 1 if known is None else known
    if known is None:
        b.m["schemas"] = [*b.m["schemas"], {**schema, "type": "struct", "schema-id": number}]
    b.m["last-column-id"] = max(b.m["last-column-id"], max(field_ids(schema), default=0))
    b.last["schemas"] = number


def _set_current_schema(b: Build, update: Json) -> None:
    number = need(update.get("schema-id"), int, "schema-id")
    b.m["current-schema-id"] = b.index("schemas", "schema-id", number)["schema-id"]


def _add_spec(b: Build, update: Json) -> None:
    spec = check_spec(update.get("spec"), b.m["last-partition-id"])
    specs = b.m["partition-specs"]
    known = next((s["spec-id"] for s in specs if same_spec(s, spec)), None)
    number = max((s["spec-id"] for s in specs), default=-1) + 1 if known is None else known
    if known is None:
        b.m["partition-specs"] = [*specs, {**spec, "spec-id": number}]
    b.m["last-partition-id"] = max([b.m["last-partition-id"], *(f["field-id"] for f in spec["fields"])])
    b.last["partition-specs"] = number


def _set_default_spec(b: Build, update: Json) -> None:
    number = need(update.get("spec-id"), int, "spec-id")
    b.m["default-spec-id"] = b.index("partition-specs", "spec-id", number)["spec-id"]


def _add_order(b: Build, update: Json) -> None:
    order = check_order(update.get("sort-order"))
    orders = b.m["sort-orders"]
    known = next((o["order-id"] for o in orders if o["fields"] == order["fields"]), None)
    highest = max((o["order-id"] for o in orders), default=0)
    number = known if known is not None else 0 if not order["fields"] else highest + 1
    if known is None:
        b.m["sort-orders"] = [*orders, {**order, "order-id": number}]
    b.last["sort-orders"] = number


def _set_default_order(b: Build, update: Json) -> None:
    number = need(update.get("sort-order-id"), int, "sort-order-id")
    if number != UNSORTED:  # which every table has
        number = b.index("sort-orders", "order-id", number)["order-id"]
    b.m["default-sort-order-id"] = number


def _add_snapshot(b: Build, update: Json) -> None:
    snapshot = need(update.get("snapshot"), dict, "the snapshot")
    number = need(snapshot.get("snapshot-id"), int, "snapshot-id")
    time_ms = need(snapshot.get("timestamp-ms"), int, "timestamp-ms")
    parent = snapshot.get("parent-snapshot-id")
    if parent is not None:
        need(parent, int, "parent-snapshot-id")
    if not b.m["schemas"] or not b.m["partition-specs"]:
        raise Invalid("a snapshot needs a schema and a partition spec")
    if b.snapshot(number) is not None:
        raise Invalid(f"snapshot {number} is there already")
    for value in need(snapshot.get("summary") or {}, dict, "the summary").values():
        need(value, str, "a value of the summary")
    if b.version > 1:
        need(snapshot.get("manifest-list"), str, "manifest-list")
        sequence = need(snapshot.get("sequence-number", 0), int, "sequence-number")
        if sequence <= b.m["last-sequence-number"] and parent is not None:
            raise Conflict(f"sequence number {sequence} is taken: the last one is {b.m['last-sequence-number']}")
        b.m["last-sequence-number"] = max(sequence, b.m["last-sequence-number"])
    if b.version >= 3:
        first, rows = snapshot.get("first-row-id"), snapshot.get("added-rows")
        if need(first, int, "first-row-id") < b.m.get("next-row-id", 0):
            raise Conflict(f"row ids up to {b.m['next-row-id']} are taken")
        b.m["next-row-id"] = first + need(rows, int, "added-rows")
    b.m["snapshots"] = [*b.m["snapshots"], snapshot]
    b.added[number] = snapshot
    b.touched = time_ms


def _set_ref(b: Build, update: Json) -> None:
    name = need(update.get("ref-name"), str, "ref-name")
    kind = update.get("type")
    number = need(update.get("snapshot-id"), int, "snapshot-id")
    if not name or kind not in ("branch", "tag") or (name == MAIN and kind != "branch"):
        raise Invalid("a reference is a branch or a tag, and main is a branch")
    snapshot = b.snapshot(number)
    if snapshot is None:
        raise Invalid(f"{name} cannot be at {number}: there is no such snapshot")
    ref = {"snapshot-id": number, "type": kind}
    for limit in ("max-ref-age-ms", "max-snapshot-age-ms", "min-snapshots-to-keep"):
        if update.get(limit) is not None:
            if need(update[limit], int, limit) <= 0:
                raise Invalid(f"{limit} has to be larger than 0")
            ref[limit] = update[limit]
    if b.m["refs"].get(name) == ref:
        return
    b.m["refs"] = {**b.m["refs"], name: ref}
    if name == MAIN and b.m["current-snapshot-id"] != number:
        b.touched = snapshot["timestamp-ms"] if number in b.added else b.now_ms
        b.m["current-snapshot-id"] = number
        b.m["snapshot-log"] = [*b.m["snapshot-log"], {"timestamp-ms": b.touched, "snapshot-id": number}]


def _remove_ref(b: Build, update: Json) -> None:
    _drop_refs(b, {need(update.get("ref-name"), str, "ref-name")})


def _drop_refs(b: Build, names: set[str]) -> None:
    b.m["refs"] = {name: ref for name, ref in b.m["refs"].items() if name not in names}
    if MAIN in names:  # the snapshot log stays: a table that is replaced was another one before
        b.m["current-snapshot-id"] = None


def _remove_snapshots(b: Build, update: Json) -> None:
    gone = _numbers(update, "snapshot-ids")
    b.m["snapshots"] = [s for s in b.m["snapshots"] if s["snapshot-id"] not in gone]
    for field in ("statistics", "partition-statistics"):
        if b.m.get(field):
            b.m[field] = [s for s in b.m[field] if s.get("snapshot-id") not in gone]
    _drop_refs(b, {name for name, ref in b.m["refs"].items() if ref["snapshot-id"] in gone})


def _numbers(update: Json, name: str) -> set[int]:
    return {need(each, int, name) for each in need(update.get(name), list, name)}


def _set_location(b: Build, update: Json) -> None:
    b.m["location"] = str(need(update.get("location"), str, "location")).rstrip("/")


def _set_properties(b: Build, update: Json) -> None:
    changes = need(update.get("updates"), dict, "updates")
    for value in changes.values():
        need(value, str, "a property's value")
    b.m["properties"] = {**b.m["properties"], **changes}


def _remove_properties(b: Build, update: Json) -> None:
    gone = {need(each, str, "removals") for each in need(update.get("removals"), list, "removals")}
    b.m["properties"] = {name: value for name, value in b.m["properties"].items() if name not in gone}


def _replace(field: str, within: str) -> Callable[[Build, Json], None]:
    def rule(b: Build, update: Json) -> None:
        made = need(update.get(within), dict, within)
        number = need(made.get("snapshot-id"), int, "snapshot-id")
        need(made.get("statistics-path"), str, "statistics-path")
        b.m[field] = [*(s for s in b.m.get(field, []) if s.get("snapshot-id") != number), made]

    return rule


def _drop(field: str) -> Callable[[Build, Json], None]:
    def rule(b: Build, update: Json) -> None:
        number = need(update.get("snapshot-id"), int, "snapshot-id")
        b.m[field] = [s for s in b.m.get(field, []) if s.get("snapshot-id") != number]

    return rule


def _remove(field: str, names: str, name: str, default: str) -> Callable[[Build, Json], None]:
    def rule(b: Build, update: Json) -> None:
        gone = _numbers(update, names)
        if b.m[default] in gone:
            raise Invalid(f"{name} {b.m[default]} is in use")
        b.m[field] = [thing for thing in b.m[field] if thing[name] not in gone]

    return rule


_RULES: dict[str, Callable[[Build, Json], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade,
    "add-schema": _add_schema,
    "set-current-schema": _set_current_schema,
    "add-spec": _add_spec,
    "set-default-spec": _set_default_spec,
    "add-sort-order": _add_order,
    "set-default-sort-order": _set_default_order,
    "add-snapshot": _add_snapshot,
    "set-snapshot-ref": _set_ref,
    "remove-snapshot-ref": _remove_ref,
    "remove-snapshots": _remove_snapshots,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "set-statistics": _replace("statistics", "statistics"),
    "remove-statistics": _drop("statistics"),
    "set-partition-statistics": _replace("partition-statistics", "partition-statistics"),
    "remove-partition-statistics": _drop("partition-statistics"),
    "remove-partition-specs": _remove("partition-specs", "spec-ids", "spec-id", "default-spec-id"),
    "remove-schemas": _remove("schemas", "schema-ids", "schema-id", "current-schema-id"),
    "enable-row-lineage": lambda b, update: None,
}


def apply_updates(
    base: TableMetadata | None, updates: Iterable[Any], now_ms: int, previous: str, uuid: str = ""
) -> TableMetadata:
    """The metadata after all updates of a commit. `base` is None for a new table. Raises Invalid or Conflict."""
    build = Build(base, now_ms, uuid)
    build.apply(updates)
    return build.finish(previous)
