"""The store of tables here and elsewhere: a file is found however an engine spells its place."""

from pathlib import Path

import pytest

from lakestream.data.tables.stores.routed_store import RoutedStore
from lakestream.data.tables.stores.table_store import FolderTableStore
from lakestream.errors import Rejected


@pytest.fixture
def store(tmp_path: Path) -> RoutedStore:
    (tmp_path / "own").mkdir()
    (tmp_path / "other").mkdir()
    return RoutedStore(FolderTableStore(tmp_path / "own"), lambda: [f"file://{tmp_path}/other"], dict)


@pytest.mark.parametrize("folder", ["own", "other"])
def test_hadoops_spelling_of_a_path_is_the_same_place(store: RoutedStore, tmp_path: Path, folder: str) -> None:
    store.put(f"file://{tmp_path}/{folder}/a/b", b"x")
    assert store.get(f"file:{tmp_path}/{folder}/a/b") == b"x"
    assert store.read(f"file:{tmp_path}/{folder}/a/b", [(0, 1)]) == [b"x"]


@pytest.mark.parametrize("spelling", ["file://{}/third/a", "file:{}/third/a", "file:{}/own/../third/a", "{}/own/a"])
def test_what_lies_elsewhere_is_refused_in_any_spelling(store: RoutedStore, tmp_path: Path, spelling: str) -> None:
    with pytest.raises(Rejected):
        store.get(spelling.format(tmp_path))
