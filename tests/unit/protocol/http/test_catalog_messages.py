"""What the catalog tells: words that engines look for, and what it says of tables that are broken or replaced."""

from typing import Any

import httpx
import pytest

from tests.support.catalog_server import CatalogServer
from tests.unit.protocol.http.test_catalog_http import TABLE, a_commit, client, error, server

__all__ = ["client", "server"]


def message(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["message"])


def test_messages_begin_as_the_reference_implementations_do(client: httpx.Client) -> None:
    """Engines and their tests look for these words."""
    tables, table = "/namespaces/a/tables", "/namespaces/a/tables/t"
    assert message(client.get(table)) == "Table does not exist: a.t"
    assert message(client.get("/namespaces/b")) == "Namespace does not exist: b"
    assert message(client.post("/namespaces/b/tables", json=TABLE)) == "Namespace does not exist: b"
    assert message(client.post("/namespaces", json={"namespace": ["a"]})) == "Namespace already exists: a"
    assert message(client.post("/namespaces", json={"namespace": ["b", "c"]})) == "Namespace does not exist: b"
    for name in ("t", "u"):
        assert client.post(tables, json=TABLE | {"name": name}).status_code == 200
    assert message(client.post(tables, json=TABLE)) == "Table already exists: a.t"
    assert message(client.delete("/namespaces/a")).startswith("Namespace a is not empty")

    def renamed(source: str, to: list[str], name: str) -> str:
        places = {"source": {"namespace": ["a"], "name": source}, "destination": {"namespace": to, "name": name}}
        return message(client.post("/tables/rename", json=places))

    assert renamed("none", ["a"], "x") == "Table does not exist: a.none"
    assert renamed("t", ["b"], "x") == "Namespace does not exist: b"
    assert renamed("t", ["a"], "u") == "Table already exists: a.u"


REQUIREMENTS: list[tuple[dict[str, Any], str]] = [
    ({"type": "assert-create"}, "table already exists"),
    ({"type": "assert-table-uuid", "uuid": "x"}, "UUID does not match: expected x != "),
    ({"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1},
     "branch or tag main is missing, expected 1"),
    ({"type": "assert-ref-snapshot-id", "ref": "dev", "snapshot-id": None}, "branch dev was created concurrently"),
    ({"type": "assert-ref-snapshot-id", "ref": "dev", "snapshot-id": 1},
     "branch dev has changed: expected id 1 != 11"),
    ({"type": "assert-last-assigned-field-id", "last-assigned-field-id": 7},
     "last assigned field id changed: expected id 7 != 1"),
    ({"type": "assert-current-schema-id", "current-schema-id": 7}, "current schema changed: expected id 7 != 0"),
    ({"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 7},
     "last assigned partition id changed: expected id 7 != 999"),
    ({"type": "assert-default-spec-id", "default-spec-id": 7},
     "default partition spec changed: expected id 7 != 0"),
    ({"type": "assert-default-sort-order-id", "default-sort-order-id": 7},
     "default sort order changed: expected id 7 != 0"),
]  # fmt: skip


@pytest.mark.parametrize(("requirement", "words"), REQUIREMENTS, ids=[one["type"] for one, _ in REQUIREMENTS])
def test_a_requirement_that_is_not_met_is_told_as_the_reference_implementation_tells_it(
    client: httpx.Client, server: CatalogServer, requirement: dict[str, Any], words: str
) -> None:
    client.post("/namespaces/a/tables", json=TABLE)
    client.post("/namespaces/a/tables/t", json=a_commit(server, "dev", 11))
    update = {"action": "set-properties", "updates": {"x": "1"}}
    answer = client.post("/namespaces/a/tables/t", json={"requirements": [requirement], "updates": [update]})
    assert error(answer) == (409, "CommitFailedException")
    assert message(answer).startswith(f"Requirement failed: {words}")


def test_a_table_whose_metadata_file_is_missing_is_a_404(client: httpx.Client, server: CatalogServer) -> None:
    """Also while the broker remembers the file's content."""
    place = client.post("/namespaces/a/tables", json=TABLE).json()["metadata-location"]
    assert client.get("/namespaces/a/tables/t").status_code == 200
    server.store.delete([place])
    answer = client.get("/namespaces/a/tables/t")
    assert error(answer) == (404, "NotFoundException")
    assert "missing" in message(answer) and place in message(answer)


def test_a_replaced_table_keeps_its_snapshot_log(client: httpx.Client, server: CatalogServer) -> None:
    client.post("/namespaces/a/tables", json=TABLE)
    assert client.post("/namespaces/a/tables/t", json=a_commit(server, "main", 11)).status_code == 200
    replace = a_commit(server, "main", 12)
    replace["requirements"] = []
    replace["updates"].insert(0, {"action": "remove-snapshot-ref", "ref-name": "main"})
    made = client.post("/namespaces/a/tables/t", json=replace).json()["metadata"]
    assert [entry["snapshot-id"] for entry in made["snapshot-log"]] == [11, 12]
    assert made["current-snapshot-id"] == 12
