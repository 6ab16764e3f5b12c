"""Serves SQL over standard input and output: a statement a line in, an answer a line out, both JSON.

This runs in the engines' own environments, which have neither the product nor the other tests: only what Python brings.
"""

import json
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def serve(run: Callable[[str], Iterable[Any]], kinds: tuple[type[BaseException], ...]) -> None:
    """Answer until the input ends. Errors of these kinds are answers too."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = {"rows": [plain(list(row)) for row in run(json.loads(line))]}
        except kinds as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


def plain(value: Any) -> Any:
    """What JSON has no word for is told in an object; structures are lists."""
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, datetime):
        return {"ms": round((value.replace(tzinfo=value.tzinfo or UTC) - EPOCH).total_seconds() * 1000)}
    if isinstance(value, dict):
        return [plain(item) for item in value.values()]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
