"""The work of Spark's Python workers: read slices of the WAL, decode them, write sorted Parquet, answer with the files.

A worker knows only its task. Each object is opened once, and neighbouring slices are one read (T18). A failure of one
topic is that topic's answer; the other topics of the task go on.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import pyarrow as pa

from lakestream.data.tables.files.arrow_view import digest_rows
from lakestream.data.tables.files.decode import STAMPED, Decoded, WalSlice, decode_pieces
from lakestream.data.tables.files.file_stats import Digest, FileStats, add_digests
from lakestream.data.tables.files.parquet import FileWriter
from lakestream.data.tables.files.slices import TailSlice
from lakestream.data.tables.stores.routed_store import open_folder
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, LakestreamError, Missing, Retry, Unknown
from lakestream.pipeline.landing.tasks import Answer, Task, TopicShare, WrittenFiles, pack_answers, unpack_task
from lakestream.pipeline.tables.failure import Failed

log = logging.getLogger(__name__)

STORES = 256
TOPICS_AT_ONCE = 4
FILE_BYTES = 128 << 20
"""A file that has grown to this gets no more rows."""

Place = tuple[int, int]
"""(number of an object in the task, position in it)."""


def land_task(body: bytes, attempt: int) -> list[bytes]:
    """Do one task; one answer for each of its topics. `attempt` tells the files of a repeated task apart.

    An empty description only loads this module.
    """
    if not body:
        return []
    task = unpack_task(body)
    return land_in(store_at(task.root, {}), task, attempt)


def land_in(store: TableStore, task: Task, attempt: int) -> list[bytes]:
    """Do one task with a store that is open already."""
    read = read_slices(task, store)

    def land(share: TopicShare) -> Answer:
        return _land(task, share, _home(store, task, share), read, attempt)

    if len(task.topics) == 1 or store.requests_at_once == 1:
        return pack_answers(map(land, task.topics))
    # To be durable a file waits for the disk; those of other topics need not.
    with ThreadPoolExecutor(TOPICS_AT_ONCE) as pool:
        return pack_answers(pool.map(land, task.topics))


def store_at(root: str, options: Mapping[str, str]) -> TableStore:
    """The store of a folder or bucket, opened once. `options` are for stores that are not the cluster's."""
    return _store(root, tuple(sorted(options.items())))


@lru_cache(maxsize=STORES)
def _store(root: str, options: tuple[tuple[str, str], ...]) -> TableStore:
    return open_folder(root, lambda: dict(options))


def _home(store: TableStore, task: Task, share: TopicShare) -> TableStore:
    """The store that a topic's files go to: an external catalog may have placed the table outside the root."""
    if share.folder.startswith(f"{task.root}/"):
        return store
    return store_at(share.folder.rpartition("/data/")[0], task.store_options)


def _land(
    task: Task, share: TopicShare, store: TableStore, read: "Mapping[Place, memoryview | LakestreamError]", attempt: int
) -> Answer:
    try:
        return WrittenFiles(share.topic_id, list(_write(task, share, store, read, attempt)))
    except (Corrupt, Missing) as error:
        return Failed(share.topic_id, str(error), True)
    except (Retry, Unknown) as error:
        return Failed(share.topic_id, str(error), False)
    except Exception as error:
        # An unexpected error is this topic's answer: the other topics of the task must not wait until it is understood.
        log.exception("a topic's slices could not be landed")
        return Failed(share.topic_id, f"{type(error).__name__}: {error}", True)


def _write(
    task: Task, share: TopicShare, store: TableStore, read: "Mapping[Place, memoryview | LakestreamError]", attempt: int
) -> Iterator[FileStats]:
    """Write the rows into files. Each is whole and durable before the next begins."""
    file: _File | None = None
    number = 0
    for piece in decode_pieces(_wal_slices(task, share, read)):
        if file is None:
            file = _File(f"{share.folder}/{task.number:05d}-{attempt}-{number}.parquet")
            number += 1
        if digest_rows(piece.rows) != piece.digests:
            raise Corrupt("rows differ from the batches that they were made of")
        file.add(piece)
        if file.size >= FILE_BYTES:
            yield file.put(store)
            file = None
    if file is not None:
        yield file.put(store)


class _File:
    """One Parquet file in the making, in memory: a store takes whole objects."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._sink = pa.BufferOutputStream()
        self._writer = FileWriter(self._sink)
        self._digests: dict[int, Digest] = {}

    @property
    def size(self) -> int:
        return int(self._sink.tell())

    def add(self, piece: Decoded) -> None:
        self._writer.add(piece.rows)
        self._digests = add_digests([self._digests, piece.digests])

    def put(self, store: TableStore) -> FileStats:
        stats = self._writer.finish(self._uri, self._digests)
        store.put(self._uri, self._sink.getvalue().to_pybytes())
        return stats


def _wal_slices(
    task: Task, share: TopicShare, read: "Mapping[Place, memoryview | LakestreamError]"
) -> Iterator[WalSlice]:
    for one in share.slices:
        data = read[one.object, one.position]
        if isinstance(data, LakestreamError):
            raise data
        source = task.objects[one.object]
        if len(data) != one.length:
            raise Corrupt(f"{source.key} is cut short: {len(data)} bytes at {one.position} instead of {one.length}")
        base = STAMPED if source.stamped else one.base
        yield WalSlice(one.partition, base, data, one.first, one.end, one.append_ms)


# -- reading ---------------------------------------------------------------------------------------------------------


def read_slices(task: Task, store: TableStore) -> "dict[Place, memoryview | LakestreamError]":
    """The bytes of every slice of the task, or the error of reading them."""
    wanted: dict[int, list[TailSlice]] = {}
    for share in task.topics:
        for one in share.slices:
            wanted.setdefault(one.object, []).append(one)

    def read(number: int) -> "list[tuple[Place, memoryview | LakestreamError]]":
        own = sorted(wanted[number], key=lambda one: one.position)
        spans = list(joined(own))
        try:
            found = store.read(f"{task.root}/{task.objects[number].key}", [(span[0], span[1]) for span in spans])
        except LakestreamError as error:
            return [((number, one.position), error) for one in own]
        return [
            ((number, one.position), memoryview(data)[one.position - start : one.position - start + one.length])
            for (start, _, slices), data in zip(spans, found, strict=True)
            for one in slices
        ]

    if len(wanted) == 1 or store.requests_at_once == 1:
        return dict(pair for number in wanted for pair in read(number))
    with ThreadPoolExecutor(store.requests_at_once) as pool:
        return dict(pair for pairs in pool.map(read, wanted) for pair in pairs)


def joined(slices: Iterable[TailSlice]) -> Iterator[tuple[int, int, list[TailSlice]]]:
    """(start, length, slices): those that touch each other are one range."""
    span: list[TailSlice] = []
    start = end = 0
    for one in slices:
        if span and one.position == end:
            span.append(one)
        else:
            if span:
                yield start, end - start, span
            span, start = [one], one.position
        end = one.position + one.length
    if span:
        yield start, end - start, span
