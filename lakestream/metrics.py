"""Every figure we publish, in one list, and the plain numbers behind them.

The hot path holds a `Histogram` and adds to it. A figure that a part of the broker counts anyway (sizes, sequences) is
sampled by a callable at each scrape. Nothing here knows how the figures are shown.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Figure:
    """One published figure: name without the prefix, kind, help text, labels and bounds of buckets."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


PREFIX = "lakestream_"

CONNECTIONS = Figure("connections", GAUGE, "Open Kafka connections.")
CONNECTIONS_OPENED = Figure("connections_opened", COUNTER, "Kafka connections accepted.")
CONNECTIONS_REFUSED = Figure("connections_refused", COUNTER, "Kafka connections closed by us, by reason.", ("reason",))
RECEIVED_BYTES = Figure("received_bytes", COUNTER, "Bytes read from Kafka clients.")
SENT_BYTES = Figure("sent_bytes", COUNTER, "Bytes written to Kafka clients.")
REQUESTS = Figure("requests", COUNTER, "Kafka requests answered, by API.", ("api",))
REQUEST_ERRORS = Figure("request_errors", COUNTER, "Kafka requests that failed as a whole, by API.", ("api",))
REQUEST_MEMORY_BYTES = Figure("request_memory_bytes", GAUGE, "Bytes of requests held in memory.")

PRODUCED_RECORDS = Figure("produced_records", COUNTER, "Records acknowledged.")
PRODUCED_BATCHES = Figure("produced_batches", COUNTER, "Record batches acknowledged.")
PRODUCED_BYTES = Figure("produced_bytes", COUNTER, "Bytes of record batches acknowledged.")
PRODUCE_REFUSED = Figure("produce_refused", COUNTER, "Batches refused before they were appended.")
ACK_SECONDS = Figure("ack_seconds", HISTOGRAM, "Time from a batch's arrival to its acknowledgement.", (), _SECONDS)
FETCHED_BYTES = Figure("fetched_bytes", COUNTER, "Bytes of record batches sent to consumers.")
FETCHES_WAITING = Figure("fetches_waiting", GAUGE, "Fetch requests that wait for records.")

TICKS = Figure("ticks", COUNTER, "WAL objects written for produced records.")
TICKS_FAILED = Figure("ticks_failed", COUNTER, "Ticks whose WAL object could not be written.")
CACHE_BYTES = Figure("cache_bytes", GAUGE, "Bytes of records in the cache.")
CACHE_HITS = Figure("cache_hits", COUNTER, "Slices that were found in the cache.")
CACHE_MISSES = Figure("cache_misses", COUNTER, "Slices that had to be read from the store.")

STATE_SEQUENCE = Figure("state_sequence", GAUGE, "Sequence of the last command folded.")
STATE_TOPICS = Figure("state_topics", GAUGE, "Topics in the state.")
STATE_PARTITIONS = Figure("state_partitions", GAUGE, "Partitions in the state.")
STATE_ENTRIES = Figure("state_entries", GAUGE, "WAL entries in the state.")
STATE_OBJECTS = Figure("state_objects", GAUGE, "WAL objects in the state.")
STATE_GROUPS = Figure("state_groups", GAUGE, "Consumer groups in the state.")
GROUP_LAG_RECORDS = Figure(
    "group_lag_records", GAUGE, "Records that a group has not committed yet, by topic.", ("group", "topic")
)
GROUP_LAGS_LEFT_OUT = Figure("group_lags_left_out", GAUGE, "Groups' lags by topic that are not shown: too many.")
STATE_PRODUCERS = Figure("state_producers", GAUGE, "Idempotent producers in the state.")
STATE_OFFSETS = Figure("state_offsets", GAUGE, "Committed offsets in the state.")
STATE_OFFSET_NOTE_BYTES = Figure("state_offset_note_bytes", GAUGE, "Bytes of notes committed with offsets.")
STATE_PRODUCER_PARTITIONS = Figure("state_producer_partitions", GAUGE, "Partitions remembered of producers.")
STATE_LIMIT = Figure("state_limit", GAUGE, "Limits on the state, by what each bounds.", ("of",))
STATE_MEMBERS = Figure("state_members", GAUGE, "Live brokers in the state.")
BROKER_EPOCH = Figure("broker_epoch", GAUGE, "This broker's epoch.")
BROKER_READY = Figure("broker_ready", GAUGE, "1 while this broker serves, else 0.")
STORE_FULL = Figure("store_full", GAUGE, "1 while a store refuses writes for want of room, else 0.", ("store",))
OBJECTS_COLLECTED = Figure("objects_collected", COUNTER, "Dead WAL objects deleted by this broker.")
ENTRIES_TRIMMED = Figure("entries_trimmed", COUNTER, "WAL entries that retention dropped.")
OBJECTS_MOVED = Figure("objects_moved", COUNTER, "WAL objects whose live slices were moved out.")
TABLE_LAG_SECONDS = Figure("table_lag_seconds", GAUGE, "How long the oldest record waits that is in no table yet.")
TOPIC_TABLE_LAG_SECONDS = Figure(
    "topic_table_lag_seconds", GAUGE, "How long the oldest record of a topic waits for its table.", ("topic",)
)
TABLE_READS = Figure("table_reads", COUNTER, "Reads of old records from tables.")
TABLE_READ_ERRORS = Figure("table_read_errors", COUNTER, "Reads from tables that failed.")
TABLE_FILES_PURGED = Figure("table_files_purged", COUNTER, "Files of dropped tables deleted by this broker.")

FIGURES = tuple(figure for figure in list(globals().values()) if isinstance(figure, Figure))


class Histogram:
    """Counts of observations below each bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


Sample = Histogram | Callable[[], float]


class Metrics:
    """The figures of one broker. The part that writes a series asks for it once, and keeps it."""

    def __init__(self) -> None:
        self._series: dict[Figure, dict[tuple[str, ...], Sample]] = {}
        self._changing: dict[Figure, Callable[[], Mapping[tuple[str, ...], float]]] = {}

    def histogram(self, figure: Figure, *labels: str) -> Histogram:
        assert figure.kind == HISTOGRAM and len(labels) == len(figure.labels), figure
        series = self._series.setdefault(figure, {})
        known = series.get(labels)
        if not isinstance(known, Histogram):
            series[labels] = known = Histogram(figure.buckets)
        return known

    def sample(self, figure: Figure, read: Callable[[], float], *labels: str) -> None:
        """Publish the value that `read` returns at each scrape: gauges, and counters that are plain ints elsewhere."""
        assert figure.kind != HISTOGRAM and len(labels) == len(figure.labels), figure
        self._series.setdefault(figure, {})[labels] = read

    def sample_all(self, figure: Figure, read: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
        """Publish series that come and go: `read` returns all values by their labels."""
        assert figure.kind != HISTOGRAM and figure.labels, figure
        self._changing[figure] = read

    def series(self) -> list[tuple[Figure, dict[tuple[str, ...], Sample]]]:
        """All figures with their series, in the order of FIGURES."""
        known = {**self._series}
        for figure, read in self._changing.items():
            known[figure] = {labels: lambda value=value: value for labels, value in read().items()}  # type: ignore[misc]
        return [(figure, dict(known[figure])) for figure in FIGURES if figure in known]
