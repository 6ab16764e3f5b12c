"""The broker's HTTP port: health, readiness, metrics, the brokers, and the metadata for people and tools.

It runs in the broker's event loop and installs no signal handlers. All that it shows comes in as callables in
`HttpSources`. Further applications (a catalog, a console) are mounted by `mounts`.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from lakestream.errors import LakestreamError, Missing
from lakestream.metrics import Metrics
from lakestream.protocol.http.care import TableSources, table_routes
from lakestream.protocol.http.connections import protocol_class
from lakestream.protocol.http.crowd import Crowd
from lakestream.protocol.http.guard import Guard, health_only
from lakestream.protocol.http.limits import HttpLimits
from lakestream.protocol.http.prometheus import CONTENT_TYPE, Exposition

_STOP_S = 2
_COMMANDS = 1000

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSources:
    """The sources of the port's pages. `ready` returns None while the broker serves, else why it does not."""

    ready: Callable[[], str | None]
    brokers: Callable[[], Sequence[Json]]
    metadata: Callable[[], Iterable[bytes]]
    """The state in words, as pieces of one JSON document; others have their turn after each."""
    commands: Callable[[int, int, float], Awaitable[bytes]]
    """The commands after a sequence, so many at most, a line of JSON each. Waits so many seconds if there are none.

    Raises Missing if the log no longer reaches back so far.
    """
    metrics: Metrics
    mounts: Mapping[str, ASGIApp] = field(default_factory=dict)
    tail: Callable[[str], Awaitable[bytes]] | None = None
    """Where a topic's records are, table and WAL, as JSON; None where topics have no tables. Raises Missing."""
    state: Callable[[str, int], Awaitable[bytes]] | None = None
    """A page of an export of the state, or of a new one if none is named. Raises Missing, Retry."""
    tails: Callable[[Sequence[str]], Awaitable[bytes]] | None = None
    """The same for several topics at one moment, without those that are unknown."""
    tables: TableSources | None = None
    """Every topic's table and the care of it; None where topics have no tables."""


class HttpServer:
    """One listener. `start` returns when it accepts connections, `stop` when they are closed."""

    def __init__(self, sources: HttpSources, host: str, port: int, limits: HttpLimits | None = None) -> None:
        self._limits = limits or HttpLimits()
        self.crowd = Crowd(self._limits)
        self._sources = sources
        self._host = host
        self._port = port
        self.address = f"{host}:{port}"
        self._exposition = Exposition(sources.metrics)
        self._stopping = asyncio.Event()
        self._server: uvicorn.Server | None = None

    async def start(self) -> tuple[str, int]:
        """Listens; returns the address. Raises OSError if the port is taken."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.create_server((self._host, self._port), family=family, backlog=128)
        app = Guard(self.app(), self._limits)
        protocol = protocol_class(self.crowd, self._limits, health_only(app))
        config = uvicorn.Config(
            app, http=protocol, ws="none", lifespan="off", interface="asgi3", log_config=None, log_level="warning",
            access_log=False, date_header=False, server_header=False, timeout_graceful_shutdown=_STOP_S,
            timeout_keep_alive=30,
        )  # fmt: skip
        config.load()
        server = uvicorn.Server(config)
        # serve() would take over the process's signals and wake up ten times a second; its two halves do neither.
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        self._server = server
        host, port = listener.getsockname()[:2]
        return cast(str, host), cast(int, port)

    async def drain(self, timeout_s: float) -> None:
        """Nothing to wait for: health and readiness are answered until `stop`."""

    async def stop(self) -> None:
        self._stopping.set()
        if self._server is not None:
            server, self._server = self._server, None
            await server.shutdown()

    def app(self) -> Starlette:
        routes: list[BaseRoute] = [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
            Route("/brokers", self._brokers),
            Route("/metadata", self._metadata),
            Route("/metadata/commands", self._commands),
        ]
        if self._sources.state is not None:
            routes.append(Route("/metadata/state", self._state))
        if self._sources.tail is not None:
            routes.append(Route("/tail/{topic}", self._tail))
        if self._sources.tails is not None:
            routes.append(Route("/tail", self._tails))
        if self._sources.tables is not None:
            routes += table_routes(self._sources.tables)
        routes += [_mount(path, app) for path, app in self._sources.mounts.items()]
        places = sorted({route.path for route in routes if isinstance(route, Route | Mount)})
        routes.append(Route("/", lambda _: PlainTextResponse("\n".join(["a Lakestream broker", *places, ""]))))
        return Starlette(routes=routes)

    async def _healthz(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _readyz(self, _: Request) -> Response:
        reason = self._sources.ready()
        return PlainTextResponse("ready\n") if reason is None else PlainTextResponse(f"{reason}\n", status_code=503)

    async def _metrics(self, _: Request) -> Response:
        return Response(self._exposition.render(), headers={"content-type": CONTENT_TYPE})

    async def _brokers(self, _: Request) -> Response:
        return JSONResponse(list(self._sources.brokers()))

    async def _metadata(self, _: Request) -> Response:
        pieces = []
        for piece in self._sources.metadata():
            pieces.append(piece)
            await asyncio.sleep(0)
        return Response(b"".join(pieces), media_type="application/json")

    async def _state(self, request: Request) -> Response:
        assert self._sources.state is not None
        number = _number(request, "page", 0)
        if number is None:
            return _refused("page has to be a number", 400)
        try:
            page = await self._sources.state(request.query_params.get("export", ""), number)
        except Missing as error:
            return _refused(str(error), 404)
        except LakestreamError as error:
            return PlainTextResponse(f"{error}\n", status_code=503)
        return Response(page, media_type="application/octet-stream")

    async def _tail(self, request: Request) -> Response:
        assert self._sources.tail is not None
        try:
            told = await self._sources.tail(request.path_params["topic"])
        except Missing as error:
            return JSONResponse({"error": str(error)}, status_code=404)
        return Response(told, media_type="application/json")

    async def _tails(self, request: Request) -> Response:
        assert self._sources.tails is not None
        told = await self._sources.tails(request.query_params.getlist("topic"))
        return Response(told, media_type="application/json")

    async def _commands(self, request: Request) -> Response:
        """A page of commands; a waiting request gets an empty page if the server stops."""
        after, limit, wait_ms = (_number(request, *one) for one in (("after", 0), ("limit", _COMMANDS), ("wait_ms", 0)))
        if after is None or not limit or wait_ms is None:
            return _refused("after has to be a sequence, limit and wait_ms numbers", 400)
        page = asyncio.ensure_future(self._sources.commands(after, limit, wait_ms / 1000))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((page, stopping), return_when=asyncio.FIRST_COMPLETED)
            lines = page.result() if page.done() else b""
        except Missing as error:
            return _refused(str(error), 410)
        finally:
            page.cancel()
            stopping.cancel()
            await asyncio.gather(page, stopping, return_exceptions=True)
        return Response(lines, media_type="application/x-ndjson")


def _number(request: Request, name: str, default: int) -> int | None:
    """A number among a request's parameters; None if it is not a valid number."""
    text = request.query_params.get(name, str(default))
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _refused(text: str, status: int) -> Response:
    return JSONResponse({"error": text}, status_code=status)


def _mount(path: str, app: ASGIApp) -> Mount:
    """Mounts an application: it answers all requests below the path, also those with line breaks in it."""
    mount = Mount(path, app)
    mount.path_regex = re.compile(mount.path_regex.pattern, re.DOTALL)
    return mount
