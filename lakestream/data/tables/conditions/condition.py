"""A condition in SQL over the rows of a table, evaluated row by row with DuckDB, which sees nothing but these rows.

A user's condition may take hours or all memory to check or to evaluate. `Condition` does both in this
process and is for conditions that are trusted; process.py does both in a process with limits.
"""

import json
import re
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from lakestream.data.tables.conditions.rules import KNOWN_FUNCTIONS, condition_problem
from lakestream.data.tables.conditions.sql_macros import MACROS
from lakestream.data.tables.files.stream_columns import RAW_COLUMNS

if TYPE_CHECKING:
    import duckdb
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

MEMORY_BYTES = 256 << 20
MEMORY_FACTOR = 4
"""DuckDB may use so much, and so many times the bytes of the rows that it is shown at a time."""
_CONFIG: dict[str, Any] = {
    "enable_external_access": False, "autoinstall_known_extensions": False, "autoload_known_extensions": False,
    "threads": 1, "temp_directory": "",
}  # fmt: skip
_SETUP = ("SET TimeZone = 'UTC'", *MACROS, "SET lock_configuration = true")
"""As queries have it: a time means the same to `sql`, which shows the rows, and to the delete after it."""
_OWN_MACROS = frozenset(found[1] for found in map(re.compile(r"CREATE MACRO (\w+)").match, MACROS) if found)


class BadCondition(ValueError):
    """The text is not a condition; the message says why."""


class RowCondition(Protocol):
    """A condition that is evaluated, in this process or in another one."""

    def holds(self, rows: pa.Table) -> "Mask":
        """For which rows it is true. Raises BadCondition."""
        ...

    def close(self) -> None: ...


class Condition:
    """One condition, in this process. For one thread."""

    def __init__(self, where: str) -> None:
        """Raises BadCondition if it cannot be a condition over a topic's rows."""
        import duckdb

        self._error = duckdb.Error
        self._memory = MEMORY_BYTES
        self._connection = self._connect()
        # In brackets on lines of its own, so that a comment or a stray bracket cannot make it more than an expression.
        self._query = f"select coalesce((\n{where}\n), false) from stream_rows"
        try:
            statements = self._connection.extract_statements(self._query)
        except self._error as error:
            raise BadCondition(_first_line(error)) from None
        if len(statements) != 1:
            raise BadCondition("a condition is one expression")
        self._check_rowwise(f"select 1 from stream_rows where (\n{where}\n)")

    def _connect(self) -> "duckdb.DuckDBPyConnection":
        import duckdb

        connection = duckdb.connect(":memory:", config={**_CONFIG, "memory_limit": f"{self._memory >> 20}MiB"})
        for statement in _SETUP:
            connection.execute(statement)
        return connection

    def _check_rowwise(self, query: str) -> None:
        """Rows are evaluated in pieces, so functions that count or order rows are refused.

        The tree is judged first, since binding an expression may evaluate parts of it.
        """
        try:
            [(tree,)] = self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
            known = {name for (name,) in self._connection.execute(KNOWN_FUNCTIONS).fetchall()}
            if problem := condition_problem(json.loads(tree), known, _OWN_MACROS):
                raise BadCondition(problem)
            self._connection.register("stream_rows", RAW_COLUMNS.schema.empty_table())
            self._connection.execute(query)
        except self._error as error:
            raise BadCondition(_first_line(error)) from None
        except RecursionError:
            raise BadCondition("the condition nests too deeply") from None
        finally:
            self._connection.unregister("stream_rows")

    def holds(self, rows: pa.Table) -> "Mask":
        """For which rows it is true. Raises BadCondition."""
        wanted = MEMORY_BYTES + MEMORY_FACTOR * rows.nbytes
        if wanted > self._memory:
            # The settings of an open database are locked, so larger rows get another database.
            self._connection.close()
            self._memory = wanted
            self._connection = self._connect()
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
    """Why this text is not a condition over a topic's rows; empty if it is one. For trusted conditions."""
    try:
        condition = Condition(where)
        condition.holds(RAW_COLUMNS.schema.empty_table())
        condition.close()
    except BadCondition as error:
        return str(error)
    return ""


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
