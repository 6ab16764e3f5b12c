"""The messages between the driver and its workers: the description of a task and its answers, as bytes.

Both sides are the same version of this code (the package travels with the application), so these are no stored format.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from lakestream.data.tables.files.file_stats import FileStats
from lakestream.data.tables.files.slices import TailObject, TailSlice
from lakestream.pipeline.landing.planner import Share
from lakestream.pipeline.tables.failure import Failed


class TopicShare(msgspec.Struct, frozen=True, array_like=True):
    """One topic's part of a task; a slice's `object` is an index into the task's list of objects."""

    topic_id: bytes
    folder: str
    """The URI of the folder for its files; only this round writes there (T12)."""
    slices: list[TailSlice]


class Task(msgspec.Struct, frozen=True, array_like=True):
    """The whole input of a worker."""

    number: int
    root: str
    """The URI of the folder or bucket that keys and tables lie below."""
    objects: list[TailObject]
    topics: list[TopicShare]
    store_options: dict[str, str] = {}
    """Options to open object stores outside the root, where an external catalog has placed a table."""


class RoundPlaces(NamedTuple):
    """The places of a round: the root, the WAL objects by their numbers in the state, the topics' folders."""

    root: str
    sources: Mapping[int, TailObject]
    folders: Mapping[bytes, str]
    store_options: dict[str, str]


class WrittenFiles(msgspec.Struct, frozen=True, array_like=True, tag="landed"):
    """The files of a topic's part: whole and durable, and nothing refers to them yet."""

    topic_id: bytes
    files: list[FileStats]


Answer = WrittenFiles | Failed

_ENCODER = msgspec.msgpack.Encoder()
_TASK = msgspec.msgpack.Decoder(Task)
_ANSWER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def describe(number: int, shares: Sequence[Share], where: RoundPlaces) -> Task:
    """The description of a task."""
    used = sorted({one.object for share in shares for one in share.slices})
    index = {number: at for at, number in enumerate(used)}
    topics = [
        TopicShare(
            share.topic_id,
            where.folders[share.topic_id],
            [one._replace(object=index[one.object]) for one in share.slices],
        )
        for share in shares
    ]
    return Task(number, where.root, [where.sources[one] for one in used], topics, where.store_options)


def pack_task(task: Task) -> bytes:
    return _ENCODER.encode(task)


def unpack_task(body: bytes) -> Task:
    return _TASK.decode(body)


def pack_answers(answers: Iterable[Answer]) -> list[bytes]:
    return [_ENCODER.encode(answer) for answer in answers]


def unpack_answer(body: bytes) -> Answer:
    return _ANSWER.decode(body)
