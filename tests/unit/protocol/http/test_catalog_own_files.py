"""A table deletes only what is its own, whatever the metadata says that somebody forged for it."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from pyiceberg.manifest import DataFileContent

from lakestream.data.tables.foreign.allowed_changes import Refused
from lakestream.data.tables.foreign.rows import judge_aside
from lakestream.data.tables.iceberg.expiry import own_files
from lakestream.data.tables.iceberg.metadata.table_metadata import Table
from lakestream.model.catalog.names import Warehouse, canonical
from lakestream.model.catalog.tables import CommitTables, TableChange
from tests.support.catalog_server import CatalogServer
from tests.support.iceberg_tables import NOW_MS, Lake, OtherEngine
from tests.support.landed_table import UUID, make_stream, rows
from tests.unit.data.tables.test_foreign_rows import Table as ForgedTable
from tests.unit.stream.test_purger import purger

SCHEMA: dict[str, Any] = {
    "type": "struct", "fields": [{"id": 1, "name": "a", "type": "long", "required": False}],
}  # fmt: skip
FORGED = "99999999-89ab-4def-8123-456789abcdef"
CLEAN = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CatalogServer]:
    with CatalogServer(tmp_path) as server:
        yield server


@pytest.fixture
def client(server: CatalogServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.uri}/v1") as client:
        assert client.post("/namespaces", json={"namespace": ["a"]}).status_code == 200
        yield client


def made(client: httpx.Client, name: str, **more: Any) -> dict[str, Any]:
    answer = client.post("/namespaces/a/tables", json={"name": name, "schema": SCHEMA, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def stored(tmp_path: Path, kind: str = "*") -> set[Path]:
    return {path for path in tmp_path.rglob(kind) if path.is_file()}


def uris(server: CatalogServer, folder: str) -> set[str]:
    return {uri for uri, _ in server.store.list(f"{folder}/")}


def forge(client: httpx.Client, server: CatalogServer, location: str, **changes: Any) -> str:
    """A metadata file of a table that never was."""
    metadata = made(client, "pattern")["metadata"] | {"table-uuid": FORGED, "location": location} | changes
    assert client.delete("/namespaces/a/tables/pattern").status_code == 204
    place = f"{location}/metadata/00000-forged.metadata.json"
    server.store.put(place, json.dumps(metadata).encode())
    return place


def set_properties(client: httpx.Client, name: str, **properties: str) -> httpx.Response:
    update = {"action": "set-properties", "updates": properties}
    return client.post(f"/namespaces/a/tables/{name}", json={"requirements": [], "updates": [update]})


def test_a_forged_metadata_log_does_not_delete_a_topics_parquet(
    client: httpx.Client, server: CatalogServer, tmp_path: Path
) -> None:
    """It did: the log's entries were deleted when they were pushed out of it, wherever they led."""
    make_stream(server).land("orders", rows([0, 1]))
    victims = [f"file://{path}" for path in stored(tmp_path, "*.parquet")]
    log = [{"metadata-file": victim, "timestamp-ms": 1} for victim in victims]
    place = forge(client, server, f"{server.store.root}/a/forged", **{"metadata-log": log, "properties": CLEAN})
    answer = client.post("/namespaces/a/register", json={"name": "forged", "metadata-location": place})
    assert answer.status_code == 400 and "metadata-log" in answer.text
    # One that was registered by an older version is in the state already.
    change = TableChange("a", "forged", FORGED, "", place)
    assert server.call(server.broker.replica.propose(CommitTables([change]))) == 1
    for number in range(3):
        assert set_properties(client, "forged", n=str(number)).status_code == 200
    assert [f"file://{path}" for path in stored(tmp_path, "*.parquet")] == victims
    loaded = client.get("/namespaces/a/tables/forged").json()
    assert [e["metadata-file"] for e in loaded["metadata"]["metadata-log"]] != victims
    assert len(stored(tmp_path / "a" / "forged")) == 2, "the newest, and the one version before it"


