"""The sort order that a user declared on a stream's table: whether we can apply it, and sorting rows by it (T4).

The order holds inside a file, and a file has a narrow range of offsets. Readers of the stream do not trust it: they
check what they decode and sort it by offset. Rows that are equal by the order stay sorted by partition and offset.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakestream.data.tables.files.stream_columns import field_id_of
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata

_UNFIT = (pa.ArrowException, ValueError, TypeError, NotImplementedError)
"""What is raised where a transform, or an order, is not for a type."""
VOID = "void"
"""The transform that makes nothing of everything."""


class SortKey(NamedTuple):
    """One field of a sort order, in Iceberg's terms: the column's id and type, the transform, and the direction."""

    field_id: int
    transform: str
    type: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class UsersOrder:
    """The table's default order. An order with a `problem` is not applied."""

    order_id: int
    keys: tuple[SortKey, ...]
    problem: str = ""


def users_order(metadata: TableMetadata) -> UsersOrder | None:
    """The order that a user has set; None if the table has none."""
    wanted = metadata.value("default-sort-order-id", 0)
    order = next((one for one in metadata.value("sort-orders") or [] if one["order-id"] == wanted), None)
    if order is None or not order["fields"]:
        return None
    columns = {field["id"]: field for field in metadata.schema["fields"]}
    keys: list[SortKey] = []
    for one in order["fields"]:
        column, transform = columns.get(one["source-id"]), one["transform"]
        if transform == VOID:
            continue
        if column is None:
            return UsersOrder(wanted, (), f"it names the field {one['source-id']}, which is no column of the table")
        if not isinstance(column["type"], str) or not _sortable(transform, column["type"]):
            return UsersOrder(wanted, (), f"{transform} of {column['name']} cannot be sorted by here")
        directions = one["direction"] == "desc", one["null-order"] == "nulls-first"
        keys.append(SortKey(one["source-id"], transform, column["type"], *directions))
    return UsersOrder(wanted, tuple(keys))


def can_transform(transform: str, kind: str) -> bool:
    """Whether `transformed` supports columns of this type."""
    return _tried(transform, kind) is not None


def _sortable(transform: str, kind: str) -> bool:
    value = _tried(transform, kind)
    if value is None:
        return False
    try:
        pc.sort_indices(pa.record_batch([value], names=["key"]), sort_keys=[("key", "ascending")])
    except _UNFIT:
        return False
    return True


def _tried(transform: str, kind: str) -> pa.Array | None:
    """The transform of a null, or None if the transform is not supported."""
    if transform.endswith("[0]"):
        return None
    try:
        return transformed(pa.nulls(1), transform, kind)
    except _UNFIT:
        return None


def in_order(rows: pa.RecordBatch, keys: Sequence[SortKey]) -> pa.RecordBatch:
    """The rows sorted by the keys, stably. A column that the rows do not have counts as null."""
    places = {field_id_of(field): place for place, field in enumerate(rows.schema)}
    columns: list[pa.Array] = []
    directions: list[str] = []

    def by(column: Any, *, descending: bool) -> None:
        columns.append(column)
        directions.append("descending" if descending else "ascending")

    for key in keys:
        place = places.get(key.field_id)
        if place is None:
            continue
        values = transformed(rows.column(place), key.transform, key.type)
        if values.null_count:
            by(values.is_null(), descending=key.nulls_first)
        if pa.types.is_floating(values.type):
            # Arrow sorts NaN beside the nulls, Iceberg above all numbers.
            by(pc.fill_null(pc.is_nan(values), False), descending=key.descending)
        by(values, descending=key.descending)
    if not columns:
        return rows
    names = [str(place) for place in range(len(columns))]
    order = pc.sort_indices(
        pa.record_batch(columns, names=names), sort_keys=list(zip(names, directions, strict=True))
    )
    return rows.take(order)


def transformed(column: pa.Array, transform: str, kind: str) -> pa.Array:
    """Applies an Iceberg transform to a column of an Iceberg type. Raises if it does not support the type."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import parse_transform

    field = {"id": 1, "name": "column", "required": False, "type": kind}
    schema = Schema.model_validate({"type": "struct", "fields": [field]})
    # A file may be older than the column's type: what was an int is now a long.
    whole = column.cast(schema_to_pyarrow(schema, include_field_ids=False).field(0).type)
    found = parse_transform(transform)
    if not found.can_transform(schema.fields[0].field_type):
        raise ValueError(f"there is no {transform} of {kind}")
    return found.pyarrow_transform(schema.fields[0].field_type)(whole)
