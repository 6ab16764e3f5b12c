"""How data files hold the columns that users added, for scans by DuckDB that find columns by name.

Most files lack them, or have them as the table does. Others have them under an earlier name, or of a smaller type: a
scan of these maps the names, and DuckDB widens. Files that a scan cannot convert (a changed nested column, names that
differ in capitals only) are read row group by row group.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakestream.data.tables.files.stream_columns import RAW_COLUMNS, StreamColumns, field_id_of
from lakestream.data.tables.reading.footers import FileFooter


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """How some files hold the added columns: item i is name and type of added column i in the file, if it has it."""

    columns: tuple[tuple[str, pa.DataType] | None, ...]
    stream: StreamColumns = RAW_COLUMNS

    def schema(self) -> pa.Schema:
        """The columns that a scan of such a file asks for."""
        return self.stream.with_added([pa.field(*one) for one in self.columns if one is not None])

    def select(self, added: Sequence[pa.Field]) -> str:
        """The columns of the query by their names of today."""
        found = [quoted(name) for name in self.stream.schema.names]
        for stored, field in zip(self.columns, added, strict=True):
            found.append(f"{'NULL' if stored is None else quoted(stored[0])} AS {quoted(field.name)}")
        return ", ".join(found)


def quoted(name: str) -> str:
    """A name in quotes for SQL."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def held_in(footer: FileFooter, added: Sequence[pa.Field], stream: StreamColumns = RAW_COLUMNS) -> StoredColumns | None:
    """How a file holds the added columns; None if a scan cannot convert them."""
    stored = {field_id_of(field): field for field in stream.added_fields(footer.metadata.schema.to_arrow_schema())}
    columns = tuple(stored.get(field_id_of(field)) for field in added)
    names = [name.casefold() for name in (*stream.schema.names, *(one.name for one in columns if one is not None))]
    if len(set(names)) < len(names):
        return None
    for one, field in zip(columns, added, strict=True):
        if one is not None and not _widens(one.type, field.type):
            return None
    return StoredColumns(tuple(None if one is None else (one.name, one.type) for one in columns), stream)


def _widens(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether DuckDB converts the stored type to the wanted one by itself, without a loss."""
    if pa.types.is_nested(stored):
        return _same_children(stored, wanted)
    if any(stored in kinds and wanted in kinds[kinds.index(stored) :] for kinds in _WIDER):
        return True
    if pa.types.is_decimal(stored) and pa.types.is_decimal(wanted):
        return bool(stored.scale == wanted.scale and stored.precision <= wanted.precision)
    return bool(stored.equals(wanted))


_WIDER = (
    (pa.int32(), pa.int64()), (pa.float32(), pa.float64()), (pa.string(), pa.large_string()),
    (pa.binary(), pa.large_binary()),
)  # fmt: skip


def _same_children(stored: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether nested columns have the same children, by id and by name, of types that widen."""
    for kind in (pa.types.is_struct, pa.types.is_map, _is_list):
        if kind(stored) and kind(wanted):
            pairs = list(zip(_children(stored), _children(wanted), strict=False))
            return len(_children(stored)) == len(_children(wanted)) and all(
                field_id_of(one) == field_id_of(other)
                and (one.name == other.name or not pa.types.is_struct(stored))
                and _widens(one.type, other.type)
                for one, other in pairs
            )
    return False


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(place) for place in range(kind.num_fields)]
