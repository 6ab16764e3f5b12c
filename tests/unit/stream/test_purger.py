"""Dropped tables leave nothing behind (C10), and nobody else's files go with them."""

from pathlib import Path
from random import Random

import httpx
import pytest

from lakestream.data.tables.iceberg.metadata.files import MetadataFiles
from lakestream.model.commands import DeleteTopic
from lakestream.stream.housekeeping.purger import SECOND_PURGE_GRACES, Purger
from tests.support.catalog_server import CatalogServer
from tests.support.landed_table import make_stream, rows

FIELD = {"id": 1, "name": "a", "type": "long", "required": False}
SCHEMA = {"type": "struct", "fields": [FIELD]}


def purger(server: CatalogServer, grace_ms: int = 0) -> Purger:
    store = server.store
    return Purger(server.broker.replica, store, MetadataFiles(store, Random(1)), server.warehouse, grace_ms)


def age(server: CatalogServer, by_ms: int) -> None:
    """The tables that wait to be purged have waited longer."""
    purges = server.state.catalog.purges
    purges.update({uuid: one._replace(time_ms=one.time_ms - by_ms) for uuid, one in purges.items()})


def files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def test_a_purged_table_goes_with_its_folder_after_the_grace_and_a_dropped_one_stays(tmp_path: Path) -> None:
    with CatalogServer(tmp_path) as server:
        namespaces = f"{server.uri}/v1/namespaces"
        assert httpx.post(namespaces, json={"namespace": ["a"]}).is_success
        for name in ("kept", "purged"):
            assert httpx.post(f"{namespaces}/a/tables", json={"name": name, "schema": SCHEMA}).is_success
        assert httpx.delete(f"{namespaces}/a/tables/kept").status_code == 204
        assert httpx.delete(f"{namespaces}/a/tables/purged", params={"purgeRequested": "true"}).status_code == 204
        assert server.call(purger(server, 3_600_000).purge()) == 0 and files(tmp_path) == 2
        assert server.call(purger(server).purge()) == 1 and files(tmp_path) == 1
        assert not server.state.catalog.purges and server.call(purger(server).purge()) == 0


def test_what_a_straggler_writes_to_a_purged_place_goes_by_the_last_look(tmp_path: Path) -> None:
    with CatalogServer(tmp_path) as server:
        make_stream(server).land("orders", rows([0]))
        topic = server.state.topics.by_name["orders"]
        server.call(server.broker.replica.propose(DeleteTopic(topic.id)))
        one, grace_ms = purger(server, 1000), 1000
        age(server, grace_ms)
        assert server.call(one.purge()) >= 5 and files(tmp_path) == 0 and len(server.state.catalog.purges) == 1
        (purge,) = server.state.catalog.purges.values()
        server.store.put(purge.location, b"late")
        age(server, (SECOND_PURGE_GRACES - 2) * grace_ms)
        assert server.call(one.purge()) == 0 and files(tmp_path) == 1
        age(server, grace_ms)
        assert server.call(one.purge()) == 1 and files(tmp_path) == 0 and not server.state.catalog.purges


def test_a_place_that_a_user_named_is_not_looked_at_again(tmp_path: Path) -> None:
    """They may be about to make another table there."""
    with CatalogServer(tmp_path) as server:
        namespaces = f"{server.uri}/v1/namespaces"
        httpx.post(namespaces, json={"namespace": ["a"]})
        place = server.store.root + "/a/mine"
        made = httpx.post(f"{namespaces}/a/tables", json={"name": "t", "schema": SCHEMA, "location": place})
        assert made.is_success
        httpx.delete(f"{namespaces}/a/tables/t", params={"purgeRequested": "true"})
        age(server, 1000)
        assert server.call(purger(server, 1000).purge()) == 1 and not server.state.catalog.purges


def test_a_place_that_was_registered_again_is_not_purged(tmp_path: Path) -> None:
    with CatalogServer(tmp_path) as server:
        namespaces = f"{server.uri}/v1/namespaces"
        httpx.post(namespaces, json={"namespace": ["a"]})
        made = httpx.post(f"{namespaces}/a/tables", json={"name": "t", "schema": SCHEMA}).json()
        httpx.delete(f"{namespaces}/a/tables/t", params={"purgeRequested": "true"})
        again = {"name": "again", "metadata-location": made["metadata-location"]}
        assert httpx.post(f"{namespaces}/a/register", json=again).is_success
        assert server.call(purger(server).purge()) == 0 and files(tmp_path) == 1
        assert not server.state.catalog.purges


def test_a_deleted_topic_leaves_no_files(tmp_path: Path) -> None:
    with CatalogServer(tmp_path) as server:
        make_stream(server).land("orders", rows([0, 1]))
        assert files(tmp_path) >= 5
        topic = server.state.topics.by_name["orders"]
        assert server.call(server.broker.replica.propose(DeleteTopic(topic.id))) == 2
        assert server.call(purger(server).purge()) >= 5 and files(tmp_path) == 0


def forge_snapshot(server: CatalogServer, name: str, manifest_list: str) -> None:
    snapshot = {
        "snapshot-id": 7, "timestamp-ms": 2_000_000_000_000, "sequence-number": 1,
        "summary": {"operation": "append"}, "manifest-list": manifest_list, "schema-id": 0,
    }  # fmt: skip
    body = {"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": snapshot}]}
    answer = httpx.post(f"{server.uri}/v1/namespaces/a/tables/{name}", json=body)
    assert answer.is_success, answer.text


@pytest.mark.parametrize("forged", ["{place}/metadata", "{place}/a\0b", "{place}//x", "{place}/" + 300 * "x"])
@pytest.mark.parametrize("default", [True, False])
def test_a_forged_snapshot_holds_up_no_purge_and_its_own_one_ends(tmp_path: Path, forged: str, default: bool) -> None:
    """It did: the error of the one purge ended every round."""
    with CatalogServer(tmp_path) as server:
        tables = f"{server.uri}/v1/namespaces/a/tables"
        httpx.post(f"{server.uri}/v1/namespaces", json={"namespace": ["a"]})
        named = {} if default else {"location": f"{server.store.root}/mine"}
        made = httpx.post(tables, json={"name": "forged", "schema": SCHEMA} | named).json()
        forge_snapshot(server, "forged", forged.format(place=made["metadata"]["location"]))
        assert httpx.post(tables, json={"name": "other", "schema": SCHEMA}).is_success
        for name in ("forged", "other"):
            assert httpx.delete(f"{tables}/{name}", params={"purgeRequested": "true"}).status_code == 204
        one, grace_ms = purger(server, 1000), 1000
        age(server, grace_ms)
        assert server.call(one.purge()) >= 1
        assert not list((tmp_path / "a").glob("other-*/metadata/*")), "the other table's purge is done"
        age(server, SECOND_PURGE_GRACES * grace_ms)
        server.call(one.purge())
        assert files(tmp_path) == 0 and not server.state.catalog.purges
