"""Compress and decompress the records of a batch, with a bound on what comes out.

`decompress` never allocates more than its limit and a small constant, whatever the input claims: the output's size is
known or bounded before (frames.py; the lengths in snappy's blocks), or the output grows under a limit (gzip).
"""

import struct

import cramjam
import numpy as np
from isal import igzip, igzip_lib, isal_zlib

from lakestream.errors import Rejected
from lakestream.model.batches.frames import lz4_bound, zstd_bound
from lakestream.model.batches.header import Codec, Fault
from lakestream.model.kernels.pointers import address_of

MAX_DECOMPRESSED_BYTES = 64 * 1024 * 1024
"""The largest size of a decompressed batch; a produced batch that becomes larger is refused."""
XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
"""How Java's snappy streams begin; blocks follow, each with its length as an i32 in front."""
XERIAL_BLOCK_SIZE = 32 * 1024
XERIAL_MAGIC_SIZE = 8
XERIAL_SMALLEST_BLOCK = 1024
"""The least size of a full block in Java's streams; it bounds the number of blocks that a body may have."""
SPARE_BLOCKS = 16
GZIP_MEMBERS_MAX = 16
"""Most members of one body. Clients write one; each further one copies the rest of the input."""


def decompress(codec: int, data: bytes | memoryview, limit: int) -> bytes | memoryview:
    """The body, at most `limit` bytes. Raises Rejected: TOO_LARGE, CORRUPT or UNSUPPORTED_COMPRESSION."""
    if codec == Codec.NONE:
        if len(data) > limit:
            raise _too_large(limit)
        return data
    try:
        if codec == Codec.ZSTD:
            return _decompress_frames(cramjam.zstd, zstd_bound(address_of(data), len(data)), data, limit)
        if codec == Codec.LZ4:
            return _decompress_frames(cramjam.lz4, lz4_bound(address_of(data), len(data)), data, limit)
        if codec == Codec.SNAPPY:
            return _decompress_snappy(data, limit)
        if codec == Codec.GZIP:
            return _decompress_gzip(data, limit)
    except _FAILURES as error:
        raise Rejected(Fault.CORRUPT, f"{Codec(codec).name.lower()}: {error}") from None
    raise Rejected(Fault.UNSUPPORTED_COMPRESSION, f"unknown compression codec {codec}")


def compress(codec: int, data: bytes | memoryview) -> bytes:
    """The body as a producer would send it, at each codec's default level."""
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        return igzip.compress(data)
    if codec == Codec.SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec == Codec.LZ4:
        # Java's decompressor knows no linked blocks; the library's default level is seven times slower for nothing.
        compressor = cramjam.lz4.Compressor(level=1, block_linked=False)
        compressor.compress(bytes(data))
        return bytes(compressor.finish())
    if codec == Codec.ZSTD:
        return bytes(cramjam.zstd.compress(data))
    raise Rejected(Fault.UNSUPPORTED_COMPRESSION, f"unknown compression codec {codec}")


def _decompress_frames(library: object, bound: int, data: bytes | memoryview, limit: int) -> memoryview:
    if bound < 0:
        raise Rejected(Fault.CORRUPT, "the compressed body is no whole frame")
    output = np.empty(min(bound, limit), dtype=np.uint8).data
    try:
        return output[: library.decompress_into(data, output)]  # type: ignore[attr-defined]
    except cramjam.DecompressionError as error:
        # The library has no other way to tell that the output is full.
        if bound > limit and _OUTPUT_FULL in str(error):
            raise _too_large(limit) from None
        raise


def _decompress_snappy(data: bytes | memoryview, limit: int) -> memoryview:
    """Java's framing, or one bare block as some clients send it."""
    view = memoryview(data)
    end = len(view)
    blocks: list[memoryview] = []
    if view[:XERIAL_MAGIC_SIZE] == XERIAL_HEADER[:XERIAL_MAGIC_SIZE]:
        position = len(XERIAL_HEADER)
        if end < position:
            raise Rejected(Fault.CORRUPT, "snappy: truncated")
        blocks_max = limit // XERIAL_SMALLEST_BLOCK + SPARE_BLOCKS
        while position < end:
            if end - position < 4 or len(blocks) == blocks_max:
                raise Rejected(Fault.CORRUPT, "snappy: truncated, or cut into absurdly small blocks")
            size = _INT32.unpack_from(view, position)[0]
            position += 4
            if not 0 < size <= end - position:
                raise Rejected(Fault.CORRUPT, f"snappy: a block of {size} bytes in the {end - position} that are left")
            blocks.append(view[position : position + size])
            position += size
    elif end:
        blocks.append(view)
    else:
        raise Rejected(Fault.CORRUPT, "snappy: empty")
    sizes = [cramjam.snappy.decompress_raw_len(block) for block in blocks]
    if sum(sizes) > limit:
        raise _too_large(limit)
    output = np.empty(sum(sizes), dtype=np.uint8).data
    position = 0
    for block, size in zip(blocks, sizes, strict=True):
        if size:
            cramjam.snappy.decompress_raw_into(block, output[position : position + size])
        position += size
    return output


def _compress_snappy(view: memoryview) -> bytes:
    parts = [XERIAL_HEADER]
    for position in range(0, len(view), XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(view[position : position + XERIAL_BLOCK_SIZE]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _decompress_gzip(data: bytes | memoryview, limit: int) -> bytes:
    """One member or several, as `gzip` files may have."""
    parts: list[bytes] = []
    room = limit
    rest: bytes | memoryview = data
    for _ in range(GZIP_MEMBERS_MAX):
        member = isal_zlib.decompressobj(wbits=31)
        # One byte more than there is room for tells a full buffer from a bomb.
        part = member.decompress(rest, room + 1)
        if len(part) > room:
            raise _too_large(limit)
        if not member.eof:
            raise Rejected(Fault.CORRUPT, "gzip: truncated")
        parts.append(part)
        room -= len(part)
        rest = member.unused_data
        if not rest:
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise Rejected(Fault.CORRUPT, f"gzip: more than {GZIP_MEMBERS_MAX} members")


def _too_large(limit: int) -> Rejected:
    return Rejected(Fault.TOO_LARGE, f"the records decompress to more than {limit} bytes")


# The stub takes the second class for an instance.
_FAILURES: tuple[type[Exception], ...] = (cramjam.DecompressionError, igzip_lib.IsalError)  # type: ignore[assignment]
_OUTPUT_FULL = "failed to write whole buffer"
_INT32 = struct.Struct(">i")
