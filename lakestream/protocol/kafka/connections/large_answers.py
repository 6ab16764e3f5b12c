"""Answers that may be very long: they are built in turns and encoded in a thread, so that no other client waits."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from lakestream.interfaces import Buffer
from lakestream.protocol.kafka.connections.calls import RequestContext
from lakestream.protocol.kafka.wire.apis import APIS, encode_response

ITEMS_AT_ONCE: Final = 1000
"""Items that a handler builds before others have their turn."""


async def large_answer(context: RequestContext, response: Any, items: int) -> Any:
    """What a handler returns for a response with so many items in its lists: the message itself if they are few."""
    if items <= ITEMS_AT_ONCE:
        return response
    api = APIS[context.api_key]
    frame = await asyncio.to_thread(encode_response, api, context.version, context.correlation_id, response)
    frames: Sequence[Buffer] = [frame]
    return frames
