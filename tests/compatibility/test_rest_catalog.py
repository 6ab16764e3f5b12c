"""The Iceberg REST catalog, as PyIceberg's own client uses it: users' own namespaces and tables."""

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, StructType

from lakestream.metadata.stores.memory import MemoryLogStore
from tests.support.catalog_server import CatalogServer

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", None]})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CatalogServer]:
    with CatalogServer(tmp_path) as server:
        yield server


@pytest.fixture
def catalog(server: CatalogServer) -> RestCatalog:
    made = RestCatalog("test", uri=server.uri)
    made.create_namespace("shop")
    return made


def test_namespaces_live_and_die(catalog: RestCatalog) -> None:
    assert catalog.list_namespaces() == [("shop",), ("streams",)]
    catalog.create_namespace(("shop", "eu"), {"owner": "ann", "gone": "x"})
    assert catalog.list_namespaces("shop") == [("shop", "eu")]
    summary = catalog.update_namespace_properties(("shop", "eu"), {"gone", "never"}, {"owner": "bob"})
    assert (summary.removed, summary.updated, summary.missing) == (["gone"], ["owner"], ["never"])
    assert catalog.load_namespace_properties(("shop", "eu")) == {"owner": "bob"}
    assert catalog.namespace_exists(("shop", "eu")) and not catalog.namespace_exists("none")
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("shop")
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("shop")
    with pytest.raises(NoSuchNamespaceError):
        catalog.load_namespace_properties("none")
    catalog.drop_namespace(("shop", "eu"))
    assert catalog.list_namespaces("shop") == []


def test_a_table_is_created_written_read_and_dropped(catalog: RestCatalog, tmp_path: Path) -> None:
    table = catalog.create_table("shop.orders", ROWS.schema, properties={"colour": "red"})
    assert table.location().startswith(f"file://{tmp_path}/shop/orders-")
    table.append(ROWS)
    table.append(ROWS.slice(0, 1))
    found = catalog.load_table("shop.orders")
    assert found.scan().to_arrow().num_rows == 4 and len(found.metadata.snapshots) == 2
    assert found.properties["colour"] == "red"
    assert catalog.list_tables("shop") == [("shop", "orders")]
    assert catalog.table_exists("shop.orders") and not catalog.table_exists("shop.none")
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("shop.orders", ROWS.schema)
    catalog.drop_table("shop.orders")
    with pytest.raises(NoSuchTableError):
        catalog.load_table("shop.orders")
    with pytest.raises(NoSuchTableError):
        catalog.drop_table("shop.orders")


def test_a_table_evolves(catalog: RestCatalog) -> None:
    table = catalog.create_table("shop.orders", ROWS.schema)
    table.append(ROWS)
    with table.update_schema() as update:
        update.add_column("price", IntegerType())
        update.rename_column("name", "title")
    with table.update_spec() as spec:
        spec.add_field("id", BucketTransform(4), "id_bucket")
    with table.transaction() as transaction:
        transaction.set_properties({"a": "1", "b": "2"})
        transaction.remove_properties("a")
    with table.manage_snapshots() as snapshots:
        snapshots.create_tag(table.metadata.snapshots[0].snapshot_id, "first")
        snapshots.create_branch(table.metadata.snapshots[0].snapshot_id, "work")
    with table.update_sort_order() as order:
        order.asc("id", IdentityTransform())
    found = catalog.load_table("shop.orders")
    assert [field.name for field in found.schema().fields] == ["id", "title", "price"]
    assert [field.name for field in found.spec().fields] == ["id_bucket"]
    assert found.properties == {"b": "2"} and set(found.metadata.refs) == {"main", "first", "work"}
    assert len(found.sort_order().fields) == 1
    found.append(pa.table({"id": pa.array([9], pa.int64()), "title": ["z"], "price": pa.array([5], pa.int32())}))
    assert found.scan(row_filter="price = 5").to_arrow().num_rows == 1
    with found.manage_snapshots() as snapshots:
        snapshots.remove_tag("first")
    assert "first" not in catalog.load_table("shop.orders").metadata.refs


def test_rows_are_deleted_overwritten_and_snapshots_expired(catalog: RestCatalog) -> None:
    table = catalog.create_table("shop.orders", ROWS.schema)
    table.append(ROWS)
    table.delete("id = 2")
    table.overwrite(ROWS)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
    old = [snapshot.snapshot_id for snapshot in table.metadata.snapshots][:-1]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    found = catalog.load_table("shop.orders")
    assert len(found.metadata.snapshots) == 1 and found.scan().to_arrow().num_rows == 3


def test_a_new_table_gets_fresh_ids_and_keeps_its_partitions_and_order(catalog: RestCatalog) -> None:
    schema = Schema(
        NestedField(10, "id", LongType(), required=True),
        NestedField(20, "tags", ListType(21, StructType(NestedField(22, "k", StringType())), element_required=True)),
        NestedField(30, "day", IntegerType()),
        identifier_field_ids=[10],
    )
    spec = PartitionSpec(PartitionField(30, 1000, IdentityTransform(), "day"))
    table = catalog.create_table(
        "shop.odd", schema, partition_spec=spec, sort_order=SortOrder(SortField(10, IdentityTransform()))
    )
    assert [field.field_id for field in table.schema().fields] == [1, 2, 3]
    assert table.spec().fields[0].source_id == 3 and table.schema().identifier_field_ids == [1]
    assert table.sort_order().fields[0].source_id == 1 and table.metadata.last_column_id == 5


