"""The few Kafka frames that a benchmark writes itself, where a client library would be the slower side."""

import socket
import struct

from lakestream.model.records import Record, encode_batch

PRODUCE, METADATA = 0, 3
PRODUCE_VERSION, METADATA_VERSION = 9, 9
CLIENT_ID = b"bench"


def produce_frame(topic: str, partition: int, value: bytes, correlation: int) -> bytes:
    """Produce v9 of one record, acks=all, not idempotent, with its length in front."""
    batch = encode_batch([Record(value=value, timestamp=1_700_000_000_000)])
    name = topic.encode()
    body = (
        b"\0"  # no transactional id
        + struct.pack(">hi", -1, 30_000)
        + b"\2"  # one topic
        + bytes((len(name) + 1,))
        + name
        + b"\2"  # one partition
        + struct.pack(">i", partition)
        + _unsigned(len(batch) + 1)
        + batch
        + b"\0\0\0"  # no tagged fields: of the partition, the topic, the request
    )
    return _framed(PRODUCE, PRODUCE_VERSION, correlation, body)


def metadata_frame(correlation: int) -> bytes:
    """Metadata v9 for all topics, creating none."""
    return _framed(METADATA, METADATA_VERSION, correlation, b"\0\0\0\0\0")


def error_position(topic: str) -> int:
    """Where in the answer to a `produce_frame`, its length included, the error code stands."""
    return 4 + 4 + 1 + 1 + 1 + len(topic.encode()) + 1 + 4


def receive(connection: socket.socket) -> bytes:
    """One whole answer, its length included."""
    head = _exactly(connection, 4)
    return head + _exactly(connection, struct.unpack(">i", head)[0])


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return bytes(data)


def _framed(key: int, version: int, correlation: int, body: bytes) -> bytes:
    head = struct.pack(">hhih", key, version, correlation, len(CLIENT_ID)) + CLIENT_ID + b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def _unsigned(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
