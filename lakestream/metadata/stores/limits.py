"""What every command log here holds to: the size of an append, and how a page of commands is cut."""

from collections.abc import Iterable, Sequence

from lakestream.interfaces import Logged

MAX_APPEND_BYTES = 16 * 1024 * 1024
MAX_APPEND_COMMANDS = 65_536
PAGE_BYTES = 8 * 1024 * 1024
PAGE_COMMANDS = 65_536


def check_append(commands: Sequence[bytes]) -> None:
    """Refuse an append that no store has to take; the proposer has to split it."""
    size = sum(map(len, commands))
    if size > MAX_APPEND_BYTES or len(commands) > MAX_APPEND_COMMANDS:
        raise ValueError(
            f"an append of {len(commands)} commands, {size} bytes, is over the limit of "
            f"{MAX_APPEND_COMMANDS} commands, {MAX_APPEND_BYTES} bytes"
        )


def cut_page(commands: Iterable[Logged], limit: int) -> list[Logged]:
    """The first commands that make a page: bounded in count and bytes.

    However large they are, two fit: the one the reader has already (L5), and one more, so that it advances.
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
