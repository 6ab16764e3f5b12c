"""The data source `lakestream` for Spark applications, in `spark.read` and `spark.readStream`.

    spark.dataSource.register(Lakestream)
    spark.read.format("lakestream").option("broker", "127.0.0.1:8181").load("orders")

A read returns all records up to the moment when it is planned: rows of the table, then the tail out of the WAL, where
the columns that users added to the table are null. Workers read both from the store; the broker, asked by HTTP, only
says where they are. Options:

    broker              HOST:PORT of a broker's HTTP listener (127.0.0.1:8181)
    topic               if it is not the argument of load()
    startingOffsets     earliest, latest, or {"0": 17, ...}; partitions not named start at the earliest, and so does
                        one with -2; -1 is the latest
    endingOffsets       latest or {"0": 99, ...}, exclusive, -1 the latest; batch only
    startingTimestamp   milliseconds since 1970: from the first record that is not older, in each partition
    maxRecordsPerBatch  of a stream
    failOnDataLoss      true: a stream fails if offsets it has not read are gone (retention), or its topic was deleted
                        and made again; false: it goes on with the records that are left
    pushFilters         true: filters on stream_partition and stream_offset are not read at all; Spark wants
                        spark.sql.python.filterPushdown.enabled=true with it
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from lakestream.data.tables.files.stream_columns import RAW_COLUMNS
from lakestream.data.tables.reading.scan import ScanPiece, columns_of, offset_at, pieces, read
from lakestream.data.tables.reading.tail import PartitionBounds, TopicTail, fetch_tail
from lakestream.errors import LakestreamError

EARLIEST, LATEST = "earliest", "latest"
FIRST, LAST = -2, -1
"""The numbers that mean earliest and latest in Spark's source for Kafka."""
TOPIC = "topic"
"""The key of the topic's id among the offsets of a stream."""
FOREVER = 2**63 - 1
OPTIONS = (
    "broker", "topic", "path", "startingOffsets", "endingOffsets", "startingTimestamp", "maxRecordsPerBatch",
    "failOnDataLoss", "pushFilters",
)  # fmt: skip
Offset = dict[str, int | str]
_KNOWN = {name.lower(): name for name in OPTIONS}


class OptionError(ValueError):
    """An option has a value that is not allowed."""


@dataclass(frozen=True)
class Asked:
    """The options of a read, parsed."""

    broker: str
    topic: str
    starting: str | dict[int, int]
    ending: dict[int, int] | None
    timestamp: int | None
    batch_records: int | None
    fail_on_loss: bool
    push_filters: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "Asked":
        for name in options:
            if name.lower() not in _KNOWN:
                near = difflib.get_close_matches(name.lower(), _KNOWN, n=1, cutoff=0.0)[0]
                raise OptionError(f"there is no option {name!r}; did you mean {_KNOWN[near]!r}?")
        topic = options.get("topic") or options.get("path")
        if not topic:
            raise OptionError("which topic? .load('topic') or .option('topic', ...)")
        starting = options.get("startingOffsets", EARLIEST)
        ending = options.get("endingOffsets", LATEST)
        timestamp, records = options.get("startingTimestamp"), options.get("maxRecordsPerBatch")
        return cls(
            broker=options.get("broker", "127.0.0.1:8181"),
            topic=topic,
            starting=starting if starting in (EARLIEST, LATEST) else _offsets("startingOffsets", starting, FIRST),
            ending=None if ending == LATEST else _offsets("endingOffsets", ending, LAST),
            timestamp=None if timestamp is None else _number("startingTimestamp", timestamp),
            batch_records=None if records is None else _number("maxRecordsPerBatch", records, low=1),
            fail_on_loss=_choice("failOnDataLoss", options.get("failOnDataLoss", "true")),
            push_filters=_choice("pushFilters", options.get("pushFilters", "false")),
        )

    def tail(self) -> TopicTail:
        return fetch_tail(self.broker, self.topic)

    def first(self, tail: TopicTail) -> dict[int, int]:
        """Where to start, in each partition."""
        if self.timestamp is not None:
            return {one.partition: offset_at(tail, one.partition, self.timestamp) for one in tail.partitions}
        if not isinstance(self.starting, dict):
            return {one.partition: one.end if self.starting == LATEST else one.start for one in tail.partitions}
        self._check_named(tail, self.starting)
        return {one.partition: _place(one, self.starting.get(one.partition, FIRST)) for one in tail.partitions}

    def last(self, tail: TopicTail) -> dict[int, int]:
        """Where a batch ends, in each partition."""
        ending = self.ending or {}
        self._check_named(tail, ending)
        return {one.partition: _place(one, ending.get(one.partition, LAST)) for one in tail.partitions}

    def _check_named(self, tail: TopicTail, named: Iterable[int]) -> None:
        if unknown := sorted(set(named) - {one.partition for one in tail.partitions}):
            raise OptionError(f"{self.topic} has no partition {unknown[0]}; there are {len(tail.partitions)}, from 0")


def _place(bounds: PartitionBounds, offset: int) -> int:
    return {FIRST: bounds.start, LAST: bounds.end}.get(offset, offset)


def _offsets(name: str, text: str, low: int) -> dict[int, int]:
    try:
        found = {int(partition): offset for partition, offset in json.loads(text).items()}
    except (ValueError, AttributeError):
        found = {0: None}
    if any(type(offset) is not int or offset < low for offset in found.values()):
        raise OptionError(f'{name} is one word or {{"partition": offset, ...}}, not {text!r}')
    return found


def _number(name: str, text: str, low: int | None = None) -> int:
    try:
        number = int(text)
    except ValueError:
        raise OptionError(f"{name} is a whole number, not {text!r}") from None
    if low is not None and number < low:
        raise OptionError(f"{name} is at least {low}, not {number}")
    return number


def _choice(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise OptionError(f"{name} is true or false, not {text!r}")
    return text.lower() == "true"


class Lakestream(DataSource):
    """The data source `lakestream`."""

    @classmethod
    def name(cls) -> str:
        return "lakestream"

    def schema(self) -> StructType:
        """The columns of the stream, and those that users have added to the table so far."""
        asked = Asked.parse(self.options)
        fields = RAW_COLUMNS.with_added(columns_of(asked.tail()))
        # The parts of our own columns are never null.
        ours = RAW_COLUMNS.schema.names
        types = [one if one.name in ours else one.with_type(for_spark(one.type)) for one in fields]
        return from_arrow_schema(pa.schema(types))

    def reader(self, schema: StructType) -> DataSourceReader:
        asked = Asked.parse(self.options)
        return (PushingReader if asked.push_filters else BatchReader)(asked, _arrow(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        asked = Asked.parse(self.options)
        if asked.ending is not None:
            raise OptionError("endingOffsets is for batches; a stream ends by its trigger")
        return StreamReader(asked, _arrow(schema))


class ReadTask(InputPartition):
    """One task of a read."""

    def __init__(self, piece: ScanPiece) -> None:
        super().__init__(piece)
        self.piece = piece


def _arrow(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def for_spark(kind: pa.DataType) -> pa.DataType:
    """A type as Spark has it: uuids are bytes, and all parts of a column may be null, since the column may be."""
    if isinstance(kind, pa.BaseExtensionType):
        return for_spark(kind.storage_type)
    if pa.types.is_struct(kind):
        return pa.struct([_inner(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(for_spark(kind.key_type), _inner(kind.item_field))
    return pa.list_(_inner(kind.value_field)) if pa.types.is_list(kind) else kind


def _inner(field: pa.Field) -> pa.Field:
    return field.with_type(for_spark(field.type)).with_nullable(True)


def _wants_added(schema: pa.Schema) -> bool:
    return not set(schema.names) <= set(RAW_COLUMNS.schema.names)


def _columns(part: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows with only the columns of `schema`: Spark prunes no columns itself, but takes a smaller schema."""
    # Spark runs one task without a part when there is none.
    for batch in read(part.piece) if isinstance(part, ReadTask) else ():
        columns = [_column(batch, field) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """A column of the rows, as `field` says; null if they lack it, as the tail lacks columns that users added."""
    place = batch.schema.get_field_index(field.name)
    if place < 0:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(place)
    return (column.storage if isinstance(column, pa.ExtensionArray) else column).cast(field.type)


class BatchReader(DataSourceReader):
    """A batch read: the records up to the moment when it is planned."""

    def __init__(self, asked: Asked, schema: pa.Schema) -> None:
        self._asked = asked
        self._schema = schema
        self._only: set[int] | None = None
        self._low, self._high = 0, FOREVER

    def partitions(self) -> Sequence[InputPartition]:
        asked, tail = self._asked, self._asked.tail()
        first, last = asked.first(tail), asked.last(tail)
        wanted = {
            partition: (max(first[partition], self._low), min(last[partition], self._high))
            for partition in first
            if self._only is None or partition in self._only
        }
        return [ReadTask(piece) for piece in pieces(asked.broker, tail, wanted, added=_wants_added(self._schema))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _columns(partition, self._schema)


class PushingReader(BatchReader):
    """A batch read that reads only the partitions and offsets that filters select."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for one in filters:
            if not self._takes(one):
                yield one

    def _takes(self, one: Filter) -> bool:
        match one:
            case IsNotNull(("stream_partition" | "stream_offset",)):
                pass
            case EqualTo(("stream_partition",), value):
                self._keep({int(value)})
            case In(("stream_partition",), values):
                self._keep({int(value) for value in values if value is not None})
            case EqualTo(("stream_offset",), value):
                self._between(int(value), int(value) + 1)
            case GreaterThan(("stream_offset",), value):
                self._between(int(value) + 1, FOREVER)
            case GreaterThanOrEqual(("stream_offset",), value):
                self._between(int(value), FOREVER)
            case LessThan(("stream_offset",), value):
                self._between(0, int(value))
            case LessThanOrEqual(("stream_offset",), value):
                self._between(0, int(value) + 1)
            case _:
                return False
        return True

    def _keep(self, partitions: set[int]) -> None:
        self._only = partitions if self._only is None else self._only & partitions

    def _between(self, low: int, high: int) -> None:
        self._low, self._high = max(self._low, low), min(self._high, high)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. Offsets are {partition: next offset}, as Spark keeps them, with text for keys, and the topic's id."""

    def __init__(self, asked: Asked, schema: pa.Schema) -> None:
        self._asked = asked
        self._schema = schema
        self._until: Offset | None = None

    def initialOffset(self) -> Offset:
        tail = self._asked.tail()
        return _offset(tail, self._asked.first(tail))

    def getDefaultReadLimit(self) -> ReadLimit:
        records = self._asked.batch_records
        return ReadAllAvailable() if records is None else ReadMaxRows(records)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self.reportLatestOffset()

    def reportLatestOffset(self) -> Offset:
        tail = self._asked.tail()
        return _offset(tail, {one.partition: one.end for one in tail.partitions})

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        end = self._until or self.reportLatestOffset()
        since, upto = self._since(start, end), _numbers(end)
        if isinstance(limit, ReadMaxRows):
            found = limited(since, upto, limit.max_rows)
        else:
            found = {name: max(since.get(name, 0), upto.get(name, 0)) for name in since | upto}
        return {**found, TOPIC: end[TOPIC]}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        tail = self._asked.tail()
        if _other_topic(end, tail.topic_id):
            self._fail_on_loss("the topic was deleted before these records of it were read")
            return []
        since = self._since(start, end)
        wanted = {int(name): (since.get(name, 0), upto) for name, upto in _numbers(end).items()}
        for one in tail.partitions:
            first, upto = wanted.get(one.partition, (0, 0))
            if first < one.start and first < upto and str(one.partition) in since:
                self._fail_on_loss(f"offsets {first} to {one.start} of partition {one.partition} are gone")
        added = _wants_added(self._schema)
        return [ReadTask(piece) for piece in pieces(self._asked.broker, tail, wanted, added=added)]

    def _since(self, start: Offset, end: Offset) -> dict[str, int]:
        """The offsets that were read of this topic; none if it was deleted and made again meanwhile."""
        if not _other_topic(start, str(end.get(TOPIC, ""))):
            return _numbers(start)
        self._fail_on_loss("the topic was deleted and made again since")
        return {}

    def _fail_on_loss(self, what: str) -> None:
        if self._asked.fail_on_loss:
            raise LakestreamError(f"{what}; start anew, or read on by failOnDataLoss=false")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _columns(partition, self._schema)

    def commit(self, end: dict[str, int]) -> None:
        """Spark keeps the offsets itself."""

    def stop(self) -> None:
        """There is nothing to close."""


def limited(start: Mapping[str, int], end: Mapping[str, int], records: int) -> dict[str, int]:
    """End offsets for at most `records` more records, shared fairly: partitions with few waiting get all of them."""
    room = sorted((max(upto - start.get(name, 0), 0), name) for name, upto in end.items())
    found = dict(start)
    left = records
    for place, (waiting, name) in enumerate(room):
        taken = min(waiting, -(-left // (len(room) - place)))
        found[name] = start.get(name, 0) + taken
        left -= taken
    return found


def _offset(tail: TopicTail, offsets: Mapping[int, int]) -> Offset:
    return {**{str(partition): offset for partition, offset in offsets.items()}, TOPIC: tail.topic_id}


def _numbers(offset: Offset) -> dict[str, int]:
    return {name: int(number) for name, number in offset.items() if name != TOPIC}


def _other_topic(offset: Offset, topic_id: str) -> bool:
    """Whether the offsets are of another topic. Checkpoints and brokers of earlier versions do not say."""
    return bool(topic_id) and offset.get(TOPIC, topic_id) not in ("", topic_id)
