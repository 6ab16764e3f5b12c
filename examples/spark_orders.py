"""A stream that is a table: produce orders, read them as a DataFrame, follow them as a stream, query them with SQL.

    lakestream serve                     # in another terminal
    python examples/spark_orders.py      # needs nothing but the package: Spark, DuckDB and a Java come with it
"""

import argparse
import http.client as http_client
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from random import Random

from lakestream.pipeline.spark.datasource import Lakestream
from lakestream.pipeline.spark.session import Spark

CITIES = ("Bonn", "Graz", "Kyiv", "Lyon", "Oslo")
ORDER = "from_json(cast(value as string), 'city string, amount int') as o"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", help="Kafka address of a broker")
    parser.add_argument("--http", default="127.0.0.1:8181", help="HTTP address of a broker")
    parser.add_argument("--topic", default="example-orders")
    parser.add_argument("--out", type=Path, default=Path("example-out"), help="where the stream writes")
    asked = parser.parse_args()

    check_broker(asked.http)

    # Any Kafka client works; the command line is always installed.
    produce(asked.bootstrap, asked.topic, 1000)

    # In your own application: SparkSession.builder...getOrCreate(), with any Java from 17 on. This one finds the Java
    # that came with the package if there is no other.
    running = Spark.start("local[2]")
    spark = running.session
    spark.dataSource.register(Lakestream)

    # A batch: all records acknowledged up to now, whether they are rows of the table or not.
    orders = spark.read.format("lakestream").option("broker", asked.http).load(asked.topic)
    print(f"batch: {orders.count()} orders")
    by_city = orders.selectExpr(ORDER).groupBy("o.city").sum("o.amount").toDF("city", "amount").orderBy("city")
    by_city.show()

    # A stream: the records up to now, in batches of 400, each record once. The second run goes on there.
    for number in (1, 2):
        print(f"stream, run {number}: {follow(spark, asked.http, asked.topic, asked.out)} orders")
        produce(asked.bootstrap, asked.topic, 100)
    running.stop()

    # SQL by DuckDB, over table and tail.
    city = "json(value)->>'$.city'"
    query = f'select {city} as city, count(*) as orders from "{asked.topic}" group by all order by all'
    print(lakestream("sql", "--http", asked.http, query))


def produce(bootstrap: str, topic: str, count: int) -> None:
    chance = Random()
    orders = ({"city": chance.choice(CITIES), "amount": chance.randint(1, 99)} for _ in range(count))
    lakestream("produce", topic, "--bootstrap", bootstrap, lines="".join(json.dumps(one) + "\n" for one in orders))


def follow(spark, http: str, topic: str, out: Path) -> int:
    """Write new orders to Parquet files; returns their number."""
    stream = spark.readStream.format("lakestream").option("broker", http).option("maxRecordsPerBatch", 400).load(topic)
    query = (
        stream.selectExpr("stream_partition", "stream_offset", ORDER)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(out / "orders"))
    )
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def check_broker(http: str) -> None:
    """Fail with a short message if there is no broker: Spark's own message is long."""
    try:
        urllib.request.urlopen(f"http://{http}/tables", timeout=10).close()
    except urllib.error.HTTPError:
        sys.exit(f"the broker at {http} has no tables: start it with `lakestream serve --tables`")
    except (OSError, http_client.HTTPException) as error:
        sys.exit(f"no broker answers at http://{http} ({error}): start `lakestream serve`, or name one with --http")


def lakestream(*arguments: str, lines: str = "") -> str:
    """Run a command of `lakestream`; returns its output."""
    command = [sys.executable, "-m", "lakestream.cli.main", *arguments]
    done = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)  # It has said why.
    return done.stdout


if __name__ == "__main__":
    main()
