"""A condition in SQL over the rows of a table, evaluated row by row with DuckDB, which sees nothing but these rows."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lakestream.data.tables.schema import ARROW_SCHEMA
from lakestream.data.tables.sql_macros import MACROS
from lakestream.data.tables.sql_trees import tables_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

_CONFIG: dict[str, Any] = {
    "enable_external_access": False, "autoinstall_known_extensions": False, "autoload_known_extensions": False,
    "threads": 1,
}  # fmt: skip
_SETUP = ("SET TimeZone = 'UTC'", *MACROS, "SET lock_configuration = true")
"""As queries have it: a time means the same to `sql`, which shows the rows, and to the delete after it."""


class BadCondition(ValueError):
    """It is no condition; says why."""


class Condition:
    """One condition. For one thread."""

    def __init__(self, where: str) -> None:
        """Raises BadCondition if it cannot be a condition over a topic's rows."""
        import duckdb

        self._error = duckdb.Error
        self._connection = duckdb.connect(":memory:", config=_CONFIG)
        for statement in _SETUP:
            self._connection.execute(statement)
        # In brackets on lines of its own, so that a comment or a stray bracket cannot make it more than an expression.
        self._query = f"select coalesce((\n{where}\n), false) from stream_rows"
        try:
            statements = self._connection.extract_statements(self._query)
        except self._error as error:
            raise BadCondition(_first_line(error)) from None
        if len(statements) != 1:
            raise BadCondition("a condition is one expression")
        self._check_rowwise(f"select 1 from stream_rows where (\n{where}\n)")

    def _check_rowwise(self, query: str) -> None:
        """Rows are looked at in pieces: what counts or orders them would mean something else in each."""
        self._connection.register("stream_rows", ARROW_SCHEMA.empty_table())
        try:
            self._connection.execute(query)
            tables = tables_in(self._connection, query)
        except self._error as error:
            raise BadCondition(_first_line(error)) from None
        finally:
            self._connection.unregister("stream_rows")
        if len(tables) != 1:
            raise BadCondition("a condition sees one row at a time, and no table")

    def holds(self, rows: pa.Table) -> "Mask":
        """For which rows it is true. Raises BadCondition."""
        self._connection.register("stream_rows", rows)
        try:
            found = self._connection.execute(self._query).to_arrow_table().column(0)
        except self._error as error:
            raise BadCondition(_first_line(error)) from None
        finally:
            self._connection.unregister("stream_rows")
        if len(found) != rows.num_rows or not pa.types.is_boolean(found.type):
            raise BadCondition("a condition says yes or no to each row by itself")
        mask: Mask = found.to_numpy().astype(np.bool_)
        return mask

    def close(self) -> None:
        self._connection.close()


def check_condition(where: str) -> str:
    """Why this is no condition over a topic's rows, or nothing."""
    try:
        condition = Condition(where)
        condition.holds(ARROW_SCHEMA.empty_table())
        condition.close()
    except BadCondition as error:
        return str(error)
    return ""


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
