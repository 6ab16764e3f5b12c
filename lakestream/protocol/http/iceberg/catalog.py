"""The Iceberg REST catalog: the protocol's paths, requests and answers; mounted at /iceberg on every broker.

Its pointers are in the state machine (model/catalog/tables.py), its files in the warehouse. Departures from the
document: no scan planning, no credentials, no OAuth; a namespace's parent must exist; the prefix is empty. /v1/config
lists the endpoints, docs/CATALOG.md describes them.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from lakestream.data.tables.iceberg.metadata.documents import parse_any
from lakestream.data.tables.iceberg.metadata.files import MetadataFiles
from lakestream.data.tables.iceberg.metadata.view_metadata import parse_view, render_view
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.interfaces import Clock
from lakestream.metadata.cluster_clock import ClusterClock
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.names import SEPARATOR, Warehouse, name_problem, namespace_problem
from lakestream.model.catalog.tables import TableKey
from lakestream.protocol.http.bodies import BodyDecoder
from lakestream.protocol.http.iceberg.drafts import CommitRequest, CreateRequest, Drafting, TableDraft
from lakestream.protocol.http.iceberg.errors import CatalogError, answer_of, bad_request, of_exception
from lakestream.protocol.http.iceberg.namespaces import Namespaces, page
from lakestream.protocol.http.iceberg.openapi import openapi
from lakestream.protocol.http.iceberg.places import TablePlaces
from lakestream.protocol.http.iceberg.tables import Tables
from lakestream.protocol.http.iceberg.views import CommitViewRequest, CreateViewRequest, LoadedView, ViewEndpoints

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 * 1024 * 1024

Handler = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")


class NamespaceRequest(msgspec.Struct, frozen=True):
    namespace: list[str]
    properties: dict[str, str] | None = None


class PropertiesRequest(msgspec.Struct, frozen=True):
    removals: list[str] | None = None
    updates: dict[str, str] | None = None


class RegisterRequest(msgspec.Struct, frozen=True, rename="kebab"):
    name: str
    metadata_location: str
    overwrite: bool = False


class RegisterViewRequest(msgspec.Struct, frozen=True, rename="kebab"):
    name: str
    metadata_location: str


class Identifier(msgspec.Struct, frozen=True):
    namespace: list[str]
    name: str


class RenameRequest(msgspec.Struct, frozen=True):
    source: Identifier
    destination: Identifier


class TransactionRequest(msgspec.Struct, frozen=True, rename="kebab"):
    table_changes: list[CommitRequest]


def catalog_app(
    replica: Replica,
    store: TableStore,
    warehouse: Warehouse,
    *,
    clock: Clock,
    random: Random,
    defaults: Mapping[str, str] | None = None,
) -> ASGIApp:
    """The catalog over one store, which holds the warehouse; `defaults` are settings handed to clients."""
    files = MetadataFiles(store, random)
    places = TablePlaces(warehouse, lambda: replica.state.catalog.homes())
    drafting = Drafting(store, files, places, ClusterClock(replica, clock), random)
    views = ViewEndpoints(replica, files, places, clock, random)
    api = CatalogApi(Namespaces(replica), Tables(replica, drafting, files), views, defaults or {})
    routes = [Route(path, answered(handler), methods=[method]) for method, path, handler in api.routes()]
    routes += [
        Route("/v1/config", answered(api.config), methods=["GET"]),
        Route("/openapi.json", answered(api.document), methods=["GET"]),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _no_route})
    app.router.redirect_slashes = False
    app.state.bodies = BodyDecoder()
    return app


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = {404: "NoSuchPathException", 405: "UnsupportedOperationException"}.get(error.status_code, "RESTException")
    answer = answer_of(CatalogError(error.status_code, kind, error.detail), request.method == "HEAD")
    if error.status_code == 405:
        routes = [route for route in request.app.routes if route.matches(request.scope)[0] is Match.PARTIAL]
        answer.headers["allow"] = ", ".join(sorted({method for route in routes for method in route.methods}))
    return answer


def answered(handler: Handler) -> Handler:
    """Wraps a handler: its errors become answers."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:
            raise
        except Exception as error:
            known = of_exception(error)
            if known is None or known.status == 500:
                log.error("%s %s failed", request.method, request.url.path, exc_info=error)
            told = known or CatalogError(500, "InternalServerError", type(error).__name__)
            return answer_of(told, request.method == "HEAD")

    return endpoint


