"""The HTTP port towards strangers: foreign names and pages, slow and greedy clients, bodies without end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from lakestream.metrics import Metrics
from lakestream.protocol.http.crowd import network_of
from lakestream.protocol.http.guard import host_names, is_ours, refusal
from lakestream.protocol.http.limits import HttpLimits
from lakestream.protocol.http.server import HttpServer, HttpSources
from tests.support.raw_http import Wire

Address = tuple[str, int]


class Bodies:
    """An application that reads bodies, and holds them until it is let go."""

    def __init__(self) -> None:
        self.read = 0
        self.go = asyncio.Event()
        self.go.set()

    async def take(self, request: Request) -> Response:
        async for piece in request.stream():
            self.read += len(piece)
        await self.go.wait()
        return PlainTextResponse("taken")


@asynccontextmanager
async def listening(bodies: Bodies | None = None, host: str = "127.0.0.1", **limits: Any) -> AsyncIterator[Address]:
    async def no_commands(after: int, limit: int, wait_s: float) -> bytes:
        return b""

    app = Starlette(routes=[Route("/take", (bodies or Bodies()).take, methods=["POST"])])
    sources = HttpSources(
        ready=lambda: None, brokers=lambda: [], metadata=lambda: [b"{}"], commands=no_commands, metrics=Metrics(),
        mounts={"/app": app},
    )  # fmt: skip
    server = HttpServer(sources, host, 0, HttpLimits(**limits))
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop()


def client_of(address: Address) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}")


async def until(check: Callable[[], bool]) -> None:
    for _ in range(500):
        if check():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that")


# -- who is asked, and by whose page ---------------------------------------------------------------------------------


OUR_NAMES = (
    "localhost", "LOCALHOST:8181", "x.localhost", "127.0.0.1:1", "127.9.9.9", "[::1]:80", "lake.example.com",
    "Lake.Example.Com.:80", "a.inside.org",
)  # fmt: skip
OTHER_NAMES = (
    "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[2001:db8::1]", "inside.org",
    "*", "",
)  # fmt: skip
OWN_ORIGINS = ("http://localhost:8181", "https://localhost:8181", "https://lake.example.com")
OTHER_ORIGINS = (
    "http://localhost:3000", "http://localhost", "http://evil.example", "null", "http://localhost:8181.evil.example",
    "file://", "",
)  # fmt: skip


async def test_a_broker_answers_to_its_own_names_only() -> None:
    hosts = host_names(["lake.example.com", "*.inside.org"])
    async with listening(hosts=hosts) as address, client_of(address) as client:
        for name in OUR_NAMES + OTHER_NAMES:
            wanted = 200 if name in OUR_NAMES else 421
            assert (await client.get("/brokers", headers={"host": name})).status_code == wanted, name
            for health in ("/healthz", "/readyz"):
                assert (await client.get(health, headers={"host": name})).status_code == 200


async def test_pages_of_other_sites_are_refused() -> None:
    hosts = host_names(["lake.example.com"])
    async with listening(hosts=hosts) as address, client_of(address) as client:
        for origin in OWN_ORIGINS + OTHER_ORIGINS:
            headers = {"host": "localhost:8181", "origin": origin}
            for method, path, status in (("GET", "/brokers", 200), ("POST", "/app/take", 200), ("PUT", "/", 405)):
                answer = await client.request(method, path, headers=headers)
                assert answer.status_code == (status if origin in OWN_ORIGINS else 403), (origin, method)


async def test_pages_of_other_sites_may_link_to_a_broker_and_embed_nothing() -> None:
    cross_site = {"sec-fetch-site": "cross-site"}
    link = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    image, frame = {"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, {**link, "sec-fetch-dest": "iframe"}
    allowed = {"origin": "https://lake.example.com", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}
    async with listening(hosts=host_names(["lake.example.com"])) as address, client_of(address) as client:
        for headers, status in (
            ({**cross_site, **link}, 200), ({**cross_site, **allowed}, 200), ({**cross_site, **image}, 403),
            ({**cross_site, **frame}, 403), (cross_site, 403), ({"sec-fetch-site": "same-origin", **image}, 200),
        ):  # fmt: skip
            answer = await client.get("/brokers", headers={"host": "localhost:8181", **headers})
            assert answer.status_code == status, headers
        assert (await client.get("/healthz", headers={**cross_site, **image})).status_code == 200


def test_the_address_that_was_connected_to_is_a_name_too_and_every_name_if_the_setting_says_so() -> None:
    def judged(host: str, hosts: list[str]) -> int:
        scope = {"path": "/brokers", "headers": [(b"host", host.encode())], "server": ("10.1.2.3", 8181)}
        found = refusal(scope, host_names(hosts))
        return found[0] if found else 200

    assert [judged("10.1.2.3:8181", []), judged("10.1.2.4:8181", []), judged("any.example", ["*"])] == [200, 421, 200]
    assert [judged("0.0.0.0:8181", ["0.0.0.0"]), judged("[2001:DB8::1]:80", ["2001:db8:0::1"])] == [200, 200]
    nobody = refusal({"path": "/", "headers": [], "server": None}, frozenset())
    assert nobody is not None and nobody[0] == 400


# -- requests that two parties could read differently ----------------------------------------------------------------


async def test_content_length_together_with_transfer_encoding_ends_the_connection() -> None:
    bodies = Bodies()
    async with listening(bodies) as address:
        wire = await Wire.open(address)
        wire.ask("/app/take", method="POST", content_length="6", transfer_encoding="chunked")
        wire.send("0\n\nGET /brokers HTTP/1.1\nhost: localhost\n\n")
        assert await wire.status() == 400
        assert await wire.status() == 0, "what came behind is no request"
        for headers in ({"content_length": "2"}, {"transfer_encoding": "chunked"}):
            wire = await Wire.open(address)
            wire.ask("/app/take", method="POST", **headers)
            wire.send("ok" if "content_length" in headers else "2\nok\n0\n\n")
            assert await wire.status() == 200
            await wire.close()
        assert bodies.read == 4


# -- slow clients ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", ["", "GET / HT", "GET / HTTP/1.1\nhost: localhost\n"])
async def test_headers_that_do_not_come_end_the_connection(sent: str) -> None:
    async with listening(head_s=0.2) as address:
        wire = await Wire.open(address)
        wire.send(sent)
        assert await wire.status() == 408 and await wire.ended()


async def test_headers_that_drip_end_the_connection_the_second_request_s_too() -> None:
    async with listening(head_s=0.3) as address:
        wire = await Wire.open(address)
        wire.ask("/healthz")
        assert await wire.status() == 200
        for letter in "GET /healthz HTTP/1.1\nx-drip: ":
            wire.send(letter)
            await asyncio.sleep(0.03)
        assert await wire.ended()


@pytest.mark.parametrize("path", ["/app/take", "/nowhere"])
async def test_a_body_that_drips_ends_the_connection_whether_or_not_it_is_read(path: str) -> None:
    async with listening(body_s=0.3) as address:
        wire = await Wire.open(address)
        wire.ask(path, method="POST", content_length="1000000")
        for _ in range(30):
            wire.send("x")
            await asyncio.sleep(0.02)
        assert await wire.ended()


async def test_a_body_that_keeps_coming_has_all_the_time_that_it_needs() -> None:
    async with listening(body_s=0.1, body_bytes_per_s=1000) as address:
        wire = await Wire.open(address)
        wire.ask("/app/take", method="POST", content_length="1000")
        for _ in range(10):
            wire.send("x" * 100)
            await asyncio.sleep(0.05)
        assert await wire.status() == 200


# -- greedy clients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"connections": 2}, {"connections_per_address": 2}])
async def test_beyond_the_limits_health_is_answered_and_nothing_else(limits: dict[str, int]) -> None:
    async with listening(**limits) as address:
        held = [await Wire.open(address) for _ in range(2)]
        for wire in held:
            wire.ask("/brokers")
            assert await wire.status() == 200
        for path, status in (("/brokers", 503), ("/healthz", 200), ("/readyz", 200)):
            beyond = await Wire.open(address)
            beyond.ask(path, host="10.0.0.1:8181" if status == 200 else "localhost")
            assert await beyond.status() == status and await beyond.ended(), path
        held[0].ask("/brokers")
        assert await held[0].status() == 200, "who was there goes on"
        await held[1].close()

        statuses = []
        for _ in range(100):
            again = await Wire.open(address)
            again.ask("/brokers")
            statuses.append(await again.status())
            await again.close()
            if statuses[-1] == 200:
                break
        assert statuses[-1] == 200, "a place was free again"


async def test_connections_that_only_sit_there_do_not_keep_a_probe_out() -> None:
    async with listening(connections=1, spare_connections=3, spare_per_address=3, spare_s=60) as address:
        sitting = [await Wire.open(address) for _ in range(4)]
        await asyncio.sleep(0.1)
        one_more = await Wire.open(address)
        assert await sitting[1].ended(), "the oldest of an address gives way"
        probe = await Wire.open(address)
        probe.ask("/healthz")
        assert await probe.status() == 200
        await one_more.close()


async def test_the_oldest_spare_connection_makes_room() -> None:
    async with listening(connections=1, spare_connections=2, spare_per_address=9, spare_s=60) as address:
        sitting = [await Wire.open(address) for _ in range(3)]
        await asyncio.sleep(0.1)
        probe = await Wire.open(address)
        probe.ask("/healthz")
        assert await probe.status() == 200
        assert await sitting[1].ended(), "the first spare one went"


def test_one_client_of_ipv6_is_a_network() -> None:
    assert network_of("2001:db8:1:2::1") == network_of("2001:db8:1:2:ffff::9") != network_of("2001:db8:1:3::1")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") != network_of("10.0.0.2")
    assert network_of("fe80::1%eth0") == "fe80::/64" and network_of("") == ""


async def test_bodies_share_one_budget() -> None:
    bodies = Bodies()
    bodies.go.clear()
    async with listening(bodies, body_bytes=100_000) as address, client_of(address) as client:
        first = asyncio.create_task(client.post("/app/take", content=b"x" * 60_000))
        await until(lambda: bodies.read == 60_000)
        refused = await client.post("/app/take", content=b"x" * 60_000)
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        second = asyncio.create_task(client.post("/app/take", content=b"x" * 30_000))
        bodies.go.set()
        assert (await first).status_code == (await second).status_code == 200
        assert (await client.post("/app/take", content=b"x" * 90_000)).status_code == 200


async def test_a_client_that_leaves_in_its_body_is_no_fault_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    bodies = Bodies()
    async with listening(bodies) as address:
        wire = await Wire.open(address)
        wire.ask("/app/take", method="POST", content_length="1000")
        wire.send("x")
        await until(lambda: bodies.read == 1)
        await wire.close()
        await asyncio.sleep(0.1)
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


def test_names_of_the_port_reach_as_far_as_the_setting_says() -> None:
    hosts = host_names(["*.x.org", "one.y.org"])
    for name, ours in (
        ("a.x.org", True), ("a.b.x.org", True), ("x.org", False), ("evilx.org", False), ("one.y.org:80", True),
        ("two.y.org", False), ("[localhost]evil.com", False), ("[::1]:80", True),
    ):  # fmt: skip
        assert is_ours(name, None, hosts) is ours, name


def test_an_origin_that_is_no_url_is_foreign() -> None:
    headers = [(b"host", b"localhost"), (b"origin", b"http://[")]
    refused = refusal({"headers": headers, "path": "/metadata"}, frozenset())
    assert refused is not None and refused[0] == 403
