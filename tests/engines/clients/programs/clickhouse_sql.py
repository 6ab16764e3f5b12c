"""ClickHouse in a process (chDB) with the catalog as database `lake`.

    python clickhouse_sql.py CATALOG_URI [S3_ENDPOINT]

Rows come as Arrow, in which texts and bytes are the same: columns of bytes are told by their names.
"""

import os
import sys
from typing import Any

import pyarrow as pa
from chdb.session import Session
from lines import serve

TEXTS = frozenset(["name", "type", "key"])
SETUP = (
    "SET allow_database_iceberg = 1",
    "SET allow_insert_into_iceberg = 1",
    "SET output_format_arrow_string_as_string = 0",
)


def main(uri: str, endpoint: str = "") -> None:
    session = Session()
    for statement in SETUP:
        session.query(statement)
    where = ""
    if endpoint:
        who = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
        where = (
            f", storage_endpoint = '{endpoint}', region = 'us-east-1',"
            f" aws_access_key_id = '{who[0]}', aws_secret_access_key = '{who[1]}'"
        )
    session.query(
        f"CREATE DATABASE lake ENGINE = DataLakeCatalog('{uri}')"
        f" SETTINGS catalog_type = 'rest', warehouse = 'lake', vended_credentials = false{where}"
    )

    def run(statement: str) -> list[Any]:
        answer = session.query(statement, "Arrow").bytes()
        if not answer:
            return []
        table = pa.ipc.open_file(answer).read_all()
        return [[_told(name, value) for name, value in row.items()] for row in table.to_pylist()]

    serve(run, (RuntimeError,))


def _told(name: str, value: Any) -> Any:
    if isinstance(value, bytes) and name in TEXTS:
        return value.decode()
    if isinstance(value, dict):
        return {inner: _told(inner, item) for inner, item in value.items()}
    return [_told(name, item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main(*sys.argv[1:])
