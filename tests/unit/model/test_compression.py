"""Codecs: what goes in comes out; bombs stay small; garbage is refused, never a crash."""

import gc
import random
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec

from lakestream.errors import Rejected
from lakestream.model.batches.compression import GZIP_MEMBERS_MAX, XERIAL_HEADER, compress, decompress
from lakestream.model.batches.header import Codec, Fault

CODECS = [codec for codec in Codec if codec]
CHUNK = bytes(1 << 20)


def refused(codec: int, data: bytes, limit: int) -> int:
    with pytest.raises(Rejected) as caught:
        decompress(codec, data, limit)
    return caught.value.reason


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", [0, 1, 1000, 32 * 1024, 32 * 1024 + 1, 300_000])
def test_what_goes_in_comes_out(codec: Codec, size: int) -> None:
    data = random.Random(size).randbytes(size // 2) + bytes(size - size // 2)
    assert bytes(decompress(codec, compress(codec, data), size)) == data


@pytest.mark.parametrize("codec", list(Codec))
def test_the_limit_is_exact(codec: Codec) -> None:
    data = compress(codec, bytes(200_000))
    assert len(decompress(codec, data, 200_000)) == 200_000
    assert refused(codec, data, 199_999) == Fault.TOO_LARGE


@pytest.mark.parametrize(
    ("codec", "encode", "decode"),
    [
        (Codec.GZIP, aiokafka_codec.gzip_encode, aiokafka_codec.gzip_decode),
        (Codec.SNAPPY, aiokafka_codec.snappy_encode, aiokafka_codec.snappy_decode),
        (Codec.LZ4, aiokafka_codec.lz4_encode, aiokafka_codec.lz4_decode),
        (Codec.ZSTD, aiokafka_codec.zstd_encode, aiokafka_codec.zstd_decode),
    ],
)
def test_we_and_a_client_read_each_other(
    codec: Codec, encode: Callable[[bytes], bytes], decode: Callable[[bytes], bytes]
) -> None:
    data = random.Random(1).randbytes(1000) * 200
    assert bytes(decompress(codec, encode(data), 1 << 20)) == data
    assert bytes(decode(compress(codec, data))) == data


def test_bare_snappy_as_some_clients_send_it_is_read() -> None:
    assert bytes(decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"hello" * 100)), 1000)) == b"hello" * 100


def test_gzip_of_several_members_is_read() -> None:
    member = compress(Codec.GZIP, b"x" * 1000)
    assert decompress(Codec.GZIP, member * 3, 3000) == b"x" * 3000
    assert refused(Codec.GZIP, member * 3, 2999) == Fault.TOO_LARGE
    assert refused(Codec.GZIP, member * (GZIP_MEMBERS_MAX + 1), 1 << 20) == Fault.CORRUPT


def test_zstd_of_several_frames_is_read_and_skippable_ones_are_skipped() -> None:
    frame = compress(Codec.ZSTD, b"x" * 1000)
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"other"
    assert bytes(decompress(Codec.ZSTD, frame + skippable + frame, 2000)) == b"x" * 2000


def test_lz4_is_one_frame_because_clients_read_only_the_first() -> None:
    frame = compress(Codec.LZ4, b"x" * 1000)
    assert refused(Codec.LZ4, frame + frame, 1 << 20) == Fault.CORRUPT


@pytest.mark.parametrize("codec", CODECS)
def test_trailing_garbage_is_refused(codec: Codec) -> None:
    assert refused(codec, compress(codec, b"x" * 1000) + b"garbage!", 1 << 20) in (Fault.CORRUPT, Fault.TOO_LARGE)


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation_is_refused(codec: Codec) -> None:
    whole = compress(codec, random.Random(2).randbytes(300) + bytes(40_000))
    # Snappy streams have no end mark: one cut between blocks is a shorter stream, and the records' count tells.
    between = len(XERIAL_HEADER) + 4 + struct.unpack_from(">i", whole, 16)[0] if codec == Codec.SNAPPY else 0
    for length in range(len(whole)):
        if codec == Codec.SNAPPY and length in (len(XERIAL_HEADER), between):
            continue
        assert refused(codec, whole[:length], 1 << 20) in (Fault.CORRUPT, Fault.TOO_LARGE)


