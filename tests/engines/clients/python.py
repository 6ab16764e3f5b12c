"""PyIceberg, and Polars on top of it: both in the tests' own process."""

from collections.abc import Iterable
from typing import Any, ClassVar

import polars
import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import RESTError
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table

from tests.engines.clients.face import ALL, READ, TRAVEL, EngineError, Row
from tests.support.s3_server import S3Server


class PyIceberg:
    name = "PyIceberg"
    abilities = ALL
    types: ClassVar = {
        "stream_partition": "int", "stream_offset": "long", "stream_timestamp": "timestamptz", "stream_key": "binary",
        "stream_headers": "list<struct<10: key: optional string, 11: value: optional binary>>", "stream_flags": "int",
        "stream_original": "binary", "value": "binary",
    }  # fmt: skip

    def __init__(self, uri: str, store: S3Server | None = None) -> None:
        keys = {} if store is None else {f"s3.{name}": value for name, value in _keys(store).items()}
        self._catalog = RestCatalog("lake", uri=uri, **keys)

    def table(self, topic: str) -> Table:
        return self._catalog.load_table(("streams", topic))

    def rows(self, topic: str, snapshot: int | None = None) -> list[Row]:
        return rows_of(self.table(topic).scan(snapshot_id=snapshot).to_arrow().to_pylist())

    def columns(self, topic: str) -> dict[str, str]:
        return {field.name: str(field.field_type) for field in self.table(topic).schema().fields}

    def snapshots(self, topic: str) -> list[int]:
        return [snapshot.snapshot_id for snapshot in self.table(topic).snapshots()]

    def delete(self, topic: str, partition: int, first: int, last: int) -> None:
        where = f"stream_partition = {partition} and stream_offset >= {first} and stream_offset <= {last}"
        self.table(topic).delete(where)

    def update(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        table, where = self.table(topic), f"stream_partition = {partition} and stream_offset = {offset}"
        found = table.scan(where).to_arrow()
        place = found.schema.get_field_index("value")
        field = found.schema.field(place)
        table.overwrite(found.set_column(place, field, pa.array([value], field.type)), where)

    def insert(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        table = self.table(topic)
        row = {"stream_partition": partition, "stream_offset": offset, "stream_flags": 0, "value": value}
        try:
            table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
        except RESTError as error:
            raise EngineError(str(error)) from error

    def rewrite(self, topic: str) -> None:
        """There is no call for it: the files are replaced by hand."""
        table = self.table(topic)
        old = [task.file for task in table.scan().plan_files()]
        anew = table.scan().to_arrow().sort_by([("value", "descending")])
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as change:
            for file in _dataframe_to_data_files(transaction.table_metadata, anew, table.io):
                change.append_data_file(file)
            for file in old:
                change.delete_data_file(file)

    def expire(self, topic: str) -> None:
        table = self.table(topic)
        current = table.metadata.current_snapshot_id
        old = [snapshot.snapshot_id for snapshot in table.snapshots() if snapshot.snapshot_id != current]
        table.maintenance.expire_snapshots().by_ids(old).commit()

    def close(self) -> None:
        self._catalog.close()


class Polars(PyIceberg):
    """It reads; PyIceberg opens the table for it."""

    name = "Polars"
    abilities = (READ, TRAVEL)
    types: ClassVar = {
        "stream_partition": "Int32", "stream_offset": "Int64", "stream_timestamp": "Datetime('us', 'UTC')",
        "stream_key": "Binary", "stream_headers": "List(Struct({'key': String, 'value': Binary}))",
        "stream_flags": "Int32", "stream_original": "Binary", "value": "Binary",
    }  # fmt: skip

    def rows(self, topic: str, snapshot: int | None = None) -> list[Row]:
        return rows_of(self._frame(topic, snapshot).collect().to_dicts())

    def columns(self, topic: str) -> dict[str, str]:
        schema = self._frame(topic).collect_schema()
        return {name: repr(kind).replace("time_unit=", "").replace("time_zone=", "") for name, kind in schema.items()}

    def _frame(self, topic: str, snapshot: int | None = None) -> polars.LazyFrame:
        """Polars does not ask PyIceberg where the bucket is: it is told, by the same names."""
        table = self.table(topic)
        bucket = {name: value for name, value in table.io.properties.items() if name.startswith("s3.")}
        return polars.scan_iceberg(table, snapshot_id=snapshot, storage_options=bucket or None)


def _keys(store: S3Server) -> dict[str, str]:
    return {"access-key-id": store.access_key_id, "secret-access-key": store.secret_access_key}


def rows_of(found: Iterable[dict[str, Any]]) -> list[Row]:
    return [
        Row(
            row["stream_partition"],
            row["stream_offset"],
            round(row["stream_timestamp"].timestamp() * 1000),
            row["stream_key"],
            [(header["key"], header["value"]) for header in row["stream_headers"] or []],
            row["stream_flags"],
            row["value"],
        )
        for row in found
    ]
