"""A folder that fails: no room, damaged, shortened or missing files. Errors are honest, and only for who is hit."""

import asyncio
import contextlib
import os
import resource
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lakestream.data.ready_files import is_hidden
from lakestream.model.batches.records import Record, encode_batch
from lakestream.protocol.kafka.messages import fetch
from tests.support.acked_workload import Ledger, create_topic, producing, read_all, send
from tests.support.live_broker import ask, decoded, produce
from tests.support.serve_process import Cluster, eventually, serving
from tests.support.toy_kafka_server import Client

QUICK_SESSION = {"broker_session_ms": 2000, "broker_heartbeat_ms": 400}
STORAGE_ERROR = 56


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own; skips where only an administrator may make one."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(path: Path) -> None:
    """Leave not one byte free."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


def silent_for(ledger: Ledger, seconds: float) -> bool:
    """Whether nothing was acknowledged for so long."""
    return time.monotonic() - ledger.ack_times[-1] > seconds


def test_a_full_disk_stops_producers_and_they_go_on_by_themselves_when_there_is_room(tmp_path: Path) -> None:
    """Records and metadata are on the same disk: neither ticks nor commands can be written."""
    with small_disk(tmp_path / "disk", 48) as disk, serving(disk, **QUICK_SESSION) as cluster:
        create_topic(cluster.bootstrap, "load", 3)
        ledger = Ledger("load", 3)
        pid = cluster.pid(0)
        with producing(cluster.kafka, ledger, burst=5):
            fill(disk / "filler")
            eventually(lambda: silent_for(ledger, 1.5), "a full disk takes records", 20, cluster)
            time.sleep(2.0)
            assert ledger.fatal == [] and ledger.failed == {}
            assert cluster.pid(0) == pid, "the broker died of a full disk"
            (disk / "filler").unlink()
            before = len(ledger.acked)
            eventually(lambda: len(ledger.acked) > before + 50, "it does not recover by itself", 30, cluster)
        ledger.check(cluster.bootstrap)
        assert cluster.pid(0) == pid


def test_a_full_disk_is_told_by_readiness_metric_code_and_one_log_line(tmp_path: Path) -> None:
    """The log's lines go to another disk. The session passes meanwhile, and the broker goes on serving readers."""
    with (
        small_disk(tmp_path / "disk", 64) as disk,
        serving(tmp_path / "serve", data=str(disk / "data"), **QUICK_SESSION) as cluster,
    ):
        create_topic(cluster.bootstrap, "load", 3)
        assert asyncio.run(produce_code(cluster, "load")) == 0 and cluster.is_ready(0)
        fill(disk / "filler")
        full = time.monotonic()
        while time.monotonic() < full + 2 * QUICK_SESSION["broker_session_ms"] / 1000:
            assert asyncio.run(produce_code(cluster, "load")) == STORAGE_ERROR
            time.sleep(0.05)
        assert "has no room" in page(cluster, "readyz")
        metrics = page(cluster, "metrics")
        assert 'lakestream_store_full{store="wal"} 1' in metrics
        assert 'lakestream_store_full{store="command_log"} 1' in metrics
        assert asyncio.run(fetch_one(cluster, "load", 0))[1], "reading goes on"
        (disk / "filler").unlink()
        eventually(lambda: cluster.is_ready(0), "the broker does not see that there is room again", 15, cluster)
        assert asyncio.run(produce_code(cluster, "load")) == 0
        assert 'lakestream_store_full{store="wal"} 0' in page(cluster, "metrics")
        for text in ("the write-ahead log has no room", "the write-ahead log has room again"):
            assert cluster.log_text().count(text) == 1
        assert cluster.log_text().count("the command log has no room") == 1
        assert "could not be written" not in cluster.log_text()


