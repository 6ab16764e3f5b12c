"""Daft on tables that PyIceberg opens: `python daft_sql.py CATALOG_URI`; a line is a verb, a topic, and arguments."""

import os
import sys
from typing import Any

import daft
import pyarrow as pa
from lines import serve
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import RESTError

KEPT = (
    "stream_partition", "stream_offset", "stream_timestamp", "stream_key", "stream_headers", "stream_flags", "value",
)  # fmt: skip


def main(uri: str) -> None:
    names = {"s3.access-key-id": "AWS_ACCESS_KEY_ID", "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY"}
    keys = {name: os.environ[variable] for name, variable in names.items() if variable in os.environ}
    catalog = RestCatalog("lake", uri=uri, **keys)

    def run(line: str) -> list[Any]:
        verb, topic, *rest = line.split()
        table = catalog.load_table(("streams", topic))
        if verb == "rows":
            frame = daft.read_iceberg(table, snapshot_id=int(rest[0]) if rest else None)
            return [[row[name] for name in KEPT] for row in frame.to_pylist()]
        if verb == "columns":
            return [[field.name, str(field.dtype)] for field in daft.read_iceberg(table).schema()]
        if verb == "snapshots":
            return [[snapshot.snapshot_id] for snapshot in table.snapshots()]
        assert verb == "insert"
        row = {"stream_partition": int(rest[0]), "stream_offset": int(rest[1]), "stream_flags": 0}
        row["value"] = bytes.fromhex(rest[2])
        daft.from_arrow(pa.Table.from_pylist([row], schema=table.schema().as_arrow())).write_iceberg(table)
        return []

    serve(run, (RESTError,))


if __name__ == "__main__":
    main(*sys.argv[1:])
