"""Daft, DataFusion and ClickHouse (chDB): engines that are wheels, in one environment that `make engines` builds."""

from typing import Any, ClassVar

from tests.engines.clients.face import DELETE, INSERT, READ, TRAVEL, Remote, Row
from tests.support.s3_server import S3Server

ENVIRONMENT = "wheels"


class Daft(Remote):
    """It has no SQL for what the tests want: its program takes verbs."""

    name = "Daft"
    abilities = (READ, TRAVEL, INSERT)
    types: ClassVar = {
        "stream_partition": "Int32", "stream_offset": "Int64", "stream_timestamp": "Timestamp[us; UTC]",
        "stream_key": "Binary", "stream_headers": "List[Struct[key: String, value: Binary]]", "stream_flags": "Int32",
        "stream_original": "Binary", "value": "Binary",
    }  # fmt: skip

    def __init__(self, uri: str, store: S3Server | None = None) -> None:
        super().__init__(ENVIRONMENT, uri, store=store, program="daft")

    def rows(self, topic: str, snapshot: int | None = None) -> list[Row]:
        found = self.run(f"rows {topic} {'' if snapshot is None else snapshot}")
        return [_row(*row) for row in found]

    def columns(self, topic: str) -> dict[str, str]:
        return {row[0]: row[1] for row in self.run(f"columns {topic}")}

    def snapshots(self, topic: str) -> list[int]:
        return [row[0] for row in self.run(f"snapshots {topic}")]

    def insert(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        self.run(f"insert {topic} {partition} {offset} {value.hex()}")


class DataFusion(Remote):
    name = "DataFusion"
    abilities = (READ,)
    types: ClassVar = {
        "stream_partition": "int32", "stream_offset": "int64", "stream_timestamp": "timestamp[us, tz=+00:00]",
        "stream_key": "large_binary", "stream_flags": "int32", "stream_original": "large_binary",
        "value": "large_binary",
    }  # fmt: skip

    def __init__(self, uri: str, store: S3Server | None = None) -> None:
        super().__init__(ENVIRONMENT, uri, store=store, program="datafusion")

    def rows(self, topic: str, snapshot: int | None = None) -> list[Row]:
        assert snapshot is None, "the provider shows the current snapshot only"
        return [_row(*row) for row in self.run(f"{topic} select {self.kept} from topic")]

    def columns(self, topic: str) -> dict[str, str]:
        found = {row[0]: row[1] for row in self.run(f"{topic} select * from topic limit 0")}
        return {name: kind for name, kind in found.items() if name != "stream_headers"}

    def take_as_it_is(self, topic: str) -> None:
        """Register PyIceberg's table itself, as its documentation says."""
        self.run(f"{topic} as it is")


class ClickHouse(Remote):
    name = "ClickHouse"
    abilities = (READ, TRAVEL, DELETE, INSERT)
    travel = "SETTINGS iceberg_snapshot_id = {}"
    literal = "unhex('{}')"
    types: ClassVar = {
        "stream_partition": "Int32", "stream_offset": "Int64", "stream_timestamp": "Nullable(DateTime64(6, 'UTC'))",
        "stream_key": "Nullable(String)",
        "stream_headers": "Array(Tuple(\n    key Nullable(String),\n    value Nullable(String)))",
        "stream_flags": "Int32", "stream_original": "Nullable(String)", "value": "Nullable(String)",
    }  # fmt: skip

    def __init__(self, uri: str, store: S3Server | None = None) -> None:
        self.store = store
        endpoint = [] if store is None else [store.endpoint]
        super().__init__(ENVIRONMENT, uri, *endpoint, store=store, program="clickhouse")

    def table(self, topic: str) -> str:
        return f"lake.`streams.{topic}`"

    def snapshots(self, topic: str) -> list[int]:
        where = f"table = 'streams.{topic}' ORDER BY made_current_at"
        found = self.run(f"SELECT snapshot_id FROM system.iceberg_history WHERE {where}")
        return [row[0] for row in found]

    def delete(self, topic: str, partition: int, first: int, last: int) -> None:
        where = f"stream_partition = {partition} AND stream_offset BETWEEN {first} AND {last}"
        self.run(f"ALTER TABLE {self.table(topic)} DELETE WHERE {where}")


def _row(*cells: Any) -> Row:
    row = Row(*cells)
    return row._replace(headers=[(key, value) for key, value in row.headers or []])
