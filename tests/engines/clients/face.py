"""What the tests ask of an engine, and the engines that are asked in SQL. Each is told where the catalog is."""

import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tests.engines.environments import build
from tests.support.s3_server import S3Server

STATEMENT_S = 300.0
PROGRAMS = Path(__file__).parent / "programs"

READ, TRAVEL, DELETE, UPDATE, INSERT, REWRITE, EXPIRE = ALL = (
    "read", "time travel", "DELETE", "UPDATE", "INSERT", "rewrite", "expire",
)  # fmt: skip
"""What is tested. INSERT: that it is refused, with a clear error."""


class EngineError(Exception):
    """What the engine says when it does not do what it was asked to."""


class Row(NamedTuple):
    """A record as a row."""

    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    flags: int
    value: bytes | None


class Engine(Protocol):
    name: str
    abilities: Sequence[str]
    types: Mapping[str, str]
    """What it calls the types of the columns."""

    def rows(self, topic: str, snapshot: int | None = None) -> list[Row]: ...
    def columns(self, topic: str) -> dict[str, str]: ...
    def snapshots(self, topic: str) -> list[int]: ...
    def delete(self, topic: str, partition: int, first: int, last: int) -> None: ...
    def update(self, topic: str, partition: int, offset: int, value: bytes) -> None: ...
    def insert(self, topic: str, partition: int, offset: int, value: bytes) -> None: ...
    def rewrite(self, topic: str) -> None:
        """All files anew, in an order that has nothing to do with offsets."""

    def expire(self, topic: str) -> None:
        """All snapshots but the current one."""

    def close(self) -> None: ...


class Sql:
    """An engine that speaks SQL; a dialect says how in `run` and in these words."""

    abilities: Sequence[str] = ALL
    travel = "VERSION AS OF {}"
    literal = "X'{}'"
    kept = "stream_partition, stream_offset, stream_timestamp, stream_key, stream_headers, stream_flags, value"

    def run(self, statement: str) -> list[list[Any]]:
        raise NotImplementedError

    def table(self, topic: str) -> str:
        return f'lake.streams."{topic}"'

    def rows(self, topic: str, snapshot: int | None = None) -> list[Row]:
        as_of = "" if snapshot is None else self.travel.format(snapshot)
        found = [Row(*row) for row in self.run(f"SELECT {self.kept} FROM {self.table(topic)} {as_of}")]
        return [row._replace(headers=[(key, value) for key, value in row.headers]) for row in found]

    def columns(self, topic: str) -> dict[str, str]:
        return {row[0]: row[1] for row in self.run(f"DESCRIBE {self.table(topic)}") if row[0]}

    def delete(self, topic: str, partition: int, first: int, last: int) -> None:
        where = f"stream_partition = {partition} AND stream_offset BETWEEN {first} AND {last}"
        self.run(f"DELETE FROM {self.table(topic)} WHERE {where}")

    def update(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        where = f"stream_partition = {partition} AND stream_offset = {offset}"
        self.run(f"UPDATE {self.table(topic)} SET value = {self.literal.format(value.hex())} WHERE {where}")

    def insert(self, topic: str, partition: int, offset: int, value: bytes) -> None:
        columns = "stream_partition, stream_offset, stream_flags, value"
        row = f"{partition}, {offset}, 0, {self.literal.format(value.hex())}"
        self.run(f"INSERT INTO {self.table(topic)} ({columns}) VALUES ({row})")


def keys(store: S3Server | None) -> dict[str, str]:
    """The environment of an engine: ours, and for a bucket only who it is; where that is the catalog says."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    if store is None:
        return ours
    return {**ours, "AWS_ACCESS_KEY_ID": store.access_key_id, "AWS_SECRET_ACCESS_KEY": store.secret_access_key}


class Remote(Sql):
    """SQL by a program that runs in an environment of its own."""

    def __init__(self, name: str, *arguments: str, store: S3Server | None = None, program: str = "") -> None:
        """`program`: what it is called if not as its environment."""
        python, program = build.PLACE / name / "bin" / "python", program or name
        log = (build.PLACE / f"{program}.log").open("w")
        with log:
            self._process = subprocess.Popen(
                [python, PROGRAMS / f"{program}_sql.py", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=log, text=True, env={**keys(store), "TZ": "UTC", "PYTHONPATH": ""},
            )  # fmt: skip
        self._answer()

    def run(self, statement: str) -> list[list[Any]]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise EngineError(answer["error"])
        return [[_native(cell) for cell in row] for row in answer["rows"]]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        limit = threading.Timer(STATEMENT_S, self._process.kill)
        limit.start()
        try:
            line = self._process.stdout.readline()
        finally:
            limit.cancel()
        assert line, f"{self._process.args} ended, or took more than {STATEMENT_S} s"
        return dict(json.loads(line))

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def _native(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["bytes"]) if "bytes" in value else value["ms"]
    return [_native(item) for item in value] if isinstance(value, list) else value
