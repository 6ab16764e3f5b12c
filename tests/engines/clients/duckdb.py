"""DuckDB 1.5.5, the last one whose extensions come from PyPI."""

from typing import ClassVar

from tests.engines.clients.face import DELETE, INSERT, READ, TRAVEL, UPDATE, EngineError, Remote
from tests.support.s3_server import S3Server

ATTEMPTS = 20


class DuckDb(Remote):
    name = "DuckDB"
    abilities = (READ, TRAVEL, DELETE, UPDATE, INSERT)
    travel = "AT (VERSION => {})"
    literal = "from_hex('{}')"
    types: ClassVar = {
        "stream_partition": "INTEGER", "stream_offset": "BIGINT", "stream_timestamp": "TIMESTAMP WITH TIME ZONE",
        "stream_key": "BLOB", "stream_headers": 'STRUCT("key" VARCHAR, "value" BLOB)[]', "stream_flags": "INTEGER",
        "stream_original": "BLOB", "value": "BLOB",
    }  # fmt: skip

    def __init__(self, uri: str, store: S3Server | None = None) -> None:
        super().__init__("duckdb", uri, *([] if store is None else [store.endpoint]), store=store)

    def snapshots(self, topic: str) -> list[int]:
        found = self.run(f"SELECT snapshot_id FROM iceberg_snapshots({self.table(topic)}) ORDER BY sequence_number")
        return [row[0] for row in found]

    def delete(self, topic: str, partition: int, first: int, last: int) -> None:
        """DuckDB does not try a commit again that lost a race, and says so: whoever asked does."""
        for attempt in range(ATTEMPTS):
            try:
                return super().delete(topic, partition, first, last)
            except EngineError as error:
                if "Conflict_409" not in str(error) or attempt == ATTEMPTS - 1:
                    raise

    def rewrite(self, topic: str) -> None:
        raise NotImplementedError

    def expire(self, topic: str) -> None:
        raise NotImplementedError
