"""How large a compressed frame can become, read from the sizes of its blocks without decompressing any.

So a body is decompressed once, into a buffer of the right size, and a bomb is seen before it is lit. Compiled, and
called with addresses, for the reasons that record_loops.py gives.
"""

from numba import njit

from lakestream.model.kernels.pointers import load


@njit(nogil=True, forceinline=True)
def _little32(position: int, size: int) -> int:
    """`size` bytes, the lowest first."""
    value = 0
    for index in range(size):
        value |= load(position + index) << (8 * index)
    return value


@njit("int64(int64, int64)", cache=True, nogil=True)
def lz4_bound(address: int, length: int) -> int:
    """How many bytes one LZ4 frame can become at most, from the sizes of its blocks; -1 unless it is exactly one."""
    if length < 7 or _little32(address, 4) != 0x184D2204:
        return -1
    flags = load(address + 4)
    block_max = 1 << (8 + 2 * ((load(address + 5) >> 4) & 7))
    position = address + 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    end = address + length
    bound = 0
    while end - position >= 4:
        size = _little32(position, 4)
        position += 4
        if size == 0:
            position += 4 if flags & 0x04 else 0
            return bound if position == end else -1
        stored = size & 0x7FFFFFFF
        bound += stored if size != stored else block_max
        if stored > end - position:
            return -1
        position += stored + (4 if flags & 0x10 else 0)
    return -1


@njit("int64(int64, int64)", cache=True, nogil=True)
def zstd_bound(address: int, length: int) -> int:
    """How many bytes a row of Zstandard frames can become at most, from the sizes of its blocks; -1 if it is none."""
    position = address
    end = address + length
    bound = 0
    while position < end:
        if end - position < 8:
            return -1
        magic = _little32(position, 4)
        if magic & 0xFFFFFFF0 == 0x184D2A50:
            position += 8 + _little32(position + 4, 4)
            continue
        if magic != 0xFD2FB528:
            return -1
        descriptor = load(position + 4)
        single = (descriptor >> 5) & 1
        sizes = (descriptor >> 6) & 3
        position += 5 + (1 - single) + ((1 << (descriptor & 3)) >> 1) + (single if sizes == 0 else 1 << sizes)
        last = 0
        while not last:
            if end - position < 3:
                return -1
            block = _little32(position, 3)
            last = block & 1
            kind = (block >> 1) & 3
            size = block >> 3
            bound += size if kind < 2 else 131072
            position += 3 + (1 if kind == 1 else size)
        position += 4 if descriptor & 4 else 0
    return bound if position == end else -1
