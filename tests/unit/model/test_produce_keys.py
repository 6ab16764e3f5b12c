"""A topic that is compacted by keys takes no record without one, whichever way a batch comes."""

import struct

import pytest

from lakestream.model.batches.header import Codec
from lakestream.model.batches.records import Record, encode_batch
from lakestream.protocol.kafka.errors import ErrorCode
from tests.support.produce_connection import NOW_MS, World, batch, produce

LARGE = 8 << 20


def keyed(*keys: bytes | None, codec: Codec = Codec.NONE, size: int = 1) -> bytes:
    records = [Record(offset=i, timestamp=NOW_MS, key=key, value=bytes(size)) for i, key in enumerate(keys)]
    return encode_batch(records, codec=codec)


async def compacted(policy: str = "compact") -> World:
    world = await World.make()
    await world.broker.topic("keyed", 1, **{"cleanup.policy": policy})
    return world


def codes(world: World) -> list[int]:
    found = []
    for answer in world.answers():
        at = answer.index(b"keyed") + 6
        found.append(struct.unpack_from(">h", answer, at + 4)[0])
    return found


@pytest.mark.parametrize("policy", ["compact", "delete,compact"])
@pytest.mark.parametrize(("codec", "size"), [(Codec.NONE, 1), (Codec.LZ4, 1), (Codec.LZ4, LARGE)])
async def test_records_without_a_key_are_refused_and_nothing_is_appended(policy: str, codec: Codec, size: int) -> None:
    world = await compacted(policy)
    for number, keys in enumerate([(b"a", None), (b"a", b""), (None,)]):
        await world.send(produce(number, keyed(*keys, codec=codec, size=size), topic="keyed"))
    assert codes(world) == [ErrorCode.INVALID_RECORD, 0, ErrorCode.INVALID_RECORD]
    assert world.broker.appender.stats.acked_records == 2
    await world.broker.stop()


async def test_the_records_without_a_key_are_named() -> None:
    world = await compacted()
    await world.send(produce(0, keyed(b"a", None, b"b", None), topic="keyed"))
    [answer] = world.answers()
    at = answer.index(b"keyed") + 6 + 4 + 2 + 8 + 8 + 8
    count, first = struct.unpack_from(">bi", answer, at)
    assert (count - 1, first) == (2, 1)
    assert b"without a key" in answer
    await world.broker.stop()


async def test_many_small_requests_for_a_compacted_topic_are_looked_at_one_by_one() -> None:
    world = await compacted()
    good, bad = keyed(b"k"), bytes(batch(b"no key"))
    await world.send(b"".join(produce(number, bad if number % 3 else good, topic="keyed") for number in range(30)))
    assert codes(world) == [ErrorCode.INVALID_RECORD if number % 3 else 0 for number in range(30)]
    assert world.runs == []
    assert world.broker.appender.stats.acked_records == 10
    await world.broker.stop()
