"""JSON from and to a broker's HTTP port, as commands ask it."""

import http.client
import json
from typing import Any

from lakestream.cli.metadata import ANSWER_S, connect_page, read_page, refusal
from lakestream.errors import LakestreamError


def get_json(page: str, path: str) -> Any:
    return json.loads(read_page(page, path))


def post_json(page: str, path: str, body: object) -> Any:
    """The answer, if the broker took it."""
    connection = connect_page(page, ANSWER_S)
    try:
        connection.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        if answer.status >= 300:
            raise refusal(f"http://{page}{path}", answer.status, said)
        return json.loads(said)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise LakestreamError(f"cannot ask http://{page}{path}: {error}; is that a broker's HTTP port?") from None
    finally:
        connection.close()
