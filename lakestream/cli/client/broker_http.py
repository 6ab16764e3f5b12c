"""Requests to a broker's HTTP port, as commands send them."""

import asyncio
import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from lakestream.cli.client.cluster_client import open_client
from lakestream.errors import LakestreamError
from lakestream.process.ports import split_address
from lakestream.settings import SettingsError

ANSWER_S: Final = 30.0


class UnknownPath(LakestreamError):
    """The broker does not serve the path: the feature is off, or the broker is older than this command."""


def find_http_address(bootstrap: str) -> str:
    """The address of a broker's HTTP port, by the brokers' Kafka ports."""

    async def run() -> str:
        async with open_client(bootstrap) as client:
            return await client.http_address()

    return asyncio.run(run())


def read_body(address: str, path: str) -> bytes:
    """The body of a broker's answer at a path of its HTTP port."""
    with get(address, path) as answer:
        return answer.read()


def get_json(address: str, path: str) -> Any:
    return json.loads(read_body(address, path))


def post_json(address: str, path: str, body: object) -> Any:
    """Post a JSON body; returns the answer. Raises LakestreamError with the broker's reason if it refuses."""
    connection = http_connection(address, ANSWER_S)
    try:
        connection.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise _refusal(f"http://{address}{path}", answer.status, content)
        return json.loads(content)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise LakestreamError(f"cannot ask http://{address}{path}: {error}; is that a broker's HTTP port?") from None
    finally:
        connection.close()


@contextmanager
def get(address: str, path: str) -> Iterator[http.client.HTTPResponse]:
    """The answer to a GET request, while its connection is open. Raises LakestreamError unless its status is 200."""
    connection = http_connection(address, ANSWER_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        if answer.status != 200:
            raise _refusal(f"http://{address}{path}", answer.status, answer.read(500))
        yield answer
    except (OSError, http.client.HTTPException) as error:
        raise LakestreamError(f"cannot read http://{address}{path}: {error}; is that a broker's HTTP port?") from None
    finally:
        connection.close()


def http_connection(address: str, timeout_s: float | None) -> http.client.HTTPConnection:
    """A connection object; the first request connects it. Raises SettingsError for a malformed address."""
    try:
        host, port = split_address(address.removeprefix("http://").rstrip("/"), 8181)
    except ValueError as error:
        raise SettingsError(f"--http: {error}") from None
    return http.client.HTTPConnection(host, port, timeout=timeout_s)


def _refusal(url: str, status: int, body: bytes) -> LakestreamError:
    """The broker's reason for an error status, or the answer's body if it gives none."""
    text = body.decode(errors="replace")
    with suppress(ValueError):
        answer = json.loads(text)
        if isinstance(answer, dict) and isinstance(answer.get("error"), str):
            return LakestreamError(answer["error"])
    return (UnknownPath if status == 404 else LakestreamError)(f"{url} answers {status}: {text}")
