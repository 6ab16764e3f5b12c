"""A crowded state: how long another client waits while the state fills, and what producers, partitions and groups cost.

A crowd creates a topic of very many partitions, writes to it as very many idempotent producers, commits as very many
groups, asks about all of them in one request of each kind, and deletes the records, the groups and the topic. Another
client asks all the time for the metadata of a small topic and commits an offset for it, which has to be folded behind
everything else. A quick run takes a tenth of each.
"""

import multiprocessing
import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection

from bench.figures import Figure, at_most
from bench.frames import receive
from bench.ours import Lakestream
from bench.process import resident_mb
from bench.yard import Yard
from lakestream.metadata.export import read_export
from lakestream.model.batches.records import Record, encode_batch
from lakestream.protocol.kafka.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from lakestream.protocol.kafka.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from lakestream.protocol.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from lakestream.protocol.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
)
from lakestream.protocol.kafka.messages.produce import (
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from lakestream.protocol.kafka.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
)
from lakestream.protocol.kafka.wire import codec
from lakestream.protocol.kafka.wire.apis import APIS

PARTITIONS, PRODUCERS, GROUPS = 100_000, 100_000, 20_000
WIDE, SMALL = "wide", "small"
CROWD = 200
"""The number of concurrent clients."""
COMMITTED_AT_ONCE = 30_000
"""Offsets that one commit may hold, about."""
PAUSE_S = 0.01
AFTER_S = 1.0
BAR_S = 0.1
FETCH_HEAD = struct.Struct(">ihi")
"""Of an answer: throttle time, error, session."""

Phase = tuple[str, int, Callable[[], None]]
"""Its name, how many it is about, and what is done."""


def measure(yard: Yard) -> list[Figure]:
    scale = 10 if yard.quick else 1
    figures: list[Figure] = []
    with yard.fresh() as broker:
        broker.start()
        loader = Loader(broker.bootstrap)
        loader.say([(19, 5, CreateTopicsRequest(topics=[new_topic(SMALL, 1)], timeout_ms=60_000))])
        before = _sizes(broker)
        for name, count, work in loader.phases(PARTITIONS // scale, PRODUCERS // scale, GROUPS // scale):
            waits, seconds = _beside(broker.bootstrap, work)
            after = _sizes(broker)
            grown = f"{count:,} took {seconds:.1f} s, {after[0] - before[0]:+.0f} MB of memory"
            most = f"99 of 100 requests within {sorted(waits)[len(waits) * 99 // 100] * 1000:.0f} ms"
            note = f"{grown}, {(after[1] - before[1]) / 1e6:+.1f} MB of checkpoint; {most}"
            longest = f"longest wait of others, {name}"
            figures.append(Figure(name=longest, unit="s", ours=[max(waits)], bar=at_most(BAR_S), note=note))
            before = after
        loader.close()
    return figures


class Loader:
    """Many clients, each with one request under way."""

    def __init__(self, bootstrap: str) -> None:
        self._connections = [connected(bootstrap) for _ in range(CROWD)]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def say(self, requests: Sequence[tuple[int, int, object]] | Iterator[tuple[int, int, object]]) -> None:
        """Send all requests over the connections, and wait for every answer."""
        asked = 0
        for asked, (key, version, message) in enumerate(requests, 1):
            connection = self._connections[asked % CROWD]
            if asked > CROWD:
                receive(connection)
            connection.sendall(frame(key, version, asked, message))
        for last in range(max(asked - CROWD, 0) + 1, asked + 1):
            receive(self._connections[last % CROWD])

    def phases(self, partitions: int, producers: int, groups: int) -> Iterator[Phase]:
        wide = CreateTopicsRequest(topics=[new_topic(WIDE, partitions)], timeout_ms=60_000)
        names = [f"group-{one}" for one in range(groups)]
        yield "new partitions", partitions, partial(self.say, [(19, 5, wide)])
        ids = ((22, 4, InitProducerIdRequest()) for _ in range(producers))
        yield "new producers", producers, partial(self.say, ids)
        batches = (self._batch(one, one % partitions) for one in range(producers))
        yield "producers' batches", producers, partial(self.say, batches)
        commits = ((8, 7, commit(name, WIDE, [place % partitions])) for place, name in enumerate(names))
        yield "groups", groups, partial(self.say, commits)
        yield "all metadata", partitions, partial(self.say, [(3, 9, MetadataRequest(topics=None))])
        yield from self._questions(partitions, names)
        yield "deleted records", partitions, partial(self.say, [(21, 2, delete_records(WIDE, partitions))])
        yield "deleted groups", groups, partial(self.say, [(42, 2, DeleteGroupsRequest(groups_names=names))])
        gone = DeleteTopicsRequest(topic_names=[WIDE], timeout_ms=60_000)
        yield "deletion", partitions, partial(self.say, [(20, 4, gone)])

    def _questions(self, partitions: int, names: list[str]) -> Iterator[Phase]:
        """One request about everything, of each kind; a commit and its fetch name as much as a commit may."""
        yield "fetches", partitions, partial(self.fetch_twice, partitions)
        yield "offsets", partitions, partial(self.say, [(2, 6, list_offsets(WIDE, partitions))])
        some = min(partitions, COMMITTED_AT_ONCE)
        yield "one commit", some, partial(self.say, [(8, 7, commit(names[0], WIDE, range(some)))])
        committed = OffsetFetchRequest(group_id=names[0], topics=None)
        yield "committed offsets", some, partial(self.say, [(9, 7, committed)])
        yield "all groups", len(names), partial(self.say, [(16, 4, ListGroupsRequest())])
        described = DescribeGroupsRequest(groups=names)
        yield "described groups", len(names), partial(self.say, [(15, 5, described)])

    def fetch_twice(self, partitions: int) -> None:
        """A full request that begins a session and waits for more than there is, and an incremental one."""
        wanted = [
            FetchPartition(partition=one, fetch_offset=1, partition_max_bytes=1 << 20) for one in range(partitions)
        ]
        session = 0
        for epoch, topics in ((0, [FetchTopic(topic=WIDE, partitions=wanted)]), (1, [])):
            asked = FetchRequest(
                max_wait_ms=1_000, min_bytes=1 << 30, session_id=session, session_epoch=epoch, topics=topics
            )
            self._connections[0].sendall(frame(1, 11, epoch, asked))
            _, error, session = FETCH_HEAD.unpack_from(receive(self._connections[0]), 8)
            assert not error, f"a fetch was answered with error {error}"

    def _batch(self, producer: int, partition: int) -> tuple[int, int, object]:
        records = [Record(value=b"x" * 100, timestamp=1_700_000_000_000, offset=0)]
        batch = encode_batch(records, producer_id=producer, producer_epoch=0, base_sequence=0)
        data = [PartitionProduceData(index=partition, records=batch)]
        topics = [TopicProduceData(name=WIDE, partition_data=data)]
        return 0, 9, ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topics)