def test_the_pipeline_deletes_no_metadata_file_that_is_not_the_tables_own(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "warehouse")
    lake.append([(0, 0, 1)])
    location = lake.table.metadata.location
    other = f"{location}-other/metadata/00000-x.metadata.json"
    odd = [other, f"{location}/data/x.parquet", f"{location}/metadata/../../{other}", f"{location}/metadata/a.avro"]
    log = [{"metadata-file": uri, "timestamp-ms": 1} for uri in odd]
    lake.table = Table(lake.location, lake.table.metadata.replaced({"metadata-log": log}))
    gone: set[str] = set()
    for start in range(1, 30):
        gone.update(lake.append([(0, start, start + 1)]).obsolete)
    assert not gone & set(odd)
    assert own_files(location, [*odd, f"{location}/metadata/1.metadata.json"]) == odd[1:2] + odd[3:]


def test_a_branch_of_a_stream_leads_to_no_file_of_another_table(client: httpx.Client, server: CatalogServer) -> None:
    """When the branch's snapshot expires, the pipeline deletes what it alone leads to."""
    make_stream(server).land("orders", rows([0, 1]))
    forged = ForgedTable(server.store)
    snapshot = forged.snapshot(9, forged.data([5]))
    snapshot |= {"snapshot-id": 77, "timestamp-ms": NOW_MS, "sequence-number": 9, "summary": {}}
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": "x", "type": "branch", "snapshot-id": 77},
    ]
    answer = client.post("/namespaces/streams/tables/orders", json={"requirements": [], "updates": updates})
    assert answer.status_code == 403 and "own folder" in answer.text


def test_a_purge_leaves_what_lies_in_the_data_path_of_another_table(
    client: httpx.Client, server: CatalogServer, tmp_path: Path
) -> None:
    place = f"{server.store.root}/shared/x"
    made(client, "first", properties={"write.data.path": f"{place}/data"})
    server.store.put(f"{place}/data/rows.parquet", b"of the first table")
    made(client, "second", location=place)
    assert client.delete("/namespaces/a/tables/second", params={"purgeRequested": "true"}).status_code == 204
    assert server.call(purger(server).purge()) == 1, "its own metadata file"
    assert (tmp_path / "shared" / "x" / "data" / "rows.parquet").read_bytes() == b"of the first table"
    assert not server.state.catalog.purges


@pytest.mark.parametrize("path", ["write.data.path", "write.metadata.path", "write.object-storage.path"])
def test_what_a_purged_table_reaches_stays_where_another_table_writes(
    client: httpx.Client, server: CatalogServer, path: str
) -> None:
    place = f"{server.store.root}/shared/x"
    made(client, "first", properties={path: f"{place}/files"})
    for name in ("files/rows.parquet", "rows.parquet"):
        server.store.put(f"{place}/{name}", b"of somebody")
    made(client, "second", location=place)
    for number, name in enumerate(("files/rows.parquet", "rows.parquet")):
        statistics = {
            "snapshot-id": number, "statistics-path": f"{place}/{name}", "file-size-in-bytes": 11,
            "file-footer-size-in-bytes": 1, "blob-metadata": [],
        }  # fmt: skip
        update = {"action": "set-statistics", "snapshot-id": number, "statistics": statistics}
        answer = client.post("/namespaces/a/tables/second", json={"requirements": [], "updates": [update]})
        assert answer.status_code == 200, answer.text
    assert client.delete("/namespaces/a/tables/second", params={"purgeRequested": "true"}).status_code == 204
    server.call(purger(server).purge())
    left = {f"{place}/{name}" for name in ("files/rows.parquet", "rows.parquet")} & uris(server, place)
    assert left == {f"{place}/files/rows.parquet"}


def test_a_folder_with_the_tables_id_stays_while_another_table_writes_in_it(
    client: httpx.Client, server: CatalogServer
) -> None:
    doomed = made(client, "doomed")["metadata"]["location"]
    assert client.delete("/namespaces/a/tables/doomed", params={"purgeRequested": "true"}).status_code == 204
    made(client, "first", properties={"write.data.path": f"{doomed}/data"})
    server.store.put(f"{doomed}/data/rows.parquet", b"of the first table")
    server.call(purger(server).purge())
    assert f"{doomed}/data/rows.parquet" in uris(server, doomed)