class CatalogApi:
    """One method for each operation of the document."""

    def __init__(
        self, namespaces: Namespaces, tables: Tables, views: ViewEndpoints, defaults: Mapping[str, str]
    ) -> None:
        self._namespaces = namespaces
        self._tables = tables
        self._views = views
        self._defaults = dict(defaults)

    def routes(self) -> Sequence[tuple[str, str, Handler]]:
        """Exactly the routes that /v1/config lists; the handler of a GET answers its HEAD."""
        spaces, space = "/v1/namespaces", "/v1/namespaces/{namespace}"
        table, view = space + "/tables/{table}", space + "/views/{view}"
        return (
            ("GET", spaces, self.list_namespaces),
            ("POST", spaces, self.create_namespace),
            ("GET", space, self.load_namespace),
            ("HEAD", space, self.load_namespace),
            ("DELETE", space, self.drop_namespace),
            ("POST", space + "/properties", self.update_namespace),
            ("GET", space + "/tables", self.list_tables),
            ("POST", space + "/tables", self.create_table),
            ("POST", space + "/register", self.register_table),
            ("GET", table, self.load_table),
            ("HEAD", table, self.load_table),
            ("POST", table, self.commit_table),
            ("DELETE", table, self.drop_table),
            ("POST", "/v1/tables/rename", self.rename_table),
            ("GET", space + "/views", self.list_views),
            ("POST", space + "/views", self.create_view),
            ("POST", space + "/register-view", self.register_view),
            ("GET", view, self.load_view),
            ("HEAD", view, self.load_view),
            ("POST", view, self.commit_view),
            ("DELETE", view, self.drop_view),
            ("POST", "/v1/views/rename", self.rename_view),
            ("POST", "/v1/transactions/commit", self.commit_transaction),
        )

    async def config(self, request: Request) -> Response:
        endpoints = [f"{method} /v1/{{prefix}}{path.removeprefix('/v1')}" for method, path, _ in self.routes()]
        return JSONResponse({"defaults": self._defaults, "overrides": {}, "endpoints": endpoints})

    async def document(self, request: Request) -> Response:
        return JSONResponse(openapi([(method, path) for method, path, _ in self.routes()], request.scope["root_path"]))

    # -- namespaces -------------------------------------------------------------------------------------------------

    async def list_namespaces(self, request: Request) -> Response:
        parent = request.query_params.get("parent", "")
        names, following = page(await self._namespaces.children(parent), request.query_params)
        return _listed("namespaces", [name.split(SEPARATOR) for name in names], following)

    async def create_namespace(self, request: Request) -> Response:
        body = await _body(request, NamespaceRequest)
        namespace, properties = _joined(body.namespace), body.properties or {}
        await self._namespaces.create(namespace, properties)
        return JSONResponse({"namespace": body.namespace, "properties": properties})

    async def load_namespace(self, request: Request) -> Response:
        namespace = _namespace(request)
        properties = await self._namespaces.properties(namespace)
        if request.method == "HEAD":
            return Response(status_code=204)
        return JSONResponse({"namespace": namespace.split(SEPARATOR), "properties": properties})

    async def drop_namespace(self, request: Request) -> Response:
        await self._namespaces.drop(_namespace(request))
        return Response(status_code=204)

    async def update_namespace(self, request: Request) -> Response:
        body = await _body(request, PropertiesRequest)
        removals, updates = body.removals or [], body.updates or {}
        removed = await self._namespaces.update(_namespace(request), removals, updates)
        missing = [name for name in dict.fromkeys(removals) if name not in removed]
        return JSONResponse({"updated": list(updates), "removed": removed, "missing": missing})

    # -- tables -----------------------------------------------------------------------------------------------------

    async def list_tables(self, request: Request) -> Response:
        namespace = _namespace(request)
        names, following = page(await self._namespaces.tables(namespace), request.query_params)
        levels = namespace.split(SEPARATOR)
        return _listed("identifiers", [{"namespace": levels, "name": name} for name in names], following)

    async def create_table(self, request: Request) -> Response:
        made = await self._tables.create(_namespace(request), await _body(request, CreateRequest))
        return _loaded(made)

    async def register_table(self, request: Request) -> Response:
        body = await _body(request, RegisterRequest)
        made = await self._tables.register(_namespace(request), body.name, body.metadata_location, body.overwrite)
        return _loaded(made)

    async def load_table(self, request: Request) -> Response:
        if request.method == "HEAD":
            await self._tables.find(_table(request))
            return Response(status_code=204)
        which = request.query_params.get("snapshots", "all")
        if which not in ("all", "refs"):
            raise bad_request("snapshots is all or refs")
        found = await self._tables.load(_table(request))
        if request.headers.get("if-none-match") == _tag(found, which):
            return Response(status_code=304)
        return _loaded(found, which)

    async def commit_table(self, request: Request) -> Response:
        body = await _body(request, CommitRequest)
        [made] = await self._tables.commit([(_table(request), body)])
        return _loaded(made)

    async def drop_table(self, request: Request) -> Response:
        purge = request.query_params.get("purgeRequested", "false").lower()
        if purge not in ("true", "false"):
            raise bad_request("purgeRequested is true or false")
        await self._tables.drop(_table(request), purge == "true")
        return Response(status_code=204)

    async def rename_table(self, request: Request) -> Response:
        body = await _body(request, RenameRequest)
        source, to = body.source, body.destination
        await self._tables.rename((_joined(source.namespace), source.name), (_joined(to.namespace), to.name))
        return Response(status_code=204)

    async def commit_transaction(self, request: Request) -> Response:
        body = await _body(request, TransactionRequest)
        await self._tables.commit([(_identified(change), change) for change in body.table_changes])
        return Response(status_code=204)

    # -- views ------------------------------------------------------------------------------------------------------

    async def list_views(self, request: Request) -> Response:
        namespace = _namespace(request)
        names, following = page(await self._views.names(namespace), request.query_params)
        levels = namespace.split(SEPARATOR)
        return _listed("identifiers", [{"namespace": levels, "name": name} for name in names], following)

    async def create_view(self, request: Request) -> Response:
        return _loaded_view(await self._views.create(_namespace(request), await _body(request, CreateViewRequest)))

    async def register_view(self, request: Request) -> Response:
        body = await _body(request, RegisterViewRequest)
        return _loaded_view(await self._views.register(_namespace(request), body.name, body.metadata_location))

    async def load_view(self, request: Request) -> Response:
        if request.method == "HEAD":
            await self._views.find(_named(request, "view"))
            return Response(status_code=204)
        return _loaded_view(await self._views.load(_named(request, "view")))

    async def commit_view(self, request: Request) -> Response:
        body = await _body(request, CommitViewRequest)
        return _loaded_view(await self._views.commit(_named(request, "view"), body))

    async def drop_view(self, request: Request) -> Response:
        await self._views.drop(_named(request, "view"))
        return Response(status_code=204)

    async def rename_view(self, request: Request) -> Response:
        body = await _body(request, RenameRequest)
        source, to = body.source, body.destination
        await self._views.rename((_joined(source.namespace), source.name), (_joined(to.namespace), to.name))
        return Response(status_code=204)


