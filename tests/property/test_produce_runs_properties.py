"""Requests taken up as a run get the answers, and leave the records, that they would one by one."""

import asyncio
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.model.batches.compression import compress
from lakestream.protocol.serving.admission import Limits
from tests.support.produce_connection import NOW_MS, World, batch, produce, with_crc
from tests.support.toy_kafka_server import metadata_request

Maker = Callable[[int, int, str, int], bytes]
"""Correlation id, partition, topic, version -> a request."""


def changed(position: int, layout: str, value: int, *, sealed: bool = True) -> Maker:
    """A request whose batch says something else in one place."""

    def make(number: int, partition: int, topic: str, version: int) -> bytes:
        data = batch(b"v%d" % number, b"w")
        struct.pack_into(layout, data, position, value)
        records = with_crc(data) if sealed else bytes(data)
        return produce(number, records, topic=topic, partitions=[partition], version=version)

    return make


def simple(number: int, partition: int, topic: str, version: int) -> bytes:
    records = bytes(batch(b"x" * (number % 90), *[b"more"] * (number % 3)))
    return produce(number, records, topic=topic, partitions=[partition], version=version)


def sequenced(number: int, partition: int, topic: str, version: int) -> bytes:
    """Of an idempotent producer; some are repeated, some are out of order."""
    records = bytes(batch(b"x%d" % number, producer=5, sequence=number % 7 if number % 5 else 0))
    return produce(number, records, topic=topic, partitions=[partition], version=version)


def compressed(number: int, partition: int, topic: str, version: int) -> bytes:
    data = batch(b"x" * 100)
    data[61:] = compress(4, bytes(data[61:]))
    struct.pack_into(">h", data, 21, 4)
    struct.pack_into(">i", data, 8, len(data) - 12)
    return produce(number, with_crc(data), topic=topic, partitions=[partition], version=version)


def broken_in_1970() -> bytes:
    """A walk that fails says a greatest time of 0: that must not be taken for the truth."""
    data = batch(b"x", timestamp=0)
    data[61] = 0xFF
    return with_crc(data)


def sent(make: Callable[[], bytes | bytearray | None], **how: object) -> Maker:
    def maker(number: int, partition: int, topic: str, version: int) -> bytes:
        records = make()
        asked = {"topic": topic, "partitions": [partition], "version": version} | how
        return produce(number, None if records is None else bytes(records), **asked)  # type: ignore[arg-type]

    return maker


KINDS: dict[str, Maker] = {
    "simple": simple,
    "simple again": simple,
    "sequenced": sequenced,
    "compressed": compressed,
    "wrong crc": changed(67, ">B", 0x55, sealed=False),
    "lying count": changed(57, ">i", 7),
    "no count": changed(57, ">i", 0),
    "lying last delta": changed(23, ">i", 3),
    "old format": changed(16, ">b", 1),
    "lying length": changed(8, ">i", 60),
    "wrong greatest time": changed(35, ">q", -1),
    "log append time": changed(21, ">h", 8),
    "transactional batch": changed(21, ">h", 16),
    "control": changed(21, ">h", 32),
    "odd attributes": changed(21, ">h", 256),
    "a producer without a sequence": changed(43, ">q", 9),
    "a leader epoch and an offset": changed(0, ">q", 77, sealed=False),
    "broken records": changed(61, ">B", 0xFF),
    "broken records of 1970": sent(broken_in_1970),
    "early": sent(lambda: batch(b"early", timestamp=NOW_MS - 5000)),
    "late": sent(lambda: batch(b"late", timestamp=NOW_MS + 5000)),
    "no time": sent(lambda: batch(b"never", timestamp=-1)),
    "large": sent(lambda: batch(b"l" * 400)),
    "larger": sent(lambda: batch(b"l" * 6000)),
    "two batches": sent(lambda: batch(b"1") + batch(b"2")),
    "null": sent(lambda: None),
    "empty": sent(lambda: b""),
    "short": sent(lambda: b"short"),
    "two partitions": sent(lambda: batch(b"both"), partitions=[0, 2]),
    "a partition too many": sent(lambda: batch(b"?"), partitions=[3]),
    "a partition below": sent(lambda: batch(b"?"), partitions=[-1]),
    "no such topic": sent(lambda: batch(b"?"), topic="none"),
    "another client's way": sent(lambda: batch(b"acks"), acks=1),
    "acks 0": sent(lambda: batch(b"acks"), acks=0),
    "acks 7": sent(lambda: batch(b"acks"), acks=7),
    "transactional": sent(lambda: batch(b"t"), transactional=b"t"),
    "tags": sent(lambda: batch(b"t"), tags=b"\1\5\1x"),
    "metadata": lambda number, *_: metadata_request(number),
}
PARTS = st.lists(
    st.tuples(
        st.sampled_from(["simple"] * 40 + list(KINDS)),
        st.integers(1, 14),
        st.sampled_from([0, 0, 0, 1, 2]),
        st.sampled_from(["plain", "plain", "plain", "strict", "stamped"]),
        st.sampled_from([9, 9, 9, 3, 7, 8, 13]),
    ),
    min_size=1,
    max_size=10,
)
LIMITS = st.sampled_from(
    [
        Limits(),
        Limits(max_in_flight=7),
        Limits(slab_bytes=16384, receive_bytes=3000, small_bytes=200, memory_bytes=1 << 20),
    ]
)


