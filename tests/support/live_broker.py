"""A live broker to be hurt, with real clients at work beside: they must not notice, and nothing may be appended.

    async with live.unharmed():        # the bystanders go on, the victim's log stays as it is, memory stays bounded
        ... hostile bytes ...
"""

import asyncio
import os
import struct
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from lakestream.protocol.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from lakestream.protocol.kafka.wire import apis, codec, framing
from tests.support.acked_workload import Ledger, create_topic, ends, producing, read_all, send
from tests.support.serve_process import Cluster, eventually, serving
from tests.support.toy_kafka_server import Client

MB = 1 << 20
VICTIM, KEPT = "victim", "kept"
KEPT_VALUES = [b"kept-%d" % number for number in range(200)]
SETTINGS = {"memory_bytes": 64 * MB, "cache_bytes": 32 * MB}
MEMORY_BOUND = 256 * MB
"""What an attack may cost: requests that arrive and that wait, one frame of the largest size, the allocator."""


class Memory(threading.Thread):
    """Watches how much of a process is resident."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._statm = Path(f"/proc/{pid}/statm")
        self._over = threading.Event()
        self.first = self.most = self.now()

    def now(self) -> int:
        """0 if the process is gone."""
        with suppress(OSError):
            return self._resident()
        return 0

    def _resident(self) -> int:
        return int(self._statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def run(self) -> None:
        while not self._over.wait(0.05):
            self.most = max(self.most, self.now())

    def growth(self) -> int:
        """Stop watching: by how much it grew at most."""
        self._over.set()
        self.join()
        return self.most - self.first


class Live:
    """The broker, its bystanders and what is known about both."""

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self.cluster = cluster
        self.ledger = ledger
        pid = cluster.pid(0)
        assert pid is not None
        self.pid: int = pid
        host, _, port = cluster.kafka[0].rpartition(":")
        self.address = (host, int(port))

    async def connect(self) -> Client:
        return await Client.connect(self.address, buffer_bytes=1 << 20)

    async def connect_many(self, count: int) -> list[Client]:
        clients: list[Client] = []
        while len(clients) < count:
            clients += await asyncio.gather(*(self.connect() for _ in range(min(200, count - len(clients)))))
        return clients

    @asynccontextmanager
    async def unharmed(self, *, bound: int = MEMORY_BOUND, appends: bool = False) -> AsyncIterator[Memory]:
        before = await asyncio.to_thread(ends, self.cluster.bootstrap, VICTIM)
        memory = Memory(self.pid)
        memory.start()
        began = time.monotonic()
        yield memory
        lasted = time.monotonic() - began
        acked = len(self.ledger.acked)
        await asyncio.to_thread(
            eventually, lambda: len(self.ledger.acked) > acked + 20, "the bystander is not served", 10.0, self.cluster
        )
        growth = memory.growth()
        assert self.cluster.pid(0) == self.pid, f"the broker died:\n{self.cluster.log_text()[-3000:]}"
        assert growth < bound, f"{growth // MB} MB more"
        assert self.ledger.fatal == [] and self.ledger.failed == {}
        silence = max((b - a for a, b in self._pairs(began)), default=0.0)
        assert silence < max(5.0, lasted / 2), f"the bystander waited {silence:.1f} s"
        if not appends:
            assert await asyncio.to_thread(ends, self.cluster.bootstrap, VICTIM) == before

    def _pairs(self, since: float) -> Iterator[tuple[float, float]]:
        times = [at for at in self.ledger.ack_times if at >= since]
        return pairwise(times)


@contextmanager
def living(folder: Path, **settings: int) -> Iterator[Live]:
    """Start one broker and its bystander; at the end all records that were acknowledged are read and compared."""
    with serving(folder, **{**SETTINGS, **settings}) as cluster:
        for topic, partitions in ((VICTIM, 1), (KEPT, 1), ("bystander", 3)):
            create_topic(cluster.bootstrap, topic, partitions)
        send(cluster.bootstrap, KEPT, KEPT_VALUES)
        ledger = Ledger("bystander", 3)
        with producing(cluster.kafka, ledger, burst=5):
            yield Live(cluster, ledger)
        ledger.check(cluster.bootstrap)
        kept = read_all(cluster.bootstrap, KEPT)[0]
        assert kept == list(enumerate(KEPT_VALUES))


def encoded_request(key: int, version: int, correlation_id: int, message: object) -> bytes:
    """A whole frame of any API in any version."""
    api = apis.APIS[key]
    flexible = api.is_flexible(version)
    head = struct.pack(">hhih", key, version, correlation_id, 4) + b"test" + (b"\0" if flexible else b"")
    body = head + bytes(codec.encode(message, version, flexible))
    return struct.pack(">i", len(body)) + body


def produce(records: Sequence[bytes], topic: str = VICTIM, acks: int = -1, version: int = 9) -> bytes:
    """A Produce with one batch for each of the partitions from 0 on."""
    data = [PartitionProduceData(index=index, records=one) for index, one in enumerate(records)]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    return encoded_request(0, version, 1, ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=topics))


async def ask(client: Client, key: int, version: int, message: object) -> Any:
    """Send a request and give its decoded answer."""
    await client.send(encoded_request(key, version, 1, message))
    return decoded(key, version, (await client.answer())[1])


def decoded(key: int, version: int, body: bytes) -> Any:
    api = apis.APIS[key]
    flexible = api.is_flexible(version)
    start = int(framing.has_flexible_response_header(key, flexible))
    return codec.decode(api.response, version, flexible, body, start)


async def produced(client: Client, records: bytes, topic: str = VICTIM) -> PartitionProduceResponse:
    """What the broker says to one batch."""
    await client.send(produce([records], topic))
    answer = decoded(0, 9, (await client.answer())[1])
    partition: PartitionProduceResponse = answer.responses[0].partition_responses[0]
    return partition
