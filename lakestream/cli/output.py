"""How commands print: tables on a terminal, aligned text in a pipe, JSON with `--json`."""

import json
import sys
from collections.abc import Iterable, Sequence, Set

import click

from lakestream.process.clock import SystemClock

Cell = str | int | None


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], title: str = "", *, as_named: bool = False
) -> None:
    """Print rows; columns of numbers are right-aligned, None is a dash. `as_named` keeps the case of column names."""
    cells = [list(row) for row in rows]
    right = {i for i in range(len(columns)) if _are_numbers([row[i] for row in cells])}
    if sys.stdout.isatty():
        _print_rich(columns, cells, title, right)
        return
    names = list(columns) if as_named else [name.upper() for name in columns]
    lines = [names, *([_text(cell) for cell in row] for row in cells)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    if title:
        click.echo(title)
    for line in lines:
        sides = (str.rjust if i in right else str.ljust for i in range(len(columns)))
        padded = (side(text, width) for side, text, width in zip(sides, line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _are_numbers(column: Sequence[Cell]) -> bool:
    given = [cell for cell in column if cell is not None]
    return bool(given) and all(isinstance(cell, int) for cell in given)


def say(text: str) -> None:
    """Print a remark for the user on standard error, so that it is never part of the output."""
    click.echo(text, err=True)


class Progress:
    """Counts records: shows the count on a terminal during the work, and prints it at the end."""

    EVERY_S = 0.2

    def __init__(self, where: str) -> None:
        self._where = where
        self._clock = SystemClock()
        self._started = self._shown = self._clock.monotonic()
        self._records = self._bytes = 0

    def add(self, records: int, size: int) -> None:
        self._records += records
        self._bytes += size
        now = self._clock.monotonic()
        if sys.stderr.isatty() and not sys.stdin.isatty() and now - self._shown > self.EVERY_S:
            self._shown = now
            click.echo(f"\r\x1b[K{self._line()}", err=True, nl=False)

    def done(self, verb: str) -> None:
        if sys.stderr.isatty():
            click.echo("\r\x1b[K", err=True, nl=False)
        say(f"{verb} {self._line()}")

    def _line(self) -> str:
        seconds = max(self._clock.monotonic() - self._started, 1e-9)
        noun = "record" if self._records == 1 else "records"
        rate = f", {self._records / seconds:,.0f} a second" if seconds > 1 else ""
        return f"{self._records:,} {noun} ({size_text(self._bytes)}) {self._where} in {seconds:.1f} s{rate}"


def shortened(name: str, limit: int = 40) -> str:
    """A long name with its middle cut out, since names often differ at their ends."""
    half = (limit - 1) // 2
    return name if len(name) <= limit else f"{name[:half]}…{name[-half:]}"


def size_text(size: int) -> str:
    """A size with its unit: 1.5 MB."""
    amount = float(size)
    for unit in ("bytes", "KB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"


def span_text(ms: int) -> str:
    """A time span in the largest unit of which it has at least two: 90 min, 2 h."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * size:
            return f"{ms // size:,} {unit}"
    return f"{ms / 1000:.1f} s"


def _text(cell: Cell) -> str:
    return "-" if cell is None else str(cell)


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[Cell]], title: str, right: Set[int]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, header_style="bold")
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_text(cell), style="dim" if cell is None else "") for cell in row))
    Console().print(table)
