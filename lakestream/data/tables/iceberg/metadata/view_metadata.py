"""A view's metadata as JSON, format version 1: a file's, a new view's, and the updates of a commit.

Updates are applied as by the reference implementation: a new schema or version gets its id here, unless an equal one
exists; -1 is the last one added; old versions go when there are more than a property allows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lakestream.data.tables.iceberg.metadata.documents import Conflict, check_uuid
from lakestream.data.tables.iceberg.metadata.schemas import Invalid, Json, check_schema, id_of, need, same_schema
from lakestream.errors import Corrupt

VIEW_VERSION = 1
HISTORY = "version.history.num-entries"
HISTORY_DEFAULT = 10
DROP_DIALECT = "replace.drop-dialect-allowed"
UPDATES_MAX = 100
"""Of one commit: each new version and schema is compared with all that there are."""
_SCHEMA_VERSION = 3
"""A view's columns may have the types of the newest table format."""


class InvalidArgument(Invalid):
    """As Invalid, but answered with the kind of error that the reference implementation has for it."""


def parse_view(data: bytes) -> Json:
    """The metadata of an unpacked view file. Raises Corrupt."""
    try:
        return _complete(need(msgspec.json.decode(data), dict, "the metadata"))
    except (msgspec.MsgspecError, Invalid, ValueError, RecursionError) as error:
        raise Corrupt(f"not a view's metadata: {error}") from error


def render_view(metadata: Json) -> bytes:
    return msgspec.json.encode(metadata)


def _complete(metadata: Json) -> Json:
    if metadata.get("format-version") != VIEW_VERSION:
        raise Invalid(f"format version {metadata.get('format-version')} of views is not supported")
    for name in ("view-uuid", "location"):
        need(metadata.get(name), str, name)
    made = {**metadata, "properties": need(metadata.get("properties") or {}, dict, "properties")}
    for value in made["properties"].values():
        need(value, str, "a property's value")
    for schema in need(made.get("schemas"), list, "schemas"):
        id_of(check_schema(schema, _SCHEMA_VERSION).get("schema-id"), "schema-id")
    for version in need(made.get("versions"), list, "versions"):
        _check_version(version)
    for entry in need(made.get("version-log"), list, "version-log"):
        need(need(entry, dict, "version-log").get("version-id"), int, "version-id")
    current = need(made.get("current-version-id"), int, "current-version-id")
    if not any(version["version-id"] == current for version in made["versions"]):
        raise Invalid("the current version is not among the versions")
    return made


def _check_version(version: Any) -> Json:
    """Returns the version. Raises Invalid if it has several queries for a dialect."""
    for name in ("version-id", "timestamp-ms", "schema-id"):
        need(need(version, dict, "a version").get(name), int, name)
    for value in need(version.get("summary") or {}, dict, "the summary").values():
        need(value, str, "a value of the summary")
    for level in need(version.get("default-namespace"), list, "default-namespace"):
        need(level, str, "default-namespace")
    seen: set[str] = set()
    for one in need(version.get("representations"), list, "representations"):
        if need(one, dict, "a representation").get("type") != "sql":
            raise Invalid("a representation of a view is SQL")
        need(one.get("sql"), str, "sql")
        dialect = str(need(one.get("dialect"), str, "dialect")).lower()
        if dialect in seen:
            raise InvalidArgument(f"Invalid view version: Cannot add multiple queries for dialect {dialect}")
        seen.add(dialect)
    if not seen:
        raise Invalid("a view has a query")
    return version  # type: ignore[no-any-return]


def check_view_requirements(metadata: Json, requirements: Iterable[Any]) -> None:
    """Raises Conflict if one is not met."""
    for one in requirements:
        kind = need(need(one, dict, "a requirement").get("type"), str, "a requirement's type")
        if kind == "assert-create":
            raise Conflict("Requirement failed: view already exists")
        if kind != "assert-view-uuid":
            raise Invalid(f"unknown requirement {kind!r}")
        check_uuid("view UUID", one, metadata["view-uuid"])


class _Build:
    """Metadata in the making, and the last added schema and version, which -1 refers to."""

    def __init__(self, base: Json, now_ms: int) -> None:
        self.m = dict(base)
        self.now_ms = now_ms
        self.schema: int | None = None
        self.version: int | None = None
        self.added: set[int] = set()


def _assign_uuid(b: _Build, update: Json) -> None:
    uuid = str(need(update.get("uuid"), str, "uuid")).lower()
    if uuid != b.m["view-uuid"].lower():
        raise Invalid("a view keeps its uuid")


def _upgrade(b: _Build, update: Json) -> None:
    if update.get("format-version") != VIEW_VERSION:
        raise Invalid(f"format version {update.get('format-version')} of views is not supported")


def _set_location(b: _Build, update: Json) -> None:
    b.m["location"] = str(need(update.get("location"), str, "location")).rstrip("/")


def _set_properties(b: _Build, update: Json) -> None:
    changes = need(update.get("updates"), dict, "updates")
    for value in changes.values():
        need(value, str, "a property's value")
    b.m["properties"] = {**b.m["properties"], **changes}


def _remove_properties(b: _Build, update: Json) -> None:
    gone = {need(each, str, "removals") for each in need(update.get("removals"), list, "removals")}
    b.m["properties"] = {name: value for name, value in b.m["properties"].items() if name not in gone}