def page(cluster: Cluster, name: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{cluster.http[0]}/{name}", timeout=5.0) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def test_brokers_that_cannot_write_their_wal_say_so_and_recover_by_themselves(tmp_path: Path) -> None:
    """The command log has another process and still works; the brokers may not write a byte."""
    with serving(tmp_path, brokers=2, **QUICK_SESSION) as cluster:
        create_topic(cluster.bootstrap, "load", 6)
        pids = [cluster.pid(0), cluster.pid(1)]
        ledger = Ledger("load")
        with producing(cluster.kafka, ledger, burst=5):
            limit_files(pids, 0)
            eventually(lambda: silent_for(ledger, 1.0), "records are acknowledged without being written", 20, cluster)
            assert asyncio.run(produce_code(cluster, "load")) == STORAGE_ERROR
            assert read_all(cluster.bootstrap, "load", 6), "reading goes on"
            limit_files(pids, resource.RLIM_INFINITY)
            before = len(ledger.acked)
            eventually(lambda: len(ledger.acked) > before + 50, "it does not recover by itself", 30, cluster)
        ledger.check(cluster.bootstrap)
        assert [cluster.pid(0), cluster.pid(1)] == pids


def limit_files(pids: list[int | None], size: int) -> None:
    """Files that these processes write may be so large at most."""
    for pid in pids:
        assert pid is not None
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


async def produce_code(cluster: Cluster, topic: str) -> int:
    client = await connect(cluster)
    await client.send(produce([encode_batch([Record(timestamp=1, value=b"never-0")])], topic))
    answer = decoded(0, 9, (await client.answer())[1])
    client.close()
    return int(answer.responses[0].partition_responses[0].error_code)


async def connect(cluster: Cluster) -> Client:
    host, _, port = cluster.kafka[0].rpartition(":")
    return await Client.connect((host, int(port)))


async def fetch_one(cluster: Cluster, topic: str, offset: int, partition: int = 0) -> tuple[int, bytes]:
    """The error code and the records at an offset."""
    client = await connect(cluster)
    wanted = fetch.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1)
    topics = [fetch.FetchTopic(topic=topic, partitions=[wanted])]
    request = fetch.FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=topics)
    answer = await ask(client, 1, 11, request)
    client.close()
    got = answer.responses[0].partitions[0]
    return got.error_code, bytes(got.records or b"")


def objects(folder: Path) -> list[Path]:
    """The WAL objects, oldest first, without the files that are made ahead of time."""
    there = [path for path in (folder / "data").glob("*/wal/*/*/*") if not is_hidden(path.stat())]
    return sorted(there, key=lambda path: path.name)


def damage(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position, os.SEEK_END if position < 0 else os.SEEK_SET)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x20]))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit in a record": lambda path: damage(path, path.stat().st_size // 2),
    "a flipped bit in the header": lambda path: damage(path, 3),
    "a flipped bit in the footer": lambda path: damage(path, -3),
    "a shortened file": lambda path: os.truncate(path, path.stat().st_size // 2),
    "an empty file": lambda path: os.truncate(path, 0),
    "a missing file": lambda path: path.unlink(),
}


def test_a_damaged_object_is_an_error_to_its_readers_only(tmp_path: Path) -> None:
    """KAFKA_STORAGE_ERROR for what is lost, never other bytes; what lies behind and beside is served (L22)."""
    with serving(tmp_path, cache_bytes=0) as cluster:
        pid = cluster.pid(0)
        for number, (name, hurt) in enumerate(DAMAGES.items()):
            bad, good = f"bad-{number}", f"good-{number}"
            for topic in (bad, good):
                create_topic(cluster.bootstrap, topic)
            before = set(objects(tmp_path))
            assert send(cluster.bootstrap, bad, [b"lost" * 100]) == [0]
            (path,) = set(objects(tmp_path)) - before
            assert send(cluster.bootstrap, bad, [b"behind"]) == [1]
            assert send(cluster.bootstrap, good, [b"beside"]) == [0]
            hurt(path)
            code, records = asyncio.run(fetch_one(cluster, bad, 0))
            assert (code, records) == (STORAGE_ERROR, b""), name
            code, records = asyncio.run(fetch_one(cluster, bad, 1))
            assert code == 0 and b"behind" in records, name
            code, records = asyncio.run(fetch_one(cluster, good, 0))
            assert code == 0 and b"beside" in records, name
            assert send(cluster.bootstrap, bad, [b"after"]) == [2], name
        assert cluster.pid(0) == pid


def test_a_flipped_bit_in_an_object_too_large_to_be_read_whole_is_an_error_too(tmp_path: Path) -> None:
    with serving(tmp_path, cache_bytes=0) as cluster:
        create_topic(cluster.bootstrap, "wide", 8)
        batches = [encode_batch([Record(timestamp=1, value=bytes([number]) * 900_000)]) for number in range(8)]

        async def send_all() -> set[int]:
            client = await connect(cluster)
            await client.send(produce(batches, "wide"))
            answer = decoded(0, 9, (await client.answer())[1])
            return {one.error_code for one in answer.responses[0].partition_responses}

        assert asyncio.run(send_all()) == {0}
        path = max(objects(tmp_path), key=lambda path: path.stat().st_size)
        assert path.stat().st_size > 7_000_000
        damage(path, 450_000)
        codes = [asyncio.run(fetch_one(cluster, "wide", 0, partition))[0] for partition in range(8)]
        assert sorted(codes) == [0] * 7 + [STORAGE_ERROR]
