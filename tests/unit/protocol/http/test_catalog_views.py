"""Views of the catalog: the protocol's operations over HTTP, and the rules of the state machine."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyiceberg.view.metadata import ViewVersion

from lakestream.metadata.stores.memory import MemoryLogStore
from lakestream.model.catalog.views import CommitView
from lakestream.model.levels import BOUNDED, FIRST
from lakestream.model.reasons import No, Reason
from lakestream.model.state import dump, load
from tests.support.catalog_server import CatalogServer
from tests.support.landed_table import make_stream, rows
from tests.unit.protocol.http.test_catalog_http import SCHEMA, TABLE, client, error, server
from tests.unit.protocol.http.test_catalog_messages import message
from tests.unit.stream.test_purger import files, purger

__all__ = ["client", "server"]


def version(sql: str = "SELECT 1 AS a", number: int = 1, *more: dict[str, str]) -> dict[str, Any]:
    queries = [{"type": "sql", "sql": sql, "dialect": "spark"}, *more]
    return {
        "version-id": number, "timestamp-ms": 1000 + number, "schema-id": 0, "summary": {"engine-name": "test"},
        "representations": queries, "default-namespace": ["a"],
    }  # fmt: skip


def view(name: str = "v", **more: Any) -> dict[str, Any]:
    return {"name": name, "schema": SCHEMA, "view-version": version(), "properties": {"comment": "one"}} | more


def replace(sql: str, number: int = 2) -> dict[str, Any]:
    updates = [
        {"action": "add-view-version", "view-version": version(sql, number)},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    return {"requirements": [], "updates": updates}


def test_a_view_is_made_loaded_replaced_and_dropped(client: httpx.Client, tmp_path: Path) -> None:
    views, one = "/namespaces/a/views", "/namespaces/a/views/v"
    assert error(client.get(one)) == (404, "NoSuchViewException")
    assert client.head(one).status_code == 404
    made = client.post(views, json=view()).json()
    assert made["metadata"]["current-version-id"] == 1 and made["metadata"]["properties"] == {"comment": "one"}
    assert Path(made["metadata-location"].removeprefix("file://")).exists()
    assert client.head(one).status_code == 204
    assert client.get(one).json() == made
    assert client.get(views).json() == {"identifiers": [{"namespace": ["a"], "name": "v"}]}
    again = client.post(one, json=replace("SELECT 2 AS a")).json()
    assert again["metadata"]["current-version-id"] == 2
    assert [entry["version-id"] for entry in again["metadata"]["version-log"]] == [1, 2]
    assert client.post(one, json=replace("SELECT 2 AS a")).json() == again, "it says the same"
    wrong = {"type": "assert-view-uuid", "uuid": "x"}
    answer = client.post(one, json=replace("SELECT 3 AS a") | {"requirements": [wrong]})
    assert error(answer)[0] == 409 and message(answer).startswith("Requirement failed: view UUID does not match")
    assert client.delete(one).status_code == 204 and client.delete(one).status_code == 404
    assert client.delete("/namespaces/a").status_code == 204


def test_a_view_and_a_table_never_share_a_name(client: httpx.Client) -> None:
    views, tables = "/namespaces/a/views", "/namespaces/a/tables"
    assert client.post(tables, json=TABLE).is_success and client.post(views, json=view()).is_success
    assert message(client.post(views, json=view("t"))) == "Table with same name already exists: a.t"
    assert message(client.post(views, json=view())) == "View already exists: a.v"
    assert message(client.post(tables, json=TABLE | {"name": "v"})) == "View with same name already exists: a.v"
    staged = TABLE | {"name": "v", "stage-create": True}
    assert message(client.post(tables, json=staged)) == "View with same name already exists: a.v"

    def renamed(what: str, source: str, to: str, space: str = "a") -> httpx.Response:
        places = {"source": {"namespace": ["a"], "name": source}, "destination": {"namespace": [space], "name": to}}
        return client.post(f"/{what}/rename", json=places)

    assert message(renamed("views", "v", "t")) == "Cannot rename a.v to a.t. Table already exists"
    assert message(renamed("tables", "t", "v")) == "Cannot rename a.t to a.v. View already exists"
    assert message(renamed("views", "none", "w")) == "View does not exist: a.none"
    assert message(renamed("views", "v", "w", "none")) == "Namespace does not exist: none"
    assert error(renamed("views", "v", "w", "streams"))[0] == 403
    assert renamed("views", "v", "w").status_code == 204
    assert client.get("/namespaces/a/views/w").is_success and client.get("/namespaces/a/views/v").status_code == 404
    assert message(client.delete("/namespaces/a")).startswith("Namespace a is not empty")


def test_a_dropped_view_is_registered_again_by_its_metadata_file(client: httpx.Client) -> None:
    made = client.post("/namespaces/a/views", json=view()).json()
    body = {"name": "w", "metadata-location": made["metadata-location"]}
    assert error(client.post("/namespaces/a/register-view", json=body))[0] in (400, 409), "its folder is v's"
    assert client.delete("/namespaces/a/views/v").status_code == 204
    assert client.post("/namespaces/a/register-view", json=body).json()["metadata"] == made["metadata"]
    table = client.post("/namespaces/a/tables", json=TABLE).json()
    client.delete("/namespaces/a/tables/t")
    odd = {"name": "x", "metadata-location": table["metadata-location"]}
    assert error(client.post("/namespaces/a/register-view", json=odd))[0] == 400, "it is a table's"


def test_a_views_metadata_that_is_packed_twice_is_not_unpacked_again(
    client: httpx.Client, server: CatalogServer
) -> None:
    """The second layer had no bound, so that a small file took all memory."""
    made = client.post("/namespaces/a/views", json=view()).json()
    assert client.delete("/namespaces/a/views/v").status_code == 204
    once = gzip.compress(server.store.get(made["metadata-location"]))
    for name, packed, status in (("once", once, 200), ("twice", gzip.compress(once), 400)):
        place = f"{made['metadata']['location']}/metadata/{name}.gz.metadata.json"
        server.store.put(place, packed)
        answer = client.post("/namespaces/a/register-view", json={"name": name, "metadata-location": place})
        assert answer.status_code == status, answer.text
        client.delete(f"/namespaces/a/views/{name}")


def test_a_commit_to_a_view_has_a_bounded_number_of_updates(client: httpx.Client) -> None:
    client.post("/namespaces/a/views", json=view())
    updates = [{"action": "set-properties", "updates": {"n": str(number)}} for number in range(101)]
    answer = client.post("/namespaces/a/views/v", json={"requirements": [], "updates": updates})
    assert error(answer)[0] == 400 and "at most 100 updates" in message(answer)
    assert client.post("/namespaces/a/views/v", json={"requirements": [], "updates": updates[1:]}).is_success


@pytest.mark.parametrize(
    "change",
    [
        {"location": "file:///etc"}, {"location": "{root}/streams/v"}, {"name": "a/b"}, {"schema": {}},
        {"view-version": {}}, {"properties": {"write.metadata.path": "file:///etc"}},
        {"view-version": version("SELECT 1", 1, {"type": "sql", "sql": "SELECT 2", "dialect": "SPARK"})},
        {"properties": {"version.history.num-entries": "0"}},
    ],
)  # fmt: skip
def test_a_view_that_cannot_be_is_refused(client: httpx.Client, server: CatalogServer, change: dict[str, Any]) -> None:
    if "location" in change:
        change = {"location": change["location"].format(root=server.store.root)}
    assert error(client.post("/namespaces/a/views", json=view(**change)))[0] == 400
    assert client.get("/namespaces/a/views").json()["identifiers"] == []


def test_old_versions_of_a_view_go_when_there_are_too_many(client: httpx.Client) -> None:
    client.post("/namespaces/a/views", json=view(properties={"version.history.num-entries": "2"}))
    for number in range(2, 6):
        made = client.post("/namespaces/a/views/v", json=replace(f"SELECT {number} AS a", number)).json()["metadata"]
    assert [one["version-id"] for one in made["versions"]] == [4, 5]
    assert [one["version-id"] for one in made["version-log"]] == [4, 5]


def test_a_dialect_goes_only_where_the_view_allows_it(client: httpx.Client) -> None:
    trino = {"type": "sql", "sql": "SELECT 1 a", "dialect": "trino"}
    strict = {"replace.drop-dialect-allowed": "false"}
    both = {"view-version": version("SELECT 1 AS a", 1, trino), "properties": strict}
    client.post("/namespaces/a/views", json=view(**both))
    answer = client.post("/namespaces/a/views/v", json=replace("SELECT 2 AS a"))
    assert error(answer)[0] == 400 and "loss of view dialects" in message(answer)


def test_the_files_of_a_dropped_view_go_after_the_grace(
    client: httpx.Client, server: CatalogServer, tmp_path: Path
) -> None:
    client.post("/namespaces/a/views", json=view())
    client.post("/namespaces/a/views/v", json=replace("SELECT 2 AS a"))
    client.post("/namespaces/a/views", json=view("kept"))
    client.delete("/namespaces/a/views/v")
    assert files(tmp_path) == 3
    assert server.call(purger(server).purge()) == 2 and files(tmp_path) == 1


def test_two_brokers_replace_one_view_and_lose_nothing(tmp_path: Path) -> None:
    log = MemoryLogStore()
    with CatalogServer(tmp_path, log) as one, CatalogServer(tmp_path, log, 1) as other:
        assert httpx.post(f"{one.uri}/v1/namespaces", json={"namespace": ["a"]}).is_success
        assert httpx.post(f"{one.uri}/v1/namespaces/a/views", json=view()).is_success
        for number, uri in enumerate([one.uri, other.uri] * 3, 2):
            answer = httpx.post(f"{uri}/v1/namespaces/a/views/v", json=replace(f"SELECT {number} AS a", number))
            assert answer.is_success
        made = httpx.get(f"{other.uri}/v1/namespaces/a/views/v").json()["metadata"]
        assert [version["version-id"] for version in made["versions"]] == list(range(1, 8))


@pytest.fixture
def old_server(tmp_path: Path) -> Iterator[CatalogServer]:
    with CatalogServer(tmp_path / "old", level=FIRST) as server:
        yield server


def test_views_wait_until_every_member_knows_them_L3(old_server: CatalogServer) -> None:
    namespaces = f"{old_server.uri}/v1/namespaces"
    httpx.post(namespaces, json={"namespace": ["a"]})
    assert old_server.state.level == FIRST
    answer = httpx.post(f"{namespaces}/a/views", json=view())
    assert error(answer) == (503, "ServiceUnavailableException") and "upgrade" in message(answer)
    assert httpx.get(f"{namespaces}/a/views").json() == {"identifiers": []}
    outcome = old_server.call(old_server.broker.replica.propose(CommitView("a", "v", "u", "", "file")))
    assert isinstance(outcome, No) and outcome.reason == Reason.NEWER_LEVEL


def test_views_are_in_the_checkpoint_from_their_level_on(client: httpx.Client, server: CatalogServer) -> None:
    client.post("/namespaces/a/views", json=view())
    assert server.state.level == BOUNDED
    loaded = load(dump(server.state))
    assert loaded.catalog.views.by_key == server.state.catalog.views.by_key
    assert loaded.catalog.views.keys == server.state.catalog.views.keys
    assert len(server.state.catalog.dump(FIRST)) == len(server.state.catalog.dump(BOUNDED)) - 1


def test_pyiceberg_makes_loads_lists_and_drops_a_view_over_a_stream(server: CatalogServer) -> None:
    make_stream(server).land("orders", rows([0, 1]))
    catalog = RestCatalog("test", uri=server.uri)
    catalog.create_namespace("shop")
    query = {"type": "sql", "sql": "SELECT stream_offset FROM streams.orders", "dialect": "spark"}
    first = ViewVersion.model_validate(version() | {"representations": [query], "default-namespace": ["streams"]})
    schema = Schema(NestedField(1, "stream_offset", LongType(), required=False))
    made = catalog.create_view("shop.offsets", schema, first)
    assert catalog.view_exists("shop.offsets") and not catalog.view_exists("shop.none")
    assert catalog.list_views("shop") == [("shop", "offsets")] and catalog.list_views("streams") == []
    assert catalog.load_view("shop.offsets").metadata == made.metadata
    catalog.drop_view("shop.offsets")
    assert not catalog.view_exists("shop.offsets")
    place = f"file://{next(Path(server.store.root.removeprefix('file://')).rglob('offsets-*/metadata/*.json'))}"
    assert catalog.register_view("shop.again", place).metadata == made.metadata
