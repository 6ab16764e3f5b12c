"""Memory that requests are received into: large, reused slabs that all connections share.

The cost of receiving is page faults, not Python, so memory is used again. A transport asks for a buffer, receives once
into it and reports, without anything in between; so all connections receive into one current slab, one behind the
other, and an idle connection holds no memory at all. A request that needs its bytes for longer pins their slab. A slab
without pins is used again from its start.
"""

import mmap
from collections.abc import Callable
from typing import Final

from lakestream.model.kernels.pointers import address_of

_PRIVATE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_LAZY: Final = _PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)


class Slab:
    """A piece of memory and the number of its users, the pins. Made with one pin, that of its maker."""

    __slots__ = ("address", "pins", "pool", "used_bytes", "view")

    def __init__(self, view: memoryview, pool: "SlabPool | None" = None) -> None:
        self.view = view
        self.address = address_of(view)
        """The address of its first byte, for compiled code."""
        self.pins = 1
        self.pool = pool
        self.used_bytes = -1
        """The size of a slab for one frame, once the frame is complete. Shared slabs have -1."""

    def release(self) -> None:
        """Take one pin away: its holder must not touch the bytes from now on."""
        pins = self.pins = self.pins - 1
        if not pins and self.pool is not None:
            self.pool.emptied(self)

    def __repr__(self) -> str:
        return f"Slab({len(self.view)} bytes, {self.pins} pins)"


def small_copy(part: memoryview) -> Slab:
    """A slab of its own for a few bytes that have to wait."""
    return Slab(memoryview(bytearray(part)))


class SlabPool:
    """The current slab with the position from which it is free, and slabs that wait to be used again."""

    __slots__ = ("_free", "_lowest", "current", "freed", "position", "slab_bytes", "used_bytes")

    def __init__(self, slab_bytes: int, freed: Callable[[], None] | None = None) -> None:
        self.slab_bytes = slab_bytes
        self.used_bytes = 0
        """Memory of complete frames that are still pinned, without the current slab and incomplete large frames."""
        self.freed = freed
        """Called when `used_bytes` fell."""
        self.position = 0
        self._free: list[Slab] = []
        self._lowest = 0
        self.current = self._fresh()

    def room(self, size: int) -> memoryview:
        """The current slab's memory, which has `size` bytes free from `position` on."""
        if self.slab_bytes - self.position < size:
            self._rotate()
        return self.current.view

    def big(self, size: int) -> Slab:
        """A slab for one frame, which costs only what is written to it."""
        slab = Slab(memoryview(mmap.mmap(-1, size, flags=_LAZY)), self)
        slab.used_bytes = 0
        return slab

    def filled(self, slab: Slab) -> None:
        """The frame in a slab of its own is complete; from now on it counts."""
        slab.used_bytes = len(slab.view)
        self.used_bytes += slab.used_bytes

    def emptied(self, slab: Slab) -> None:
        """The last pin is gone."""
        if slab is self.current:
            self.position = 0
            return
        if slab.used_bytes < 0:
            self.used_bytes -= self.slab_bytes
            self._free.append(slab)
        else:
            self.used_bytes -= slab.used_bytes
        if self.freed is not None:
            self.freed()

    def trim(self) -> None:
        """Give half of the slabs that stayed free since the last call back to the system."""
        surplus = (self._lowest + 1) // 2
        del self._free[:surplus]
        self._lowest = len(self._free)

    @property
    def free_slabs(self) -> int:
        return len(self._free)

    def _rotate(self) -> None:
        # An unpinned current slab starts at 0, so this one is pinned, and comes back by `emptied`.
        self.used_bytes += self.slab_bytes
        self.current = self._free.pop() if self._free else self._fresh()
        self._lowest = min(self._lowest, len(self._free))
        self.position = 0

    def _fresh(self) -> Slab:
        slab = Slab(memoryview(mmap.mmap(-1, self.slab_bytes, flags=_PRIVATE)), self)
        slab.pins = 0
        return slab

    def __repr__(self) -> str:
        return f"SlabPool({self.used_bytes} bytes used, {len(self._free)} slabs free)"
