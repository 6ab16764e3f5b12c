"""The cost of table files: decode, write, read and rebuild, beside a copy of the same bytes and plain pyarrow.

    python -m bench.table_files

MB are of the records' keys and values. "of memcpy" is a share of the speed at which those bytes are copied;
"of pyarrow" is a share of the speed of pyarrow alone on two columns: an int64 and the values, same compression.
"""

import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakestream.data.tables.files.arrow_view import digest_rows
from lakestream.data.tables.files.decode import decode_slices
from lakestream.data.tables.files.landed_file import land
from lakestream.data.tables.files.parquet import read_parquet, write_parquet
from lakestream.data.tables.files.rebuild import rebuild
from lakestream.model.batches.header import Codec
from lakestream.model.batches.records import Record, encode_batch
from lakestream.process.allocator import tune_allocator

ROUNDS = 5
TOTAL_BYTES = 64 << 20
BATCH_BYTES = 512 << 10
KEY = 8


def main() -> None:
    tune_allocator()
    for size in (100, 1000):
        measure(size)


def measure(size: int) -> None:
    count = TOTAL_BYTES // (size + KEY)
    slices, payload = produced(count, size)
    rows = decode_slices(slices)
    sink = pa.BufferOutputStream()
    stats = land(slices, "file:///bench", sink)
    data = sink.getvalue()
    plain = rows.select(["stream_offset", "value"]).combine_chunks()
    plain_file = write_plain(plain)
    megabytes = payload / 1e6
    copied = bytearray().join(bytes(data) for _, _, data in slices)[:payload]
    share = stats.bytes / payload
    print(f"\n{count} records of {size} B and a key of {KEY} B, {megabytes:.0f} MB, {share:.2f} of it as a file")
    steps: list[tuple[str, Callable[[], object], Callable[[], object] | None]] = [
        ("memcpy", partial(np.copyto, np.empty(payload, dtype=np.uint8), np.frombuffer(copied, dtype=np.uint8)), None),
        ("decode", partial(decode_slices, slices), None),
        ("digest of rows", partial(digest_rows, rows), None),
        ("write", partial(write, rows), partial(write_plain, plain)),
        (
            "decode, check and write",
            lambda: land(slices, "file:///bench", pa.BufferOutputStream()),
            partial(write_plain, plain),
        ),
        ("read", partial(read_parquet, data), partial(read_plain, plain_file)),
        ("rebuild", partial(rebuild, rows), None),
        ("rebuild, lz4", partial(rebuild, rows, codec=Codec.LZ4), None),
        ("read and rebuild", lambda: rebuild(read_parquet(data)), partial(read_plain, plain_file)),
    ]
    # Measured alternately, so that other load on the machine affects all alike.
    times: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, step, beside in steps:
            times.setdefault(name, []).append(seconds(step))
            if beside is not None:
                times.setdefault(f"{name} beside", []).append(seconds(beside))
    print(f"{'':26}{'MB/s':>8}{'records/s':>12}{'of memcpy':>11}{'of pyarrow':>12}")
    for name, _, beside in steps:
        took = statistics.median(times[name])
        share = statistics.median(b / a for a, b in zip(times[name], times["memcpy"], strict=True))
        line = f"{name:26}{megabytes / took:8.0f}{count / took:12,.0f}{share:10.3f}x"
        if beside is not None:
            pairs = zip(times[name], times[f"{name} beside"], strict=True)
            line += f"{statistics.median(b / a for a, b in pairs):11.2f}x"
        print(line)


def produced(count: int, size: int) -> tuple[list[tuple[int, int, bytes]], int]:
    """One partition in slices of about 4 MB; half of each value is random bytes."""
    rng = random.Random(size)
    noise = rng.randbytes(1 << 20)
    each = max(BATCH_BYTES // (size + KEY), 1)
    slices: list[tuple[int, int, bytes]] = []
    batches: list[bytes] = []
    begun = 0
    for base in range(0, count, each):
        records = [
            Record(
                offset=index,
                timestamp=1_700_000_000_000 + (base + index) // 50,
                key=b"%08d" % (base + index),
                value=noise[(at := rng.randrange(len(noise) - size)) : at + size // 2] + b"." * (size - size // 2),
            )
            for index in range(min(each, count - base))
        ]
        batches.append(encode_batch(records))
        if len(batches) == 8 or base + each >= count:
            slices.append((0, begun, b"".join(batches)))
            batches, begun = [], base + len(records)
    return slices, count * (size + KEY)


def write(rows: pa.Table) -> None:
    write_parquet(rows, "file:///bench", pa.BufferOutputStream())


def write_plain(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    group = max(rows.num_rows * (8 << 20) // rows.nbytes, 1)
    pq.write_table(
        rows, sink, compression="zstd", compression_level=1, use_dictionary=False, row_group_size=group,
        write_statistics=["stream_offset"],
    )  # fmt: skip
    return sink.getvalue()


def read_plain(data: pa.Buffer) -> None:
    pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def seconds(call: Callable[[], object]) -> float:
    """The best processor time: one thread does all of the work, and other programs do not count.

    Called once before, so that no step pays for the pages that the next one then finds warm.
    """
    call()
    started = time.process_time()
    call()
    return time.process_time() - started


if __name__ == "__main__":
    main()
