"""The program of the Structured Streaming comparison, run in an environment of its own: see streaming.py.

    python streaming_query.py FOLDER BOOTSTRAP JARS

Reads a topic's name a line, streams the topic into a new Iceberg table, prints what it did as a line of JSON.
"""

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "3g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
}
COLUMNS = "partition", "offset", "timestamp", "key", "value"


def main() -> None:
    folder, bootstrap, jars = sys.argv[1:4]
    settings: dict[str, bool | float | int | str | None] = {
        **CONF,
        "spark.jars": jars,
        "spark.sql.catalog.lake.warehouse": f"file://{folder}/warehouse",
    }
    spark = SparkSession.builder.master("local[2]").appName("yard").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    print(json.dumps({"ready": True}), flush=True)
    for number, line in enumerate(sys.stdin):
        print(json.dumps(stream(spark, folder, bootstrap, line.strip(), number)), flush=True)
    spark.stop()


def stream(spark: Any, folder: str, bootstrap: str, topic: str, number: int) -> dict[str, float]:
    table = f"lake.db.t{number}"
    spark.sql(
        f"create table {table} (partition int, offset bigint, timestamp timestamp, key binary, value binary) "
        "using iceberg tblproperties ('write.parquet.compression-codec'='zstd', 'write.distribution-mode'='none')"
    )
    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .select(*COLUMNS)
    )
    query = (
        frame.writeStream.format("iceberg")
        .option("checkpointLocation", f"{folder}/checkpoint-{number}")
        .trigger(availableNow=True)
        .toTable(table)
    )
    query.awaitTermination()
    # Only the batches count, without the start of the query.
    batches = [one for one in query.recentProgress if one.numInputRows]
    seconds = sum(one.durationMs["triggerExecution"] for one in batches) / 1000
    rows = spark.table(table).count()
    spark.sql(f"drop table {table} purge")
    return {"rows": rows, "seconds": seconds, "batches": len(batches)}


if __name__ == "__main__":
    main()
