"""DataFusion on tables that PyIceberg opens: `python datafusion_sql.py CATALOG_URI`; a line is a topic and SQL on it.

In the SQL the topic's table is called `topic`.
"""

import os
import sys
from typing import Any

from datafusion import SessionContext
from lines import serve
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg_core.datafusion import IcebergDataFusionTable


def main(uri: str) -> None:
    names = {"s3.access-key-id": "AWS_ACCESS_KEY_ID", "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY"}
    keys = {name: os.environ[variable] for name, variable in names.items() if variable in os.environ}
    catalog = RestCatalog("lake", uri=uri, **keys)

    def run(line: str) -> list[Any]:
        topic, _, statement = line.partition(" ")
        table = catalog.load_table(("streams", topic))
        context = SessionContext()
        if statement == "as it is":
            context.register_table("topic", table)
            return []
        texts = {name: value for name, value in table.io.properties.items() if isinstance(value, str)}
        context.register_table("topic", IcebergDataFusionTable(["streams", topic], table.metadata_location, texts))
        frame = context.sql(statement)
        if statement.endswith("limit 0"):
            return [[field.name, str(field.type)] for field in frame.schema()]
        return [list(row.values()) for row in frame.to_pylist()]

    serve(run, (ImportError,))


if __name__ == "__main__":
    main(*sys.argv[1:])
