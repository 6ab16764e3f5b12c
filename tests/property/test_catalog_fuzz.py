"""Whatever a client sends as a commit or a new table, the answer is a table's metadata or a definite no."""

import copy
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.data.tables.iceberg.metadata.documents import (
    Conflict,
    check_requirements,
    complete,
    new_metadata,
    parse_any,
)
from lakestream.data.tables.iceberg.metadata.schemas import Invalid
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.iceberg.metadata.updates import apply_updates
from lakestream.errors import Corrupt

FIELD = {"id": 1, "name": "a", "type": "long", "required": True}
LIST = {"type": "list", "element-id": 3, "element": "string", "element-required": False}
MAP = {"type": "map", "key-id": 5, "key": "string", "value-id": 6, "value": "int", "value-required": True}
SCHEMA = {
    "type": "struct",
    "fields": [
        FIELD, {"id": 2, "name": "l", "type": LIST, "required": False},
        {"id": 4, "name": "m", "type": MAP, "required": False},
    ],
    "identifier-field-ids": [1],
}  # fmt: skip
SPEC = {"spec-id": 1, "fields": [{"source-id": 1, "field-id": 1000, "transform": "bucket[4]", "name": "p"}]}
ORDER = {
    "order-id": 1,
    "fields": [{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-last"}],
}
SNAPSHOT = {
    "snapshot-id": 7, "sequence-number": 1, "timestamp-ms": 5, "manifest-list": "file:///l", "schema-id": 0,
    "summary": {"operation": "append"},
}  # fmt: skip
REF = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 7, "max-ref-age-ms": 5}
UPDATES: list[dict[str, Any]] = [
    {"action": "assign-uuid", "uuid": "u"},
    {"action": "upgrade-format-version", "format-version": 2},
    {"action": "add-schema", "schema": {**SCHEMA, "fields": [*SCHEMA["fields"], {**FIELD, "id": 9, "name": "z"}]}},
    {"action": "set-current-schema", "schema-id": -1},
    {"action": "add-spec", "spec": SPEC},
    {"action": "set-default-spec", "spec-id": -1},
    {"action": "add-sort-order", "sort-order": ORDER},
    {"action": "set-default-sort-order", "sort-order-id": -1},
    {"action": "add-snapshot", "snapshot": SNAPSHOT},
    REF,
    {"action": "set-snapshot-ref", "ref-name": "t", "type": "tag", "snapshot-id": 7},
    {"action": "set-properties", "updates": {"a": "b"}},
    {"action": "remove-properties", "removals": ["a"]},
    {"action": "set-statistics", "statistics": {"snapshot-id": 7, "statistics-path": "p"}},
    {"action": "remove-statistics", "snapshot-id": 7},
    {"action": "remove-snapshot-ref", "ref-name": "t"},
    {"action": "remove-schemas", "schema-ids": [0]},
    {"action": "remove-partition-specs", "spec-ids": [0]},
    {"action": "set-location", "location": "file:///x"},
    {"action": "remove-snapshots", "snapshot-ids": [3]},
]
REQUIREMENTS = [
    {"type": "assert-table-uuid", "uuid": "u"},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
    {"type": "assert-current-schema-id", "current-schema-id": 0},
]

junk = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.text(max_size=3), st.just([]), st.just({}),
    st.just([[]]), st.just({"type": []}), st.just([1, "x"]), st.floats(), st.just("x" * 300), st.just(-1),
    st.just("void"),
)  # fmt: skip


def base() -> TableMetadata:
    return new_metadata(
        uuid="u", location="file:///x", schema=SCHEMA, spec=None, order=ORDER, properties={"a": "b"}, now_ms=1
    )


def spoil(thing: Any, data: st.DataObject) -> Any:
    """The same with one value somewhere in it replaced, or gone."""
    thing = copy.deepcopy(thing)
    at = thing
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return thing
        key = data.draw(st.sampled_from(keys))
        if isinstance(at[key], (dict, list)) and at[key] and data.draw(st.integers(0, 3)):
            at = at[key]
        elif isinstance(at, dict) and data.draw(st.booleans()):
            del at[key]
            return thing
        else:
            at[key] = data.draw(junk)
            return thing


def test_the_commit_that_is_spoiled_is_a_good_one() -> None:
    made = apply_updates(base(), UPDATES, 9, "file:///x/metadata/0.metadata.json")
    assert made.current_snapshot_id == 7 and len(made.value("schemas")) == 1 and made.value("last-column-id") == 9
    assert parse_any(made.encode()).value_all() == made.value_all()
    check_requirements(base(), REQUIREMENTS)


@settings(max_examples=500)
@given(st.data())
def test_a_spoiled_commit_is_applied_or_refused(data: st.DataObject) -> None:
    updates = UPDATES
    for _ in range(data.draw(st.integers(1, 3))):
        updates = spoil(updates, data)
    metadata = base()
    before = copy.deepcopy(metadata.value_all())
    try:
        made = apply_updates(metadata, updates, 9, "file:///x/metadata/0.metadata.json")
    except (Invalid, Conflict):
        made = None
    assert metadata.value_all() == before, "the base is never changed in place"
    if made is not None:
        complete(made.value_all())


@settings(max_examples=500)
@given(st.data())
def test_spoiled_requirements_hold_or_do_not(data: st.DataObject) -> None:
    with suppress(Invalid, Conflict):
        check_requirements(base(), spoil(REQUIREMENTS, data))


@settings(max_examples=500)
@given(st.data())
def test_a_spoiled_new_table_is_made_or_refused(data: st.DataObject) -> None:
    asked = spoil({"schema": SCHEMA, "spec": SPEC, "order": ORDER}, data)
    try:
        made = new_metadata(
            uuid="u", location="l", schema=asked.get("schema"), spec=asked.get("spec"), order=asked.get("order"),
            properties={}, now_ms=1,
        )  # fmt: skip
    except Invalid:
        return
    assert parse_any(made.encode()).value_all() == made.value_all()


@settings(max_examples=500)
@given(st.data())
def test_a_spoiled_metadata_file_is_read_or_corrupt(data: st.DataObject) -> None:
    made = apply_updates(base(), UPDATES, 9, "file:///x/metadata/0.metadata.json")
    spoiled = spoil(made.value_all(), data)
    try:
        encoded = msgspec.json.encode(spoiled)
    except (ValueError, OverflowError):
        return
    try:
        found = parse_any(encoded)
    except Corrupt:
        return
    with suppress(Invalid, Conflict):
        apply_updates(found, UPDATES[2:], 9, "file:///x/metadata/0.metadata.json")