def test_a_staged_table_appears_with_its_commit(catalog: RestCatalog) -> None:
    with catalog.create_table_transaction("shop.staged", ROWS.schema) as transaction:
        assert not catalog.table_exists("shop.staged")
        with transaction.update_schema() as update:
            update.add_column("more", IntegerType())
        transaction.set_properties({"a": "b"})
    found = catalog.load_table("shop.staged")
    assert found.properties == {"a": "b"} and len(found.schema().fields) == 3
    with (
        pytest.raises((CommitFailedException, TableAlreadyExistsError)),
        catalog.create_table_transaction("shop.staged", ROWS.schema),
    ):
        pass


def test_a_table_is_renamed_and_keeps_its_rows(catalog: RestCatalog) -> None:
    catalog.create_namespace("other")
    catalog.create_table("shop.orders", ROWS.schema).append(ROWS)
    catalog.create_table("shop.taken", ROWS.schema)
    moved = catalog.rename_table("shop.orders", "other.sold")
    assert moved.scan().to_arrow().num_rows == 3 and not catalog.table_exists("shop.orders")
    with pytest.raises(TableAlreadyExistsError):
        catalog.rename_table("other.sold", "shop.taken")
    with pytest.raises(NoSuchTableError):
        catalog.rename_table("shop.none", "other.none")


def test_a_dropped_table_is_registered_again(catalog: RestCatalog) -> None:
    table = catalog.create_table("shop.orders", ROWS.schema)
    table.append(ROWS)
    place = table.metadata_location
    with pytest.raises(Exception, match=r"overlaps|already exists"):
        catalog.register_table("shop.copy", place)
    catalog.drop_table("shop.orders")
    assert catalog.register_table("shop.again", place).scan().to_arrow().num_rows == 3
    with pytest.raises(TableAlreadyExistsError):
        catalog.register_table("shop.again", place)


def test_writers_at_once_on_two_brokers_lose_nothing(tmp_path: Path) -> None:
    """T17: a lost race is tried again by the broker, a changed table by the client."""
    log = MemoryLogStore()
    with CatalogServer(tmp_path, log) as one, CatalogServer(tmp_path, log, 1) as two:
        RestCatalog("test", uri=one.uri).create_namespace("shop")
        properties = {"commit.retry.num-retries": "30", "commit.retry.min-wait-ms": "5"}
        RestCatalog("test", uri=two.uri).create_table("shop.orders", ROWS.schema, properties=properties)
        failures: list[Exception] = []

        def write(server: CatalogServer) -> None:
            try:
                table = RestCatalog("test", uri=server.uri).load_table("shop.orders")
                for _ in range(5):
                    table.append(ROWS)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=write, args=(server,)) for server in (one, two, one)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        found = RestCatalog("test", uri=two.uri).load_table("shop.orders")
        assert found.scan().to_arrow().num_rows == 45


def test_metadata_files_of_lost_races_do_not_stay(catalog: RestCatalog, server: CatalogServer, tmp_path: Path) -> None:
    table = catalog.create_table(
        "shop.orders",
        ROWS.schema,
        properties={
            "write.metadata.previous-versions-max": "2", "write.metadata.delete-after-commit.enabled": "true",
        },
    )  # fmt: skip
    for number in range(6):
        with table.transaction() as transaction:
            transaction.set_properties({"n": str(number)})
    files = [path for path in tmp_path.rglob("*.metadata.json")]
    assert len(files) == 3 and catalog.load_table("shop.orders").properties["n"] == "5"


def test_several_tables_change_in_one_commit_or_none_does(catalog: RestCatalog, server: CatalogServer) -> None:
    tables = [catalog.create_table(f"shop.t{number}", ROWS.schema) for number in range(2)]

    def change(number: int, uuid: str, value: str) -> dict[str, object]:
        return {
            "identifier": {"namespace": ["shop"], "name": f"t{number}"},
            "requirements": [{"type": "assert-table-uuid", "uuid": uuid}],
            "updates": [{"action": "set-properties", "updates": {"v": value}}],
        }

    uuids = [str(table.metadata.table_uuid) for table in tables]

    def commit(*changes: dict[str, object]) -> httpx.Response:
        return httpx.post(f"{server.uri}/v1/transactions/commit", json={"table-changes": changes})

    assert commit(change(0, uuids[0], "x"), change(1, uuids[1], "x")).status_code == 204
    lost = commit(change(0, uuids[0], "y"), change(1, uuids[0], "y"))
    assert (lost.status_code, lost.json()["error"]["type"]) == (409, "CommitFailedException")
    assert [catalog.load_table(f"shop.t{number}").properties["v"] for number in range(2)] == ["x", "x"]
    assert commit(change(0, uuids[0], "z"), change(0, uuids[0], "z")).status_code == 400


def test_old_and_new_format_versions_are_served(catalog: RestCatalog) -> None:
    old = catalog.create_table("shop.old", ROWS.schema, properties={"format-version": "1"})
    old.append(ROWS)
    with old.transaction() as transaction:
        transaction.upgrade_table_version(2)
    old.append(ROWS)
    assert catalog.load_table("shop.old").metadata.format_version == 2
    assert catalog.load_table("shop.old").scan().to_arrow().num_rows == 6
    new = catalog.create_table("shop.new", ROWS.schema, properties={"format-version": "3"})
    assert new.metadata.format_version == 3
