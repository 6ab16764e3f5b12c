"""The HTTP port, over a real socket: health, readiness, figures, brokers, metadata and the following of commands."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from lakestream import metrics
from lakestream.errors import Missing, Retry
from lakestream.protocol.http.server import HttpServer, HttpSources


class Fake:
    """A broker's answers, to be set by a test."""

    def __init__(self) -> None:
        self.reason: str | None = "starting"
        self.metrics = metrics.Metrics()
        self.more = asyncio.Event()
        self.left = asyncio.Event()

    async def commands(self, after: int, limit: int, wait_s: float) -> bytes:
        if after == 99:
            raise Missing("the log begins at 100")
        found = list(range(after + 1, 4))[:limit]
        if not found and wait_s:
            try:
                await asyncio.wait_for(self.more.wait(), wait_s)
                found = [4]
            except TimeoutError:
                pass
            finally:
                self.left.set()
        return b"".join(b'{"sequence":%d}\n' % sequence for sequence in found)

    async def state(self, export: str, page: int) -> bytes:
        if self.reason is not None:
            raise Retry(self.reason)
        if (export, page) not in (("", 0), ("name", 1)):
            raise Missing("no such page")
        return b"page %d" % page

    def sources(self) -> HttpSources:
        return HttpSources(
            ready=lambda: self.reason,
            brokers=lambda: [{"id": 0, "host": "h", "port": 1, "http": "h:2", "epoch": 3, "pid": 4}],
            metadata=lambda: [b'{"sequence"', b":7}"],
            commands=self.commands,
            metrics=self.metrics,
            state=self.state,
            mounts={"/extra": Starlette(routes=[Route("/x", lambda _: PlainTextResponse("mounted"))])},
        )


Serve = tuple[Fake, httpx.AsyncClient, HttpServer]


@pytest.fixture
async def served() -> AsyncIterator[Serve]:
    fake = Fake()
    server = HttpServer(fake.sources(), "127.0.0.1", 0)
    host, port = await server.start()
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
        yield fake, client, server
        await server.stop()


async def test_health_is_the_process_and_readiness_is_the_broker(served: Serve) -> None:
    fake, client, _ = served
    assert (await client.get("/healthz")).status_code == 200
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "starting\n")
    fake.reason = None
    assert (await client.get("/readyz")).status_code == 200


async def test_the_first_page_says_what_there_is(served: Serve) -> None:
    _, client, _ = served
    answer = await client.get("/")
    assert answer.status_code == 200
    assert {"/healthz", "/metrics", "/brokers", "/metadata"} <= set(answer.text.split())


async def test_figures_come_out_as_prometheus_reads_them(served: Serve) -> None:
    fake, client, _ = served
    fake.metrics.sample(metrics.REQUESTS, lambda: 3, "Fetch")
    fake.metrics.sample(metrics.CONNECTIONS, lambda: 5)
    fake.metrics.sample(metrics.RECEIVED_BYTES, lambda: 10)
    histogram = fake.metrics.histogram(metrics.ACK_SECONDS)
    for value in (0.0001, 0.004, 99.0):
        histogram.observe(value)
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (s.name, tuple(s.labels.items())): s.value
        for family in text_string_to_metric_families(answer.text)
        for s in family.samples
    }
    assert samples[("lakestream_requests_total", (("api", "Fetch"),))] == 3
    assert samples[("lakestream_connections", ())] == 5
    assert samples[("lakestream_received_bytes_total", ())] == 10
    assert samples[("lakestream_ack_seconds_bucket", (("le", "0.005"),))] == 2
    assert samples[("lakestream_ack_seconds_bucket", (("le", "+Inf"),))] == 3
    assert samples[("lakestream_ack_seconds_count", ())] == 3
    assert samples[("process_resident_memory_bytes", ())] > 0


async def test_brokers_and_metadata_are_json_and_further_applications_can_be_mounted(served: Serve) -> None:
    _, client, _ = served
    assert (await client.get("/brokers")).json()[0]["http"] == "h:2"
    assert (await client.get("/metadata")).json() == {"sequence": 7}
    assert (await client.get("/extra/x")).text == "mounted"
    assert (await client.get("/nowhere")).status_code == 404