# -- requests -------------------------------------------------------------------------------------------------------


async def _body(request: Request, kind: type[T]) -> T:
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise bad_request(f"a request has at most {MAX_BODY_BYTES} bytes")
    try:
        decoder: BodyDecoder = request.app.state.bodies
        return await decoder.decode(b"".join(parts), kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"malformed request: {error}") from error


def _joined(levels: list[str]) -> str:
    namespace = SEPARATOR.join(levels)
    if any(SEPARATOR in level for level in levels):
        raise bad_request("a level of a namespace has no separator in it")
    if problem := namespace_problem(namespace):
        raise bad_request(problem)
    return namespace


def _namespace(request: Request) -> str:
    return _joined(request.path_params["namespace"].split(SEPARATOR))


def _table(request: Request) -> TableKey:
    return _named(request, "table")


def _named(request: Request, what: str) -> TableKey:
    name = request.path_params[what]
    if problem := name_problem(name):
        raise bad_request(problem)
    return _namespace(request), name


def _identified(change: CommitRequest) -> TableKey:
    try:
        found = msgspec.convert(change.identifier, Identifier)
    except msgspec.ValidationError as error:
        raise bad_request(f"malformed identifier: {error}") from error
    if problem := name_problem(found.name):
        raise bad_request(problem)
    return _joined(found.namespace), found.name


# -- answers --------------------------------------------------------------------------------------------------------


def _listed(name: str, items: list[Any], following: str | None) -> Response:
    return JSONResponse({name: items} if following is None else {name: items, "next-page-token": following})


def _loaded(table: TableDraft, which: str = "all") -> Response:
    """The answer has no settings of the store: DuckDB would take them for credentials, and ignore its own."""
    metadata = table.metadata
    if which == "refs" or metadata[:1] != b"{":
        whole = parse_any(metadata)
        if which == "refs":
            named = {ref["snapshot-id"] for ref in whole.refs.values()}
            snapshots = [one for one in whole.value("snapshots") if one["snapshot-id"] in named]
            whole = whole.replaced({"snapshots": snapshots})
        metadata = whole.encode()
    answer: dict[str, Any] = {"metadata": msgspec.Raw(metadata), "config": {}}
    if not table.location:
        return Response(msgspec.json.encode(answer), media_type="application/json")
    answer = {"metadata-location": table.location, **answer}
    return Response(msgspec.json.encode(answer), media_type="application/json", headers={"etag": _tag(table, which)})


def _loaded_view(view: LoadedView) -> Response:
    metadata = view.metadata if view.metadata[:1] == b"{" else render_view(parse_view(view.metadata))
    answer = {"metadata-location": view.location, "metadata": msgspec.Raw(metadata), "config": {}}
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _tag(table: TableDraft, which: str) -> str:
    return f'"{blake2b(f"{table.location} {which}".encode(), digest_size=16).hexdigest()}"'
