"""Writes rows of an answer as text (CSV, JSON, JSON lines, cells of a table) or as an Arrow stream.

DuckDB itself makes the text, a batch at a time. Binary columns are shown as text where they are UTF-8, else with \\xHH
for what is not printable; exact bytes come by Arrow, or by hex() and base64() in the query.
"""

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import duckdb
import pyarrow as pa
import pyarrow.csv

from lakestream.data.tables.conditions.sql_macros import MACROS
from lakestream.lake.sql.columns import quoted
from lakestream.lake.sql.query import Answer

Cell = str | int | None


def write_arrow(answer: Answer, sink: BinaryIO) -> int:
    """Writes a stream in Arrow's IPC format; returns the number of rows."""
    count = 0
    with pa.ipc.new_stream(sink, answer.schema) as writer:
        for batch in answer.batches:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def write_csv(answer: Answer, sink: BinaryIO) -> int:
    """With a line of names. Null is nothing, an empty text is \"\"; lists and structs are JSON."""
    texts = Texts(answer.schema)
    count = 0
    with pyarrow.csv.CSVWriter(sink, texts.schema) as writer:
        for batch in answer.batches:
            writer.write_table(texts.columns(batch))
            count += batch.num_rows
    return count


def write_json(answer: Answer, sink: BinaryIO, *, lines: bool) -> int:
    """Writes an object for each row: one a line, or all in a list."""
    texts = Texts(answer.schema)
    count = 0
    if not lines:
        sink.write(b"[")
    for batch in answer.batches:
        for text in texts.objects(batch):
            sink.write((("\n" if not count else ",\n") if not lines else "").encode() + text.encode())
            if lines:
                sink.write(b"\n")
            count += 1
    if not lines:
        sink.write(b"\n]\n" if count else b"]\n")
    return count


def cells(answer: Answer, max_rows: int) -> tuple[list[list[Cell]], bool]:
    """The first rows for people, and whether there are more. Control characters are spelled out."""
    texts = Texts(answer.schema)
    found: list[list[Cell]] = []
    for batch in answer.batches:
        for row in zip(*(column.to_pylist() for column in texts.columns(batch).columns), strict=True):
            if len(found) == max_rows:
                return found, True
            found.append([_cell(value) for value in row])
    return found, False


def _cell(value: object) -> Cell:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    return str(value).translate(_CONTROLS)


_CONTROLS = {code: f"\\x{code:02X}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}
_CONTROLS |= {9: "\\t", 10: "\\n"}


class Texts:
    """Turns batches of one schema into text."""

    def __init__(self, schema: pa.Schema) -> None:
        self._names = schema.names
        self._plain = _distinct(schema.names)
        self._kinds = schema.types
        self.schema = pa.schema(
            [(field.name, field.type if _is_number(field.type) else pa.string()) for field in schema]
        )
        """Of `columns`."""
        self._database = duckdb.connect(config={"autoinstall_known_extensions": "false"})
        self._database.execute("SET TimeZone = 'UTC'")
        for macro in MACROS:
            self._database.execute(macro)

    def columns(self, batch: pa.RecordBatch) -> pa.Table:
        """The columns: numbers unchanged, all others as text."""
        chosen = ", ".join(self._text(place) for place in range(len(self._plain)))
        return self._made(batch, chosen).rename_columns(self._names).cast(self.schema)

    def objects(self, batch: pa.RecordBatch) -> Iterator[str]:
        """Each row as a JSON object; columns with the same name get a number."""
        fields = (f"{quoted(name)} := {self._value(place)}" for place, name in enumerate(self._plain))
        made = self._made(batch, f"to_json(struct_pack({', '.join(fields)}))::VARCHAR")
        yield from made.column(0).to_pylist()

    def _made(self, batch: pa.RecordBatch, chosen: str) -> pa.Table:
        rows = pa.Table.from_batches([batch]).rename_columns(self._plain)
        self._database.register("rows", rows)
        return self._database.execute(f"SELECT {chosen} FROM rows").to_arrow_table()

    def _value(self, place: int) -> str:
        return _readable(quoted(self._plain[place]), self._kinds[place])

    def _text(self, place: int) -> str:
        if _is_number(self._kinds[place]):
            return quoted(self._plain[place])
        value = self._value(place)
        return f"to_json({value})::VARCHAR" if pa.types.is_nested(self._kinds[place]) else f"{value}::VARCHAR"


def _readable(value: str, kind: pa.DataType, depth: int = 0) -> str:
    """The SQL for a value in JSON: bytes as text, NaN and infinity as null, also inside lists and structs."""
    if _is_binary(kind):
        return f"text({value})"
    if pa.types.is_floating(kind):
        return f"CASE WHEN isfinite({value}) THEN {value} END"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = _readable(f"one{depth}", kind.value_type, depth + 1)
        return value if item == f"one{depth}" else f"list_transform({value}, lambda one{depth}: {item})"
    if pa.types.is_struct(kind):
        fields = {field.name: f"{value}.{quoted(field.name)}" for field in kind}
        shown = {field.name: _readable(fields[field.name], field.type, depth) for field in kind}
        packed = ", ".join(f"{quoted(name)} := {text}" for name, text in shown.items())
        return value if shown == fields else f"CASE WHEN {value} IS NULL THEN NULL ELSE struct_pack({packed}) END"
    return value


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _distinct(names: Iterable[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        free, number = name, 1
        while free.casefold() in (one.casefold() for one in found):
            number += 1
            free = f"{name}_{number}"
        found.append(free)
    return found
