"""Spark with Iceberg's runtime and the catalog as `lake`: `python spark_sql.py CATALOG_URI JAR,JAR`."""

import sys

from lines import serve
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "rest",
    # Else a session goes on to show a table as it first saw it, while records land in it.
    "spark.sql.catalog.lake.cache-enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "768m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}


def main(uri: str, jars: str) -> None:
    builder = SparkSession.builder.master("local[1]").config("spark.jars", jars)
    builder = builder.config("spark.sql.catalog.lake.uri", uri)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    serve(lambda statement: spark.sql(statement).collect(), (Py4JJavaError, PySparkException))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
