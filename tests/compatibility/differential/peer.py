"""A broker, ours or Apache Kafka's, asked over plain sockets in bytes that an independent codec (kio) makes and reads.

    talk = Talk(peer, "produce")
    topic = talk.topic()                                   # made and awaited, not part of what is compared
    talk.each("Metadata", topics=[{"name": topic.name}])   # in the lowest, a middle and the highest version
    talk.transcript                                        # (what was asked, the plain answer) one after the other
"""

import dataclasses
import socket
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from lakestream.protocol.kafka.wire.apis import APIS, Api
from tests.compatibility.differential.entities import build, field_names, plain
from tests.support.kio_codec import kio_bytes

LIMIT_S = 20.0
BY_NAME = {api.name: api for api in APIS.values()}
NO_SUCH_ID = uuid.UUID("0badcafe-0000-4000-8000-000000000001")
CLOSED = "the connection was closed"
SILENT = "no answer"
CREATE_LIMIT_S = 15.0


class Closed(Exception):
    """The broker ended the connection instead of an answer."""


class Connection:
    """One socket; several requests may be under way on it."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), LIMIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = 0

    def send(self, api: Api, version: int, fields: dict[str, Any], client_id: str | None = "differ") -> int:
        """Send a request; its correlation id, by which its answer is known."""
        self._number += 1
        cls = load_request_schema(api.key, version)
        head = {"request_api_key": api.key, "request_api_version": version, "client_id": client_id}
        header = build(cls.__header_schema__, {**head, "correlation_id": self._number})
        self.send_frame(kio_bytes(header) + kio_bytes(build(cls, fields)))
        return self._number

    def send_frame(self, frame: bytes) -> None:
        try:
            self.socket.sendall(struct.pack(">i", len(frame)) + frame)
        except ConnectionError:
            raise Closed from None

    def receive(self, api: Api, version: int) -> Any:
        """The next answer, which belongs to the oldest request that has none."""
        cls = load_response_schema(api.key, version)
        frame = self.receive_frame()
        header, size = entity_reader(cls.__header_schema__)(frame, 0)
        body, rest = entity_reader(cls)(frame, size)
        assert size + rest == len(frame), "bytes behind the answer"
        return header, body

    def receive_frame(self) -> bytes:
        return self._exactly(*struct.unpack(">i", self._exactly(4)))

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                more = self.socket.recv(size - len(data))
            except ConnectionError:
                more = b""
            if not more:
                raise Closed
            data += more
        return bytes(data)


@dataclasses.dataclass(frozen=True, slots=True)
class MadeTopic:
    """A topic that a conversation works with. Unpack `ref` where a request names a topic, by name or by id."""

    name: str
    id: Any

    @property
    def ref(self) -> dict[str, Any]:
        return {"name": self.name, "topic": self.name, "topic_id": self.id}


class Talk:
    """A conversation with one broker: asks, and writes down what was answered."""

    def __init__(self, address: str, name: str) -> None:
        self.address = address
        self.name = name
        self.transcript: list[tuple[str, Any]] = []
        self._made = 0
        self._connection: Connection | None = None
        self._connections: list[Connection] = []

    def close(self) -> None:
        for one in self._connections:
            one.close()

    def connect(self) -> Connection:
        self._connections.append(Connection(self.address))
        return self._connections[-1]

    @property
    def connection(self) -> Connection:
        """The one that is used unless another is named."""
        if self._connection is None:
            self._connection = self.connect()
        return self._connection

    def fresh(self) -> str:
        """A name for a topic or a group: the same in the conversation with the other broker."""
        self._made += 1
        return f"{self.name}-{self._made}"

    # -- asking -----------------------------------------------------------------------------------------------------

    def ask(self, name: str, version: int = -1, note: str = "", /, **fields: Any) -> Any:
        """Ask, write the answer down, and return it (a kio entity); version -1 is the highest."""
        version = BY_NAME[name].max_version if version < 0 else version
        label = f"{name} v{version}{' ' + note if note else ''}"
        try:
            answer = self.quietly(name, version, **fields)
        except Closed:
            self._connection = None
            self.transcript.append((label, CLOSED))
            return None
        self.transcript.append((label, plain(answer)))
        return answer

    def each(self, name: str, note: str = "", /, **fields: Any) -> list[Any]:
        """Ask the same in several versions."""
        return [self.ask(name, version, note, **fields) for version in versions(name)]

    def quietly(self, name: str, version: int = -1, /, on: Connection | None = None, **fields: Any) -> Any:
        """Ask without writing it down."""
        api = BY_NAME[name]
        unknown = fields.keys() - field_names(api.key)
        assert not unknown, f"no version of {name} has {unknown}"
        version = api.max_version if version < 0 else version
        connection = on or self.connection
        number = connection.send(api, version, fields)
        header, answer = connection.receive(api, version)
        assert header.correlation_id == number
        return answer

    def unanswered(self, name: str, version: int, note: str = "", /, **fields: Any) -> None:
        """Ask for what has no answer; write down whether the next request gets one."""
        next_api, connection = BY_NAME["ApiVersions"], self.connection
        connection.send(BY_NAME[name], version, fields)
        try:
            number = connection.send(next_api, 0, {})
            header, _ = connection.receive(next_api, 0)
            outcome = SILENT if header.correlation_id == number else "an answer"
        except Closed:
            self._connection, outcome = None, CLOSED
        self.transcript.append((f"{name} v{version} {note}", outcome))

    def note(self, label: str, value: Any) -> None:
        """Write down something else that has to be the same."""
        self.transcript.append((label, value))

    # -- what conversations begin with ------------------------------------------------------------------------------

    def topic(self, partitions: int = 1, name: str = "", **configs: Any) -> MadeTopic:
        """A topic that is there; configs with underscores for dots."""
        name = name or self.fresh()
        given = [{"name": key.replace("_", "."), "value": str(value)} for key, value in configs.items()]
        asked = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": given}
        (made,) = self.quietly("CreateTopics", topics=[asked], timeout=CREATE_LIMIT_S * 1000).topics
        assert made.error_code.value == 0, made
        self.until(lambda: self._serves(name, partitions))
        return MadeTopic(name, made.topic_id)

    def _serves(self, name: str, partitions: int) -> bool:
        asked = [{"partition_index": one, "timestamp": -1} for one in range(partitions)]
        answer = self.quietly("ListOffsets", topics=[{"name": name, "partitions": asked}], replica_id=-1)
        return all(one.error_code.value == 0 for one in answer.topics[0].partitions)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for what comes true behind an answer."""
        end = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < end, "it never came true"
            time.sleep(0.02)

    def settle(self) -> None:
        """Kafka's brokers learn what their controller did a moment later, but in order: so await something newer."""
        self.topic()


def versions(name: str) -> list[int]:
    """The lowest, a middle one and the highest."""
    api = BY_NAME[name]
    readable = [version for version in range(api.min_version, api.max_version + 1) if api.reads(version)]
    return sorted({readable[0], readable[len(readable) // 2], readable[-1]})


@contextmanager
def talking(address: str, name: str) -> Iterator[Talk]:
    talk = Talk(address, name)
    try:
        yield talk
    finally:
        talk.close()
