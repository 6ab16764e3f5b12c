"""L20: the state is bounded; only a topic above its share is refused, and only when the state is crowded."""

from lakestream.model.reasons import Reason
from tests.support.memory_broker import batch, start_broker


async def test_l20_a_topic_above_its_share_is_refused_and_the_others_go_on() -> None:
    broker = await start_broker()
    [greedy] = await broker.topic("greedy")
    [modest] = await broker.topic("modest")
    streams = broker.replica.state.streams
    streams.limit = 1000
    results = []
    for _ in range(1100):
        [result] = await broker.append((greedy, batch(b"x")))  # type: ignore[misc]
        results.append(result)
    assert results[-1] == -Reason.OVER_SHARE
    assert results[600] >= 0 and streams.entries <= 1100
    assert await broker.append((modest, batch(b"y"))) == [0]
    await broker.stop()


async def test_l20_a_refused_batch_is_accepted_once_there_is_room_again() -> None:
    broker = await start_broker()
    [stream] = await broker.topic("t")
    streams = broker.replica.state.streams
    sent = batch(b"x", producer=3, epoch=0, sequence=0)
    streams.limit = 0
    streams.entries += 1
    broker.replica.state.topics.by_name["t"].entries += 2000
    assert await broker.append((stream, sent)) == [-Reason.OVER_SHARE]
    streams.limit = 1_000_000
    assert await broker.append((stream, sent)) == [0]
    await broker.stop()
