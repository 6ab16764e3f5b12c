"""The layout that users set for a stream's table: partition spec (T19) and sort order (T4). Optimize applies both."""

from collections.abc import Iterable
from dataclasses import dataclass

from lakestream.data.tables.files.column_ids import STREAM_COLUMN_IDS
from lakestream.data.tables.files.stream_columns import RAW_COLUMNS
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.reading.sort_orders import SortKey, can_transform, users_order
from lakestream.pipeline.care.plan import Target
from lakestream.pipeline.care.tasks import PLACES_MAX, SpecField


@dataclass(frozen=True, slots=True)
class UserLayout:
    """A user's partition spec and sort order, and why one of them is not applied."""

    target: Target
    spec: list[SpecField]
    order: list[SortKey]
    problem: str


def users_layout(metadata: TableMetadata, scattered: int | None = None) -> UserLayout:
    """The layout of a table. `scattered`: the id of a partition spec that makes too many files."""
    spec, order = users_spec(metadata), users_order(metadata)
    problems = []
    if spec is not None and (problem := _spec_problem(spec[1], spec[0] == scattered)):
        problems.append(f"the table's partitioning is not applied: {problem}")
        spec = None
    if order is not None and order.problem:
        problems.append(f"the table's sort order is not applied: {order.problem}")
    applied = order is not None and not order.problem and order.keys
    return UserLayout(
        Target(spec[0] if spec is not None else None, order.order_id if order is not None and applied else None),
        spec[1] if spec is not None else [],
        list(order.keys) if order is not None and applied else [],
        "; ".join(problems),
    )


def _spec_problem(fields: Iterable[SpecField], scattered: bool) -> str:
    if scattered:
        return f"it would cut one task into over {PLACES_MAX} files"
    unfit = (f"{one.transform} of {one.column}" for one in fields if not can_transform(one.transform, one.type))
    return next((f"{what} cannot be made here" for what in unfit), "")


def users_spec(metadata: TableMetadata) -> tuple[int, list[SpecField]] | None:
    """The partition spec that a user has set, if its fields are made of the stream's columns (T19)."""
    spec = metadata.specs[metadata.value("default-spec-id")]
    columns = {field["id"]: field for field in metadata.schema["fields"] if field["id"] in STREAM_COLUMN_IDS}
    fields = [
        SpecField(one["name"], one["transform"], RAW_COLUMNS.names[one["source-id"]], columns[one["source-id"]]["type"])
        for one in spec["fields"]
        if one["source-id"] in columns and one["transform"] != "void"
    ]
    return (spec["spec-id"], fields) if fields and len(fields) == len(spec["fields"]) else None
