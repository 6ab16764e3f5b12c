"""A figure: a measurement, the measurement beside it, and the bar that it has to pass."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    limit: float
    at_least: bool

    def passed_by(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


def at_least(limit: float) -> Bar:
    return Bar(limit, at_least=True)


def at_most(limit: float) -> Bar:
    return Bar(limit, at_least=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Repeats of one measurement. With `base`, repeat i of both belong together, and the bar is on their ratio."""

    name: str
    unit: str
    ours: Sequence[float]
    base_name: str = ""
    base: Sequence[float] = ()
    bar: Bar | None = None
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        return [ours / base if base else float("inf") for ours, base in zip(self.ours, self.base, strict=True)]

    @property
    def passed(self) -> bool | None:
        if self.bar is None:
            return None
        return self.bar.passed_by(statistics.median(self.ratios if self.base else self.ours))

    @property
    def verdict(self) -> str:
        return {None: "", True: "PASS", False: "short of the bar"}[self.passed]

    def __str__(self) -> str:
        parts = [f"{self.name:<34}"]
        if self.base:
            parts.append(f"{spread(self.ratios)}x of {self.base_name}:")
            parts.append(f"ours {spread(self.ours)}, {self.base_name} {spread(self.base)} {self.unit};")
        else:
            parts.append(f"{spread(self.ours)} {self.unit};")
        if self.bar is not None:
            parts.append(f"bar {self.bar}{'x' if self.base else ''}: {self.verdict}")
        return " ".join(parts) + (f"  [{self.note}]" if self.note else "")


def spread(values: Sequence[float]) -> str:
    """The median, with the range if there are repeats."""
    middle = number(statistics.median(values))
    low, high = number(min(values)), number(max(values))
    return middle if low == high else f"{middle} ({low}-{high})"


def number(value: float) -> str:
    """A number with three significant digits."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.3g}"


def table(figures: Sequence[Figure]) -> str:
    """The summary: one line per figure, with aligned columns."""
    rows = [("figure", "ratio", "ours", "beside", "unit", "bar", "")]
    for one in figures:
        rows.append(
            (
                one.name,
                spread(one.ratios) if one.base else "",
                spread(one.ours),
                f"{one.base_name} {spread(one.base)}" if one.base else "",
                one.unit,
                str(one.bar or ""),
                one.verdict,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
