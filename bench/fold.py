"""Questions with programs of their own: folding, and the tables of bench.kernels and bench.command_log."""

import re
import subprocess
import sys

from bench.figures import Figure, at_least
from bench.process import BROKER_CORE, pinned
from bench.yard import Yard

LINE = re.compile(r"fold idempotent +(\d+) batches a command: ([\d.]+) M batches/s")
BAR_BATCHES = 100
"""The batches per command for which the bar is set: a tick gathers as many from some busy producers."""


def measure(yard: Yard) -> list[Figure]:
    del yard
    rates = {int(batches): float(rate) * 1e6 for batches, rate in LINE.findall(_output("bench.folding"))}
    return [
        Figure(
            name=f"folding, {batches:,} batches a command", unit="batches/s", ours=[rate],
            bar=at_least(500_000) if batches >= BAR_BATCHES else None,
        )
        for batches, rate in rates.items()
    ]  # fmt: skip


def show_kernels(yard: Yard) -> list[Figure]:
    del yard
    print(_output("bench.kernels"), flush=True)
    return []


def show_command_log(yard: Yard) -> list[Figure]:
    print(_output("bench.command_log", str(yard.folder)), flush=True)
    return []


def _output(module: str, *words: str) -> str:
    argv = pinned(BROKER_CORE, [sys.executable, "-m", module, *words])
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, timeout=300).stdout
