"""What the driver tells a worker that takes care of a table, and what it gets back, as bytes. No stored format."""

from typing import NamedTuple

import msgspec

from lakestream.data.tables.files.file_stats import FileStats
from lakestream.data.tables.reading.sort_orders import SortKey
from lakestream.errors import LakestreamError

PartitionValue = int | bytes | None
"""What transforms make of the stream's columns."""
MERGE, FILTER, DIGEST = "merge", "filter", "digest"
PLACES_MAX = 256
"""Files that a user's partitioning may make of what one task reads."""


class Scattered(LakestreamError):
    """It makes more."""


class CareFile(NamedTuple):
    """A data file, and the delete files that may speak of it."""

    path: str
    size: int
    rows: int
    deletes: list[str]


class SpecField(NamedTuple):
    """One field of a user's partition spec: its name, what it does, to which column of which type (Iceberg's words)."""

    name: str
    transform: str
    column: str
    type: str


class CareTask(msgspec.Struct, frozen=True, array_like=True):
    """Everything that a worker has to know.

    MERGE: all rows of the files into new ones in `folder`, sorted, inside each as `order` says. FILTER: each file again
    without the rows that fulfil `where` or lie below `keep_from`. DIGEST: only tell what rows there are.
    """

    number: int
    root: str
    mode: str
    files: list[CareFile]
    folder: str = ""
    split: bool = False
    target_bytes: int = 0
    where: str = ""
    keep_from: list[tuple[int, int]] = []
    spec: list[SpecField] = []
    order: list[SortKey] = []
    store_options: dict[str, str] = {}
    """What the store needs if it is not the cluster's: another catalog has placed the table there."""


class CountedRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one partition: their offsets as [start, end) (few enough, or one that holds all), count and hashes."""

    partition: int
    offsets: list[tuple[int, int]]
    records: int
    digest: int


class Cared(msgspec.Struct, frozen=True, array_like=True, tag="cared"):
    """A task is done. `replaced`: files that may go when `files` come; `rows`: those that go, or that were counted."""

    number: int
    replaced: list[str]
    files: list[FileStats]
    rows: list[CountedRows]
    places: list[dict[str, PartitionValue]] = []
    """Where a user's spec puts each of the files; empty if there is none."""


class CareFailed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """A task could not be done. `lost`: since a file is not there, or not what was written, and will not be.

    `scattered`: since the user's partitioning makes too many files. `hung`: since a condition was not evaluated in
    time, or its process died.
    """

    number: int
    reason: str
    lost: bool = False
    scattered: bool = False
    hung: bool = False


CareAnswer = Cared | CareFailed

_ENCODER = msgspec.msgpack.Encoder()
_TASK = msgspec.msgpack.Decoder(CareTask)
_ANSWER: msgspec.msgpack.Decoder[CareAnswer] = msgspec.msgpack.Decoder(CareAnswer)


def pack_care(value: CareTask | CareAnswer) -> bytes:
    return _ENCODER.encode(value)


def unpack_care_task(body: bytes) -> CareTask:
    return _TASK.decode(body)


def unpack_care_answer(body: bytes) -> CareAnswer:
    return _ANSWER.decode(body)