@pytest.mark.parametrize("codec", CODECS)
def test_garbage_is_refused_or_decoded_within_the_limit_but_never_crashes(codec: Codec) -> None:
    rng = random.Random(3)
    whole = compress(codec, rng.randbytes(2000) + b"abc" * 2000)
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            assert len(decompress(codec, bytes(data), 20_000)) <= 20_000
        except Rejected as error:
            assert error.reason in (Fault.CORRUPT, Fault.TOO_LARGE)


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_unknown_codecs_are_refused(codec: int) -> None:
    assert refused(codec, b"x", 10) == Fault.UNSUPPORTED_COMPRESSION
    with pytest.raises(Rejected):
        compress(codec, b"x")


def gzip_bomb() -> bytes:
    stream = zlib.compressobj(9, wbits=31)
    return b"".join(stream.compress(CHUNK) for _ in range(1024)) + stream.flush()


def streamed_bomb(stream: cramjam.zstd.Compressor | cramjam.lz4.Compressor) -> bytes:
    for _ in range(1024):
        stream.compress(CHUNK)
    return bytes(stream.finish())


def snappy_bomb() -> bytes:
    block = bytes(cramjam.snappy.compress_raw(CHUNK))
    return XERIAL_HEADER + (struct.pack(">i", len(block)) + block) * 1024


BOMBS: dict[str, tuple[Codec, Callable[[], bytes]]] = {
    "gzip": (Codec.GZIP, gzip_bomb),
    "snappy": (Codec.SNAPPY, snappy_bomb),
    "snappy that only claims": (Codec.SNAPPY, lambda: b"\xff\xff\xff\xff\x0f" + bytes(100)),
    "lz4 without a content size": (Codec.LZ4, lambda: streamed_bomb(cramjam.lz4.Compressor())),
    "zstd without a content size": (Codec.ZSTD, lambda: streamed_bomb(cramjam.zstd.Compressor(3))),
    "zstd with a window of 128 MB": (
        Codec.ZSTD,
        lambda: b"\x28\xb5\x2f\xfd\x00\x88" + b"\x02\x00\x10A" * 8191 + b"\x03\x00\x10A",
    ),
    "zstd that claims a window of 2 GB": (Codec.ZSTD, lambda: b"\x28\xb5\x2f\xfd\x00\xa8\x53\x00\x00A"),
    "zstd that claims a terabyte": (
        Codec.ZSTD,
        lambda: b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + b"\x53\x00\x00A",
    ),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_before_it_takes_memory(name: str) -> None:
    codec, make = BOMBS[name]
    bomb = make()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # Forget the peak so far.
    before = peak_bytes()
    assert refused(codec, bomb, 4 << 20) in (Fault.TOO_LARGE, Fault.CORRUPT)
    assert peak_bytes() - before < 16 << 20


def peak_bytes() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("size", [1, 0])
def test_a_snappy_stream_of_absurdly_many_blocks_is_refused(size: int) -> None:
    block = bytes(cramjam.snappy.compress_raw(b"a" * size))
    stream = XERIAL_HEADER + (struct.pack(">i", len(block)) + block) * 10_000
    assert refused(Codec.SNAPPY, stream, 1 << 20) == Fault.CORRUPT


@pytest.mark.parametrize("size", [-1, 0, 1000, 2**31 - 1])
def test_a_snappy_block_that_lies_about_its_size_is_refused(size: int) -> None:
    assert refused(Codec.SNAPPY, XERIAL_HEADER + struct.pack(">i", size) + b"\x01\x00a", 1 << 20) == Fault.CORRUPT
