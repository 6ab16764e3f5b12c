"""The listing of topics' tables: where each is, how far it has come, which records wait, and whether a pipeline runs.

It is made of a broker's state and the head of each table's metadata file; `lakestream tables` prints it.
"""

from importlib.util import find_spec
from typing import Any

import msgspec

from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.iceberg.pinned_files import pinned
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import LakestreamError, Missing
from lakestream.model.catalog.care import FAILED, CareRequest
from lakestream.model.catalog.names import STREAMS, root_of
from lakestream.model.configs import TOPIC_CONFIGS
from lakestream.model.state import State
from lakestream.model.topics import Topic
from lakestream.pipeline.lag import lag_of
from lakestream.pipeline.tables.waiting import FRESHNESS, is_table, wanted_from

PIPELINE_ROLE = "pipeline"
PIPELINE_NEEDS = ("pyarrow", "pyspark")
REMEMBERED_MAX = 10_000
OWN, ANOTHER = "our own", "another"
SIZES = {"rows": "total-records", "files": "total-data-files", "bytes": "total-files-size",
         "delete_files": "total-delete-files"}  # fmt: skip

Json = dict[str, Any]


class Listing:
    """Describes tables. A metadata file never changes, so each is read once."""

    def __init__(self, store: TableStore, namespace: str = STREAMS) -> None:
        """`namespace`: the namespace of the topics' tables in an external catalog."""
        self._store = store
        self._namespace = namespace
        self._known: dict[str, tuple[str, Json]] = {}

    def tables(self, state: State, topic: str | None = None) -> Json:
        """All topics, or one. Raises Missing if there is no such topic. Blocks: metadata files are read."""
        if topic is not None and topic not in state.topics.by_name:
            raise Missing(f"there is no topic {topic!r}")
        names = sorted(state.topics.by_name) if topic is None else [topic]
        failed = {one.topic_id: one for one in list(state.care.requests.values()) if one.status == FAILED}
        found = [known for known in map(state.topics.by_name.get, names) if known is not None]
        tables = [
            {**describe_table(state, known), "request_failed": _last_failure(failed.get(known.id))} for known in found
        ]
        for one in tables:
            if one["catalog"] == ANOTHER:
                one["table"] = f"{self._namespace}.{one['topic']}"
            one.update(self._sizes(one["uuid"], one["metadata_location"]))
            if topic is not None:
                one.update(self._pinned(one["metadata_location"]))
        return {"pipeline": describe_pipeline(state), "time_ms": state.members.time_ms, "tables": tables}

    def _sizes(self, uuid: str, location: str) -> Json:
        if not location:
            return {}
        known = self._known.get(uuid)
        if known is None or known[0] != location:
            try:
                metadata = TableMetadata.parse(self._store.get(location))
            except LakestreamError as error:
                return {"problem": f"the table's metadata cannot be read: {error}"}
            known = (location, described(metadata))
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known[uuid] = known
        return known[1]

    def _pinned(self, location: str) -> Json:
        """Files that only older snapshots use. Many files are read for this, so only for one table at a time."""
        if not location:
            return {}
        try:
            found = pinned(self._store, TableMetadata.parse(self._store.get(location)))
        except LakestreamError:
            return {}  # the table has moved on, or `_sizes` has already reported the problem
        return {
            "pinned_files": found.files, "pinned_bytes": found.bytes, "pinned_metadata_bytes": found.metadata_bytes,
        }  # fmt: skip


def _last_failure(request: CareRequest | None) -> str:
    """The newest request for the table's care that failed, while its answer is kept, and why."""
    return f"{request.kind}: {request.text}" if request is not None else ""


def described(metadata: TableMetadata) -> Json:
    """The table's size and its snapshots, out of its metadata file."""
    current = metadata.current
    summary = metadata.summary(current.snapshot_id) if current is not None else {}
    sizes = {name: int(summary[key]) for name, key in SIZES.items() if summary.get(key, "").isdecimal()}
    zero = dict.fromkeys(SIZES, 0) if current is None else {}
    return {
        **zero, **sizes,
        "snapshots": len(metadata.snapshots),
        "snapshot": current.snapshot_id if current is not None else None,
        "committed_ms": current.timestamp_ms if current is not None else None,
        "oldest_snapshot_ms": metadata.snapshots[0].timestamp_ms if metadata.snapshots else None,
    }  # fmt: skip


def describe_table(state: State, topic: Topic) -> Json:
    """The state's knowledge of one topic's table."""
    landing, table = state.catalog.landings.get(topic.id), state.catalog.of_topic(topic.id)
    enabled = is_table(state, topic.id)
    lag = lag_of(state, topic)
    streams = [state.streams.by_id[one] for one in topic.streams]
    marks = [mark for partition in range(len(streams)) for mark in (landing.marks(partition) if landing else ())]
    return {
        "topic": topic.name,
        "enabled": enabled,
        "table": f"{STREAMS}.{topic.name}" if table is not None else "",
        "catalog": "" if table is None else ANOTHER if landing is not None and landing.location else OWN,
        "unproven": landing is not None and landing.unproven,
        "uncared": landing.uncared if landing is not None else "",
        "uuid": table.uuid if table is not None else landing.uuid if landing is not None else "",
        "location": root_of(table.location) if table is not None else "",
        "metadata_location": table.location if table is not None else "",
        "freshness_ms": int(TOPIC_CONFIGS.value(FRESHNESS, topic.configs)),
        "records_waiting": lag.records if enabled else 0,
        "bytes_waiting": lag.wal_bytes if enabled else 0,
        "lag_ms": lag.waited_ms if enabled else 0,
        "held": lag.held,
        "landed_ms": max((mark.time_ms for mark in marks), default=None),
        "partitions": [
            {
                "partition": stream.partition, "start": stream.start, "landed": stream.landed, "end": stream.next,
                "waiting": max(stream.next - wanted_from(stream), 0), "bytes_waiting": stream.size,
            }
            for stream in streams
        ],
    }  # fmt: skip


def describe_pipeline(state: State) -> Json:
    """The pipelines that run, or why none does, as far as the state says."""
    live = [member for member in state.members.live() if member.role == PIPELINE_ROLE]
    return {
        "running": bool(live),
        "members": [{"id": member.id, "pid": member.pid, "epoch": member.epoch} for member in live],
        "trouble": "" if live else state.care.trouble or _missing(),
    }


def _missing() -> str:
    missing = [name for name in PIPELINE_NEEDS if find_spec(name) is None]
    return f"{' and '.join(missing)} not installed where this broker runs" if missing else ""


def describe_request(state: State, request: bytes) -> Json:
    """A request for care and its answer. Raises Missing if it is not known, or was forgotten."""
    one: CareRequest | None = state.care.requests.get(request)
    if one is None:
        raise Missing(f"there is no request {request.hex()}")
    topic = state.topics.by_id.get(one.topic_id)
    return {
        "request": request.hex(), "topic": topic.name if topic is not None else "", "kind": one.kind,
        "arguments": one.arguments, "status": one.status, "text": one.text, "figures": one.figures or {},
        "asked_ms": one.asked_ms, "told_ms": one.told_ms, "pipeline": describe_pipeline(state),
    }  # fmt: skip


def pack(listing: Json) -> bytes:
    return msgspec.json.encode(listing)
