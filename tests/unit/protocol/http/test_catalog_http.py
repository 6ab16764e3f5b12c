"""The catalog over HTTP: statuses and errors as the protocol's document says them, pages, and bad input (C9)."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakestream.errors import Fenced, Retry, Unknown
from lakestream.model.commands import Body
from tests.support.catalog_server import CatalogServer

SCHEMA: dict[str, Any] = {
    "type": "struct", "fields": [{"id": 1, "name": "a", "type": "long", "required": False}],
}  # fmt: skip
TABLE = {"name": "t", "schema": SCHEMA}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CatalogServer]:
    with CatalogServer(tmp_path) as server:
        yield server


@pytest.fixture
def client(server: CatalogServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.uri}/v1") as client:
        assert client.post("/namespaces", json={"namespace": ["a"]}).status_code == 200
        yield client


def error(answer: httpx.Response) -> tuple[int, str]:
    told = answer.json()["error"]
    assert told["code"] == answer.status_code and told["message"]
    return answer.status_code, told["type"]


def test_config_lists_the_endpoints_that_exist(client: httpx.Client) -> None:
    """T17."""
    endpoints = client.get("/config", params={"warehouse": "any"}).json()["endpoints"]
    assert "POST /v1/{prefix}/transactions/commit" in endpoints and len(endpoints) == 23
    for endpoint in endpoints:
        method, path = endpoint.split(" ")
        path = re.sub("{[a-z]+}", "nope", path.removeprefix("/v1/{prefix}"))
        answer = client.request(method, path, content=b"{}")
        assert answer.status_code != 405, endpoint
        assert method == "HEAD" or answer.status_code == 200 or "NoSuchPath" not in answer.text


def test_statuses_of_what_is_not_there(client: httpx.Client) -> None:
    table = "/namespaces/a/tables/t"
    assert error(client.get("/namespaces/b")) == (404, "NoSuchNamespaceException")
    assert error(client.get("/namespaces/b/tables")) == (404, "NoSuchNamespaceException")
    assert error(client.post("/namespaces/b/tables", json=TABLE)) == (404, "NoSuchNamespaceException")
    assert error(client.get("/namespaces", params={"parent": "b"})) == (404, "NoSuchNamespaceException")
    assert error(client.get(table)) == (404, "NoSuchTableException")
    assert error(client.delete(table)) == (404, "NoSuchTableException")
    assert error(client.post(table, json={"requirements": [], "updates": []})) == (404, "NoSuchTableException")
    assert error(client.get("/views")) == (404, "NoSuchPathException")
    assert error(client.put(table)) == (405, "UnsupportedOperationException")
    head = client.head(table)
    assert (head.status_code, head.content) == (404, b"")
    assert client.post("/namespaces/a/tables", json=TABLE).status_code == 200
    assert client.head(table).status_code == 204 == client.head("/namespaces/a").status_code
    assert error(client.post("/namespaces/a/tables", json=TABLE)) == (409, "AlreadyExistsException")
    assert error(client.delete("/namespaces/a")) == (409, "NamespaceNotEmptyException")
    both = {"removals": ["x"], "updates": {"x": "y"}}
    assert error(client.post("/namespaces/a/properties", json=both)) == (422, "UnprocessableEntityException")
    assert client.delete(table, params={"purgeRequested": "true"}).status_code == 204


def test_lists_come_in_pages(client: httpx.Client) -> None:
    for number in range(5):
        assert client.post("/namespaces", json={"namespace": ["a", f"n{number}"]}).status_code == 200
    assert len(client.get("/namespaces", params={"parent": "a"}).json()["namespaces"]) == 5
    seen: list[list[str]] = []
    token, pages = "", 0
    while True:
        answer = client.get("/namespaces", params={"parent": "a", "pageSize": 2, "pageToken": token}).json()
        seen += answer["namespaces"]
        pages += 1
        token = answer.get("next-page-token")
        if not token:
            break
    assert (seen, pages) == ([["a", f"n{number}"] for number in range(5)], 3)
    for params in ({"pageSize": "0"}, {"pageSize": "x"}, {"pageToken": "\u00fc"}, {"pageToken": "a"}):
        assert error(client.get("/namespaces", params=params))[0] == 400


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "a\\b", "a\x1fb", "a\nb", "x" * 300])
def test_odd_names_are_refused(client: httpx.Client, name: str) -> None:
    assert error(client.post("/namespaces", json={"namespace": [name]}))[0] == 400
    assert error(client.post("/namespaces", json={"namespace": ["a", name]}))[0] == 400
    assert error(client.post("/namespaces/a/tables", json=TABLE | {"name": name}))[0] == 400
    quoted = "".join(f"%{byte:02X}" for byte in name.encode())
    assert client.get(f"/namespaces/{quoted}").status_code in (200, 400, 404)
    assert client.get(f"/namespaces/a/tables/{quoted}").status_code in (200, 400, 404)


@pytest.mark.parametrize(
    "place",
    ["file:///etc", "s3://elsewhere/t", "{root}/../t", "{root}", "{root}/streams/t", "/tmp/t", "{root}/a//t", "{taken}",
     "{taken}/deeper"],
)  # fmt: skip
def test_places_outside_the_warehouse_or_inside_another_table_are_refused(
    client: httpx.Client, server: CatalogServer, place: str
) -> None:
    taken = client.post("/namespaces/a/tables", json=TABLE | {"name": "taken"}).json()["metadata"]["location"]
    location = place.format(root=server.store.root, taken=taken)
    assert error(client.post("/namespaces/a/tables", json=TABLE | {"location": location}))[0] == 400
    updates = [{"action": "set-location", "location": location}]
    client.post("/namespaces/a/tables", json=TABLE)
    answer = client.post("/namespaces/a/tables/t", json={"requirements": [], "updates": updates})
    assert answer.status_code == 400 or place == "{root}/streams/t"
    properties = {"write.data.path": location}
    answer = client.post("/namespaces/a/tables", json=TABLE | {"name": "u", "properties": properties})
    assert answer.status_code == 400 or place.startswith(("{root}/streams", "{taken}"))


def test_forged_metadata_locations_are_refused(client: httpx.Client, server: CatalogServer, tmp_path: Path) -> None:
    loaded = client.post("/namespaces/a/tables", json=TABLE).json()
    outside = tmp_path.parent / f"{tmp_path.name}.metadata.json"
    outside.write_text("{}")
    (tmp_path / "junk.metadata.json").write_text('{"format-version": 2}')
    (tmp_path / "list.metadata.json").write_text("[" * 100_000)
    root = server.store.root
    for place in (
        f"file://{outside}", f"{root}/../{outside.name}", f"{root}/junk.metadata.json", f"{root}/none.metadata.json",
        f"{root}/list.metadata.json", "file:///etc/passwd", "", loaded["metadata-location"],
    ):  # fmt: skip
        answer = client.post("/namespaces/a/register", json={"name": "r", "metadata-location": place})
        assert error(answer)[0] in (400, 409), place
    outside.unlink()


def test_a_registered_table_may_replace_another(client: httpx.Client, server: CatalogServer) -> None:
    old = client.post("/namespaces/a/tables", json=TABLE | {"name": "old"}).json()
    client.delete("/namespaces/a/tables/old")
    client.post("/namespaces/a/tables", json=TABLE)
    body = {"name": "t", "metadata-location": old["metadata-location"]}
    assert error(client.post("/namespaces/a/register", json=body)) == (409, "AlreadyExistsException")
    assert client.post("/namespaces/a/register", json=body | {"overwrite": True}).status_code == 200
    assert client.get("/namespaces/a/tables/t").json()["metadata"]["table-uuid"] == old["metadata"]["table-uuid"]


def test_a_table_is_put_back_to_an_earlier_metadata_file_of_its_own(client: httpx.Client) -> None:
    first = client.post("/namespaces/a/tables", json=TABLE).json()
    change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"x": "1"}}]}
    assert client.post("/namespaces/a/tables/t", json=change).status_code == 200
    client.post("/namespaces/a/tables", json=TABLE | {"name": "other"})
    body = {"name": "t", "metadata-location": first["metadata-location"], "overwrite": True}
    assert client.post("/namespaces/a/register", json=body).status_code == 200
    assert "x" not in client.get("/namespaces/a/tables/t").json()["metadata"]["properties"]
    assert error(client.post("/namespaces/a/register", json=body | {"name": "other"}))[0] == 400, "it is t's folder"


def test_a_table_with_files_keeps_its_location(client: httpx.Client, server: CatalogServer) -> None:
    """They would stay behind, for the next table that is made there, and for its purge."""
    made = client.post("/namespaces/a/tables", json=TABLE).json()["metadata"]
    for move, status in (("-moved", 200), ("-again", 400)):
        place = {"action": "set-location", "location": made["location"] + move}
        answer = client.post("/namespaces/a/tables/t", json={"requirements": [], "updates": [place]})
        assert answer.status_code == status, answer.text
        assert client.post("/namespaces/a/tables/t", json=a_commit(server, "main", 11)).status_code == 200


def test_a_commit_to_a_branch_that_is_sent_again_was_made_before_t17(
    client: httpx.Client, server: CatalogServer
) -> None:
    client.post("/namespaces/a/tables", json=TABLE)
    first = a_commit(server, "dev", 11)
    for _ in range(2):
        assert client.post("/namespaces/a/tables/t", json=first).status_code == 200
    assert error(client.post("/namespaces/a/tables/t", json=a_commit(server, "dev", 12)))[0] == 409
    odd = a_commit(server, "dev", 11)
    odd["updates"][1]["ref-name"] = ["dev"]
    assert error(client.post("/namespaces/a/tables/t", json=odd))[0] in (400, 409)


def a_commit(server: CatalogServer, branch: str, snapshot_id: int) -> dict[str, Any]:
    """The first snapshot of a branch."""
    snapshot = {
        "snapshot-id": snapshot_id, "timestamp-ms": 2_000_000_000_000, "sequence-number": 1, "schema-id": 0,
        "manifest-list": f"{server.store.root}/x/{snapshot_id}.avro", "summary": {"operation": "append"},
    }  # fmt: skip
    return {
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": branch, "snapshot-id": None}],
        "updates": [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": branch, "type": "branch", "snapshot-id": snapshot_id},
        ],
    }


def test_no_namespace_is_made_below_that_of_the_topics(client: httpx.Client) -> None:
    answer = client.post("/namespaces", json={"namespace": ["streams", "x"]})
    assert error(answer)[0] == 403 and "belongs to the topics" in answer.text


@pytest.mark.parametrize(
    "body",
    [b"", b"x", b"[]", b"null", b"{}", b'{"requirements": 1, "updates": []}', b"[" * 100_000, b'{"a": "\xff"}',
     b'{"requirements": [], "updates": [1]}', b'{"requirements": [], "updates": [{"action": 5}]}',
     b'{"requirements": [], "updates": [{"action": "explode"}]}', b'{"requirements": [{"type": []}], "updates": []}',
     b'{"requirements": [{"type": "assert-x"}], "updates": [{"action": "add-schema"}]}',
     b'{"requirements": [], "updates": [{"action": "add-schema", "schema": {"type": "struct", "fields": [{}]}}]}',
     b'{"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": {"snapshot-id": "x"}}]}',
     b'{"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": {"snapshot-id": []}}]}',
     b'{"requirements": [], "updates": [{"action": "set-current-schema", "schema-id": -1}]}',
     b'{"requirements": [], "updates": [{"action": "set-current-schema", "schema-id": true}]}',
     b'{"requirements": [], "updates": [{"action": "set-default-spec", "spec-id": 99}]}',
     b'{"requirements": [], "updates": [{"action": "upgrade-format-version", "format-version": 99}]}',
     b'{"requirements": [], "updates": [{"action": "set-properties", "updates": {"lakestream.x": "y"}}]}',
     b'{"requirements": [], "updates": [{"action": "set-statistics", "statistics": 5}]}',
     b'{"requirements": [], "updates": [{"action": "assign-uuid", "uuid": "other"}]}'],
)  # fmt: skip
def test_malformed_commits_are_refused_and_change_nothing(client: httpx.Client, body: bytes) -> None:
    before = client.post("/namespaces/a/tables", json=TABLE).json()
    assert error(client.post("/namespaces/a/tables/t", content=body)) == (400, "BadRequestException")
    assert client.get("/namespaces/a/tables/t").json() == before


def test_requirements_that_are_not_met_are_a_conflict(client: httpx.Client) -> None:
    client.post("/namespaces/a/tables", json=TABLE)
    for requirement in (
        {"type": "assert-create"}, {"type": "assert-table-uuid", "uuid": "x"},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 5},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 9},
        {"type": "assert-current-schema-id", "current-schema-id": 9},
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 9},
        {"type": "assert-default-spec-id", "default-spec-id": 9},
        {"type": "assert-default-sort-order-id", "default-sort-order-id": 9},
    ):  # fmt: skip
        body = {"requirements": [requirement], "updates": [{"action": "set-properties", "updates": {"x": "y"}}]}
        assert error(client.post("/namespaces/a/tables/t", json=body)) == (409, "CommitFailedException")
    assert client.get("/namespaces/a/tables/t").json()["metadata"]["properties"] == {}


def test_a_known_table_need_not_be_sent_again(client: httpx.Client) -> None:
    client.post("/namespaces/a/tables", json=TABLE)
    tag = client.get("/namespaces/a/tables/t").headers["etag"]
    assert client.get("/namespaces/a/tables/t", headers={"if-none-match": tag}).status_code == 304
    assert client.get("/namespaces/a/tables/t", params={"snapshots": "refs"}, headers={"if-none-match": tag}).is_success
    body = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"x": "y"}}]}
    assert client.post("/namespaces/a/tables/t", json=body).is_success
    assert client.get("/namespaces/a/tables/t", headers={"if-none-match": tag}).status_code == 200
    assert error(client.get("/namespaces/a/tables/t", params={"snapshots": "some"}))[0] == 400


@pytest.mark.parametrize(
    ("failure", "status"), [(Retry("log away"), 503), (Fenced("epoch ended"), 503), (Unknown("answer lost"), 500)]
)
def test_t17_a_commit_that_certainly_failed_may_be_retried_and_a_doubtful_one_is_said_to_be(
    client: httpx.Client, server: CatalogServer, tmp_path: Path, failure: Exception, status: int
) -> None:
    client.post("/namespaces/a/tables", json=TABLE)
    replica = server.broker.replica
    propose = replica.propose

    async def fail(body: Body) -> object:
        raise failure

    replica.propose = fail  # type: ignore[method-assign]
    body = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"x": "y"}}]}
    answer = client.post("/namespaces/a/tables/t", json=body)
    assert answer.status_code == status
    assert ("retry-after" in answer.headers) == (status == 503)
    replica.propose = propose  # type: ignore[method-assign]
    # What was certainly not committed leaves no file behind; what may have been does.
    assert len(list(tmp_path.rglob("*.metadata.json"))) == (1 if status == 503 else 2)
    assert client.post("/namespaces/a/tables/t", json=body).status_code == 200


def test_a_table_whose_metadata_is_gone_is_an_error_of_its_own_only(
    client: httpx.Client, server: CatalogServer, tmp_path: Path
) -> None:
    client.post("/namespaces/a/tables", json=TABLE)
    place = client.post("/namespaces/a/tables", json=TABLE | {"name": "lost"}).json()["metadata-location"]
    Path(place.removeprefix("file://")).unlink()
    with CatalogServer(tmp_path, server.broker.replica._log, 1) as fresh:
        tables = f"{fresh.uri}/v1/namespaces/a/tables"
        assert error(httpx.get(f"{tables}/lost")) == (404, "NotFoundException")
        assert httpx.get(f"{tables}/t").status_code == 200
        assert httpx.delete(f"{tables}/lost").status_code == 204


def test_a_method_that_is_not_there_is_told_which_are(client: httpx.Client) -> None:
    answer = client.patch("/namespaces/a")
    assert error(answer) == (405, "UnsupportedOperationException")
    assert answer.headers["allow"] == "DELETE, GET, HEAD"


def test_a_name_with_a_line_break_is_refused_in_the_catalogs_own_words(client: httpx.Client) -> None:
    assert error(client.get("/namespaces/a%0Ab"))[0] == 400


def test_tables_of_version_1_are_told_as_their_readers_want_them_staged_ones_too(client: httpx.Client) -> None:
    for staged in (True, False):
        body = {**TABLE, "stage-create": staged, "properties": {"format-version": "1"}}
        told = client.post("/namespaces/a/tables", json=body).json()["metadata"]
        assert told["schema"]["fields"] == SCHEMA["fields"] and told["partition-spec"] == []
    told = client.get("/namespaces/a/tables/t", params={"snapshots": "refs"}).json()["metadata"]
    assert told["schema"]["fields"] == SCHEMA["fields"]


def test_a_table_made_by_a_commit_has_the_orders_of_one_made_at_once(client: httpx.Client) -> None:
    field = {"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-first"}
    order = {"order-id": 1, "fields": [field]}
    made = client.post("/namespaces/a/tables", json={**TABLE, "write-order": order}).json()["metadata"]
    updates = [
        {"action": "add-schema", "schema": SCHEMA}, {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"fields": []}}, {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": order}, {"action": "set-default-sort-order", "sort-order-id": -1},
    ]  # fmt: skip
    create = {"requirements": [{"type": "assert-create"}], "updates": updates}
    staged = client.post("/namespaces/a/tables/staged", json=create).json()["metadata"]
    assert staged["sort-orders"] == made["sort-orders"] and staged["default-sort-order-id"] == 1
    unsorted = {"requirements": [{"type": "assert-create"}], "updates": updates[:4]}
    plain = client.post("/namespaces/a/tables/plain", json=unsorted).json()["metadata"]
    assert plain["sort-orders"] == [{"order-id": 0, "fields": []}] and plain["default-sort-order-id"] == 0


def test_the_document_describes_every_endpoint(server: CatalogServer, client: httpx.Client) -> None:
    document = httpx.get(f"{server.uri}/openapi.json").json()
    assert document["servers"] == [{"url": "/iceberg"}]
    operations = [(path, method) for path, methods in document["paths"].items() for method in methods]
    assert len(operations) == 24


def test_metadata_files_are_packed_where_the_tables_property_says_so_and_answers_are_not(
    client: httpx.Client, server: CatalogServer
) -> None:
    asked = TABLE | {"properties": {"write.metadata.compression-codec": "gzip"}}
    made = client.post("/namespaces/a/tables", json=asked).json()
    place = made["metadata-location"]
    assert place.endswith(".gz.metadata.json") and server.store.get(place)[:2] == b"\x1f\x8b"
    updates = [{"action": "set-properties", "updates": {"x": "1"}}]
    changed = client.post("/namespaces/a/tables/t", json={"requirements": [], "updates": updates}).json()
    assert changed["metadata"]["properties"]["x"] == "1" and changed["metadata-location"].endswith(".gz.metadata.json")
    assert client.get("/namespaces/a/tables/t").json()["metadata"] == changed["metadata"]
    assert client.delete("/namespaces/a/tables/t").status_code == 204
    again = {"name": "again", "metadata-location": changed["metadata-location"]}
    assert client.post("/namespaces/a/register", json=again).status_code == 200
    plain = [{"action": "set-properties", "updates": {"write.metadata.compression-codec": "none"}}]
    answer = client.post("/namespaces/a/tables/again", json={"requirements": [], "updates": plain}).json()
    assert ".gz." not in answer["metadata-location"]
    assert json.loads(server.store.get(answer["metadata-location"]))["properties"]["x"] == "1"
