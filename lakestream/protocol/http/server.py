"""The broker's HTTP port: health, readiness, metrics, the brokers, and the metadata for people and tools.

It runs in the broker's own event loop, installs no signal handlers and depends on nothing above: what it shows comes in
as callables in `HttpSources`. Further applications (a catalog, a console) are mounted by `mounts`.
"""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from lakestream.errors import LakestreamError, Missing
from lakestream.metrics import Metrics
from lakestream.protocol.http.care import TableSources, table_routes
from lakestream.protocol.http.prometheus import CONTENT_TYPE, Exposition

_STOP_S = 2
_CONNECTIONS_MAX = 1000

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSources:
    """What the port shows. `ready` gives None while the broker serves, else the reason why it does not."""

    ready: Callable[[], str | None]
    brokers: Callable[[], Sequence[Json]]
    metadata: Callable[[], Json]
    commands: Callable[[int], AsyncIterator[Json]]
    """The commands after a sequence, then those to come. Raises Missing if the log no longer reaches back so far."""
    metrics: Metrics
    mounts: Mapping[str, ASGIApp] = field(default_factory=dict)
    tail: Callable[[str], Awaitable[bytes]] | None = None
    """Where a topic's records are, table and WAL, as JSON; None where topics have no tables. Raises Missing."""
    state: Callable[[], Awaitable[bytes]] | None = None
    """The whole state at this moment, for `lakestream verify`. Raises Retry."""
    tails: Callable[[Sequence[str]], Awaitable[bytes]] | None = None
    """The same for several topics at one moment, without those that are unknown."""
    tables: TableSources | None = None
    """Every topic's table and the care of it; None where topics have no tables."""


class HttpServer:
    """One listener. `start` returns when it accepts, `stop` when its connections are gone."""

    def __init__(self, sources: HttpSources, host: str, port: int) -> None:
        self._sources = sources
        self._host = host
        self._port = port
        self._exposition = Exposition(sources.metrics)
        self._stopping = asyncio.Event()
        self._server: uvicorn.Server | None = None

    async def start(self) -> tuple[str, int]:
        """Listen; the address that it got is returned. Raises OSError if the port is taken."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.create_server((self._host, self._port), family=family, backlog=128)
        config = uvicorn.Config(
            self.app(), http="h11", ws="none", lifespan="off", interface="asgi3", log_config=None, log_level="warning",
            access_log=False, date_header=False, server_header=False, timeout_graceful_shutdown=_STOP_S,
            timeout_keep_alive=30, limit_concurrency=_CONNECTIONS_MAX,
        )  # fmt: skip
        config.load()
        server = uvicorn.Server(config)
        # serve() would take over the process's signals and wake up ten times a second; its two halves do neither.
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        self._server = server
        host, port = listener.getsockname()[:2]
        return cast(str, host), cast(int, port)

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
        return JSONResponse(dict(self._sources.metadata()))

    async def _state(self, _: Request) -> Response:
        assert self._sources.state is not None
        try:
            return Response(await self._sources.state(), media_type="application/octet-stream")
        except LakestreamError as error:
            return PlainTextResponse(f"{error}\n", status_code=503)

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
        after = request.query_params.get("after", "0")
        if not after.isascii() or not after.isdigit() or len(after) > 18:
            return JSONResponse({"error": f"after has to be a sequence, not {after!r}"}, status_code=400)
        commands = self._sources.commands(int(after))
        return StreamingResponse(self._lines(commands), media_type="application/x-ndjson")

    async def _lines(self, commands: AsyncIterator[Json]) -> AsyncIterator[bytes]:
        """A line for each command, until the client leaves or the server stops."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            while True:
                following = asyncio.ensure_future(anext(commands, None))
                try:
                    await asyncio.wait((following, stopping), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not following.done():
                        following.cancel()
                        await asyncio.gather(following, return_exceptions=True)
                command = None if following.cancelled() else following.result()
                if command is None:
                    return
                yield json.dumps(command, separators=(",", ":")).encode() + b"\n"
        except Missing as error:
            yield json.dumps({"error": str(error)}).encode() + b"\n"
        finally:
            stopping.cancel()
            if hasattr(commands, "aclose"):
                await commands.aclose()


def _mount(path: str, app: ASGIApp) -> Mount:
    """Everything below the path is the application's affair, with line breaks in it too: it says what is wrong."""
    mount = Mount(path, app)
    mount.path_regex = re.compile(mount.path_regex.pattern, re.DOTALL)
    return mount
