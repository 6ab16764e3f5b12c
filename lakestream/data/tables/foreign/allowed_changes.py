"""The changes that other engines may make to a stream's table (T13), judged by the metadata that would result.

The table keeps its location, its stream columns and the properties of Lakestream, and `main` only moves forward. If
`main` moves, the rows are judged next (rows.py).
"""

from collections.abc import Mapping

from lakestream.data.tables.files.column_ids import STREAM_COLUMN_IDS
from lakestream.data.tables.iceberg.metadata.documents import Conflict
from lakestream.data.tables.iceberg.metadata.schemas import Json
from lakestream.data.tables.iceberg.metadata.table_metadata import MAIN, TableMetadata
from lakestream.model.catalog.names import RESERVED_PREFIX


class Refused(Exception):
    """The change is not allowed on a stream's table; the message says why."""


def judge_metadata(old: TableMetadata, new: TableMetadata) -> bool:
    """Returns whether `main` has moved, so that the rows must be judged, too. Raises Refused or Conflict."""
    judge_form(old, new)
    if lakestream_properties(old.properties) != lakestream_properties(new.properties):
        raise Refused(f"properties that begin with {RESERVED_PREFIX} are written by Lakestream only")
    _judge_snapshots(old, new)
    return _main_moves(old, new)


def judge_form(old: TableMetadata, new: TableMetadata) -> None:
    """Raises Refused unless the table keeps its identity, its location and its stream columns."""
    for field, what in (
        ("format-version", "its format version"), ("table-uuid", "its uuid"), ("location", "its location"),
        ("encryption-keys", "encryption keys"),
    ):  # fmt: skip
        if old.value(field) != new.value(field):
            raise Refused(f"a stream's table keeps {what}")
    _judge_columns(old, new)


def lakestream_properties(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name.startswith(RESERVED_PREFIX)}


def _judge_columns(old: TableMetadata, new: TableMetadata) -> None:
    before, after = _by_id(old.schema), _by_id(new.schema)
    for number in sorted(STREAM_COLUMN_IDS & before.keys()):
        column, now = before[number], after.get(number)
        if now is None or any(column[name] != now[name] for name in ("name", "type", "required")):
            raise Refused(f"the column {column['name']} holds a part of every record: it stays as it is")
    for number in sorted(after.keys() - STREAM_COLUMN_IDS):
        if after[number]["required"] and not before.get(number, {}).get("required"):
            raise Refused(f"the column {after[number]['name']} has to be optional: records do not bring it")
    identifiers = [sorted(one.schema.get("identifier-field-ids") or []) for one in (old, new)]
    if identifiers[0] != identifiers[1]:
        raise Refused("a stream's table keeps its identifier fields")


def _by_id(schema: Json) -> dict[int, Json]:
    return {field["id"]: field for field in schema["fields"]}


def _judge_snapshots(old: TableMetadata, new: TableMetadata) -> None:
    known = {head.snapshot_id for head in old.snapshots}
    for snapshot in new.value("snapshots"):
        if snapshot["snapshot-id"] not in known and lakestream_properties(snapshot.get("summary") or {}):
            raise Refused(f"a summary that begins with {RESERVED_PREFIX} is written by Lakestream only")


def _main_moves(old: TableMetadata, new: TableMetadata) -> bool:
    before, after = old.main_id, new.main_id
    if before == after:
        return False
    if after is None:
        raise Refused(f"{MAIN} of a stream's table is not removed or replaced: delete the rows, or the topic")
    if before is not None and before not in new.ancestor_ids(after):
        if old.snapshot(after) is None:
            raise Conflict(f"{MAIN} has moved on to {before}: the commit has to be made on top of it")
        raise Refused(f"{MAIN} of a stream's table is not rolled back or replaced")
    return True
