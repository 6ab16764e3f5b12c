"""Dropped tables leave nothing behind (C10), and nobody else's files go with them."""

from pathlib import Path
from random import Random

import httpx

from lakestream.data.tables.metadata_files import MetadataFiles
from lakestream.model.catalog_names import Warehouse
from lakestream.model.commands import DeleteTopic
from lakestream.stream.purger import Purger
from tests.catalog_server import CatalogServer
from tests.stream_table import make_stream, rows

FIELD = {"id": 1, "name": "a", "type": "long", "required": False}
SCHEMA = {"type": "struct", "fields": [FIELD]}


def purger(server: CatalogServer, grace_ms: int = 0) -> Purger:
    store = server.store
    return Purger(server.broker.replica, store, MetadataFiles(store, Random(1)), Warehouse(store.root), grace_ms)


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
