"""Tables for people and tools: their progress, and requests for their care.

    GET  /tables, /tables/TOPIC         every topic's table, or one
    POST /tables/TOPIC/KIND             ask for care; the JSON object in the body has the arguments, all text
    GET  /care/REQUEST                  the progress and the result of a request

The broker only notes a request in the state; the pipeline finds it there and carries it out.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from lakestream.errors import LakestreamError, Missing, Rejected

ARGUMENTS_BYTES_MAX = 65_536
_ARGUMENTS = msgspec.json.Decoder(dict[str, str])


@dataclass(frozen=True, slots=True)
class TableSources:
    """Sources of the answers, as JSON. All raise Missing or Rejected, or another LakestreamError for the time being."""

    tables: Callable[[str | None], Awaitable[bytes]]
    ask: Callable[[str, str, dict[str, str]], Awaitable[bytes]]
    answer: Callable[[str], Awaitable[bytes]]


def table_routes(sources: TableSources) -> list[BaseRoute]:
    async def list_all(_: Request) -> Response:
        return await _told(sources.tables(None))

    async def list_one(request: Request) -> Response:
        return await _told(sources.tables(request.path_params["topic"]))

    async def ask(request: Request) -> Response:
        # A page of another site can make a browser post a form here, but not JSON.
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _error("the arguments have to be application/json", 415)
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > ARGUMENTS_BYTES_MAX:
                return _error(f"the arguments have at most {ARGUMENTS_BYTES_MAX} bytes", 413)
        try:
            arguments = _ARGUMENTS.decode(body or b"{}")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return _error(f"the arguments have to be an object of texts: {error}", 400)
        params = request.path_params
        return await _told(sources.ask(params["topic"], params["kind"], arguments), 202)

    async def answer(request: Request) -> Response:
        return await _told(sources.answer(request.path_params["request"]))

    return [
        Route("/tables", list_all),
        Route("/tables/{topic}", list_one),
        Route("/tables/{topic}/{kind}", ask, methods=["POST"]),
        Route("/care/{request}", answer),
    ]


async def _told(answer: Awaitable[bytes], status: int = 200) -> Response:
    try:
        return Response(await answer, status_code=status, media_type="application/json")
    except Missing as error:
        return _error(str(error), 404)
    except Rejected as error:
        return _error(str(error), 400)
    except LakestreamError as error:
        return _error(str(error), 503)


def _error(text: str, status: int) -> Response:
    return JSONResponse({"error": text}, status_code=status)
