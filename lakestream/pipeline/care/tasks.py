"""The messages between the driver and workers that take care of a table, as bytes. No stored format."""

from typing import NamedTuple

import msgspec

from lakestream.data.tables.files.file_stats import FileStats
from lakestream.data.tables.reading.sort_orders import SortKey
from lakestream.errors import LakestreamError

PartitionValue = int | bytes | None
"""The value of a partition field, made by a transform of a stream column."""
MERGE, FILTER, DIGEST = "merge", "filter", "digest"
PLACES_MAX = 256
"""The most files that one task may write for a user's partition spec."""


class Scattered(LakestreamError):
    """A user's partition spec makes more than PLACES_MAX files of one task."""


class CareFile(NamedTuple):
    """A data file, and the delete files that may delete rows of it."""

    path: str
    size: int
    rows: int
    deletes: list[str]


class SpecField(NamedTuple):
    """One field of a user's partition spec, with the type of its source column, as Iceberg writes them."""

    name: str
    transform: str
    column: str
    type: str


class CareTask(msgspec.Struct, frozen=True, array_like=True):
    """The whole input of a worker.

    MERGE: all rows of the files into new ones in `folder`, sorted, inside each as `order` says. FILTER: each file again
    without the rows that fulfil `where` or lie below `keep_from`. DIGEST: only count and hash the rows.
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
    """Options to open a store that is not the cluster's, where an external catalog has placed the table."""


class CountedRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one partition: offsets as ranges [start, end) (or one range around all), number, sum of hashes."""

    partition: int
    offsets: list[tuple[int, int]]
    records: int
    digest: int


class Cared(msgspec.Struct, frozen=True, array_like=True, tag="cared"):
    """A task is done. `files` replace `replaced`; `rows` were removed by it, or counted."""

    number: int
    replaced: list[str]
    files: list[FileStats]
    rows: list[CountedRows]
    places: list[dict[str, PartitionValue]] = []
    """The partition of each file by the user's spec; empty without a spec."""


class CareFailed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """A task could not be done. `lost`: a file is missing, or damaged.

    `scattered`: the user's partition spec makes too many files. `hung`: a condition was not evaluated in time, or its
    process died.
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