def new_topic(name: str, partitions: int) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)


def commit(group: str, topic: str, partitions: Iterable[int]) -> OffsetCommitRequest:
    rows = [OffsetCommitRequestPartition(partition_index=one, committed_offset=1) for one in partitions]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name=topic, partitions=rows)],
    )


def list_offsets(topic: str, partitions: int) -> ListOffsetsRequest:
    asked = [ListOffsetsPartition(partition_index=one, timestamp=-1) for one in range(partitions)]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=asked)])


def delete_records(topic: str, partitions: int) -> DeleteRecordsRequest:
    asked = [DeleteRecordsPartition(partition_index=one, offset=-1) for one in range(partitions)]
    return DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=asked)], timeout_ms=60_000)


def _beside(bootstrap: str, work: Callable[[], None]) -> tuple[list[float], float]:
    """The waits of the other client during the work and for a while after, and the time of the work."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=probe, args=(bootstrap, there))
    process.start()
    here.recv()
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    time.sleep(AFTER_S)
    here.send("enough")
    waits: list[float] = here.recv()
    process.join()
    return waits, seconds


def probe(bootstrap: str, pipe: Connection) -> None:
    """Run in a process of its own: ask for a small topic's metadata, and commit offsets of it, until stopped."""
    connection = connected(bootstrap)
    small = frame(3, 9, 1, MetadataRequest(topics=[MetadataRequestTopic(name=SMALL)]))
    waits: list[float] = []
    pipe.send("ready")
    while not pipe.poll():
        for request in (small, frame(8, 7, 1, commit("another", SMALL, [0]))):
            began = time.perf_counter()
            connection.sendall(request)
            receive(connection)
            waits.append(time.perf_counter() - began)
        time.sleep(PAUSE_S)
    pipe.send(waits)


def _sizes(broker: Lakestream) -> tuple[float, int]:
    """The memory of the broker in MB, and the bytes of its state in a checkpoint."""

    def read(path: str) -> bytes:
        with urllib.request.urlopen(f"http://{broker.http}{path}") as answer:
            data: bytes = answer.read()
        return data

    return resident_mb(broker.broker_pid), len(read_export(read).checkpoint)


def connected(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)))


def frame(key: int, version: int, correlation: int, message: object) -> bytes:
    """A whole request with its length prefix."""
    flexible = APIS[key].is_flexible(version)
    head = struct.pack(">hhih", key, version, correlation, 5) + b"bench" + (b"\0" if flexible else b"")
    body = head + bytes(codec.encode(message, version, flexible))
    return struct.pack(">i", len(body)) + body
