"""The same topic as an ordinary Iceberg table: PyIceberg reads it by a broker's catalog, and DuckDB queries the rows.


    python examples/table_readers.py --topic example-orders

These see what has landed: records a few seconds old. `lakestream sql` and the Spark source see the newest ones too.
"""

import argparse
import sys

import duckdb
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError, RESTError
from pyiceberg.table import Table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--http", default="127.0.0.1:8181", help="HTTP address of a broker")
    parser.add_argument("--topic", default="example-orders")
    asked = parser.parse_args()

    table = load(asked.http, asked.topic)
    print(f"{table.name()}: {len(table.snapshots())} snapshots, the current one is {table.current_snapshot()}")

    # Only these columns are read, and only row groups in which the filter can be true.
    rows = table.scan(row_filter="stream_offset < 1000", selected_fields=("stream_offset", "value")).to_arrow()
    print(f"{rows.num_rows} rows of {rows.nbytes:,} bytes")

    query = "select decode(value)::json->>'$.city' as city, count(*) as orders from rows group by all order by all"
    print(duckdb.sql(query))


def load(http: str, topic: str) -> Table:
    try:
        return RestCatalog("lake", uri=f"http://{http}/iceberg").load_table(("streams", topic))
    except NoSuchTableError:
        sys.exit(
            f"there is no table of a topic {topic!r}: `lakestream tables` lists all, examples/spark_orders.py makes "
            "one, and the first records take some seconds to land"
        )
    except (OSError, RESTError):
        sys.exit(f"no catalog answers at http://{http}/iceberg: start `lakestream serve`, or name a broker with --http")


if __name__ == "__main__":
    main()
