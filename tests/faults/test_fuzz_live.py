"""Thousands of damaged requests of every API and version at a live broker: it serves on, and its records are intact."""

import asyncio
import dataclasses
import random
import re
import struct
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from lakestream.model.batches.records import Record, encode_batch
from lakestream.protocol.kafka.wire.apis import APIS
from tests.property.test_codec_fuzz import mutated
from tests.support.live_broker import Live, encoded_request

# One live broker serves all tests of the module, in one test process.
pytestmark = pytest.mark.xdist_group("fuzz")

CONNECTIONS, FRAMES_EACH = 1200, 3
AT_ONCE = 24
NAMES = ["fuzzed", "fuzzed", "fuzzed-2", "", "not there", "é漢🙂", "x" * 300, "range", "consumer", "1"]
INTEGERS = [-1, 0, 1, 2, 3, 5, 100, 1000, 2**15 - 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]
WIDTHS = {"b": 8, "h": 16, "i": 32, "q": 64, "H": 16}


def plausible(hint: Any, rng: random.Random) -> Any:
    """A value of a field's type that a client might send: names that exist, numbers that make sense or none."""
    arms = [arm for arm in get_args(hint) if arm is not type(None)]
    if type(None) in get_args(hint):
        return None if rng.random() < 0.2 else plausible(arms[0], rng)
    if get_origin(hint) is list:
        return [plausible(arms[0], rng) for _ in range(rng.choice([0, 1, 1, 2, 4]))]
    if dataclasses.is_dataclass(hint):
        return plausible_message(hint, rng)
    if hint is str:
        return rng.choice(NAMES)
    if hint is bytes:
        return rng.randbytes(rng.choice([0, 1, 40]))
    wire = hint.__metadata__[0]
    if wire in WIDTHS:
        low, high = (0, 2 ** WIDTHS[wire]) if wire == "H" else (-(2 ** (WIDTHS[wire] - 1)), 2 ** (WIDTHS[wire] - 1))
        return rng.choice([one for one in INTEGERS if low <= one < high])
    if wire == "16s":
        return rng.choice([bytes(16), rng.randbytes(16)])
    if wire == "records":
        return batch(rng)
    return rng.random() < 0.5 if wire == "?" else rng.random()


def plausible_message(cls: Any, rng: random.Random) -> Any:
    hints = get_type_hints(cls, include_extras=True)
    return cls(**{field.name: plausible(hints[field.name], rng) for field in dataclasses.fields(cls)})


def batch(rng: random.Random) -> bytes:
    sizes = [rng.choice([0, 5, 500]) for _ in range(rng.choice([1, 3]))]
    records = [Record(offset=n, timestamp=n, value=rng.randbytes(size)) for n, size in enumerate(sizes)]
    return encode_batch(records, codec=rng.randrange(5))


def frames(rng: random.Random) -> Iterator[bytes]:
    """Every API and version in turn: two of three are damaged somewhere behind the header."""
    cases = [(api, version) for api in APIS.values() for version in range(api.min_version, api.max_version + 1)]
    cases = [(api, version) for api, version in cases if api.reads(version)]
    while True:
        rng.shuffle(cases)
        for api, version in cases:
            frame = encoded_request(api.key, version, rng.randrange(1 << 30), plausible_message(api.request, rng))
            if rng.random() < 0.67:
                body = frame[12:]
                for _ in range(rng.choice([1, 1, 2])):
                    body = mutated(body, rng)
                head = frame[4:12] if rng.random() < 0.9 else mutated(frame[4:12], rng)
                frame = struct.pack(">i", len(head) + len(body)) + head + body
            yield frame


async def bombard(live: Live, requests: list[bytes]) -> None:
    client = await live.connect()
    with suppress(ConnectionError, TimeoutError):
        await client.send(b"".join(requests))
        async with asyncio.timeout(0.25):
            while await client.reader.read(1 << 16):
                pass
    client.close()


@pytest.mark.parametrize("seed", [1])
async def test_damaged_requests_of_every_api_hurt_nobody(live: Live, seed: int) -> None:
    await fuzz(live, seed, CONNECTIONS)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 7))
async def test_many_more_damaged_requests_hurt_nobody(live: Live, seed: int) -> None:
    await fuzz(live, seed, 2500)


async def fuzz(live: Live, seed: int, connections: int) -> None:
    requests = frames(random.Random(seed))
    async with live.unharmed():
        for _ in range(connections // AT_ONCE):
            batches = [[next(requests) for _ in range(FRAMES_EACH)] for _ in range(AT_ONCE)]
            await asyncio.gather(*(bombard(live, some) for some in batches))
        client = await live.connect()
        assert await client.is_served()
    # A damaged request ends in an answer or a refusal; a failing handler would be a fault of ours.
    refused = await asyncio.to_thread(refusals, live)
    assert float(refused["request"]) > 100
    assert float(refused["failure"]) == 0, live.cluster.log_text()[-5000:]
    assert "Traceback" not in live.cluster.log_text()


def refusals(live: Live) -> dict[str, str]:
    """How many connections the broker closed, by reason."""
    with urllib.request.urlopen(f"http://{live.cluster.http[0]}/metrics", timeout=5) as answer:
        return dict(re.findall(r'connections_refused_total{reason="(\w+)"} (\S+)', answer.read().decode()))
