"""Makes a table file: from slices of the WAL to a Parquet file and its statistics.

The steps have modules of their own: decode (batches -> rows), parquet (rows <-> file), rebuild (rows -> batches),
arrow_view (digests of rows), stream_columns (the columns), file_stats (plain values).
"""

from collections.abc import Iterable
from typing import Any

from lakestream.data.tables.files.arrow_view import digest_rows
from lakestream.data.tables.files.decode import WalSlice, decode_pieces
from lakestream.data.tables.files.file_stats import FileStats, add_digests
from lakestream.data.tables.files.parquet import FileWriter
from lakestream.errors import Corrupt
from lakestream.interfaces import Buffer


def land(slices: Iterable[WalSlice | tuple[int, int, Buffer]], path: str, sink: Any) -> FileStats:
    """Write the slices' records as one file, sorted by partition and offset, with the digests of the batches (T16).

    Every piece's digests are taken twice, from the batches and from the rows that were made of them. Raises Corrupt.
    """
    writer = FileWriter(sink)
    digests = []
    for piece in decode_pieces(slices):
        if digest_rows(piece.rows) != piece.digests:
            raise Corrupt(f"{path}: rows differ from the batches that they were made of")
        digests.append(piece.digests)
        writer.add(piece.rows)
    return writer.finish(path, add_digests(digests))
