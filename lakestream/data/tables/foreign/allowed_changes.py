"""What others may do to a stream's table (T13), judged by what the table would be, not by what they say they do.

First the metadata: the table stays where and what it is, its stream columns and our properties stay, and `main` goes on
from where it is. Then, if `main` moves, the rows: rows.py.
"""

from collections.abc import Mapping

from lakestream.data.tables.iceberg.metadata.documents import (
    MAIN,
    Conflict,
    ancestors,
    current_schema,
    main_of,
    snapshot_of,
)
from lakestream.data.tables.iceberg.metadata.schemas import Json
from lakestream.model.catalog.names import RESERVED_PREFIX

STREAM_COLUMNS = frozenset(range(1, 9))
"""The field ids of the columns that make a row a record (T1)."""


class Refused(Exception):
    """This is not allowed on a stream's table; says why."""


def judge_metadata(old: Json, new: Json) -> bool:
    """Whether `main` has moved, so that the rows have to be judged. Raises Refused or Conflict."""
    judge_form(old, new)
    if ours(old["properties"]) != ours(new["properties"]):
        raise Refused(f"properties that begin with {RESERVED_PREFIX} are written by Lakestream only")
    _judge_snapshots(old, new)
    return _main_moves(old, new)


def judge_form(old: Json, new: Json) -> None:
    """The table is the same one, in the same place, with the columns of a stream. Raises Refused."""
    for field, what in (
        ("format-version", "its format version"), ("table-uuid", "its uuid"), ("location", "its location"),
        ("encryption-keys", "encryption keys"),
    ):  # fmt: skip
        if old.get(field) != new.get(field):
            raise Refused(f"a stream's table keeps {what}")
    _judge_columns(old, new)


def ours(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name.startswith(RESERVED_PREFIX)}


def _judge_columns(old: Json, new: Json) -> None:
    before, after = _by_id(current_schema(old)), _by_id(current_schema(new))
    for number in sorted(STREAM_COLUMNS & before.keys()):
        column, now = before[number], after.get(number)
        if now is None or any(column[name] != now[name] for name in ("name", "type", "required")):
            raise Refused(f"the column {column['name']} holds a part of every record: it stays as it is")
    for number in sorted(after.keys() - STREAM_COLUMNS):
        if after[number]["required"] and not before.get(number, {}).get("required"):
            raise Refused(f"the column {after[number]['name']} has to be optional: records do not bring it")
    identifiers = [sorted(current_schema(m).get("identifier-field-ids") or []) for m in (old, new)]
    if identifiers[0] != identifiers[1]:
        raise Refused("a stream's table keeps its identifier fields")


def _by_id(schema: Json) -> dict[int, Json]:
    return {field["id"]: field for field in schema["fields"]}


def _judge_snapshots(old: Json, new: Json) -> None:
    known = {snapshot["snapshot-id"] for snapshot in old["snapshots"]}
    for snapshot in new["snapshots"]:
        if snapshot["snapshot-id"] not in known and ours(snapshot.get("summary") or {}):
            raise Refused(f"a summary that begins with {RESERVED_PREFIX} is written by Lakestream only")


def _main_moves(old: Json, new: Json) -> bool:
    before, after = main_of(old), main_of(new)
    if before == after:
        return False
    if after is None:
        raise Refused(f"{MAIN} of a stream's table is not removed or replaced: delete the rows, or the topic")
    if before is not None and before not in ancestors(new, after):
        if snapshot_of(old, after) is None:
            raise Conflict(f"{MAIN} has moved on to {before}: the commit has to be made on top of it")
        raise Refused(f"{MAIN} of a stream's table is not rolled back or replaced")
    return True
