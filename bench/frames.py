"""Kafka frames for benchmarks in which a client library would be the slower side."""

import socket
import struct

from lakestream.model.batches.records import Record, encode_batch

PRODUCE, FETCH, METADATA = 0, 1, 3
PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION = 9, 4, 9
CLIENT_ID = b"bench"


def produce_frame(topic: str, partition: int, value: bytes, correlation: int, records: int = 1) -> bytes:
    """Produce v9 with one batch of equal records, acks=all, not idempotent, with the length prefix."""
    batch = encode_batch([Record(value=value, timestamp=1_700_000_000_000, offset=at) for at in range(records)])
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


def fetch_frame(topic: str, partition: int, offset: int, max_bytes: int, correlation: int) -> bytes:
    """Fetch v4 of one partition, which does not wait, with the length prefix."""
    name = topic.encode()
    body = (
        struct.pack(">iiiib", -1, 0, 1, max_bytes, 0)
        + struct.pack(">ih", 1, len(name))
        + name
        + struct.pack(">iiqi", 1, partition, offset, max_bytes)
    )
    return _framed(FETCH, FETCH_VERSION, correlation, body, flexible=False)


def fetched_bytes(answer: bytes) -> int:
    """The bytes of batches in the answer to a `fetch_frame`. Raises ConnectionError for an error code."""
    at = 4 + 4 + 4 + 4  # its length, the correlation, the throttle time, the number of topics
    at += 2 + struct.unpack_from(">h", answer, at)[0] + 4 + 4
    code, _, _, aborted = struct.unpack_from(">hqqi", answer, at)
    at += 22 + 16 * max(aborted, 0)
    if code:
        raise ConnectionError(f"the broker answers a fetch with error {code}")
    return int(struct.unpack_from(">i", answer, at)[0])


def metadata_frame(correlation: int) -> bytes:
    """Metadata v9 for all topics, creating none."""
    return _framed(METADATA, METADATA_VERSION, correlation, b"\0\0\0\0\0")


def error_position(topic: str) -> int:
    """The position of the error code in the answer to a `produce_frame`, length prefix included."""
    return 4 + 4 + 1 + 1 + 1 + len(topic.encode()) + 1 + 4


def receive(connection: socket.socket) -> bytes:
    """One whole answer with its length prefix."""
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


def _framed(key: int, version: int, correlation: int, body: bytes, *, flexible: bool = True) -> bytes:
    head = struct.pack(">hhih", key, version, correlation, len(CLIENT_ID)) + CLIENT_ID + (b"\0" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


def _unsigned(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
