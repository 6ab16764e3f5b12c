"""JSON requests to a broker's HTTP port."""

import http.client
import json
from typing import Any

from lakestream.cli.metadata import ANSWER_S, connect_page, read_page, refusal
from lakestream.errors import LakestreamError


def get_json(page: str, path: str) -> Any:
    return json.loads(read_page(page, path))


def post_json(page: str, path: str, body: object) -> Any:
    """Post a JSON body; returns the answer. Raises LakestreamError with the broker's reason if it refuses."""
    connection = connect_page(page, ANSWER_S)
    try:
        connection.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise refusal(f"http://{page}{path}", answer.status, content)
        return json.loads(content)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise LakestreamError(f"cannot ask http://{page}{path}: {error}; is that a broker's HTTP port?") from None
    finally:
        connection.close()
