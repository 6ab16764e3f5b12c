"""The part from which each published figure is read."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from lakestream import metrics as m
from lakestream.metadata.replica import Replica
from lakestream.metrics import Metrics
from lakestream.model.bounds import ENTRY_BYTES, Bounds
from lakestream.protocol.kafka.connections.server import KafkaServer
from lakestream.protocol.kafka.fetch import FetchApi
from lakestream.protocol.kafka.produce import ProduceApi
from lakestream.protocol.kafka.wire.apis import APIS
from lakestream.stream.appender import Appender
from lakestream.stream.cache import Cache
from lakestream.stream.groups.lags import GroupLags
from lakestream.stream.housekeeping.collector import Collector
from lakestream.stream.housekeeping.mover import Mover
from lakestream.stream.housekeeping.retention import Retention

if TYPE_CHECKING:
    from lakestream.stream.history import HistoryReader

REFUSALS = ("api", "failure", "frame", "http", "idle", "request", "slow", "stalled", "tls", "too many", "version")
"""The kinds of closed connections in connection.py and server.py; "failure" is an error of the broker."""


def publish_server(metrics: Metrics, server: KafkaServer) -> None:
    stats = server.stats
    metrics.sample(m.CONNECTIONS, lambda: stats.connections)
    metrics.sample(m.CONNECTIONS_OPENED, lambda: stats.accepted)
    metrics.sample(m.RECEIVED_BYTES, lambda: stats.bytes_in)
    metrics.sample(m.SENT_BYTES, lambda: stats.bytes_out)
    metrics.sample(m.REQUEST_MEMORY_BYTES, lambda: server.held_bytes + server.in_flight_bytes)
    for key, api in APIS.items():
        metrics.sample(m.REQUESTS, lambda key=key: stats.requests.get(key, 0), api.name)  # type: ignore[misc]
        metrics.sample(m.REQUEST_ERRORS, lambda key=key: stats.errors.get(key, 0), api.name)  # type: ignore[misc]
    for reason in REFUSALS:
        count = partial(stats.closed.get, reason, 0)
        metrics.sample(m.CONNECTIONS_REFUSED, count, reason.replace(" ", "_"))  # type: ignore[arg-type]


def publish_streams(
    metrics: Metrics, appender: Appender, produce: ProduceApi, fetch: FetchApi, cache: Cache
) -> None:
    stats = appender.stats
    metrics.sample(m.PRODUCE_REFUSED, lambda: produce.refused)
    stats.ack_seconds = metrics.histogram(m.ACK_SECONDS)
    metrics.sample(m.TICKS, lambda: stats.ticks)
    metrics.sample(m.STORE_FULL, lambda: float(bool(appender.room.why)), "wal")
    metrics.sample(m.PRODUCED_RECORDS, lambda: stats.acked_records)
    metrics.sample(m.PRODUCED_BATCHES, lambda: stats.acked_batches)
    metrics.sample(m.PRODUCED_BYTES, lambda: stats.acked_bytes)
    metrics.sample(m.TICKS_FAILED, lambda: stats.failed_ticks)
    metrics.sample(m.FETCHED_BYTES, lambda: fetch.stats.bytes)
    metrics.sample(m.FETCHES_WAITING, lambda: fetch.stats.waiting)
    metrics.sample(m.CACHE_BYTES, lambda: cache.size_bytes)
    metrics.sample(m.CACHE_HITS, lambda: cache.hits)
    metrics.sample(m.CACHE_MISSES, lambda: cache.misses)


def publish_upkeep(metrics: Metrics, collector: Collector, retention: Retention, mover: Mover, lags: GroupLags) -> None:
    metrics.sample_all(m.GROUP_LAG_RECORDS, lambda: lags.records)
    metrics.sample(m.GROUP_LAGS_LEFT_OUT, lambda: lags.left_out)
    metrics.sample(m.OBJECTS_COLLECTED, lambda: collector.collected)
    metrics.sample(m.ENTRIES_TRIMMED, lambda: retention.trimmed_entries)
    metrics.sample(m.OBJECTS_MOVED, lambda: mover.moved_objects)


def state_limits(bounds: Bounds) -> dict[tuple[str, ...], float]:
    """Each limit by the name of the figure that it bounds: `lakestream_state_NAME`."""
    return {
        ("topics",): bounds.topics,
        ("partitions",): bounds.partitions,
        ("groups",): bounds.groups,
        ("offsets",): bounds.offsets,
        ("offset_note_bytes",): bounds.note_bytes,
        ("producers",): bounds.producers,
        ("producer_partitions",): bounds.sequences,
        ("entries",): bounds.entry_bytes // ENTRY_BYTES,
    }


def publish_state(metrics: Metrics, replica: Replica, ready: Callable[[], str | None]) -> None:
    metrics.sample(m.STATE_SEQUENCE, lambda: replica.state.sequence)
    metrics.sample(m.STATE_TOPICS, lambda: len(replica.state.topics.by_id))
    metrics.sample(m.STATE_PARTITIONS, lambda: len(replica.state.streams.by_id))
    metrics.sample(m.STATE_ENTRIES, lambda: replica.state.streams.entries)
    metrics.sample(m.STATE_OBJECTS, lambda: len(replica.state.streams.objects))
    metrics.sample(m.STATE_GROUPS, lambda: len(replica.state.groups.by_name))
    metrics.sample(m.STATE_PRODUCERS, lambda: len(replica.state.producers.by_id))
    metrics.sample(m.STATE_OFFSETS, lambda: replica.state.groups.offsets)
    metrics.sample(m.STATE_OFFSET_NOTE_BYTES, lambda: replica.state.groups.note_bytes)
    metrics.sample(m.STATE_PRODUCER_PARTITIONS, lambda: replica.state.producers.sequences)
    metrics.sample_all(m.STATE_LIMIT, lambda: state_limits(replica.state.topics.bounds))
    metrics.sample(m.STATE_MEMBERS, lambda: len(replica.state.members.brokers()))
    metrics.sample(m.STORE_FULL, lambda: float(bool(replica.room.why)), "command_log")
    metrics.sample(m.BROKER_EPOCH, lambda: replica.epoch)
    metrics.sample(m.BROKER_READY, lambda: float(ready() is None))


def publish_tables(
    metrics: Metrics, history: "HistoryReader", lag_s: Callable[[], float], purged_files: Callable[[], int],
    topic_lags: Callable[[], Mapping[tuple[str, ...], float]],
) -> None:  # fmt: skip
    metrics.sample_all(m.TOPIC_TABLE_LAG_SECONDS, topic_lags)
    metrics.sample(m.TABLE_LAG_SECONDS, lag_s)
    metrics.sample(m.TABLE_READS, lambda: history.reads)
    metrics.sample(m.TABLE_READ_ERRORS, lambda: history.errors)
    metrics.sample(m.TABLE_FILES_PURGED, purged_files)
