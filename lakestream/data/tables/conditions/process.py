"""Checks and evaluates a condition in a process of its own, with a deadline and a memory limit (child.py).

A caller blocks no longer than the deadlines: the process then ends by itself.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import lakestream
from lakestream.data.tables.conditions.child import LENGTH, YES, read_frame
from lakestream.data.tables.conditions.condition import BadCondition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

CHECK_S = 10.0
"""For the check of a condition."""
ROWS_S = 300.0
"""For the rows of one task, all together."""
_SAID_MAX = 500


class ConditionHung(BadCondition):
    """A condition was not checked or evaluated in time, or its process died, perhaps for lack of memory."""


class ConditionProcess:
    """One condition. For one thread."""

    def __init__(self, where: str, check_s: float = CHECK_S, rows_s: float = ROWS_S) -> None:
        """Raises BadCondition if it cannot be a condition over a topic's rows. Blocks for about a second."""
        self._rows_s = rows_s
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lakestream.data.tables.conditions.child", str(check_s), str(rows_s)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment(), cwd="/",
        )  # fmt: skip
        try:
            self._ask(where.encode(errors="surrogateescape"), check_s)
        except BaseException:
            self.close()
            raise

    def holds(self, rows: pa.Table) -> "Mask":
        """For which rows it is true. Raises BadCondition."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        answer = self._ask(sink.getvalue(), self._rows_s)
        return np.frombuffer(answer, np.bool_)

    def _ask(self, body: bytes | pa.Buffer, limit_s: float) -> bytes:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(LENGTH.pack(len(body)))
            self._process.stdin.write(body)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died(limit_s) from None
        kind = self._process.stdout.read(1)
        answer = read_frame(self._process.stdout) if kind else None
        if answer is None:
            raise self._died(limit_s)
        if kind != YES:
            raise BadCondition(answer.decode())
        return answer

    def _died(self, limit_s: float) -> ConditionHung:
        said = self._process.communicate()[1]
        code = self._process.returncode
        if code == -signal.SIGALRM:
            return ConditionHung(f"the condition takes longer than {limit_s:.0f} s")
        if code < 0:
            name = signal.Signals(-code).name
            return ConditionHung(f"the process that evaluates the condition was ended by {name}; memory may be short")
        last = said.decode(errors="replace").strip().rpartition("\n")[2][:_SAID_MAX]
        return ConditionHung(f"the process that evaluates the condition ended with code {code}: {last}")

    def close(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()


def check_apart(where: str, check_s: float = CHECK_S) -> str:
    """Why this text is not a condition over a topic's rows; empty if it is one. Blocks for about a second."""
    try:
        ConditionProcess(where, check_s).close()
    except BadCondition as error:
        return str(error)
    return ""


def _environment() -> dict[str, str]:
    """Our environment, with this package's path, and with no memory reserved by Arrow, which the limit would count."""
    found = [str(Path(lakestream.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, found)),
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }
