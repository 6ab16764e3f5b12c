"""Bodies that decompress to a lot are checked in a thread: nobody else waits, and the order stays (L16)."""

import threading
from typing import Any

import pytest

from lakestream.model.batches.header import BatchInfo, Codec
from lakestream.model.batches.records import Record, encode_batch
from lakestream.protocol.kafka import produce as produce_module
from lakestream.protocol.kafka.errors import ErrorCode
from tests.support.produce_connection import World, batch, produce
from tests.unit.protocol.kafka.test_produce_runs import told

LARGE = 8 << 20


def zeros(codec: Codec, size: int) -> bytes:
    return bytes(encode_batch([Record(timestamp=1, value=bytes(size))], codec=codec))


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that bodies were checked in to the end."""
    names: list[str] = []
    check = produce_module.check_batch

    def noted(*args: Any) -> BatchInfo:
        info = check(*args)
        names.append(threading.current_thread().name)
        return info

    monkeypatch.setattr(produce_module, "check_batch", noted)
    return names


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
async def test_a_large_body_is_checked_off_the_loop_and_what_follows_keeps_its_place_l16(
    codec: Codec, threads: list[str]
) -> None:
    world = await World.make()
    small = bytes(batch(b"behind"))
    requests = [zeros(codec, LARGE), small, zeros(codec, 100), zeros(codec, LARGE), small]
    await world.send(b"".join(produce(n, one, partitions=[0]) for n, one in enumerate(requests)))
    assert told(world) == [(number, 0, number) for number in range(5)]
    assert [name.startswith("produce-check") for name in threads] == [True, False, False, True, False]
    await world.broker.stop()


async def test_a_bomb_is_refused_and_what_follows_is_taken() -> None:
    world = await World.make()
    bomb = zeros(Codec.ZSTD, produce_module.MAX_DECOMPRESSED_BYTES + 1)
    await world.send(produce(0, bomb, partitions=[0]) + produce(1, bytes(batch(b"behind")), partitions=[0]))
    first, second = told(world)
    assert first == (0, ErrorCode.MESSAGE_TOO_LARGE, -1) and second == (1, 0, 0)
    await world.broker.stop()


async def test_a_large_body_is_stamped_with_the_brokers_time_once_l19() -> None:
    world = await World.make()
    await world.send(produce(0, zeros(Codec.GZIP, LARGE), partitions=[0], topic="stamped"))
    assert world.broker.appender.stats.acked_batches == 1
    await world.broker.stop()