async def test_commands_come_in_pages_and_the_next_one_can_be_waited_for(served: Serve) -> None:
    fake, client, _ = served

    async def page(**asked: int) -> list[int]:
        answer = await client.get("/metadata/commands", params=asked)
        assert answer.headers["content-type"] == "application/x-ndjson"
        return [json.loads(line)["sequence"] for line in answer.text.splitlines()]

    assert await page() == [1, 2, 3] and await page(after=1) == [2, 3] and await page(after=0, limit=2) == [1, 2]
    assert await page(after=3) == [] and await page(after=3, wait_ms=1) == []
    waiting = asyncio.create_task(page(after=3, wait_ms=20_000))
    fake.more.set()
    assert await waiting == [4]


async def test_a_follower_does_not_hold_up_the_stop(served: Serve) -> None:
    fake, client, server = served
    following = asyncio.create_task(client.get("/metadata/commands?after=3&wait_ms=20000"))
    await asyncio.sleep(0.2)
    await asyncio.wait_for(server.stop(), 2)
    assert (await following).text == "" and fake.left.is_set()


@pytest.mark.parametrize("after", ["-1", "x", "9" * 30, "\u0661"])
async def test_a_senseless_sequence_is_refused(served: Serve, after: str) -> None:
    _, client, _ = served
    for name in ("after", "limit", "wait_ms"):
        assert (await client.get("/metadata/commands", params={name: after})).status_code == 400
    assert (await client.get("/metadata/state", params={"page": after})).status_code == 400


async def test_commands_that_are_gone_are_said_to_be_gone(served: Serve) -> None:
    _, client, _ = served
    answer = await client.get("/metadata/commands?after=99")
    assert answer.status_code == 410 and answer.json() == {"error": "the log begins at 100"}


async def test_signals_stay_with_the_broker() -> None:
    def handlers() -> list[Callable[..., object] | int | None]:
        return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

    before = handlers()
    server = HttpServer(Fake().sources(), "127.0.0.1", 0)
    await server.start()
    assert handlers() == before
    await server.stop()


async def test_a_taken_port_is_an_error_for_the_caller() -> None:
    first = HttpServer(Fake().sources(), "127.0.0.1", 0)
    _, port = await first.start()
    with pytest.raises(OSError):
        await HttpServer(Fake().sources(), "127.0.0.1", port).start()
    await first.stop()


def test_every_figure_has_a_name_of_its_own_and_a_sentence() -> None:
    names = [figure.name for figure in metrics.FIGURES]
    assert len(set(names)) == len(names) > 30
    assert all(figure.help.endswith(".") for figure in metrics.FIGURES)
    assert all(bool(figure.buckets) == (figure.kind == metrics.HISTOGRAM) for figure in metrics.FIGURES)


async def test_where_topics_have_tables_the_tail_of_each_is_told(served: Serve) -> None:
    fake, client, _ = served
    assert (await client.get("/tail/a")).status_code == 404

    async def tail(topic: str) -> bytes:
        if topic != "a.b":
            raise Missing("there is no topic")
        return b'{"topic":"a.b"}'

    server = HttpServer(replace(fake.sources(), tail=tail), "127.0.0.1", 0)
    host, port = await server.start()
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as other:
        assert (await other.get("/tail/a.b")).json() == {"topic": "a.b"}
        assert (await other.get("/tail/c")).status_code == 404
    await server.stop()


async def test_the_whole_state_is_given_out_when_it_can_be_read(served: Serve) -> None:
    fake, client, _ = served
    answer = await client.get("/metadata/state")
    assert answer.status_code == 503 and answer.text == "starting\n"
    fake.reason = None
    assert (await client.get("/metadata/state")).content == b"page 0"
    assert (await client.get("/metadata/state?export=name&page=1")).content == b"page 1"
    assert (await client.get("/metadata/state?export=gone&page=1")).status_code == 404