def _add_schema(b: _Build, update: Json) -> None:
    schema = check_schema(update.get("schema"), _SCHEMA_VERSION)
    known = next((one["schema-id"] for one in b.m["schemas"] if same_schema(one, schema)), None)
    if known is None:
        known = max((one["schema-id"] for one in b.m["schemas"]), default=-1) + 1
        b.m["schemas"] = [*b.m["schemas"], {**schema, "type": "struct", "schema-id": known}]
    b.schema = known


def _add_version(b: _Build, update: Json) -> None:
    version = _check_version(update.get("view-version"))
    schema = version["schema-id"] if version["schema-id"] != -1 else b.schema
    if not any(one["schema-id"] == schema for one in b.m["schemas"]):
        raise Invalid(f"Cannot add version with unknown schema: {version['schema-id']}")
    told = {name: value for name, value in version.items() if value is not None}
    version = {"summary": {}, **told, "schema-id": schema}
    same = next((one["version-id"] for one in b.m["versions"] if _told(one) == _told(version)), None)
    highest = max((one["version-id"] for one in b.m["versions"]), default=0)
    b.version = same if same is not None else max(version["version-id"], highest + 1)
    if same is None:
        b.m["versions"] = [*b.m["versions"], {**version, "version-id": b.version}]
        b.added.add(b.version)


def _told(version: Json) -> Json:
    """The content of a version, without its number and its time."""
    named = ("schema-id", "summary", "representations", "default-catalog", "default-namespace")
    return {name: version.get(name) for name in named}


def _set_current(b: _Build, update: Json) -> None:
    number = need(update.get("view-version-id"), int, "view-version-id")
    if number == -1:
        if b.version is None:
            raise Invalid("-1 refers to a last added version, and none was added")
        number = b.version
    found = next((one for one in b.m["versions"] if one["version-id"] == number), None)
    if found is None:
        raise Invalid(f"Cannot set current version to unknown version: {number}")
    if b.m["current-version-id"] == number:
        return
    b.m["current-version-id"] = number
    time_ms = found["timestamp-ms"] if number in b.added else b.now_ms
    b.m["version-log"] = [*b.m["version-log"], {"timestamp-ms": time_ms, "version-id": number}]


_RULES: dict[str, Callable[[_Build, Json], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "add-schema": _add_schema,
    "add-view-version": _add_version,
    "set-current-view-version": _set_current,
}


def new_view(
    *, uuid: str, location: str, schema: Any, version: Any, properties: Mapping[str, str], now_ms: int
) -> Json:
    """The metadata of a new view."""
    nothing: Json = {
        "view-uuid": uuid, "format-version": VIEW_VERSION, "location": location, "current-version-id": -1,
        "versions": [], "version-log": [], "schemas": [], "properties": dict(properties),
    }  # fmt: skip
    first = {**_check_version(version), "schema-id": -1}
    updates = (
        {"action": "add-schema", "schema": schema},
        {"action": "add-view-version", "view-version": first},
        {"action": "set-current-view-version", "view-version-id": -1},
    )
    return _applied(nothing, updates, now_ms)


def apply_view_updates(base: Json, updates: Sequence[Any], now_ms: int) -> Json:
    """The metadata after all updates of a commit; equal to the base if they change nothing."""
    if len(updates) > UPDATES_MAX:
        raise Invalid(f"a commit to a view has at most {UPDATES_MAX} updates, and this one has {len(updates):,}")
    made = _applied(base, updates, now_ms)
    if made["properties"].get(DROP_DIALECT, "true").lower() != "true":
        before, after = _dialects(base), _dialects(made)
        if not before <= after:
            raise Invalid(
                f"Cannot replace view due to loss of view dialects ({DROP_DIALECT}=false):\n"
                f"Previous dialects: {sorted(before)}\nNew dialects: {sorted(after)}"
            )
    return made


def _applied(base: Json, updates: Iterable[Any], now_ms: int) -> Json:
    build = _Build(base, now_ms)
    for update in updates:
        action = need(update, dict, "an update").get("action")
        rule = _RULES.get(action) if isinstance(action, str) else None
        if rule is None:
            raise Invalid(f"unknown update {action!r} of a view")
        rule(build, update)
    return _complete(_without_old_versions(build))


def _without_old_versions(build: _Build) -> Json:
    made = build.m
    text = made["properties"].get(HISTORY, str(HISTORY_DEFAULT))
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0):
        raise Invalid(f"{HISTORY} must be positive but was {text}")
    kept = {made["current-version-id"], *build.added}
    room = max(int(text), len(kept))
    for version in sorted((one["version-id"] for one in made["versions"]), reverse=True):
        if len(kept) < room:
            kept.add(version)
    if len(kept) == len(made["versions"]):
        return made
    log: list[Json] = []
    for entry in made["version-log"]:
        log = [*log, entry] if entry["version-id"] in kept else []
    return {**made, "versions": [one for one in made["versions"] if one["version-id"] in kept], "version-log": log}


def _dialects(metadata: Json) -> set[str]:
    current = metadata["current-version-id"]
    version = next(one for one in metadata["versions"] if one["version-id"] == current)
    return {one["dialect"].lower() for one in version["representations"]}
