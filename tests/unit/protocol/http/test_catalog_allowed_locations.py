"""`catalog_allowed_locations`: users' own tables outside the warehouse, where the operator allows it; streams never."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from lakestream.cli.serve import check_catalog
from lakestream.data.tables.stores.allowed_locations import allowed_locations
from lakestream.settings import Settings, SettingsError
from tests.support.catalog_server import CatalogServer
from tests.support.landed_table import make_stream, rows
from tests.unit.stream.test_purger import purger

SCHEMA: dict[str, Any] = {
    "type": "struct", "fields": [{"id": 1, "name": "a", "type": "long", "required": False}],
}  # fmt: skip


def test_a_users_table_lies_in_an_allowed_folder_and_a_streams_never_does(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "other"
    with CatalogServer(tmp_path / "warehouse", allowed=(f"file://{allowed}",)) as server:
        make_stream(server).land("orders", rows([0]))
        namespaces = f"{server.uri}/v1/namespaces"
        assert httpx.post(namespaces, json={"namespace": ["a"]}).is_success

        def made(name: str, place: Path) -> httpx.Response:
            body = {"name": name, "schema": SCHEMA, "location": f"file:{place}"}
            return httpx.post(f"{namespaces}/a/tables", json=body)

        assert [made("o", place).status_code for place in (other / "t", allowed, tmp_path)] == [400] * 3
        assert made("t", allowed / "t").status_code == 200
        table = httpx.get(f"{namespaces}/a/tables/t").json()
        assert table["metadata-location"].startswith(f"file:{allowed}/t/metadata/")
        assert made("u", allowed / "t" / "u").status_code == 400, "it is t's folder"
        update = {"action": "set-properties", "updates": {"write.data.path": f"file://{allowed}/data"}}
        change = {"requirements": [], "updates": [update]}
        assert httpx.post(f"{namespaces}/streams/tables/orders", json=change).status_code == 403
        assert httpx.post(f"{namespaces}/a/tables/t", json=change).status_code == 200
        (allowed / "t" / "mine.txt").write_text("of somebody else")
        assert httpx.delete(f"{namespaces}/a/tables/t").status_code == 204
        found = sorted((allowed / "t" / "metadata").iterdir())
        again = {"name": "again", "metadata-location": f"file://{found[-1]}"}
        assert httpx.post(f"{namespaces}/a/register", json=again).status_code == 200
        assert httpx.delete(f"{namespaces}/a/tables/again", params={"purgeRequested": "true"}).status_code == 204
        assert server.call(purger(server).purge()) == 2
        assert [path.name for path in allowed.rglob("*") if path.is_file()] == ["mine.txt"]


@pytest.mark.parametrize(
    "place", ["relative/x", "file://host", "{data}", "{data}/deeper", "/", "s3://", "/a/%2e", "/a/.."]
)
def test_a_folder_that_cannot_be_allowed_ends_serve_with_a_sentence(tmp_path: Path, place: str) -> None:
    settings = Settings(data=str(tmp_path), catalog_allowed_locations=place.format(data=tmp_path))
    with pytest.raises(SettingsError, match="catalog_allowed_locations"):
        check_catalog(settings)


def test_folders_are_divided_by_commas(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), catalog_allowed_locations="/srv/a/, s3a://bucket/b ,file:/srv/c")
    assert allowed_locations(settings) == ("file:///srv/a", "s3://bucket/b", "file:///srv/c")
    assert allowed_locations(Settings()) == ()
