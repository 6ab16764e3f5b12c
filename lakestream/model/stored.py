"""Reading rows of a checkpoint that other versions wrote.

A row is a list of fields in a fixed order. Later versions only add fields at the end, with defaults: a row of an older
version lacks them, and unknown fields of a newer version are ignored.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

Row = TypeVar("Row", bound=tuple[Any, ...])


def row_of(kind: type[Row], fields: Sequence[Any]) -> Row:
    """A named tuple from the stored fields."""
    known: int = len(kind._fields)  # type: ignore[attr-defined]
    return kind(*fields[:known])
