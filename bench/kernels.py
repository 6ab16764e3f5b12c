"""The cost of checking every produced batch: check, decode and decompress, beside a copy of the same bytes.

    python -m bench.kernels

Ratios are times: 2.0 means twice as long as a memcpy of the uncompressed records into fresh memory of the same process.
"""

import random
import time
from collections.abc import Callable
from functools import partial

from lakestream.model.batches import header
from lakestream.model.batches.check import check_batch
from lakestream.model.batches.header import Codec
from lakestream.model.batches.records import Record, decode_columns, encode_batch
from lakestream.model.kernels import record_loops
from lakestream.model.kernels.pointers import address_of
from lakestream.process.allocator import release_compiler_pages, tune_allocator

LIMIT = 8 << 20
ROUNDS = 7
ROUND_S = 0.05


def main() -> None:
    tune_allocator()
    started = time.perf_counter()
    record_loops.warm()
    print(f"kernels warmed in {(time.perf_counter() - started) * 1e3:.1f} ms after their import")
    plain()
    compressed()
    before = resident_mb()
    released = release_compiler_pages() / 1e6
    print(f"\nresident {before:.0f} MB; the compiler's pages are {released:.0f} MB of it, {resident_mb():.0f} MB after")


def plain() -> None:
    print(f"\n{'uncompressed':24}{'check':>12}{'of it CRC':>12}{'decode':>12}{'memcpy':>12}{'check/memcpy':>14}")
    for count, size in ((1, 100), (1, 1000), (16, 1000), (1000, 1000), (10_000, 100), (50_000, 10)):
        data = produced(count, size, Codec.NONE)
        view, address = memoryview(data), address_of(data)
        check = microseconds(partial(check_batch, view, 0, len(view), address, LIMIT))
        crc = microseconds(partial(header.checksum, view, 0, len(view)))
        decode = microseconds(partial(decode_columns, view))
        copy = microseconds(partial(bytearray, data))
        name = f"{count} x {size} B"
        print(f"{name:24}{check:9.2f} us{crc:9.2f} us{decode:9.2f} us{copy:9.2f} us{check / copy:13.2f}x")


def compressed() -> None:
    print(f"\n{'1000 x 1000 B, half noise':28}{'compressed':>12}{'check':>12}{'MB/s':>8}{'check/memcpy':>14}")
    uncompressed = produced(1000, 1000, Codec.NONE)
    copy = microseconds(partial(bytearray, uncompressed))
    for codec in Codec:
        data = produced(1000, 1000, codec)
        view, address = memoryview(data), address_of(data)
        check = microseconds(partial(check_batch, view, 0, len(view), address, LIMIT))
        print(f"{codec.name.lower():28}{len(data):>12,}{check:9.0f} us{1e6 / check:8.0f}{check / copy:13.1f}x")


def produced(count: int, size: int, codec: Codec) -> bytearray:
    rng = random.Random(count)
    records = [
        Record(
            offset=i, timestamp=1_700_000_000_000 + i // 50, value=rng.randbytes(size // 2) + b"." * (size - size // 2)
        )
        for i in range(count)
    ]
    return bytearray(encode_batch(records, codec=codec, producer_id=1, producer_epoch=0, base_sequence=0))


def microseconds(call: Callable[[], object]) -> float:
    """The best of some rounds, since other work on the machine can only add time."""
    call()
    started = time.perf_counter()
    call()
    times = max(1, int(ROUND_S / max(time.perf_counter() - started, 1e-7)))
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, (time.perf_counter() - started) / times)
    return best * 1e6


def resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


if __name__ == "__main__":
    main()
