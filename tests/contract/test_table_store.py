"""The table stores: a folder, memory and a real S3 server behave alike, and a table lives on each of them."""

import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakestream.data.tables.files.parquet import FileWriter
from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.manifests.files import NewFile
from lakestream.data.tables.iceberg.progress import OffsetRange
from lakestream.data.tables.iceberg.topic_table import new_topic_table
from lakestream.data.tables.reading.table_reader import ReadCaches, TableReader
from lakestream.data.tables.stores.small_files import SmallFiles
from lakestream.data.tables.stores.table_store import DatedStore, FolderTableStore, TableStore, open_table_store
from lakestream.errors import Exists, Missing, Rejected
from tests.support.iceberg_tables import NOW_MS, TABLE_UUID, TOPIC_ID, make_rows
from tests.support.s3_server import BUCKET, S3Server, s3_server

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("weed")) as server:
        yield server


ON_S3 = pytest.param("s3", marks=pytest.mark.xdist_group("weed"))


@pytest.fixture(params=["folder", "folder as on NFS", "memory", ON_S3])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatedStore]:
    if request.param == "folder":
        yield open_table_store(f"file://{tmp_path}/warehouse")
    elif request.param == "folder as on NFS":
        yield FolderTableStore(tmp_path / "warehouse", nameless=False)
    elif request.param == "memory":
        yield open_table_store("memory:///warehouse")
    else:
        server: S3Server = request.getfixturevalue("s3")
        yield open_table_store(f"s3://{BUCKET}/warehouse-{next(NUMBERS)}", **server.options())


def test_an_object_is_created_once_and_read_in_ranges(store: TableStore) -> None:
    uri = f"{store.root}/a/b"
    store.put(uri, b"0123456789")
    store.put(uri, b"0123456789")
    with pytest.raises(Exists):
        store.put(uri, b"other")
    assert store.get(uri) == b"0123456789"
    assert store.read(uri, [(2, 3), (8, 9), (0, 0)]) == [b"234", b"89", b""]


def test_a_listing_with_dates_has_the_same_objects_and_tells_which_came_later(store: DatedStore) -> None:
    store.put(f"{store.root}/d/one", b"1")
    time.sleep(1.1)
    store.put(f"{store.root}/d/two", b"22")
    listed = store.list_dated(f"{store.root}/d/")
    assert [one[:2] for one in listed] == [(f"{store.root}/d/one", 1), (f"{store.root}/d/two", 2)]
    assert [one[:2] for one in listed] == store.list(f"{store.root}/d/")
    assert 0 < listed[1][2] - listed[0][2] < 60_000
    assert abs(listed[0][2] - time.time() * 1000) < 60_000


def test_what_is_not_there_is_missing_and_may_be_deleted(store: TableStore) -> None:
    uri = f"{store.root}/a/none"
    store.delete([uri])
    for ask in (lambda: store.get(uri), lambda: store.read(uri, [(0, 1)])):
        with pytest.raises(Missing):
            ask()


def test_many_are_deleted_though_some_are_gone_already(store: TableStore) -> None:
    uris = [f"{store.root}/many/{n}" for n in range(30)]
    for uri in uris[::2]:
        store.put(uri, b"1")
    store.put(f"{store.root}/many-more", b"1")
    store.delete(uris)
    store.delete([])
    assert store.list(f"{store.root}/many") == [(f"{store.root}/many-more", 1)]


def test_a_place_that_was_emptied_is_filled_again(store: TableStore) -> None:
    for name in ("one", "two"):
        store.put(f"{store.root}/a/{name}", b"1")
        store.delete([f"{store.root}/a/{name}"])
    store.put(f"{store.root}/a/three", b"3")
    assert store.get(f"{store.root}/a/three") == b"3" and len(store.list(f"{store.root}/a/")) == 1


def test_a_listing_has_what_starts_with_the_prefix(store: TableStore) -> None:
    for name in ("t/data/1", "t/data/10", "t/metadata/x", "u/data/1"):
        store.put(f"{store.root}/{name}", name.encode())
    assert store.list(f"{store.root}/t/data/1") == [(f"{store.root}/t/data/1", 8), (f"{store.root}/t/data/10", 9)]
    store.delete([f"{store.root}/t/data/1", f"{store.root}/t/data/1"])
    assert [uri for uri, _ in store.list(f"{store.root}/t/")] == [
        f"{store.root}/t/data/10",
        f"{store.root}/t/metadata/x",
    ]


def test_folders_are_listed_without_what_is_in_them(store: TableStore) -> None:
    for name in ("t/one-1/data/x", "t/one-1/y", "t/two/data/z", "t/file", "u/three/x"):
        store.put(f"{store.root}/{name}", b"1")
    assert list(store.folders(f"{store.root}/t/")) == [f"{store.root}/t/one-1", f"{store.root}/t/two"]
    assert list(store.folders(f"{store.root}/t/one-1/")) == [f"{store.root}/t/one-1/data"]
    assert list(store.folders(f"{store.root}/nothing/")) == []


def test_nothing_outside_the_root_is_touched(store: TableStore) -> None:
    root = store.root
    for uri in ("file:///etc/passwd", f"{root}/../x", f"{root}2/x", f"{root}/", "x", f"{root}//x"):
        for ask in (store.get, lambda uri: store.put(uri, b""), lambda uri: store.delete([uri])):
            with pytest.raises(Rejected):
                ask(uri)


def test_a_table_is_committed_to_and_read_back(store: TableStore) -> None:
    committer = Committer(store, random.Random(1))
    table = committer.create(
        new_topic_table(
            table_uuid=TABLE_UUID, topic_id=TOPIC_ID, location=f"{store.root}/streams/clicks", now_ms=NOW_MS
        )
    )
    for start in range(0, 100, 10):
        uri = f"{table.metadata.location}/data/1-1-{start}/0-0.parquet"
        sink = pa.BufferOutputStream()
        writer = FileWriter(sink)
        writer.add(make_rows([(0, offset) for offset in range(start, start + 10)]).to_batches()[0])
        stats = writer.finish(uri)
        data = sink.getvalue().to_pybytes()
        store.put(uri, data)
        file = NewFile(stats=replace(stats, bytes=len(data)))
        table = committer.append(table, [file], [OffsetRange(0, start, start + 10)], now_ms=NOW_MS + start).table
    files = SmallFiles(store)
    found = TableReader(store, files, ReadCaches(), lambda: table.metadata_location).read_rows(0, 0, 100, 10**6)
    assert found.rows.combine_chunks().equals(make_rows([(0, offset) for offset in range(100)]))
    files.close()
    committer.close()


def test_all_of_a_store_can_be_listed(store: TableStore) -> None:
    store.put(f"{store.root}/list-all/a", b"1")
    assert (f"{store.root}/list-all/a", 1) in store.list(f"{store.root}/")
