"""The process that checks and evaluates one condition.

    python -m lakestream.data.tables.conditions.child CHECK_SECONDS ROWS_SECONDS

    in:   a frame with the condition, then one for each piece of the rows (an Arrow stream)
    out:  for each of them b"Y" and a frame (for rows a byte each, 0 or 1), or b"N" and a frame with the reason

A frame is its length, 8 bytes in network order, and so many bytes. The limits are the kernel's: a timer whose signal
has no handler ends this process whatever DuckDB does, also when its parent is gone; memory beyond the limit is refused.
"""

import os
import resource
import signal
import struct
import sys
from contextlib import suppress
from typing import IO

START_S = 60.0
"""For the imports, on a machine that is busy."""
ROOM_BYTES = 512 << 20
ROOM_FACTOR = 8
"""The process may grow by so much, and by so many times the bytes of the rows that it is shown at a time."""
LENGTH = struct.Struct("!Q")
YES, NO = b"Y", b"N"
_FIRST_TO_GO = "1000"


def main() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends this process
    _arm(START_S)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_FIRST_TO_GO)
    _serve(sys.stdin.buffer, sys.stdout.buffer, *map(float, sys.argv[1:]))


def _serve(incoming: IO[bytes], outgoing: IO[bytes], check_s: float, rows_s: float) -> None:
    import pyarrow as pa

    from lakestream.data.tables.conditions.condition import BadCondition, Condition
    from lakestream.data.tables.files.stream_columns import RAW_COLUMNS

    where = read_frame(incoming)
    if where is None:
        return
    # Arrow and DuckDB start their threads before memory is limited.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    Condition("true").holds(RAW_COLUMNS.schema.empty_table())
    _limit_memory(0)
    _arm(check_s)
    try:
        condition = Condition(where.decode())
        condition.holds(RAW_COLUMNS.schema.empty_table())
    except (BadCondition, UnicodeDecodeError) as error:
        _answer(outgoing, NO, str(error).encode())
        return
    except MemoryError:
        _answer(outgoing, NO, _no_memory().encode())
        return
    _arm(0.0)
    _answer(outgoing, YES, b"")
    left_s = rows_s
    while (body := read_frame(incoming)) is not None:
        _arm(left_s)
        _limit_memory(len(body))
        try:
            rows = pa.ipc.open_stream(body).read_all()
            mask = condition.holds(rows).tobytes()
        except BadCondition as error:
            _answer(outgoing, NO, str(error).encode())
            return
        except MemoryError:
            _answer(outgoing, NO, _no_memory().encode())
            return
        # A timer of zero would be none.
        left_s = max(_arm(0.0), 0.001)
        _answer(outgoing, YES, mask)


def _arm(seconds: float) -> float:
    """Ends the process after this time; 0 is never. Returns what was left of the last timer."""
    return signal.setitimer(signal.ITIMER_REAL, seconds)[0]


def _limit_memory(rows_bytes: int) -> None:
    """Where the system knows no such limit, DuckDB's own is left."""
    with suppress(OSError, ValueError):
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        wanted = now + ROOM_BYTES + ROOM_FACTOR * rows_bytes
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard < 0 else min(wanted, hard), hard))


def _no_memory() -> str:
    return "the condition needs more memory than it may use"


def read_frame(incoming: IO[bytes]) -> bytes | None:
    """None at the end."""
    head = incoming.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = incoming.read(length)
    return body if len(body) == length else None


def _answer(outgoing: IO[bytes], kind: bytes, body: bytes) -> None:
    outgoing.write(kind + LENGTH.pack(len(body)) + body)
    outgoing.flush()


if __name__ == "__main__":
    main()
