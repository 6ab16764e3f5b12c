"""Decides which requests reach the applications of the HTTP port.

A browser on this machine, or in the network of a broker, shows pages of any site. So that no page becomes a client:

    the Host has to be one of ours       an attacker's DNS name that leads to us is not (DNS rebinding)
    the Origin has to be the Host's own  a page of another site sends its own with every write (CSRF)
    no Origin, but Sec-Fetch-Site: cross-site   a page of another site shows a picture, a script or a frame from here

A request with both content-length and transfer-encoding ends its connection: two parties may disagree on where it ends.
Bodies of all requests share one budget; while it is used up, requests get a 503.
"""

import ipaddress
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lakestream.protocol.http.limits import HttpLimits

HEALTH: Final = frozenset({"/healthz", "/readyz"})
"""Paths that say nothing secret and that probes ask by any name, within the limits or not."""
NO_ROOM: Final = "the bodies of other requests take all memory that there is for them: try again"
CLOSE: Final = {"connection": "close"}


class Guard:
    """An application in front of others."""

    def __init__(self, app: ASGIApp, limits: HttpLimits) -> None:
        self._app = app
        self._limits = limits
        self.held_bytes = 0
        """Of the bodies of requests that are under way."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = refusal(scope, self._limits.hosts)
        if refused is not None:
            await JSONResponse({"error": refused[1]}, refused[0], CLOSE)(scope, receive, send)
            return
        await self._within_the_budget(scope, receive, send)

    async def _within_the_budget(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Takes bodies from the budget. An application whose body finds no room sees its client disconnect."""
        held, began, refused = 0, False, False

        async def counted() -> Message:
            nonlocal held, refused
            message = await receive()
            size = len(message.get("body", b""))
            if self.held_bytes + size > self._limits.body_bytes:
                refused = True
                if not began:
                    await JSONResponse({"error": NO_ROOM}, 503, {**CLOSE, "retry-after": "1"})(scope, receive, send)
                return {"type": "http.disconnect"}
            self.held_bytes += size
            held += size
            return message

        async def watched(message: Message) -> None:
            nonlocal began
            began = True
            if not refused:
                await send(message)

        try:
            await self._app(scope, counted, watched)
        except ClientDisconnect:
            return
        finally:
            self.held_bytes -= held


def health_only(app: ASGIApp) -> ASGIApp:
    """The application for connections beyond the limits: one request each."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        if scope["path"] in HEALTH:
            await app(scope, receive, closing)
            return
        told = JSONResponse({"error": "too many connections: try again"}, 503, {"retry-after": "1"})
        await told(scope, receive, closing)

    return answer


def refusal(scope: Scope, hosts: frozenset[str]) -> tuple[int, str] | None:
    """The error that a request gets, with its status; None if it may pass. Pure."""
    headers = {name: value for name, value in scope["headers"] if name in _JUDGED}
    if b"content-length" in headers and b"transfer-encoding" in headers:
        return 400, "a request has a content-length or a transfer-encoding, not both"
    if scope["path"] in HEALTH:
        return None
    if b"host" not in headers:
        return 400, "a request has to say by its Host header whom it asks"
    host = headers[b"host"].decode("latin-1").strip().lower()
    if not is_ours(host, scope.get("server"), hosts):
        return 421, f"this broker is not called {name_in(host)!r}; the setting http_allowed_hosts names further hosts"
    origin = headers.get(b"origin")
    if origin is not None and not _is_own_origin(origin.decode("latin-1").strip().lower(), host, hosts):
        return 403, "pages of other sites may not send requests to this broker"
    if origin is None and headers.get(b"sec-fetch-site") == b"cross-site" and not _is_link(headers):
        return 403, "pages of other sites may link to this broker, but not embed what it answers"
    return None


_JUDGED: Final = frozenset(
    {
        b"host", b"origin", b"content-length", b"transfer-encoding", b"sec-fetch-site", b"sec-fetch-mode",
        b"sec-fetch-dest",
    }
)  # fmt: skip


def _is_link(headers: dict[bytes, bytes]) -> bool:
    """Whether a browser leaves the page that it shows for this request's answer."""
    shown_in = headers.get(b"sec-fetch-dest", b"document")
    return headers.get(b"sec-fetch-mode") == b"navigate" and shown_in == b"document"


def is_ours(host: str, server: tuple[str, int | None] | None, hosts: frozenset[str]) -> bool:
    """Whether a Host header is localhost, the address that was connected to, or a name of ours."""
    name = name_in(host)
    if "*" in hosts or _is_named(name, hosts) or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
        return address.is_loopback or (server is not None and address == ipaddress.ip_address(server[0]))
    except ValueError:
        return False


def name_in(host: str) -> str:
    """The name of NAME, NAME:PORT or [V6]:PORT."""
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
        return name if not port or port.startswith(":") else ""
    return host.partition(":")[0].removesuffix(".")


def host_names(names: Iterable[str]) -> frozenset[str]:
    """Names and addresses in the form in which they are compared."""
    return frozenset(found for name in names if (found := _canonical(name.strip().lower())))


def _canonical(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
    except ValueError:
        return name_in(name)


def _is_own_origin(origin: str, host: str, hosts: frozenset[str]) -> bool:
    """Browsers leave the usual port out of both, so the origin of a page of ours ends with the very Host."""
    try:
        parts = urlsplit(origin)
    except ValueError:  # half of a bracket, say
        return False
    own = parts.scheme in ("http", "https") and parts.netloc == host
    return own or (parts.netloc != "" and _is_named(name_in(parts.netloc), hosts))


def _is_named(name: str, hosts: frozenset[str]) -> bool:
    return name != "*" and (name in hosts or any(host[:2] == "*." and name.endswith(host[1:]) for host in hosts))
