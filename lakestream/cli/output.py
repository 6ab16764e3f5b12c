"""What people and programs read: tables on a terminal, aligned text in a pipe, JSON when asked for."""

import json
import sys
from collections.abc import Iterable, Sequence

import click

Cell = str | int | None


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], title: str = "") -> None:
    """Numbers go to the right; a cell of None is a dash."""
    cells = [list(row) for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, cells, title)
        return
    right = {i for row in cells for i, cell in enumerate(row) if isinstance(cell, int)}
    lines = [[name.upper() for name in columns], *([_text(cell) for cell in row] for row in cells)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    if title:
        click.echo(title)
    for line in lines:
        sides = (str.rjust if i in right else str.ljust for i in range(len(columns)))
        padded = (side(text, width) for side, text, width in zip(sides, line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def say(text: str) -> None:
    """A remark for the person at the terminal; never part of the output."""
    click.echo(text, err=True)


def _text(cell: Cell) -> str:
    return "-" if cell is None else str(cell)


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[Cell]], title: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, header_style="bold")
    for i, name in enumerate(columns):
        numeric = any(isinstance(row[i], int) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_text(cell), style="dim" if cell is None else "") for cell in row))
    Console().print(table)
