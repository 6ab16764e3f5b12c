"""The clients of a simulation: they behave as real Kafka clients do, and note every answer in the ledger.

An idempotent producer numbers its batches for each partition, has at most five of them under way, and sends batches
without an acknowledgement again, byte for byte, through any broker. When it gives a batch up it goes on under a new
producer id or a higher epoch. A consumer changes from broker to broker and never goes back.
"""

import asyncio
from functools import partial
from random import Random
from typing import TypeVar

from lakestream.errors import Corrupt, Fenced, LakestreamError, Rejected, Retry, Unknown
from lakestream.model.batches.records import Record, encode_batch
from lakestream.model.reasons import Reason
from lakestream.testing.simulation.cluster import Request, SimulatedCluster, Wire
from lakestream.testing.simulation.ledger import Partition, Sent, Violation
from lakestream.testing.simulation.node import Node

T = TypeVar("T")

IN_FLIGHT = 5
TIMEOUTS_S = (1.0, 3.0, 10.0)
"""The time-outs of clients; some are longer than a broker's session."""
GONE = (Reason.UNKNOWN_TOPIC, Reason.UNKNOWN_STREAM)


class Client:
    """The base of all clients: a connection to one broker, and to another one when it fails."""

    def __init__(self, cluster: SimulatedCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.chance = Random(f"{name}-{cluster.seed}")
        self.timeout_s = self.chance.choice(TIMEOUTS_S)
        self._wire: Wire | None = None

    def wire(self) -> Wire:
        """The current connection; after a failure, and at random times, a new one to a random broker."""
        if self._wire is None or self._wire.broken or self.chance.random() < 0.05:
            self.drop_wire()
            seats = self.cluster.serving() or self.cluster.seats
            self._wire = Wire(self.cluster, self.chance.choice(seats), self.chance)
        return self._wire

    def drop_wire(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    async def ask(self, request: "Request[T]") -> T:
        """Send a request to brokers until one answers. The request may be handled twice."""
        while True:
            try:
                return await self.wire().call(request, self.timeout_s)
            except (Retry, Unknown, Fenced):
                self.drop_wire()
                await asyncio.sleep(self.chance.uniform(0.01, 0.2))

    def text(self, count: int, timestamp: int) -> list[Record]:
        """Records whose values no other record has."""
        token = self.chance.randbytes(12).hex()
        return [
            Record(offset=n, timestamp=timestamp + n, key=b"k", value=f"{self.name} {token} {n}".encode())
            for n in range(count)
        ]


class PlainProducer(Client):
    """Sends each batch once, without a retry."""

    def __init__(self, cluster: SimulatedCluster, name: str, partitions: list[Partition], batches: int) -> None:
        super().__init__(cluster, name)
        self._partitions = partitions
        self._left = batches

    async def run(self) -> None:
        while self._left:
            self._left -= 1
            partition = self.chance.choice(self._partitions)
            raw = encode_batch(self.text(self.chance.randint(1, 3), self._left))
            batch = self.cluster.ledger.send(partition, raw)
            try:
                offset = await self.wire().call(partial(_produce, batch=batch), self.timeout_s)
                self.cluster.ledger.ack(batch, offset)
            except Unknown:
                batch.unsure += 1
                self.drop_wire()
            except Rejected as error:
                if error.reason not in (*GONE, Reason.OVER_SHARE):
                    raise Violation(f"a plain batch was refused for reason {error.reason}") from error
            except (Retry, Fenced):
                self.drop_wire()
            await asyncio.sleep(self.chance.uniform(0, 0.2))


async def _produce(node: Node, batch: Sent) -> int:
    return await node.produce(*batch.partition, batch.raw)


class InFlightBatches:
    """One partition of an idempotent producer: its batches under way, and its next sequence number.

    `flight` begins with the first batch without an acknowledgement. Acknowledged batches after it stay in the list,
    since they count for the last five that brokers remember.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.flight: list[Sent] = []
        self.next = 0
        self.gone = False


class IdempotentProducer(Client):
    """Sends each batch until it is acknowledged, or gives its identity up."""

    def __init__(self, cluster: SimulatedCluster, name: str, partitions: list[Partition], batches: int) -> None:
        super().__init__(cluster, name)
        self._in_flight = [InFlightBatches(partition) for partition in partitions]
        self._left = batches
        self._id = -1
        self._epoch = 0
        self._since = 0.0
        self.bumps = 0

    async def run(self) -> None:
        while self._left or any(batches.flight for batches in self._in_flight):
            if self._id < 0:
                self._id, self._epoch = await self.ask(lambda node: node.allocate_producer()), 0
            self._fill()
            await self._round()
            if not any(batches.flight for batches in self._in_flight):
                self._since = self.cluster.loop.time()
            elif self.cluster.loop.time() - self._since > 6.0 and self.chance.random() < 0.3:
                self._give_up()
            await asyncio.sleep(self.chance.uniform(0, 0.15))

    def _fill(self) -> None:
        """Make new batches. Each is encoded once, since a retry has to be the same bytes."""
        for batches in self._in_flight:
            for _ in range(self.chance.randint(0, IN_FLIGHT - len(batches.flight))):
                if batches.gone or not self._left:
                    break
                self._left -= 1
                records = self.text(self.chance.randint(1, 3), self._left)
                raw = encode_batch(
                    records, producer_id=self._id, producer_epoch=self._epoch, base_sequence=batches.next
                )
                batches.next += len(records)
                batches.flight.append(self.cluster.ledger.send(batches.partition, raw))

    async def _round(self) -> None:
        """Send all batches without an acknowledgement, in order, over one connection, and wait for the answers."""
        wire = self.wire()
        for batches in self._in_flight:
            sent = [batch for batch in batches.flight if batch.acked is None]
            results = await asyncio.gather(*[self._attempt(wire, batch) for batch in sent])
            self._settle(batches, sent, results)

    async def _attempt(self, wire: Wire, batch: Sent) -> int | LakestreamError:
        try:
            return await wire.call(partial(_produce, batch=batch), self.timeout_s)
        except LakestreamError as error:
            return error

    def _settle(self, batches: InFlightBatches, sent: list[Sent], results: list[int | LakestreamError]) -> None:
        failed = False
        for batch, result in zip(sent, results, strict=True):
            if isinstance(result, int):
                self.cluster.ledger.ack(batch, result)
                continue
            if isinstance(result, Unknown):
                batch.unsure += 1
                self.drop_wire()
            elif isinstance(result, Rejected):
                self._refused(batches, result, first=not failed)
            else:
                self.drop_wire()
            failed = True
        while batches.flight and (batches.gone or batches.flight[0].acked is not None):
            del batches.flight[0]

    def _refused(self, batches: InFlightBatches, error: Rejected, first: bool) -> None:
        if error.reason in GONE:
            batches.gone = True
        elif error.reason == Reason.OUT_OF_ORDER and first:
            # All batches before it are acknowledged, and it is one of the last five: no fault explains the refusal.
            raise Violation(f"{self.name}: the next batch in sequence was called out of order")
        elif error.reason not in (Reason.OUT_OF_ORDER, Reason.OVER_SHARE):
            raise Violation(f"{self.name}: a batch was refused for reason {error.reason}")

    def _give_up(self) -> None:
        """The delivery time-out: give up the batches, whose outcomes stay unknown, and take another identity."""
        self.bumps += 1
        for batches in self._in_flight:
            batches.flight, batches.next = [], 0
        if self.chance.random() < 0.5:
            self._epoch += 1
        else:
            self._id = -1


class Consumer(Client):
    """Reads all partitions without end; the ledger compares its batches with those of all other readers."""

    def __init__(self, cluster: SimulatedCluster, name: str, partitions: list[Partition], max_bytes: int) -> None:
        super().__init__(cluster, name)
        self._positions = dict.fromkeys(partitions, 0)
        self._max_bytes = max_bytes

    async def run(self) -> None:
        while self._positions:
            await self._read(self.chance.choice(list(self._positions)))
            await asyncio.sleep(self.chance.uniform(0, 0.1))

    async def _read(self, partition: Partition) -> None:
        topic, number = partition
        position = self._positions[partition]
        try:
            if self.chance.random() < 0.1:
                await self._ask_for_end(partition)
                return
            fetched = await self.wire().call(
                lambda node: node.fetch(topic, number, position, self._max_bytes, 0.4), self.timeout_s
            )
            self._positions[partition] = self.cluster.ledger.observe(
                partition, position, fetched.data, fetched.sequence
            )
        except (Retry, Unknown, Fenced):
            self.drop_wire()
        except Corrupt as error:
            raise Violation(f"{self.name} got an error about lost bytes: {error}") from error
        except Rejected as error:
            await self._check_reset(partition, position, error)

    async def _ask_for_end(self, partition: Partition) -> None:
        """Any broker's end of the log includes every batch acknowledged before the request (L6)."""
        topic, number = partition
        least = self.cluster.ledger.ends.get(partition, 0)
        _, end = await self.wire().call(lambda node: node.bounds(topic, number), self.timeout_s)
        if end < least:
            raise Violation(f"a broker said that the log ends at {end} after {least} was acknowledged")

    async def _check_reset(self, partition: Partition, position: int, error: Rejected) -> None:
        """A broker may refuse a fetch only if the topic is deleted, or if the log start is above the position."""
        topic = self.cluster.auditor.state.topics.by_id.get(partition[0])
        if error.reason == Reason.UNKNOWN_TOPIC:
            if topic is not None:
                raise Violation(f"a broker told {self.name} that there is no topic {topic.name}")
            del self._positions[partition]
            return
        if topic is None:
            return
        start = self.cluster.auditor.state.streams.by_id[topic.streams[partition[1]]].start
        if error.reason != Reason.OFFSET_OUT_OF_RANGE or position >= start:
            raise Violation(f"{self.name} was reset at {position} (log start {start}): reason {error.reason}")
        self._positions[partition] = start


class OffsetCommitter(Client):
    """Commits growing offsets for a group of its own, and reads them back through other brokers (L6)."""

    def __init__(self, cluster: SimulatedCluster, name: str, partition: Partition) -> None:
        super().__init__(cluster, name)
        self._partition = partition
        self._acked = -1
        self._unsure: set[int] = set()

    async def run(self) -> None:
        topic, number = self._partition
        for offset in range(1, 1_000_000):
            try:
                await self.wire().call(
                    lambda node, o=offset: node.commit(self.name, topic, number, o),  # type: ignore[misc]
                    self.timeout_s,
                )
                self._acked = offset
            except Unknown:
                self._unsure.add(offset)
                self.drop_wire()
            except (Retry, Fenced):
                self.drop_wire()
            found = await self.ask(lambda node: node.committed(self.name, topic, number))
            if found != self._acked and found not in self._unsure:
                raise Violation(f"{self.name} committed {self._acked}, but a broker said {found}")
            await asyncio.sleep(self.chance.uniform(0.1, 0.6))
