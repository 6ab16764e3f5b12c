"""The Java client, driven through the program in `java/`, which is compiled when a test first needs it."""

import base64
import fcntl
import hashlib
import itertools
import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from tests.compatibility.clients.face import LIMIT_S, Ack, Config, Record, Refused, Stored
from tests.support.places import ROOT

TOOLS: Final = ("java", "javac", "mvn")
SOURCES: Final = Path(__file__).resolve().parents[1] / "java"
CACHE: Final = ROOT / "build" / "compatibility-java"
LOGGING: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
FLAGS: Final = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", LOGGING)


class Java:
    name = "java"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    nulls = True

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["java", *FLAGS, "-cp", compiled(), "Remote"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._writing = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def producer(self, bootstrap: str, config: Config) -> "JavaProducer":
        return JavaProducer(self, {"bootstrap.servers": bootstrap, "linger.ms": 5, **config})

    def consumer(self, bootstrap: str, config: Config) -> "JavaConsumer":
        return JavaConsumer(self, {"bootstrap.servers": bootstrap, **config})

    def init_transactions(self, bootstrap: str, transactional_id: str) -> None:
        config = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "max.block.ms": 10_000}
        self.call("init_transactions", config=config)

    def admin(self, bootstrap: str, op: str, **args: Any) -> Any:
        """One operation of Administration.java."""
        return self.call(f"admin.{op}", config={"bootstrap.servers": bootstrap}, **args)

    def call(self, op: str, limit_s: float = LIMIT_S, **args: Any) -> Any:
        answer: Future[Any] = Future()
        number = next(self._numbers)
        self._waiting[number] = answer
        assert self._process.stdin is not None
        with self._writing:
            self._process.stdin.write(json.dumps({"id": number, "op": op, "args": _plain(args)}) + "\n")
            self._process.stdin.flush()
        return answer.result(limit_s)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(10)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                said = json.loads(line)
                answer = self._waiting.pop(said["id"])
                if "code" in said:
                    answer.set_exception(Refused(said["code"], said["error"]))
                else:
                    answer.set_result(said["result"])
        for answer in self._waiting.values():
            answer.set_exception(AssertionError("the Java program ended"))


class JavaProducer:
    def __init__(self, java: Java, config: Config) -> None:
        self._java = java
        self._number = java.call("open_producer", config=config)

    def send(self, topic: str, record: Record) -> None:
        self._java.call(
            "send", on=self._number, topic=topic, partition=record.partition, timestamp=record.timestamp_ms,
            key=_text(record.key), value=_text(record.value),
            headers=[(name, _text(value)) for name, value in record.headers],
        )  # fmt: skip

    def finish(self) -> list[Ack | Refused]:
        answers = self._java.call("finish", 2 * LIMIT_S, on=self._number)
        return [
            Refused(each["code"], each["error"]) if "code" in each else Ack(each["partition"], each["offset"])
            for each in answers
        ]


class JavaConsumer:
    def __init__(self, java: Java, config: Config) -> None:
        self._java = java
        self._number = java.call("open_consumer", config=config)

    def assign(self, starts: Mapping[tuple[str, int], int | None]) -> None:
        self._java.call("assign", on=self._number, starts=[(*place, start) for place, start in starts.items()])

    def subscribe(self, topics: Sequence[str]) -> None:
        self._java.call("subscribe", on=self._number, topics=list(topics))

    def poll(self, wait_s: float) -> list[Stored]:
        found = self._java.call("poll", on=self._number, wait_ms=int(wait_s * 1000))
        return [_stored(each) for each in found]

    def assignment(self) -> set[tuple[str, int]]:
        return {(topic, partition) for topic, partition in self._java.call("assignment", on=self._number)}

    def commit(self) -> None:
        self._java.call("commit", on=self._number)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        found: int | None = self._java.call(
            "offset_for_time", on=self._number, topic=topic, partition=partition, timestamp=timestamp_ms
        )
        return found

    def close(self) -> None:
        self._java.call("close_consumer", on=self._number)


def compiled(sources: Path = SOURCES, folder: Path = CACHE) -> str:
    """The class path of the compiled programs and their jars; test processes that come at once make them once."""
    pom, programs = sources / "pom.xml", sorted(sources.glob("*.java"))
    wanted = hashlib.sha256(b"".join(file.read_bytes() for file in [pom, *programs])).hexdigest()
    libs, classes, stamp = folder / "libs", folder / "classes", folder / "made-from"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            copy = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={libs}"]
            subprocess.run(copy, check=True)
            subprocess.run(["javac", "-d", str(classes), "-cp", f"{libs}/*", *map(str, programs)], check=True)
            stamp.write_text(wanted)
    return f"{classes}:{libs}/*"


def _stored(each: Mapping[str, Any]) -> Stored:
    return Stored(
        topic=each["topic"], partition=each["partition"], offset=each["offset"], key=_bytes(each["key"]),
        value=_bytes(each["value"]), headers=tuple((name, _bytes(value)) for name, value in each["headers"]),
        timestamp_ms=each["timestamp_ms"], timestamp_type=each["timestamp_type"],
    )  # fmt: skip


def _plain(args: dict[str, Any]) -> dict[str, Any]:
    """Configs as Java's properties files would have them: text, booleans in small letters."""
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in args.get("config", {}).items()
    }
    return {**args, "config": texts}


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