def test_a_purge_takes_only_what_the_table_reaches_out_of_a_folder_that_a_user_named(
    client: httpx.Client, server: CatalogServer, tmp_path: Path
) -> None:
    kept = made(client, "kept")
    assert client.delete("/namespaces/a/tables/kept").status_code == 204
    place = forge(client, server, f"{server.store.root}/a")
    assert client.post("/namespaces/a/register", json={"name": "f", "metadata-location": place}).status_code == 200
    assert client.delete("/namespaces/a/tables/f", params={"purgeRequested": "true"}).status_code == 204
    assert server.call(purger(server).purge()) == 1
    assert not (tmp_path / "a" / "metadata" / "00000-forged.metadata.json").exists()
    again = {"name": "kept", "metadata-location": kept["metadata-location"]}
    assert client.post("/namespaces/a/register", json=again).status_code == 200


def test_a_purge_of_forged_metadata_takes_no_file_of_a_stream(
    client: httpx.Client, server: CatalogServer, tmp_path: Path
) -> None:
    make_stream(server).land("orders", rows([0, 1]))
    before = stored(tmp_path / "streams")
    [parquet] = stored(tmp_path, "*.parquet")
    statistics = [{"snapshot-id": 1, "statistics-path": f"file://{parquet}"}]
    properties = {"write.data.path": f"file://{parquet.parent}"}
    place = forge(client, server, f"{server.store.root}/b", statistics=statistics, properties=properties)
    body = {"name": "f", "metadata-location": place}
    assert client.post("/namespaces/a/register", json=body).status_code == 400
    change = TableChange("a", "f", FORGED, "", place)
    assert server.call(server.broker.replica.propose(CommitTables([change]))) == 1
    client.delete("/namespaces/a/tables/f", params={"purgeRequested": "true"})
    assert server.call(purger(server).purge()) == 1
    assert stored(tmp_path / "streams") == before


def test_a_purge_of_forged_metadata_takes_nothing_out_of_the_folder_of_streams_whoever_had_it(
    client: httpx.Client, server: CatalogServer
) -> None:
    """A topic's first files lie there before its table is in the catalog, and a table that a topic left behind, too."""
    folder = f"{server.store.root}/streams/payments-{UUID}"
    server.store.put(f"{folder}/data/rows.parquet", b"of a topic")
    statistics = [{"snapshot-id": 1, "statistics-path": f"{folder}/data/rows.parquet"}]
    properties = {"write.data.path": f"{folder}/data"}
    place = forge(client, server, f"{server.store.root}/b", statistics=statistics, properties=properties)
    change = TableChange("a", "f", FORGED, "", place)
    assert server.call(server.broker.replica.propose(CommitTables([change]))) == 1
    client.delete("/namespaces/a/tables/f", params={"purgeRequested": "true"})
    server.call(purger(server).purge())
    assert server.store.get(f"{folder}/data/rows.parquet") == b"of a topic"


def test_a_commit_forgets_what_a_forged_metadata_log_says(client: httpx.Client, server: CatalogServer) -> None:
    """Clients follow the log too, and may delete what it names."""
    own = f"{server.store.root}/a/forged/metadata/00000-older.metadata.json"
    log = [{"metadata-file": file, "timestamp-ms": 1} for file in (own, f"{server.store.root}/a/other.parquet")]
    place = forge(client, server, f"{server.store.root}/a/forged", **{"metadata-log": log})
    change = TableChange("a", "forged", FORGED, "", place)
    assert server.call(server.broker.replica.propose(CommitTables([change]))) == 1
    assert set_properties(client, "forged", n="1").status_code == 200
    loaded = client.get("/namespaces/a/tables/forged").json()
    assert [entry["metadata-file"] for entry in loaded["metadata"]["metadata-log"]] == [own, place]


