"""Starting on an object store that is shut, away for a moment, or away for good."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from lakestream.data import opening
from lakestream.data.object_store import ObjectStoreWal
from lakestream.data.opening import advice, open_object_store
from lakestream.errors import Retry, Unusable
from tests.support.serve_process import clean_environment

KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "r"}
SHUT = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "PAUSE_S", 0.01)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(SHUT)
    writer.close()


async def test_a_store_that_refuses_us_is_not_asked_again_and_the_message_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(Unusable, match=r"^s3://bucket/x cannot be used: .*403.*Set AWS_ACCESS_KEY_ID, "):
            await open_object_store("s3://bucket/x", linger_ms=1)


async def test_a_store_that_nobody_reaches_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(Unusable, match=r"127\.0\.0\.1:1.*: Connection refused\. Set .* AWS_ENDPOINT_URL"):
        await open_object_store("s3://bucket", linger_ms=1, patience_s=0.0)


async def test_a_store_that_comes_within_a_moment_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = [Retry("away"), Retry("still away")]

    async def probe(_: ObjectStoreWal) -> None:
        if away:
            raise away.pop()

    monkeypatch.setattr(ObjectStoreWal, "probe", probe)
    await open_object_store("s3://bucket", linger_ms=1)
    assert len(caplog.records) == 1 and "waiting up to 30 s for the store: s3://bucket" in caplog.text


async def test_a_store_that_cannot_even_be_named_says_what_is_missing() -> None:
    with pytest.raises(Unusable, match=r"Account must be specified\. Set AZURE_STORAGE_ACCOUNT_NAME"):
        await open_object_store("az://container", linger_ms=1)


def test_who_set_no_credentials_is_told_so_and_not_about_the_cloud_only() -> None:
    asked = RuntimeError("Generic S3 error: Error: PUT http://169.254.169.254/latest/api/token in 1s\n\nDebug")
    assert "no credentials are set, and this machine has none of its own" in advice("s3://b", asked)
    assert "\n" not in advice("s3://b", asked)


def test_serving_a_store_that_lets_nobody_in_is_tried_once(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "lakestream.cli.main", "serve", "--data", "az://container", "--no-tables"]
    argv += ["--kafka-port", "0", "--http-port", "0"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=clean_environment())
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.count("Set AZURE_STORAGE_ACCOUNT_NAME") == 1 and "starting it again" not in done.stderr
    warned = f"the command log is {tmp_path}/lakestream-metadata/metadata.sqlite on this machine"
    assert done.stderr.count(warned) == 1 and "choose a safe place for it with --metadata" in done.stderr
