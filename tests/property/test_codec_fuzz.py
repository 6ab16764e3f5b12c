"""Whatever the bytes, reading them gives a message or Malformed, quickly and in little memory."""

import contextlib
import tracemalloc
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.protocol.kafka.wire import codec, fast_requests, framing
from lakestream.protocol.kafka.wire.apis import APIS, FLEXIBLE_FROM, Api
from tests.support.kio_codec import CASES, case_name, kio_bytes, kio_class, our_class, random_entity

REQUESTS = [case for case in CASES if case[2] == "request"]


def mutated(data: bytes, rng: Random) -> bytes:
    """Cut it, lengthen it, or change some of its bytes; large numbers are where lengths hurt."""
    out = bytearray(data)
    choice = rng.random()
    if choice < 0.25:
        return bytes(out[: rng.randrange(len(out) + 1)])
    if choice < 0.35:
        return bytes(out) + rng.randbytes(rng.randrange(1, 9))
    for _ in range(rng.randrange(1, 5)):
        if out:
            at = rng.randrange(len(out))
            new = rng.choice([rng.randbytes(1), b"\xff" * 5, b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\x80\0"])
            out[at : at + len(new)] = new
    return bytes(out)


def attempt(read: Callable[[], object]) -> None:
    with contextlib.suppress(framing.Malformed):
        read()


@pytest.mark.parametrize(("api", "version", "kind"), CASES, ids=case_name)
def test_a_damaged_message_is_malformed_or_another_message(api: Api, version: int, kind: str) -> None:
    rng = Random(f"{api.name} {version} {kind}")
    data = kio_bytes(random_entity(kio_class(api, version, kind), rng))
    for _ in range(60):
        bad = mutated(data, rng)
        attempt(lambda: codec.decode(our_class(api, kind), version, api.is_flexible(version), memoryview(bad)))  # noqa: B023


@pytest.mark.parametrize(("api", "version", "kind"), CASES, ids=case_name)
def test_every_truncation_is_malformed(api: Api, version: int, kind: str) -> None:
    data = kio_bytes(random_entity(kio_class(api, version, kind), Random(7)))
    for size in sorted({*range(min(len(data), 80)), max(len(data) - 1, 0)} - {len(data)}):
        with pytest.raises(framing.Malformed):
            codec.decode(our_class(api, kind), version, api.is_flexible(version), data[:size])


@given(st.binary(max_size=200), st.sampled_from(REQUESTS))
@settings(max_examples=1500, deadline=None)
def test_random_bytes_are_malformed_or_a_message(data: bytes, case: tuple[Api, int, str]) -> None:
    api, version, kind = case
    attempt(lambda: codec.decode(our_class(api, kind), version, api.is_flexible(version), data))


@given(st.binary(max_size=60))
@settings(max_examples=500, deadline=None)
def test_random_bytes_as_a_header_are_malformed_or_a_header(data: bytes) -> None:
    try:
        header = framing.parse_header(memoryview(data), 0, len(data), FLEXIBLE_FROM)
    except framing.Malformed:
        return
    assert header.body <= len(data)


@pytest.mark.parametrize("version", range(3, 14))
def test_a_damaged_produce_request_is_malformed_or_another_request(version: int) -> None:
    rng = Random(version)
    for _ in range(400):
        data = b"\0\3abc" + (b"\0" if version >= 9 else b"")
        data += kio_bytes(random_entity(kio_class(APIS[0], version, "request"), rng))
        bad = mutated(data, rng)
        slab = memoryview(bytes(9) + bad + rng.choice([b"", bytes(40), b"\xff" * 40]))
        parser = fast_requests.ProduceParser()
        attempt(lambda: parser.parse(memoryview(data), 0, len(data), version))  # noqa: B023
        attempt(lambda: check_bounds(parser.parse(slab, 9, 9 + len(bad), version), slab, 9 + len(bad)))  # noqa: B023


def check_bounds(request: fast_requests.ParsedProduce, slab: memoryview, end: int) -> None:
    """No record bytes are taken from the request behind."""
    for _, partitions in request.topics:
        for _, start, size in partitions:
            assert 9 <= start <= start + max(size, 0) <= end


@pytest.mark.parametrize("version", range(4, 19))
def test_a_damaged_fetch_request_is_malformed_or_another_request(version: int) -> None:
    rng = Random(version)
    for _ in range(400):
        bad = mutated(kio_bytes(random_entity(kio_class(APIS[1], version, "request"), rng)), rng)
        slab = memoryview(bytes(9) + bad + rng.choice([b"", bytes(40), b"\xff" * 40]))
        attempt(lambda: fast_requests.parse_fetch(slab, 9, 9 + len(bad), version))  # noqa: B023


@pytest.mark.parametrize(("api", "version", "kind"), REQUESTS, ids=case_name)
def test_a_count_that_the_frame_cannot_hold_allocates_nothing(api: Api, version: int, kind: str) -> None:
    """Every position of a small message in turn claims two billion items or bytes."""
    data = kio_bytes(random_entity(kio_class(api, version, kind), Random(3)))[:300]
    tracemalloc.start()
    try:
        for at in range(len(data)):
            for claim in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07"):
                bad = data[:at] + claim + data[at + len(claim) :]
                attempt(lambda: codec.decode(our_class(api, kind), version, api.is_flexible(version), bad))  # noqa: B023
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
