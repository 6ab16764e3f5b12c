"""Spark 4.1 with Iceberg's own runtime; its SQL is what most who care for Iceberg tables use."""

from typing import ClassVar

from tests.engines.clients.face import Remote
from tests.engines.environments import build
from tests.support.s3_server import S3Server


class Spark(Remote):
    name = "Spark"
    types: ClassVar = {
        "stream_partition": "int", "stream_offset": "bigint", "stream_timestamp": "timestamp", "stream_key": "binary",
        "stream_headers": "array<struct<key:string,value:binary>>", "stream_flags": "int", "stream_original": "binary",
        "value": "binary",
    }  # fmt: skip

    def __init__(self, uri: str, store: S3Server | None = None) -> None:
        wanted = ("runtime",) if store is None else ("runtime", "aws-bundle")
        jars = [str(jar) for name in wanted for jar in (build.PLACE / "spark" / "jars").glob(f"iceberg-*{name}*.jar")]
        super().__init__("spark", uri, ",".join(jars), store=store)

    def table(self, topic: str) -> str:
        return f"lake.streams.`{topic}`"

    def snapshots(self, topic: str) -> list[int]:
        found = self.run(f"SELECT snapshot_id FROM {self.table(topic)}.snapshots ORDER BY committed_at")
        return [row[0] for row in found]

    def rewrite(self, topic: str) -> None:
        self.run(
            f"CALL lake.system.rewrite_data_files(table => 'streams.`{topic}`', strategy => 'sort', "
            "sort_order => 'value DESC NULLS FIRST', options => map('rewrite-all', 'true'))"
        )

    def expire(self, topic: str) -> None:
        self.run(
            f"CALL lake.system.expire_snapshots(table => 'streams.`{topic}`', "
            "older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
        )

    def merge_on_read(self, topic: str) -> None:
        """From now on rows are deleted and updated by position-delete files."""
        modes = ", ".join(f"'write.{what}.mode' = 'merge-on-read'" for what in ("delete", "update", "merge"))
        self.run(f"ALTER TABLE {self.table(topic)} SET TBLPROPERTIES ({modes})")

    def merge(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        """Update the row if it is there, insert it if not."""
        self.run(
            f"MERGE INTO {self.table(topic)} AS t "
            f"USING (SELECT {partition} AS p, {offset}L AS o, X'{value.hex()}' AS v) AS s "
            "ON t.stream_partition = s.p AND t.stream_offset = s.o WHEN MATCHED THEN UPDATE SET value = s.v WHEN NOT "
            "MATCHED THEN INSERT (stream_partition, stream_offset, stream_flags, value) VALUES (s.p, s.o, 0, s.v)"
        )
