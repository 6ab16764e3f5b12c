"""DuckDB with the catalog attached as `lake`: `python duckdb_sql.py CATALOG_URI [S3_ENDPOINT]`."""

import os
import sys
from pathlib import Path
from typing import Any

import duckdb
from lines import serve


def main(uri: str, endpoint: str = "") -> None:
    database = duckdb.connect(config={"autoinstall_known_extensions": "false", "threads": "1"})
    packages = Path(duckdb.__file__).parents[1]
    for name in ("avro", "httpfs", "iceberg"):
        [extension] = packages.glob(f"duckdb_extension_{name}/extensions/*/{name}.duckdb_extension")
        database.execute(f"LOAD '{extension}'")
    if endpoint:
        who = f"KEY_ID '{os.environ['AWS_ACCESS_KEY_ID']}', SECRET '{os.environ['AWS_SECRET_ACCESS_KEY']}'"
        where = f"ENDPOINT '{endpoint.removeprefix('http://')}', REGION 'us-east-1', URL_STYLE 'path', USE_SSL false"
        database.execute(f"CREATE SECRET (TYPE s3, {who}, {where})")
    database.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{uri}', AUTHORIZATION_TYPE 'none')")
    database.execute("SET TimeZone = 'UTC'")
    # Topics' tables ask for small row groups, which DuckDB writes only if it may change the order of rows.
    database.execute("SET preserve_insertion_order = false")

    def run(statement: str) -> list[Any]:
        return database.execute(statement).fetchall()

    serve(run, (duckdb.Error,))


if __name__ == "__main__":
    main(*sys.argv[1:])
