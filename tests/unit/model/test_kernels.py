"""The compiled walks, called as they are, and the memory that they and their compiler take."""

import subprocess
import sys

import pytest

from lakestream.model.batches.records import Record, encode_batch
from lakestream.model.kernels import record_loops
from lakestream.model.kernels.pointers import address_of
from lakestream.process import allocator


def test_every_kernel_runs_when_warmed() -> None:
    record_loops.warm()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda b: memoryview(bytearray(b))])
def test_an_address_is_where_the_bytes_are(kind: type) -> None:
    section = kind(b"\x0c\x00\x00\x00\x01\x01\x00")
    assert record_loops.check_records(address_of(section), len(section), 1, 42) == (record_loops.FINE, 42, 42)


def test_nothing_beyond_the_given_length_is_read() -> None:
    body = encode_batch([Record(offset=i, timestamp=i, key=b"k" * i, value=b"v" * 200) for i in range(20)])[61:]
    for length in range(len(body)):
        # A copy of just this length: the bytes after it belong to somebody else.
        part = bytearray(body[:length])
        assert record_loops.check_records(address_of(part), length, 20, 0)[0] < 0


def test_extreme_timestamps_are_told_apart_from_overflow() -> None:
    for base, other in ((0, 2**63 - 1), (0, -(2**63)), (-1, 2**63 - 2), (2**63 - 1, 0), (-(2**63), -1)):
        body = encode_batch([Record(offset=0, timestamp=0), Record(offset=1, timestamp=other - base)])[61:]
        wrong, least, greatest = record_loops.check_records(address_of(body), len(body), 2, base)
        assert (wrong, least, greatest) == (record_loops.FINE, min(base, other) if -1 not in (base, other) else least,
                                            max(base, other, -1))  # fmt: skip
    body = encode_batch([Record(offset=0, timestamp=0), Record(offset=1, timestamp=1)])[61:]
    assert record_loops.check_records(address_of(body), len(body), 2, 2**63 - 1)[0] == record_loops.BAD_TIMESTAMP


PROGRAM = """
from lakestream.process import allocator
from lakestream.model.kernels import record_loops
import numba

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

record_loops.warm()
before = resident()
released = allocator.release_compiler_pages()
assert released > 20e6, released
assert before - resident() > 0.8 * released, (before, resident(), released)
record_loops.warm()
assert before - resident() > 0.8 * released, "running the kernels needs no compiler"

@numba.njit
def square(x):
    return x * x

assert square(7) == 49, "compiling still works"
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_the_compilers_pages_are_given_back_and_it_still_compiles() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_is_released_for_a_library_that_is_not_there() -> None:
    assert allocator.release_compiler_pages("no-such-library") == 0


def test_the_allocator_takes_the_hint_where_it_is_glibc() -> None:
    assert allocator.tune_allocator() is allocator.tune_allocator()
