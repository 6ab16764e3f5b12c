"""Very long answers: handlers build them in steps, and a thread encodes them, so that no other client waits."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from lakestream.interfaces import Buffer
from lakestream.protocol.kafka.connections.calls import RequestContext
from lakestream.protocol.kafka.wire.apis import APIS, encode_response

ITEMS_AT_ONCE: Final = 1000
"""Items that a handler builds before it yields to the event loop."""


async def large_answer(context: RequestContext, response: Any, items: int) -> Any:
    """Returns the response itself if its lists hold few `items`; else frames that were encoded in a thread."""
    if items <= ITEMS_AT_ONCE:
        return response
    api = APIS[context.api_key]
    frame = await asyncio.to_thread(encode_response, api, context.version, context.correlation_id, response)
    frames: Sequence[Buffer] = [frame]
    return frames
