"""Request headers, varints and tags."""

import pytest

from lakestream.protocol.kafka.wire.apis import FLEXIBLE_FROM
from lakestream.protocol.kafka.wire.framing import (
    Malformed,
    RequestHeader,
    parse_header,
    read_uvarint,
    skip_tags,
    uvarint,
)


def fixed(key: int, version: int, client_id: bytes | None) -> bytes:
    parts = [key.to_bytes(2, "big"), version.to_bytes(2, "big"), (77).to_bytes(4, "big")]
    parts.append(b"\xff\xff" if client_id is None else len(client_id).to_bytes(2, "big") + client_id)
    return b"".join(parts)


def parse(data: bytes) -> RequestHeader:
    return parse_header(memoryview(data), 0, len(data), FLEXIBLE_FROM)


def test_old_versions_have_no_tags_in_their_header() -> None:
    data = fixed(3, 8, b"me") + b"body"
    header = parse(data)
    assert header == RequestHeader(3, 8, 77, "me", len(data) - 4)


def test_flexible_versions_have_tags_in_their_header() -> None:
    data = fixed(3, 9, None) + b"\1\5\2xy" + b"body"
    header = parse(data)
    assert header.client_id is None
    assert data[header.body :] == b"body"


@pytest.mark.parametrize(("key", "version"), [(999, 0), (18, 30), (-1, -1 & 0x7FFF)])
def test_of_an_unknown_api_or_version_the_fixed_part_is_read(key: int, version: int) -> None:
    data = fixed(key & 0xFFFF, version, b"me") + b"\0"
    header = parse(data)
    assert (header.api_key, header.api_version, header.correlation_id) == (key, version, 77)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\3\0\1",
        fixed(3, 1, None)[:-1],
        fixed(3, 1, None)[:-2] + b"\xff\xfe",
        fixed(3, 1, None)[:-2] + b"\x7f\xff",
        fixed(3, 1, b"\xff\xff"),
        fixed(3, 9, b"me"),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["empty", "short", "cut", "negative", "too long", "no text", "no tags", "HTTP"],
)
def test_a_broken_header_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        parse(data)


def test_a_header_may_not_reach_into_the_next_frame() -> None:
    data = fixed(3, 1, b"client")
    with pytest.raises(Malformed):
        parse_header(memoryview(data), 0, len(data) - 1, FLEXIBLE_FROM)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 16383, 16384, (1 << 21) - 1, 1 << 21, 1 << 28, (1 << 35) - 1])
def test_varints_round_trip(value: int) -> None:
    data = uvarint(value)
    assert read_uvarint(b"x" + data, 1) == (value, 1 + len(data))


def test_a_varint_of_more_than_five_bytes_is_malformed() -> None:
    with pytest.raises(Malformed):
        read_uvarint(b"\xff" * 10, 0)


def test_tags_that_claim_more_than_there_is_are_malformed() -> None:
    assert skip_tags(b"\1\7\2ab", 0) == 5
    for data in (b"\1\7\3ab", b"\xff\xff\x7f" + bytes(1000)):
        with pytest.raises(Malformed):
            skip_tags(data, 0)