@pytest.mark.parametrize(
    "place",
    [
        "{root}/streams", "{root}/streams/x", "{root}/Streams/x", "{root}/STREAMS", "{root}/a/%2e%2e/streams/x",
        "{root}/a%2Fb",
    ],
)  # fmt: skip
def test_no_table_gets_into_the_folder_of_streams_or_to_a_place_with_escapes(
    client: httpx.Client, server: CatalogServer, place: str
) -> None:
    location = place.format(root=server.store.root)
    made(client, "t")
    move = {"action": "set-location", "location": location}
    assert client.post("/namespaces/a/tables/t", json={"requirements": [], "updates": [move]}).status_code == 400
    assert set_properties(client, "t", **{"write.data.path": location}).status_code == 400
    answer = client.post("/namespaces/a/tables", json={"name": "u", "schema": SCHEMA, "location": location})
    assert answer.status_code == 400
    forged = forge(client, server, location)
    assert client.post("/namespaces/a/register", json={"name": "f", "metadata-location": forged}).status_code == 400


def test_a_namespace_that_is_called_almost_as_the_streams_has_a_folder_of_its_own(
    client: httpx.Client, server: CatalogServer
) -> None:
    for name in ("Streams", ".streams"):
        assert client.post("/namespaces", json={"namespace": [name]}).status_code == 200
        answer = client.post(f"/namespaces/{name}/tables", json={"name": "t", "schema": SCHEMA})
        assert answer.status_code == 200, answer.text
        assert not server.warehouse.of_streams(answer.json()["metadata"]["location"])


def test_a_table_that_a_topic_left_behind_may_be_registered_where_it_lies(
    client: httpx.Client, server: CatalogServer
) -> None:
    place = Warehouse(server.store.root).place_for("streams", "orders", FORGED)
    forged = forge(client, server, place)
    assert client.post("/namespaces/a/register", json={"name": "f", "metadata-location": forged}).status_code == 200


def test_a_path_of_a_stream_that_climbs_out_of_its_folder_is_refused(
    client: httpx.Client, server: CatalogServer
) -> None:
    make_stream(server).land("orders", rows([0]))
    folder = Warehouse(server.store.root).place_for("streams", "orders", UUID)
    for path, status in ((f"{folder}/../other", 403), (f"{folder}/data", 200), (folder, 200)):
        update = {"action": "set-properties", "updates": {"write.data.path": path}}
        answer = client.post("/namespaces/streams/tables/orders", json={"requirements": [], "updates": [update]})
        assert answer.status_code == status, answer.text


def chosen(client: httpx.Client, name: str, location: str) -> httpx.Response:
    """A new table whose uuid and place the client chose."""
    updates = [
        {"action": "assign-uuid", "uuid": FORGED}, {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": SCHEMA | {"schema-id": 0}, "last-column-id": 1},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}}, {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": location},
    ]  # fmt: skip
    body = {"requirements": [{"type": "assert-create"}], "updates": updates}
    return client.post(f"/namespaces/a/tables/{name}", json=body)


