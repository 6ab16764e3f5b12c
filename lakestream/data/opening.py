"""Opens the object store of records at a start: waits for a store that is away, and names the variables to set."""

import asyncio
import logging
import re
from typing import Final

from obstore.exceptions import BaseError

from lakestream.data.object_store import ObjectStoreWal, first_line, is_hopeless
from lakestream.errors import Missing, Retry, Unknown, Unusable

log = logging.getLogger(__name__)

PATIENCE_S: Final = 30.0
"""A store that starts together with the broker answers within this time."""
ANSWER_S: Final = 5.0
PAUSE_S: Final = 1.0
TO_SET: Final = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, and AWS_ENDPOINT_URL if the store is not Amazon's",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""The variables that clients of each store read, by how its URLs begin; all others are Azure's."""
_INSTANCE = re.compile(r"https?://(169\.254\.169\.254|169\.254\.170\.|metadata\.google\.internal)")
"""Addresses of a cloud machine's own credentials, which a client asks when no credentials are set."""
_DEEPEST = re.compile(r'(?:message|error): "([^"]+)"')
"""The innermost message in the client's description of an error."""


async def open_object_store(url: str, *, linger_ms: int, patience_s: float = PATIENCE_S) -> ObjectStoreWal:
    """A store that has answered. Raises Unusable if it cannot be used, Halted if it is not fit for a WAL."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    said = False
    try:
        store = ObjectStoreWal(url, linger_ms=linger_ms)
        # With the usual limits a silent store would be tried for more than a minute before the first log line.
        tried = ObjectStoreWal(url, request_timeout_s=ANSWER_S, attempts=2)
    except BaseError as error:
        raise Unusable(advice(url, error)) from error
    while True:
        try:
            await tried.probe()
            return store
        except (Retry, Unknown, Missing) as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            if loop.time() >= deadline or _is_refusal(cause):
                await tried.close()
                raise Unusable(advice(url, cause)) from error
            if not said:
                log.warning("waiting up to %.0f s for the store: %s", patience_s, advice(url, cause))
                said = True
        await asyncio.sleep(PAUSE_S)


def advice(url: str, error: Exception) -> str:
    """The cause in one line, and the variables to set."""
    cause = first_line(error)
    if _INSTANCE.search(cause):
        cause = f"no credentials are set, and this machine has none of its own ({cause})"
    elif deeper := _DEEPEST.findall(str(error)):
        cause = f"{cause}: {deeper[-1]}"
    kind = url[:2] if url[:2] in TO_SET else "az"
    return f"{url} cannot be used: {cause}. Set {TO_SET[kind]}"


def _is_refusal(error: Exception) -> bool:
    return is_hopeless(error) or _INSTANCE.search(first_line(error)) is not None
