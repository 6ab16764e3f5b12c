"""SQL over topics, table plus tail: `answered(broker, query)` gives a query's rows as Arrow, lag zero.

    names in the query -> one answer of a broker: where all these topics are at one moment -> views over their parts
    -> DuckDB runs the query, scanning files and WAL from the store

Every offset up to that moment is seen once, whatever lands, is rewritten or collected meanwhile. If a file or an object
is gone before the first rows are returned, the broker is asked again and the query starts over.
"""

import re
import tempfile
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain

import duckdb
import pyarrow as pa

from lakestream.data.tables.conditions.sql_macros import MACROS
from lakestream.data.tables.conditions.sql_trees import Name
from lakestream.errors import LakestreamError, Missing
from lakestream.lake.sql.columns import quoted
from lakestream.lake.sql.files import ReadFaults
from lakestream.lake.sql.names import Directory, ResolvedNames, names_in, parse_name
from lakestream.lake.sql.sources import ScannedPart, open_stores, topic_parts

ATTEMPTS = 5
HELD_BYTES = 32 << 20
"""So much of an answer is made before any of it is given away; until then a query can start over unseen."""
BATCH_ROWS = 8192
SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "arrow_large_buffer_size": "true",
    "TimeZone": "UTC",
}
_NO_TABLE = re.compile(r"Table with name (.+?) does not exist")
_CHANGES = re.compile(r"is not an table|of type View|Can only (update|delete|merge)|Can only modify view")
"""DuckDB's message for a statement that changes a view."""
_SHOW_TABLES = re.compile(r"\s*show\s+(all\s+)?tables\s*;?\s*", re.IGNORECASE)


class QueryError(LakestreamError):
    """The query is at fault; the message is DuckDB's."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A query's rows; they are computed while they are read."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


@contextmanager
def answered(broker: str, query: str, memory: str = "") -> Iterator[Answer]:
    """Ask a broker (HOST:PORT of its HTTP listener) and DuckDB, which may use about `memory` (such as 2GB).

    Raises QueryError, or an error of the stores.
    """
    with ExitStack() as stack:
        directory = Directory(broker)
        asked_for: set[Name] = set()
        attempt = 1
        while True:
            faults = ReadFaults()
            session = stack.enter_context(_Session(directory, memory, faults))
            try:
                answer = session.answer(query, asked_for)
                break
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                if name := session.overlooked(error, asked_for):
                    asked_for.add(name)
                    continue
                cause = faults.first
                if not isinstance(cause, Missing) or attempt == ATTEMPTS:
                    raise session.explained(error) from error
            except Missing:
                if attempt == ATTEMPTS:
                    raise
            attempt += 1
        yield answer


class _Session:
    """One attempt: a database in memory with views of the topics that the query names."""

    def __init__(self, directory: Directory, memory: str, faults: ReadFaults) -> None:
        self._directory = directory
        self._faults = faults
        self._spill = tempfile.TemporaryDirectory(prefix="lakestream-sql-")
        limits = {"memory_limit": memory} if memory else {}
        try:
            self._database = duckdb.connect(config={**limits, "temp_directory": self._spill.name})
        except duckdb.Error as error:
            self._spill.cleanup()
            raise QueryError(_said(error)) from error
        self._parts = 0

    def __enter__(self) -> "_Session":
        for name, value in SETTINGS.items():
            self._database.execute(f"SET {name} = '{value}'")
        for macro in MACROS:
            self._database.execute(macro)
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._spill.cleanup()

    def answer(self, query: str, asked_for: Set[Name] = frozenset()) -> Answer:
        """Of topics and tables that the query names, and those that DuckDB asked for when it ran before."""
        try:
            statements = self._database.extract_statements(query)
        except duckdb.Error as error:
            raise QueryError(_said(error)) from error
        if not statements:
            raise QueryError("there is no statement in the query")
        self._show(sorted(asked_for | {name for one in statements for name in names_in(self._database, one.query)}))
        for one in statements[:-1]:
            self._database.execute(one)
        if _SHOW_TABLES.fullmatch(statements[-1].query):
            self._database.execute("SELECT unnest(?::VARCHAR[]) AS name", [sorted(self._directory.topics())])
        else:
            self._database.execute(statements[-1])
        reader = self._database.to_arrow_reader(BATCH_ROWS)
        return Answer(reader.schema, self._held(reader))

    def _held(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in reader:
            held.append(batch)
            size += batch.nbytes
            if size > HELD_BYTES:
                break
        return chain(held, self._rest(reader))

    def _rest(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        try:
            yield from reader
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise self.explained(error) from error

    def overlooked(self, error: Exception, asked_for: Set[Name]) -> Name | None:
        """A topic or table that DuckDB asks for and that was not found in the query: not every statement has a tree."""
        missing = _NO_TABLE.search(str(error))
        if not isinstance(error, duckdb.CatalogException) or not missing:
            return None
        said = missing[1].strip('"')
        for name in ((said,), parse_name(said)):
            found = self._directory.find([name]) if name not in asked_for else ResolvedNames()
            if found.topics or found.tables:
                return name
        return None

    def explained(self, error: Exception) -> LakestreamError:
        """The error as a user should read it."""
        cause = self._faults.first
        if isinstance(cause, Missing):
            return Missing(
                f"{cause}: it was removed while the query ran (run it again), or lies in a folder of another machine"
            )
        if cause is not None:
            return cause
        missing = _NO_TABLE.search(str(error))
        if isinstance(error, duckdb.CatalogException) and missing:
            return QueryError(self._directory.unknown(missing[1].strip('"')))
        if _CHANGES.search(str(error)):
            return QueryError("a query changes no topic and no table; rows are deleted by `lakestream tables delete`")
        return QueryError(_said(error))

    # -- views --------------------------------------------------------------------------------------------------------

    def _show(self, names: list[Name]) -> None:
        # Case does not matter to DuckDB: a name that a query spells in two ways is one view.
        found = self._directory.find(list({tuple(map(str.casefold, name)): name for name in names}.values()))
        for name, tail in found.topics.items():
            self._view(name, topic_parts(open_stores(tail), tail, self._faults))
        for name, table in found.tables.items():
            self._view(name, [ScannedPart(table.rows(self._faults))])

    def _view(self, name: Name, parts: Sequence[ScannedPart]) -> None:
        selects = []
        for part in parts:
            self._parts += 1
            registered = f"lakestream_part_{self._parts}"
            self._database.register(registered, part.source)
            selects.append(f"SELECT {part.select} FROM {registered}")
        if len(name) > 1:
            self._database.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(name[0])}")
        place = ".".join(quoted(part) for part in name)
        self._database.execute(f"CREATE VIEW {place} AS {' UNION ALL '.join(selects)}")


def _said(error: Exception) -> str:
    return str(error).strip()
