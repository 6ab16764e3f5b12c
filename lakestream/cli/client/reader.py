"""Fetches the records of partitions from given positions on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lakestream.cli.client.cluster_client import ANSWER_S, EARLIEST, ClusterClient, Place, persist
from lakestream.cli.client.codes import check
from lakestream.cli.client.texts import Line
from lakestream.interfaces import Buffer
from lakestream.model.batches import header
from lakestream.model.batches.records import decode_batch
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

FETCH_BYTES: Final = 16 << 20
PARTITION_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecord:
    """A record with its topic, partition, offset and timestamp."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    line: Line


class RecordReader:
    """Reads partitions from `positions` on, which move with each poll, over gaps as well."""

    def __init__(self, client: ClusterClient, positions: Mapping[Place, int], reset: int = EARLIEST) -> None:
        self.positions = dict(positions)
        self._client = client
        self._reset = reset
        self._order = list(self.positions)

    async def poll(self, wait_ms: int) -> list[FetchedRecord]:
        """The next records of a few partitions; waits up to `wait_ms` for the first of them."""
        answer: FetchResponse = await persist(lambda: self._fetch(wait_ms))
        records: list[FetchedRecord] = []
        lost: list[Place] = []
        for topic in answer.responses:
            for part in topic.partitions:
                place = (topic.topic, part.partition_index)
                if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    lost.append(place)
                    continue
                check(part.error_code, f"reading {topic.topic}-{part.partition_index}")
                records += self._read(place, part.records or b"")
        if lost:
            self.positions |= await self._client.offsets(dict.fromkeys(lost, self._reset))
        return records

    async def _fetch(self, wait_ms: int) -> FetchResponse:
        # The first partitions of a request may fill the answer, so the order rotates.
        self._order.append(self._order.pop(0))
        topics: dict[str, list[FetchPartition]] = {}
        for topic, partition in self._order:
            wanted = FetchPartition(
                partition=partition,
                fetch_offset=self.positions[(topic, partition)],
                partition_max_bytes=PARTITION_BYTES,
            )
            topics.setdefault(topic, []).append(wanted)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            topics=[FetchTopic(topic=name, partitions=parts) for name, parts in topics.items()],
        )
        answer: FetchResponse = await self._client.call(request, ANSWER_S + wait_ms / 1000)
        check(answer.error_code, "reading")
        return answer

    def _read(self, place: Place, data: Buffer) -> Iterator[FetchedRecord]:
        """Decode the records from the position on; control batches and earlier records are left out."""
        for view in whole_batches(memoryview(data)):
            fields = header.HEADER.unpack_from(view)
            base_offset, attributes, last_delta = fields[0], fields[5], fields[6]
            if not attributes & header.CONTROL:
                for record in decode_batch(view):
                    if record.offset >= self.positions[place]:
                        line = Line(key=record.key, value=record.value, headers=record.headers)
                        yield FetchedRecord(
                            topic=place[0],
                            partition=place[1],
                            offset=record.offset,
                            timestamp=record.timestamp,
                            line=line,
                        )
            self.positions[place] = max(self.positions[place], base_offset + last_delta + 1)


def whole_batches(view: memoryview) -> Iterator[memoryview]:
    """The complete batches of an answer: a server may cut the last one, and the next fetch gives it whole."""
    start = 0
    while start + header.HEADER_SIZE <= len(view):
        size = int.from_bytes(view[start + 8 : start + 12], "big") + header.PREFIX_SIZE
        if start + size > len(view):
            return
        yield view[start : start + size]
        start += size
