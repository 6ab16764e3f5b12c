"""T13: what other engines may do to a stream's table through our catalog, judged by content."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.types import LongType, StringType

from lakestream.model.catalog.names import STREAMS
from tests.support.catalog_server import CatalogServer
from tests.support.landed_table import Insider, make_stream, rows

ORDERS = (STREAMS, "orders")


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Insider]:
    with CatalogServer(tmp_path) as server:
        inside = make_stream(server)
        inside.land("orders", rows([0, 1, 2, 3]), rows([4, 5, 6]), rows([0, 1], partition=1))
        yield inside


@pytest.fixture
def catalog(inside: Insider) -> RestCatalog:
    return RestCatalog("outside", uri=inside.server.uri)


@pytest.fixture
def table(catalog: RestCatalog) -> Table:
    return catalog.load_table(ORDERS)


def offsets(catalog: RestCatalog) -> list[tuple[int, int]]:
    found = catalog.load_table(ORDERS).scan(selected_fields=("stream_partition", "stream_offset")).to_arrow()
    return sorted(zip(found["stream_partition"].to_pylist(), found["stream_offset"].to_pylist(), strict=True))


def test_a_topic_is_a_table_of_its_name(catalog: RestCatalog, inside: Insider) -> None:
    assert catalog.list_tables(STREAMS) == [ORDERS]
    assert offsets(catalog) == [(0, n) for n in range(7)] + [(1, 0), (1, 1)]
    streams = inside.server.state.streams.by_id
    assert [(stream.landed, len(stream.bases) > 0) for stream in streams.values()] == [(7, True), (2, True)]


def test_t13_rows_may_be_deleted(catalog: RestCatalog, table: Table) -> None:
    table.delete("stream_offset = 2 and stream_partition = 0")
    table.delete("stream_partition = 1")
    assert offsets(catalog) == [(0, 0), (0, 1), (0, 3), (0, 4), (0, 5), (0, 6)]


def test_t13_all_rows_may_be_deleted_and_more_land_after_them(
    catalog: RestCatalog, table: Table, inside: Insider
) -> None:
    """What engines do for TRUNCATE TABLE."""
    table.delete()
    assert offsets(catalog) == []
    inside.land("orders", rows([7, 8]))
    assert offsets(catalog) == [(0, 7), (0, 8)]


def test_t13_rows_may_be_updated_in_their_place(catalog: RestCatalog, table: Table) -> None:
    table.overwrite(rows([2], mark=b"redacted"), "stream_offset = 2 and stream_partition = 0")
    assert len(offsets(catalog)) == 9
    found = catalog.load_table(ORDERS).scan("stream_offset = 2").to_arrow()
    assert found["value"].to_pylist() == [b"redacted2"]


@pytest.mark.parametrize("offset", [2, 7, 19])
def test_t13_rows_do_not_come_from_elsewhere(catalog: RestCatalog, table: Table, offset: int) -> None:
    with pytest.raises(ForbiddenError, match="stream"):
        table.append(rows([offset]))
    with pytest.raises(ForbiddenError, match="stream"):
        table.refresh().overwrite(rows([offset + 20]), "stream_offset = 2 and stream_partition = 0")
    assert len(offsets(catalog)) == 9


def rewrite(table: Table, *tables: object) -> None:
    """All files replaced by new ones with these rows, in one snapshot."""
    old = [task.file for task in table.scan().plan_files()]
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as change:
        for made in tables:
            for file in _dataframe_to_data_files(transaction.table_metadata, made, table.io):  # type: ignore[arg-type]
                change.append_data_file(file)
        for file in old:
            change.delete_data_file(file)


def test_t13_files_may_be_rewritten_in_any_order(catalog: RestCatalog, table: Table) -> None:
    rewrite(table, rows([6, 5, 4, 3, 2, 1, 0]), rows([1, 0], partition=1))
    assert len(offsets(catalog)) == 9 and len(list(catalog.load_table(ORDERS).scan().plan_files())) == 2
    table.refresh()
    with pytest.raises(ForbiddenError, match="twice"):
        rewrite(table, rows([0, 1, 2, 3, 4, 5, 6]), rows([0, 1], partition=1), rows([3]))
    table.refresh()
    with pytest.raises(ForbiddenError, match="new"):
        rewrite(table, rows([0, 1, 2, 3, 4, 5, 6, 7]), rows([0, 1], partition=1))


def test_t13_deleted_rows_do_not_come_back(catalog: RestCatalog, table: Table) -> None:
    table.delete("stream_offset = 2 and stream_partition = 0")
    table.refresh()
    with pytest.raises(ForbiddenError, match="offset 2"):
        rewrite(table, rows([0, 1, 2, 3, 4, 5, 6]), rows([0, 1], partition=1))


def test_t13_columns_properties_tags_branches_and_expiry_are_allowed(catalog: RestCatalog, table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("country", StringType())
    table.refresh()
    with table.update_schema() as update:
        update.rename_column("country", "land")
    with table.transaction() as transaction:
        transaction.set_properties({"comment": "hello", "write.delete.mode": "merge-on-read"})
    with table.update_spec() as spec:
        spec.add_identity("stream_partition")
    first, main = table.metadata.snapshots[0].snapshot_id, table.metadata.current_snapshot_id
    assert main is not None
    with table.manage_snapshots() as snapshots:
        snapshots.create_tag(first, "start")
        snapshots.create_branch(main, "trial")
    table.append(rows([50]).append_column("land", [["x"]]), branch="trial")
    table.refresh()
    with table.manage_snapshots() as snapshots:
        snapshots.remove_tag("start")
        snapshots.remove_branch("trial")
    table.maintenance.expire_snapshots().by_id(first).commit()
    assert len(offsets(catalog)) == 9


def drop_column(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("value")


def rename_column(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("stream_offset", "offset")


def require_column(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.add_column("must", LongType(), required=True)


def loosen_column(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.make_column_optional("stream_flags")


def set_ours(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"lakestream.progress": "x"})


def remove_ours(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.remove_properties("lakestream.topic-id")


def roll_back(table: Table) -> None:
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id).commit()


@pytest.mark.parametrize(
    "act", [drop_column, rename_column, require_column, loosen_column, set_ours, remove_ours, roll_back]
)
def test_t13_what_makes_the_table_a_stream_stays(table: Table, act: Callable[[Table], None]) -> None:
    before = table.metadata_location
    with pytest.raises(ForbiddenError):
        act(table)
    assert table.refresh().metadata_location == before


@pytest.mark.parametrize(
    "update",
    [
        {"action": "upgrade-format-version", "format-version": 3},
        {"action": "remove-snapshot-ref", "ref-name": "main"},
        {"action": "set-properties", "updates": {"lakestream.progress": "x"}},
    ],
)
def test_t13_updates_without_rows_are_judged_too(table: Table, inside: Insider, update: dict[str, object]) -> None:
    url = f"{inside.server.uri}/v1/namespaces/streams/tables/orders"
    answer = httpx.post(url, json={"requirements": [], "updates": [update]})
    assert (answer.status_code, answer.json()["error"]["type"]) == (403, "ForbiddenException")


def test_t13_a_snapshot_of_main_cannot_be_expired_nor_the_table_moved(table: Table, inside: Insider) -> None:
    url = f"{inside.server.uri}/v1/namespaces/streams/tables/orders"
    main = table.metadata.current_snapshot_id
    for update in (
        {"action": "remove-snapshots", "snapshot-ids": [main]},
        {"action": "set-location", "location": f"{inside.server.store.root}/elsewhere"},
    ):
        assert httpx.post(url, json={"requirements": [], "updates": [update]}).status_code == 403


def test_t13_a_live_topics_table_is_not_dropped_renamed_or_replaced(catalog: RestCatalog, inside: Insider) -> None:
    catalog.create_namespace("mine")
    for act in (
        lambda: catalog.drop_table(ORDERS),
        lambda: catalog.purge_table(ORDERS),
        lambda: catalog.rename_table(ORDERS, ("mine", "orders")),
        lambda: catalog.create_table((STREAMS, "other"), rows([0]).schema),
        lambda: catalog.drop_namespace(STREAMS),
    ):
        with pytest.raises(ForbiddenError):
            act()
    assert len(offsets(catalog)) == 9


def test_t14_a_delete_on_a_busy_topic_is_made_again_by_the_client_and_gets_through(
    inside: Insider, table: Table, catalog: RestCatalog
) -> None:
    inside.land("orders", rows([7, 8]))
    with table.transaction() as transaction:
        transaction.overwrite(rows([2], mark=b"w"), "stream_offset = 2 and stream_partition = 0")
        inside.land("orders", rows([9]))
    table.refresh().delete("stream_offset = 3 and stream_partition = 0")
    assert [offset for partition, offset in offsets(catalog) if not partition] == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_a_commit_made_on_an_old_main_without_saying_so_is_a_conflict(inside: Insider, table: Table) -> None:
    url = f"{inside.server.uri}/v1/namespaces/streams/tables/orders"
    old = table.metadata.snapshots[0]
    snapshot = old.model_dump(mode="json", by_alias=True, exclude_none=True)
    snapshot |= {"snapshot-id": 77, "sequence-number": 99, "parent-snapshot-id": old.snapshot_id}
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 77},
    ]
    answer = httpx.post(url, json={"requirements": [], "updates": updates})
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "CommitFailedException")


def test_t17_a_commit_that_was_made_before_is_a_success(inside: Insider, table: Table) -> None:
    seen: list[bytes] = []
    url = f"{inside.server.uri}/v1/namespaces/streams/tables/orders"
    send = table.catalog._session.send  # type: ignore[attr-defined]

    def spy(request, **settings):  # type: ignore[no-untyped-def]
        if request.method == "POST":
            seen.append(request.body)
        return send(request, **settings)

    table.catalog._session.send = spy  # type: ignore[attr-defined]
    table.delete("stream_offset = 2 and stream_partition = 0")
    inside.land("orders", rows([7]))
    before = inside.server.state.catalog.tables[ORDERS].location
    answer = httpx.post(url, content=seen[0])
    assert answer.status_code == 200 and answer.json()["metadata-location"] == before
    assert inside.server.state.catalog.tables[ORDERS].location == before


@pytest.mark.parametrize(("ahead_ms", "status"), [(3_700_000, 403), (3_500_000, 200)])
def test_t13_a_snapshot_of_a_clock_that_is_far_ahead_is_refused(
    inside: Insider, table: Table, ahead_ms: int, status: int
) -> None:
    """Nobody with a right clock could commit after it."""
    current = table.current_snapshot()
    assert current is not None
    time_ms = int(time.time() * 1000) + ahead_ms
    made = current.model_dump(by_alias=True, mode="json", exclude_none=True) | {
        "snapshot-id": 77, "parent-snapshot-id": current.snapshot_id, "timestamp-ms": time_ms,
        "sequence-number": table.metadata.last_sequence_number + 1,
    }  # fmt: skip
    answer = httpx.post(
        f"{inside.server.uri}/v1/namespaces/streams/tables/orders",
        json={"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": made}]},
    )
    assert answer.status_code == status, answer.text
    assert ("an hour ahead" in answer.text) == (status == 403)
