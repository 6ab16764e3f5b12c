"""The commands of the log as text, page by page, for `lakestream metadata follow`."""

import asyncio
import json
from collections.abc import Sequence

from lakestream.interfaces import CommandLog, Logged
from lakestream.metadata.describe import describe_command

COMMANDS_MAX = 1000
"""Of one page."""
PAGE_BYTES = 1 << 20
"""A page that has grown to this gets no more commands."""
WAIT_MAX_S = 20.0


async def command_page(command_log: CommandLog, after: int, limit: int, wait_s: float) -> bytes:
    """At most `limit` commands behind a sequence, a line of JSON each. Waits for the first one if there are none.

    Raises Missing if the log no longer reaches back to the sequence.
    """
    limit = min(limit, COMMANDS_MAX)
    found = await _behind(command_log, after, limit)
    if not found and wait_s > 0:
        await command_log.wait(after, min(wait_s, WAIT_MAX_S))
        found = await _behind(command_log, after, limit)
    # A full page takes 160 ms: in a thread, the event loop goes on.
    return await asyncio.to_thread(render, found) if found else b""


async def _behind(command_log: CommandLog, after: int, limit: int) -> list[Logged]:
    # A page of the log begins with the command at `after` itself.
    entries = await command_log.read(after, limit + 1)
    return [entry for entry in entries if entry[0] > after][:limit]


def render(entries: Sequence[Logged], page_bytes: int = PAGE_BYTES) -> bytes:
    """The lines up to the one that fills the page; at least one."""
    lines: list[bytes] = []
    size = 0
    for sequence, command in entries:
        if size >= page_bytes:
            break
        line = json.dumps(describe_command(sequence, command), separators=(",", ":")).encode() + b"\n"
        lines.append(line)
        size += len(line)
    return b"".join(lines)
