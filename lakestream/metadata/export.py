"""The whole state for a tool that checks it: one consistent moment, and where the objects of the cluster lie.

A state may be large, so it is sent in pages. A request for the first page makes an export, which the broker holds until
its last page is read, or until no page was read for a minute.
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
"""The path at a broker's HTTP port."""
PAGE_BYTES = 4 << 20
HELD_S = 60.0
EXPORTS_MAX = 2
"""Exports held at once; a request for one more gets Retry."""
READ_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Exported:
    """A state as a checkpoint's bytes, the URI of the folder or bucket of the cluster, and the collector's patience."""

    root: str
    collected_after_ms: int
    """A working collector removes an unneeded WAL object within this time."""
    checkpoint: bytes


class ExportPage(msgspec.Struct, frozen=True, array_like=True):
    """One of `pages` pieces of a checkpoint; `export` names the export that has the others."""

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
        """A page of an export; of a new one, folded to the end of the log, if `export` is empty.

        Raises Missing if there is no such page, or the export is gone, and Retry.
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
    """A new export, whole. `read` returns a broker's answer at a path. Blocks. Raises what `read` raises."""
    for attempt in range(READ_ATTEMPTS):
        first = unpack_page(read(STATE_PATH))
        pieces = [first.piece]
        try:
            for number in range(1, first.pages):
                asked = urlencode({"export": first.export, "page": number})
                pieces.append(unpack_page(read(f"{STATE_PATH}?{asked}")).piece)
        except LakestreamError:
            # The broker may have restarted, or dropped the export.
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