def test_a_uuid_that_a_client_chose_makes_no_folder_of_others_the_tables_own(tmp_path: Path) -> None:
    outside, inside = tmp_path / "lake" / f"x-{FORGED}", tmp_path / "data" / "b" / f"x-{FORGED}"
    for folder in (outside, inside):
        folder.mkdir(parents=True)
        (folder / "rows.parquet").write_bytes(b"of others")
    allowed = f"file://{tmp_path}/lake"
    with CatalogServer(tmp_path / "data", allowed=(allowed,)) as server, httpx.Client(base_url=f"{server.uri}/v1") as c:
        assert c.post("/namespaces", json={"namespace": ["a"]}).status_code == 200
        for folder in (outside, inside):
            answer = chosen(c, "t", f"file://{folder}")
            assert answer.status_code == 400 and "has files already" in answer.text
        default = Warehouse(server.store.root).place_for("a", "t", FORGED)
        server.store.put(f"{default}/data/staged.parquet", b"of the staged table")
        assert chosen(c, "t", default).status_code == 200
        for folder in (outside, inside):
            move = {"action": "set-location", "location": f"file://{folder}"}
            answer = c.post("/namespaces/a/tables/t", json={"requirements": [], "updates": [move]})
            assert answer.status_code == 400 and "has files already" in answer.text
        c.delete("/namespaces/a/tables/t", params={"purgeRequested": "true"})
        server.call(purger(server).purge())
        assert not server.store.list(f"{default}/")
        # Files may come into an allowed location later, and a table may be registered there.
        metadata = made(c, "pattern")["metadata"] | {"table-uuid": FORGED, "location": f"file://{outside}"}
        place = f"file://{outside}/metadata/00000-forged.metadata.json"
        server.store.put(place, json.dumps(metadata).encode())
        body = {"name": "f", "metadata-location": place}
        assert c.post("/namespaces/a/register", json=body).status_code == 200
        c.delete("/namespaces/a/tables/f", params={"purgeRequested": "true"})
        assert server.call(purger(server).purge()) == 1, "the metadata file"
    assert stored(tmp_path / "lake") == {outside / "rows.parquet"}
    assert stored(inside) == {inside / "rows.parquet"}


def forget_main(lake: Lake, landed: Table) -> None:
    """The newest snapshot was made beside `main`, and its branch is gone."""
    aside = lake.table.metadata.value("snapshots")[-1]
    snapshots = [*landed.metadata.value("snapshots"), aside]
    added = {"snapshots": snapshots, "last-sequence-number": aside["sequence-number"]}
    lake.table = Table(landed.metadata_location, landed.metadata.replaced(added))


def expire(lake: Lake) -> set[str]:
    """Land twice, hours later; what may be deleted then."""
    lake.now_ms += 10 * 3_600_000
    before = len(lake.table.metadata.snapshots)
    gone = [*lake.append([(0, 10, 11)]).obsolete, *lake.append([(0, 11, 12)]).obsolete]
    assert len(lake.table.metadata.snapshots) < before + 2, "some snapshots expired"
    return {canonical(uri) for uri in gone}


@pytest.mark.parametrize("on_main", [True, False])
def test_a_file_that_another_engine_spells_otherwise_is_not_deleted_while_the_table_needs_it(
    tmp_path: Path, on_main: bool
) -> None:
    """`file:/x` and `file:///x` are one file: whichever snapshot expires first, the other one still reads it."""
    lake = Lake(tmp_path / "warehouse")
    lake.append([(0, 0, 10)])
    landed, engine = lake.table, OtherEngine(lake, Random(3))
    [(_, entry)] = engine.live()
    path = entry.data_file.file_path
    entry.data_file[1] = path.replace("file:///", "file:/")
    engine._commit("replace", removed={path}, added=[entry.data_file])
    if not on_main:
        forget_main(lake, landed)
    assert canonical(path) not in expire(lake)


def test_a_live_file_that_a_forged_branch_calls_a_delete_file_survives_the_branch(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "warehouse")
    lake.append([(0, 0, 10)])
    landed, engine = lake.table, OtherEngine(lake, Random(3))
    [(_, entry)] = engine.live()
    path = entry.data_file.file_path
    entry.data_file[0] = DataFileContent.POSITION_DELETES
    engine._commit("delete", deletes=[entry.data_file])
    forged = lake.table.metadata.value("snapshots")[-1]
    with pytest.raises(Refused, match="is in the table twice"):
        judge_aside(lake.store, landed.metadata.location, forged)
    forget_main(lake, landed)
    assert path not in expire(lake)


def test_a_forged_branch_that_expires_takes_no_file_out_of_another_folder(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "warehouse")
    lake.append([(0, 0, 10)])
    landed, engine = lake.table, OtherEngine(lake, Random(3))
    [(_, entry)] = engine.live()
    entry.data_file[1] = f"{lake.store.root}/streams/others/data/rows.parquet"
    engine._commit("append", added=[entry.data_file])
    forget_main(lake, landed)
    gone = expire(lake)
    assert gone and all(uri.startswith(f"{landed.metadata.location}/") for uri in gone)