def stream_of(parts: list[tuple[str, int, int, str, int]]) -> bytes:
    frames: list[bytes] = []
    for kind, repeat, partition, topic, version in parts:
        for _ in range(repeat):
            # The partition changes within a run, too.
            number = len(frames)
            frames.append(KINDS[kind](number, (partition + number // 5) % 3 if partition else 0, topic, version))
    return b"".join(frames)


@pytest.mark.parametrize("version", [7, 9])
@pytest.mark.parametrize("topic", ["plain", "strict"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_of_any_kind_in_the_middle_of_a_run_is_treated_as_if_it_came_alone(
    kind: str, topic: str, version: int
) -> None:
    around = ("simple", 6, 0, topic, version)
    asyncio.run(compare(stream_of([around, (kind, 1, 0, topic, version), around]), [], Limits()))


@given(parts=PARTS, chunks=st.lists(st.integers(1, 4000), max_size=12), limits=LIMITS)
@settings(max_examples=150)
def test_l16_a_run_gets_the_answers_and_leaves_the_records_of_its_requests_one_by_one(
    parts: list[tuple[str, int, int, str, int]], chunks: list[int], limits: Limits
) -> None:
    asyncio.run(compare(stream_of(parts), chunks, limits))


@given(
    parts=PARTS, chunks=st.lists(st.integers(1, 4000), max_size=6), limits=LIMITS,
    flips=st.lists(st.tuples(st.integers(0, 100_000), st.integers(0, 255)), min_size=1, max_size=5),
)  # fmt: skip
@settings(max_examples=100)
def test_runs_with_damaged_bytes_are_refused_as_their_requests_would_be(
    parts: list[tuple[str, int, int, str, int]], chunks: list[int], limits: Limits, flips: list[tuple[int, int]]
) -> None:
    data = bytearray(stream_of(parts))
    for position, value in flips:
        data[position % len(data)] = value
    asyncio.run(compare(bytes(data), chunks, limits))


async def compare(data: bytes, chunks: list[int], limits: Limits) -> None:
    worlds = [await World.make(limits, with_runs=True), await World.make(limits, with_runs=False)]
    for world in worlds:
        await world.send(data, chunks)
    fast, slow = worlds
    assert not slow.runs
    assert fast.wire.closed == slow.wire.closed
    if slow.wire.closed:
        # What was taken up and answered before the end is a matter of time, but its order is not.
        one, other = sorted((fast.answers(), slow.answers()), key=len)
        assert other[: len(one)] == one
        for here, there in zip(await fast.streams(), await slow.streams(), strict=True):
            less, more = sorted((here[2], there[2]), key=len)
            assert more.startswith(less)
    else:
        assert fast.answers() == slow.answers()
        assert await fast.streams() == await slow.streams()
        assert fast.board.stats.requests == slow.board.stats.requests
        assert fast.api.refused == slow.api.refused
    for world in worlds:
        world.connection.connection_lost(None)
        assert world.board.admission.held_bytes == 0
        await world.broker.stop()
