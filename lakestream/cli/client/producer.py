"""An idempotent producer for the command line: encodes lines as batches and sends one request at a time."""

from collections.abc import Iterator, Sequence
from typing import Final

from lakestream.cli.client.cluster_client import ClusterClient, persist
from lakestream.cli.client.codes import KafkaError, check
from lakestream.cli.client.texts import Line, size_of
from lakestream.errors import LakestreamError
from lakestream.interfaces import Clock
from lakestream.model.batches.records import Record, encode_batch
from lakestream.protocol.kafka.messages.produce import (
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

BATCH_BYTES: Final = 512 << 10
"""The size of a batch, below any common max.message.bytes together with the records' overhead."""
RECORD_OVERHEAD, HEADER_OVERHEAD = 32, 4
TIMEOUT_MS: Final = 30_000
ALL_REPLICAS: Final = -1
SEQUENCES: Final = 1 << 31


class LineProducer:
    """Writes lines to one topic; `open` makes it. Records keep their order in a partition, and a retry adds none."""

    def __init__(self, client: ClusterClient, clock: Clock, topic: str, codec: int, partitions: Sequence[int]) -> None:
        self._client = client
        self._clock = clock
        self._topic = topic
        self._codec = codec
        self._partitions = partitions
        self._producer = (-1, -1)
        self._sequences = dict.fromkeys(partitions, 0)
        self._turn = 0

    @classmethod
    async def open(cls, client: ClusterClient, clock: Clock, topic: str, codec: int) -> "LineProducer":
        producer = cls(client, clock, topic, codec, await client.partitions(topic, create=True))

        async def attempt() -> tuple[int, int]:
            answer = await client.call(InitProducerIdRequest(transactional_id=None))
            check(answer.error_code, "asking for a producer id")
            return answer.producer_id, answer.producer_epoch

        producer._producer = await persist(attempt)
        return producer

    async def send(self, lines: Sequence[Line]) -> None:
        """Write the lines; returns when all are acknowledged."""
        by_partition: dict[int, list[Line]] = {}
        self._turn += 1
        for line in lines:
            by_partition.setdefault(self._partition(line), []).append(line)
        queues = {partition: batches(own) for partition, own in by_partition.items()}
        while queues:
            round_of = {partition: next(queue, None) for partition, queue in queues.items()}
            queues = {partition: queues[partition] for partition, own in round_of.items() if own is not None}
            await self._write({partition: own for partition, own in round_of.items() if own is not None})

    async def _write(self, lines: dict[int, list[Line]]) -> None:
        """Send one batch for each partition in one request; refused batches are sent again if the code allows it."""
        if not lines:
            return
        pending = {partition: self._encode(partition, own) for partition, own in lines.items()}

        async def attempt() -> None:
            data = [PartitionProduceData(index=partition, records=batch) for partition, batch in pending.items()]
            topic = TopicProduceData(name=self._topic, partition_data=data)
            request = ProduceRequest(acks=ALL_REPLICAS, timeout_ms=TIMEOUT_MS, topic_data=[topic])
            failure: KafkaError | None = None
            for answer in (await self._client.call(request)).responses[0].partition_responses:
                if answer.error_code:
                    where = f"writing to {self._topic}-{answer.index}"
                    failure = KafkaError(answer.error_code, where, answer.error_message)
                else:
                    del pending[answer.index]
            if failure is not None:
                raise failure

        await persist(attempt)
        for partition, own in lines.items():
            self._sequences[partition] = (self._sequences[partition] + len(own)) % SEQUENCES

    def _encode(self, partition: int, lines: Sequence[Line]) -> bytes:
        now = self._clock.wall_ms()
        records = [
            Record(
                offset=i,
                timestamp=now if line.timestamp is None else line.timestamp,
                key=line.key,
                value=line.value,
                headers=line.headers,
            )
            for i, line in enumerate(lines)
        ]
        producer_id, epoch = self._producer
        return encode_batch(
            records,
            codec=self._codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._sequences[partition],
        )

    def _partition(self, line: Line) -> int:
        """The line's own partition, or the hash of its key as in Kafka's clients, or the next one for each `send`."""
        if line.partition is not None:
            if line.partition not in self._sequences:
                raise LakestreamError(f"topic {self._topic!r} has no partition {line.partition}")
            return line.partition
        if line.key is not None:
            return self._partitions[(murmur2(line.key) & 0x7FFFFFFF) % len(self._partitions)]
        return self._partitions[self._turn % len(self._partitions)]


def batches(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """The lines in their order, in batches of BATCH_BYTES at most; a larger line is a batch of its own."""
    batch: list[Line] = []
    size = 0
    for line in lines:
        own = size_of(line) + RECORD_OVERHEAD + HEADER_OVERHEAD * len(line.headers)
        if batch and size + own > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += own
    if batch:
        yield batch


def murmur2(data: bytes) -> int:
    """The hash of keys in Kafka's clients, as an unsigned number."""
    multiplier, mask = 0x5BD1E995, 0xFFFFFFFF
    value = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        word = int.from_bytes(data[i : i + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        value = (value * multiplier & mask) ^ word
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * multiplier & mask
    value = (value ^ value >> 13) * multiplier & mask
    return value ^ value >> 15
