"""A new table of a topic: schema, properties, and the property that binds it to the topic (T1, T2, T4, T11, T14)."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from lakestream.data.tables.iceberg.metadata.names import CODEC_PROPERTY, GZIP, PLAIN
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.iceberg.progress import PROGRESS_PROPERTY, pack_progress

TOPIC_ID_PROPERTY = "lakestream.topic-id"
MAKER_PROPERTY = "lakestream.maker"
"""The member and the epoch that made the table: a sweep finds abandoned tables by it (T12)."""
RESERVED_PREFIX = "lakestream."
"""Properties that only we may set (T13)."""
LAST_RESERVED_COLUMN_ID = 99
"""Columns that users add get ids from 100 on, so that stream columns never collide with them."""
FIRST_PARTITION_FIELD_ID = 1000
UNPARTITIONED = 0
STREAM_ORDER = 0
"""No order is declared, though our files are sorted: engines refuse to write to tables with one (decision 0005)."""
ROW_GROUP_BYTES = 8 * 1024 * 1024
SNAPSHOT_AGE_MS = 3_600_000
CLEAN_UP = "write.metadata.delete-after-commit.enabled"
VERSIONS_MAX = "write.metadata.previous-versions-max"
METADATA_VERSIONS = 20
"""Older metadata files that are kept: enough for readers that hold one, few enough for a commit every few seconds."""

PROPERTIES: Mapping[str, str] = {
    # Iceberg keeps metrics for the first 100 columns only; a user sets them for columns of his own (T1). Bounds hold
    # the first bytes of keys: whole keys of any size would be in every manifest.
    "write.metadata.metrics.column.stream_partition": "full",
    "write.metadata.metrics.column.stream_offset": "full",
    "write.metadata.metrics.column.stream_timestamp": "full",
    "write.metadata.metrics.column.stream_flags": "full",
    "write.metadata.metrics.column.stream_key": "truncate(16)",
    "write.metadata.metrics.column.stream_original": "counts",
    # Small row groups, also in rewrites by other engines: one fetch of a consumer reads one of them (T4).
    "write.parquet.row-group-size-bytes": str(ROW_GROUP_BYTES),
    "write.parquet.compression-codec": "zstd",
    # With the default (serializable) a DELETE on a topic that is written to never gets through (T14).
    "write.delete.isolation-level": "snapshot",
    "write.update.isolation-level": "snapshot",
    "write.merge.isolation-level": "snapshot",
    # Landings come every few seconds or faster: an engine that loses a race tries again, soon and often enough.
    "commit.retry.num-retries": "30",
    "commit.retry.min-wait-ms": "50",
    "commit.retry.max-wait-ms": "1000",
    # T11.
    "history.expire.max-snapshot-age-ms": str(SNAPSHOT_AGE_MS),
    "history.expire.min-snapshots-to-keep": "1",
    CLEAN_UP: "true",
    VERSIONS_MAX: str(METADATA_VERSIONS),
    # A commit every few seconds writes the whole history each time: packed it is an eighth.
    CODEC_PROPERTY: GZIP,
}


def maker(member: int, epoch: int) -> str:
    """A member and its epoch, as MAKER_PROPERTY and the names of manifests and their lists hold them."""
    return f"{member}-{epoch}"


def versions_max(properties: Mapping[str, str]) -> int:
    """How many older metadata files a table keeps."""
    text = properties.get(VERSIONS_MAX, "")
    return max(int(text), 1) if text.isascii() and text.isdigit() and len(text) < 6 else METADATA_VERSIONS


def new_topic_table(
    *,
    table_uuid: str,
    topic_id: bytes,
    location: str,
    now_ms: int,
    properties: Mapping[str, str] | None = None,
    packed: bool = True,
) -> TableMetadata:
    """The metadata of an empty table. Members of the first feature level cannot read packed metadata files."""
    schema = topic_schema()
    return TableMetadata(
        {
            "format-version": 2,
            "table-uuid": table_uuid,
            "location": location.rstrip("/"),
            "last-sequence-number": 0,
            "last-updated-ms": now_ms,
            "last-column-id": max(LAST_RESERVED_COLUMN_ID, _last_id(schema)),
            "current-schema-id": 0,
            "schemas": [{**schema, "schema-id": 0}],
            "default-spec-id": UNPARTITIONED,
            "partition-specs": [{"spec-id": UNPARTITIONED, "fields": []}],
            "last-partition-id": FIRST_PARTITION_FIELD_ID - 1,
            "default-sort-order-id": STREAM_ORDER,
            "sort-orders": [{"order-id": STREAM_ORDER, "fields": []}],
            "properties": {
                **PROPERTIES,
                **({} if packed else {CODEC_PROPERTY: PLAIN}),
                **(properties or {}),
                TOPIC_ID_PROPERTY: str(UUID(bytes=topic_id)),
                PROGRESS_PROPERTY: pack_progress({}),
            },
            "current-snapshot-id": None,
            "refs": {},
            "snapshots": [],
            "snapshot-log": [],
            "metadata-log": [],
            "statistics": [],
            "partition-statistics": [],
        }
    )


def topic_schema() -> dict[str, Any]:
    """The schema of the stream columns and the value, as Iceberg's metadata holds it."""
    from lakestream.data.tables.files.stream_columns import RAW_COLUMNS

    return {"type": "struct", "fields": [_column(field) for field in RAW_COLUMNS.schema]}


def _column(field: Any) -> dict[str, Any]:
    return {
        "id": int(field.metadata[b"PARQUET:field_id"]),
        "name": field.name,
        "required": not field.nullable,
        "type": _type(field.type),
    }


def _type(kind: Any) -> Any:
    from pyarrow import types

    if types.is_struct(kind):
        return {"type": "struct", "fields": [_column(field) for field in kind]}
    if types.is_list(kind):
        element = _column(kind.value_field)
        return {
            "type": "list",
            "element-id": element["id"],
            "element": element["type"],
            "element-required": element["required"],
        }
    return _SIMPLE[str(kind)]


_SIMPLE = {
    "int32": "int",
    "int64": "long",
    "timestamp[us, tz=UTC]": "timestamptz",
    "binary": "binary",
    "string": "string",
}


def _last_id(node: Any) -> int:
    """The greatest field id anywhere in a schema."""
    if isinstance(node, Mapping):
        own = [node[key] for key in ("id", "element-id", "key-id", "value-id") if key in node]
        return max([*own, *map(_last_id, node.values())], default=0)
    if isinstance(node, list | tuple):
        return max(map(_last_id, node), default=0)
    return 0
