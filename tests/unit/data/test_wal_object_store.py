"""What the object-store WAL makes of a store's bad days: throttling, lost answers, silence, refusals (L21)."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.data import object_store
from lakestream.data.object_store import MAX_COALESCED_BYTES, ObjectStoreWal, coalesce
from lakestream.errors import Exists, Retry, Unknown
from tests.support.places import ROOT


class MoodyStore:
    """A small S3 that treats its next PUTs as it was told to: a status, "lose" the answer after storing, or "hang"."""

    def __init__(self, *moods: int | str) -> None:
        self.moods = list(moods)
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []

    @asynccontextmanager
    async def serving(self, **options: object) -> AsyncIterator[ObjectStoreWal]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        settings: dict[str, object] = {"endpoint": endpoint, "access_key_id": "a", "secret_access_key": "b"}
        wal = ObjectStoreWal("s3://bucket", region="us-east-1", request_timeout_s=0.3, **settings, **options)
        try:
            yield wal
        finally:
            server.close()
            await wal.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            method, path, _ = head[0].split(" ")
            self.requests.append(method)
            answer = self._answer(method, path, headers, body)
            if answer is None:
                await reader.read()
            elif answer[0]:
                status, payload = answer
                length = f"HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {len(payload)}\r\n"
                etag = 'etag: "1"\r\nlast-modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n'
                size = len(self.objects.get(path, b""))
                ranged = f"content-range: bytes 0-{len(payload) - 1}/{size}\r\n" if status == 206 else ""
                writer.write((length + etag + ranged + "\r\n").encode() + payload)
                await writer.drain()
        finally:
            writer.close()

    def _answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes] | None:
        if method != "PUT":
            asked = int(headers.get("range", "bytes=0-0").partition("-")[2]) + 1
            return (206, self.objects[path][:asked]) if path in self.objects else (404, b"")
        assert headers["if-none-match"] == "*", "every put has to be conditional"
        mood = self.moods.pop(0) if self.moods else 200
        if mood == "hang":
            return None
        if isinstance(mood, int) and mood != 200:
            return mood, b""
        if path in self.objects:
            return 412, b""
        self.objects[path] = body
        return (0, b"") if mood == "lose" else (200, b"")


async def test_throttling_is_waited_out() -> None:
    store = MoodyStore(503, 429)
    async with store.serving() as wal:
        await wal.put("a/1", [b"x", b"y"])
    assert store.objects == {"/bucket/a/1": b"xy"}
    assert store.requests == ["PUT", "PUT", "PUT"]


async def test_throttling_without_end_is_retry() -> None:
    store = MoodyStore(*[503] * 9)
    async with store.serving(attempts=3) as wal:
        with pytest.raises(Retry, match="503"):
            await wal.put("a/1", [b"x"])
    assert store.requests == ["PUT"] * 3


async def test_a_lost_answer_is_success_if_the_bytes_are_ours_l21() -> None:
    store = MoodyStore("lose")
    async with store.serving() as wal:
        await wal.put("a/1", [b"x", b"y"])
    assert store.requests == ["PUT", "PUT", "GET"]


async def test_a_lost_answer_is_exists_if_the_bytes_are_anothers_l21() -> None:
    store = MoodyStore(500)
    store.objects["/bucket/a/1"] = b"theirs"
    async with store.serving() as wal:
        with pytest.raises(Exists):
            await wal.put("a/1", [b"ours"])
    assert store.objects == {"/bucket/a/1": b"theirs"}


@pytest.mark.parametrize("moods", [["hang", "hang"], [500, 500], ["hang", 503], [503, 502]])
async def test_silence_and_server_errors_are_unknown_even_if_a_clear_no_follows(moods: list[int | str]) -> None:
    async with MoodyStore(*moods).serving(attempts=2) as wal:
        with pytest.raises(Unknown):
            await wal.put("a/1", [b"x"])


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_refusal_is_not_repeated_and_certainly_not_there(status: int) -> None:
    store = MoodyStore(status, status)
    async with store.serving() as wal:
        with pytest.raises(Retry):
            await wal.put("a/1", [b"x"])
    assert store.requests == ["PUT"]


async def test_a_store_that_nobody_reaches_is_retry() -> None:
    wal = ObjectStoreWal(
        "s3://b", endpoint="http://127.0.0.1:1", access_key_id="a", secret_access_key="b", region="r", attempts=2
    )
    for call in (wal.put("a", [b"x"]), wal.read("a", [(0, 1)]), wal.list(""), wal.delete(["a"])):
        with pytest.raises(Retry):
            await call
    await wal.close()


def test_a_folder_is_refused_because_it_would_not_be_synced() -> None:
    for url in ("file:///tmp/x", "/tmp/x", "some/where"):
        with pytest.raises(ValueError, match="FolderWal"):
            ObjectStoreWal(url)


async def test_near_ranges_are_one_request() -> None:
    assert coalesce([(100, 10), (0, 10), (300_000, 5), (50, 0)]) == [(0, 110), (300_000, 5)]
    assert coalesce([]) == coalesce([(7, 0)]) == []


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 100)), max_size=12))
def test_coalesced_spans_cover_every_range(ranges: list[tuple[int, int]]) -> None:
    whole = bytes(number % 251 for number in range(400))
    limits = object_store.COALESCE_GAP_BYTES, MAX_COALESCED_BYTES
    try:
        object_store.COALESCE_GAP_BYTES, object_store.MAX_COALESCED_BYTES = 10, 60
        spans = [(start, memoryview(whole)[start : start + length]) for start, length in coalesce(ranges)]
    finally:
        object_store.COALESCE_GAP_BYTES, object_store.MAX_COALESCED_BYTES = limits
    for start, length in ranges:
        if length:
            assert object_store._cut(spans, start, length) == whole[start : start + length]


LEAVE = """
import asyncio
from lakestream.data.object_store import ObjectStoreWal

async def main():
    wal = ObjectStoreWal("memory://")
    await asyncio.gather(*(wal.put(f"a/{n}", [b"x"]) for n in range(50)))
    await asyncio.gather(*(wal.read(f"a/{n}", [(0, 1)]) for n in range(50)))
    await wal.close()

asyncio.run(main())
"""


def test_a_process_that_closed_its_wal_exits_well() -> None:
    leaving = [subprocess.Popen([sys.executable, "-c", LEAVE], cwd=ROOT) for _ in range(6)]
    assert [process.wait(timeout=30) for process in leaving] == [0] * 6
