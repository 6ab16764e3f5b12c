"""The Avro schemas of Iceberg's manifests and manifest lists, format version 2, with the specification's field ids."""

import json
from collections.abc import Mapping
from typing import Any

from lakestream.data.tables.iceberg.manifests.avro import Record


def _field(field_id: int, name: str, kind: Any, *, required: bool = False) -> Record:
    if required:
        return {"name": name, "type": kind, "field-id": field_id}
    return {"name": name, "type": ["null", kind], "default": None, "field-id": field_id}


def _map(key_id: int, value_id: int, value: str) -> Record:
    pair = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_field(key_id, "key", "int", required=True), _field(value_id, "value", value, required=True)],
    }
    return {"type": "array", "items": pair, "logicalType": "map"}


def entry_schema(partition: list[Record]) -> Record:
    data_file = [
        _field(134, "content", "int", required=True),
        _field(100, "file_path", "string", required=True),
        _field(101, "file_format", "string", required=True),
        _field(102, "partition", {"type": "record", "name": "r102", "fields": partition}, required=True),
        _field(103, "record_count", "long", required=True),
        _field(104, "file_size_in_bytes", "long", required=True),
        _field(108, "column_sizes", _map(117, 118, "long")),
        _field(109, "value_counts", _map(119, 120, "long")),
        _field(110, "null_value_counts", _map(121, 122, "long")),
        _field(137, "nan_value_counts", _map(138, 139, "long")),
        _field(125, "lower_bounds", _map(126, 127, "bytes")),
        _field(128, "upper_bounds", _map(129, 130, "bytes")),
        _field(131, "key_metadata", "bytes"),
        _field(132, "split_offsets", {"type": "array", "items": "long", "element-id": 133}),
        _field(135, "equality_ids", {"type": "array", "items": "int", "element-id": 136}),
        _field(140, "sort_order_id", "int"),
    ]
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field(0, "status", "int", required=True),
            _field(1, "snapshot_id", "long"),
            _field(3, "sequence_number", "long"),
            _field(4, "file_sequence_number", "long"),
            _field(2, "data_file", {"type": "record", "name": "r2", "fields": data_file}, required=True),
        ],
    }


_AVRO_TYPES: dict[str, Any] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "time-micros"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    "string": "string",
    "binary": "bytes",
}


def partition_field(spec_field: Mapping[str, Any], schema: Mapping[str, Any]) -> Record:
    """The Avro type of a partition field's values: a number for some transforms, else the column's own type."""
    transform = spec_field["transform"]
    if transform == "day":
        kind = _AVRO_TYPES["date"]
    elif transform in ("year", "month", "hour") or transform.startswith("bucket"):
        kind = "int"
    else:
        source = next(each for each in schema["fields"] if each["id"] == spec_field["source-id"])
        kind = _AVRO_TYPES[source["type"]]
    return _field(spec_field["field-id"], spec_field["name"], kind)


_SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        _field(509, "contains_null", "boolean", required=True),
        _field(518, "contains_nan", "boolean"),
        _field(510, "lower_bound", "bytes"),
        _field(511, "upper_bound", "bytes"),
    ],
}
MANIFEST_LIST_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "manifest_file",
        "fields": [
            _field(500, "manifest_path", "string", required=True),
            _field(501, "manifest_length", "long", required=True),
            _field(502, "partition_spec_id", "int", required=True),
            _field(517, "content", "int", required=True),
            _field(515, "sequence_number", "long", required=True),
            _field(516, "min_sequence_number", "long", required=True),
            _field(503, "added_snapshot_id", "long", required=True),
            _field(504, "added_files_count", "int", required=True),
            _field(505, "existing_files_count", "int", required=True),
            _field(506, "deleted_files_count", "int", required=True),
            _field(512, "added_rows_count", "long", required=True),
            _field(513, "existing_rows_count", "long", required=True),
            _field(514, "deleted_rows_count", "long", required=True),
            _field(507, "partitions", {"type": "array", "items": _SUMMARY, "element-id": 508}),
            _field(519, "key_metadata", "bytes"),
        ],
    },
    separators=(",", ":"),
)
