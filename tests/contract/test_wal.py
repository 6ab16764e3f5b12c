"""Every WAL passes the check that we ship for their authors, and the check finds those that lie."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lakestream.data.folder import FolderWal
from lakestream.data.memory import MemoryWal
from lakestream.data.object_store import ObjectStoreWal
from lakestream.errors import Exists, Halted, Missing
from lakestream.interfaces import Buffer, StoredObject, Wal
from lakestream.testing.wal_contract import check_wal
from tests.support.s3_server import BUCKET, S3Server, s3_server

s3_tests = pytest.mark.xdist_group("weed")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("weed")) as server:
        yield server


@pytest.mark.parametrize("nameless", [True, False], ids=["nameless files", "hidden files"])
async def test_the_folder_passes(tmp_path: Path, nameless: bool) -> None:
    async def make() -> Wal:
        return FolderWal(tmp_path / "not" / "yet" / "there", nameless=nameless)

    await check_wal(make)
    assert [path.name for path in (tmp_path / "not/yet/there").iterdir()] == [".tmp"], "empty directories are left"


async def test_the_memory_passes() -> None:
    async def make() -> Wal:
        return MemoryWal()

    await check_wal(make, persistent=False)


async def test_an_object_store_in_memory_passes() -> None:
    async def make() -> Wal:
        wal = ObjectStoreWal("memory://")
        await wal.probe()
        return wal

    await check_wal(make, persistent=False)


@s3_tests
async def test_a_real_s3_server_passes(s3: S3Server) -> None:
    async def make() -> Wal:
        wal = ObjectStoreWal(f"s3://{BUCKET}/some/prefix", **s3.options())
        await wal.probe()
        return wal

    await check_wal(make)


@s3_tests
async def test_two_prefixes_of_one_bucket_do_not_see_each_other(s3: S3Server) -> None:
    one, other = (ObjectStoreWal(f"s3://{BUCKET}/{name}", **s3.options()) for name in ("one", "other"))
    await one.put("a/1", [b"x"])
    assert await other.list("") == []
    assert await one.list("") == [StoredObject("a/1", 1)]
    with pytest.raises(Missing):
        await other.read("a/1", [(0, 1)])


class Overwriting(MemoryWal):
    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        await self.delete([key])
        await super().put(key, parts)


class Strict(MemoryWal):
    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        if await self.list(key):
            raise Exists(key)
        await super().put(key, parts)


class Careless(MemoryWal):
    async def read(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytearray]:
        return await super().read(key, sorted(ranges))


class Forgetful(MemoryWal):
    async def list(self, prefix: str, after: str = "", limit: int = 0) -> list[StoredObject]:
        return [stored for stored in await super().list(prefix) if stored.size]


@pytest.mark.parametrize("kind", [Overwriting, Strict, Careless, Forgetful])
async def test_the_check_finds_a_wal_that_lies(kind: type[MemoryWal]) -> None:
    async def make() -> Wal:
        return kind()

    with pytest.raises(AssertionError):
        await check_wal(make, persistent=False)


async def test_the_check_finds_a_wal_that_forgets() -> None:
    async def make() -> Wal:
        return MemoryWal()

    with pytest.raises(AssertionError, match="reopened"):
        await check_wal(make, persistent=True)


async def test_the_probe_refuses_a_store_that_overwrites() -> None:
    class Lying(ObjectStoreWal):
        async def put(self, key: str, parts: Sequence[Buffer]) -> None:
            await self.delete([key])
            await super().put(key, parts)

    wal = Lying("memory://")
    with pytest.raises(Halted, match="conditional writes"):
        await wal.probe()
    assert await wal.list("") == []
