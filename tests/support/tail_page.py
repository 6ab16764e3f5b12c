"""A broker's HTTP port that tells where records are, for tests of what reads table and tail from the store."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from lakestream.data.tables.reading.tail import describe_tail, pack_tail
from lakestream.metadata.describe import describe_state
from lakestream.metadata.replica import Replica
from lakestream.metrics import Metrics
from lakestream.protocol.http.server import HttpServer, HttpSources


@asynccontextmanager
async def tail_page(
    replica: Replica, root: str, made: Callable[[], Awaitable[None]] | None = None, *, tables: bool = True
) -> AsyncIterator[str]:
    """Its HOST:PORT. `made` runs when an answer for several topics is made, before it goes out."""

    async def tail(topic: str) -> bytes:
        await replica.catch_up()
        return pack_tail(describe_tail(replica.state, topic, root))

    async def tails(topics: Sequence[str]) -> bytes:
        await replica.catch_up()
        known = [topic for topic in dict.fromkeys(topics) if topic in replica.state.topics.by_name]
        told = pack_tail([describe_tail(replica.state, topic, root) for topic in known])
        if made is not None:
            await made()
        return told

    async def no_commands(after: int, limit: int, wait_s: float) -> bytes:
        return b""

    server = HttpServer(
        HttpSources(
            ready=lambda: None, brokers=lambda: [], metadata=lambda: describe_state(replica.state),
            commands=no_commands, metrics=Metrics(), tail=tail if tables else None,
            tails=tails if tables else None,
        ),
        "127.0.0.1", 0,
    )  # fmt: skip
    host, port = await server.start()
    try:
        yield f"{host}:{port}"
    finally:
        await server.stop()
