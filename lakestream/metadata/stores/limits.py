"""Limits that every command log here keeps: the size of an append, and the size of a page of commands."""

from collections.abc import Iterable, Sequence

from lakestream.interfaces import Logged

MAX_APPEND_BYTES = 16 * 1024 * 1024
MAX_APPEND_COMMANDS = 65_536
PAGE_BYTES = 8 * 1024 * 1024
PAGE_COMMANDS = 65_536


def check_append(commands: Sequence[bytes]) -> None:
    """Raise ValueError for an append above the limits: the proposer has to split it."""
    size = sum(map(len, commands))
    if size > MAX_APPEND_BYTES or len(commands) > MAX_APPEND_COMMANDS:
        raise ValueError(
            f"an append of {len(commands)} commands, {size} bytes, is over the limit of "
            f"{MAX_APPEND_COMMANDS} commands, {MAX_APPEND_BYTES} bytes"
        )


def cut_page(commands: Iterable[Logged], limit: int) -> list[Logged]:
    """The first commands that make a page: bounded in count and bytes.

    Two commands fit however large they are: the one that the reader has already (L5), and one more to go on with.
    """
    page: list[Logged] = []
    limit = min(limit, PAGE_COMMANDS)
    size = 0
    for command in commands:
        size += len(command[1])
        if len(page) >= limit or (size > PAGE_BYTES and len(page) >= 2):
            break
        page.append(command)
    return page
