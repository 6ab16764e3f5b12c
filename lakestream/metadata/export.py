"""The whole state for a tool that checks it from outside: one consistent moment, and where the bytes of it lie.

A state may be large, so it goes out in pages. The first page makes an export, which is held until its last page was
read, or for a minute after the last one that was asked for.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from urllib.parse import urlencode

import msgspec

from lakestream.errors import Corrupt, LakestreamError, Missing, Retry
from lakestream.interfaces import Clock
from lakestream.metadata.checkpoint import Dump
from lakestream.metadata.replica import Replica

STATE_PATH = "/metadata/state"
"""Where a broker's HTTP port gives it out."""
PAGE_BYTES = 4 << 20
HELD_S = 60.0
EXPORTS_MAX = 2
"""Held at once; who wants one more has to wait."""
READ_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Exported:
    """A state as a checkpoint's bytes, the URI of the folder or bucket of the cluster, and the collector's patience."""

    root: str
    collected_after_ms: int
    """A WAL object that nobody needs is gone after so long, if the collector works."""
    checkpoint: bytes


class ExportPage(msgspec.Struct, frozen=True, array_like=True):
    """One of `pages` pieces of a checkpoint; `export` is the name to ask for the others by."""

    root: str
    collected_after_ms: int
    export: str
    page: int
    pages: int
    piece: bytes


@dataclass(slots=True)
class _Held:
    checkpoint: bytes
    used: float


class Exports:
    """The exports that a broker holds."""

    def __init__(
        self, replica: Replica, dump: Dump, clock: Clock, random: Random, about: tuple[str, int],
        page_bytes: int = PAGE_BYTES,
    ) -> None:  # fmt: skip
        """`about` has the URI of the cluster's folder or bucket, and the collector's patience in ms."""
        self._replica = replica
        self._dump = dump
        self._clock = clock
        self._random = random
        self._about = about
        self._page_bytes = page_bytes
        self._held: dict[str, _Held] = {}
        self._one_at_a_time = asyncio.Lock()

    async def page(self, export: str, number: int) -> bytes:
        """A page of an export, or of a new one if none is named: the state, folded to the end of the log first.

        Raises Missing if there is no such export (any more) or page, and Retry.
        """
        self._forget_old()
        if not export and number:
            raise Missing("a page behind the first one is that of an export: name it")
        if not export:
            export = await self._make()
        held = self._held.get(export)
        if held is None:
            raise Missing("this export of the state is not held any more: begin with the first page")
        pages = max(-(-len(held.checkpoint) // self._page_bytes), 1)
        if not 0 <= number < pages:
            raise Missing(f"this export of the state has {pages} pages")
        held.used = self._clock.monotonic()
        if number == pages - 1:
            del self._held[export]
        else:
            asyncio.get_running_loop().call_later(HELD_S, self._forget_old)
        piece = held.checkpoint[number * self._page_bytes : (number + 1) * self._page_bytes]
        return msgspec.msgpack.encode(ExportPage(*self._about, export, number, pages, piece))

    async def _make(self) -> str:
        async with self._one_at_a_time:
            self._forget_old()
            if len(self._held) >= EXPORTS_MAX:
                raise Retry(f"{EXPORTS_MAX} exports of the state are being read: try again in a minute")
            await self._replica.catch_up()
            checkpoint = await self._dump(self._replica.state)
            name = self._random.randbytes(16).hex()
            self._held[name] = _Held(checkpoint, self._clock.monotonic())
            return name

    def _forget_old(self) -> None:
        oldest = self._clock.monotonic() - HELD_S
        self._held = {name: held for name, held in self._held.items() if held.used > oldest}


def read_export(read: Callable[[str], bytes]) -> Exported:
    """The whole of a new export; `read` gets what a broker answers at a path. Blocks. Raises what `read` raises."""
    for attempt in range(READ_ATTEMPTS):
        first = unpack_page(read(STATE_PATH))
        pieces = [first.piece]
        try:
            for number in range(1, first.pages):
                asked = urlencode({"export": first.export, "page": number})
                pieces.append(unpack_page(read(f"{STATE_PATH}?{asked}")).piece)
        except LakestreamError:
            # The broker may have been started again, or we were too slow.
            if attempt == READ_ATTEMPTS - 1:
                raise
            continue
        return Exported(first.root, first.collected_after_ms, b"".join(pieces))
    raise AssertionError("the last attempt returns or raises")


def unpack_page(data: bytes) -> ExportPage:
    try:
        return msgspec.msgpack.decode(data, type=ExportPage)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"this is no exported state: {error}") from error
