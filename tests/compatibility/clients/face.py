"""One face for all client libraries, so that one test can say what each of them has to see.

Configs go by Kafka's own names ("session.timeout.ms"), as librdkafka and Java know them; the drivers of the Python
clients translate. Errors are `Refused` with the number that the protocol gives them.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

Config = Mapping[str, Any]
Headers = tuple[tuple[str, bytes | None], ...]
LIMIT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is produced. Without a timestamp the client takes its own clock, without a partition its own choice."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What is consumed. Timestamp types are the protocol's: 0 is CreateTime, 1 is LogAppendTime."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    timestamp_type: int


@dataclass(frozen=True, slots=True)
class Ack:
    """Where a produced record went."""

    partition: int
    offset: int


class Refused(Exception):
    """An error of the protocol by its number; numbers below -1 are a client's own."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Producer(Protocol):
    """Sends in the background."""

    def send(self, topic: str, record: Record) -> None: ...

    def finish(self) -> list[Ack | Refused]:
        """Wait for all answers and close; answer i belongs to send i."""
        ...


class Consumer(Protocol):
    """Used by one thread at a time."""

    def assign(self, starts: Mapping[tuple[str, int], int | None]) -> None:
        """Read these partitions from these offsets; None stands for auto.offset.reset."""
        ...

    def subscribe(self, topics: Sequence[str]) -> None: ...

    def poll(self, wait_s: float) -> list[Stored]: ...

    def assignment(self) -> set[tuple[str, int]]: ...

    def commit(self) -> None:
        """Commit the positions of all partitions, and wait for it."""
        ...

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset whose timestamp is not below this one; None if there is none."""
        ...

    def close(self) -> None: ...


class Client(Protocol):
    """A client library."""

    @property
    def name(self) -> str: ...

    @property
    def codecs(self) -> Sequence[str]: ...

    @property
    def nulls(self) -> bool:
        """Whether it sends headers without a value, and records without key and value."""
        ...

    def producer(self, bootstrap: str, config: Config) -> Producer: ...

    def consumer(self, bootstrap: str, config: Config) -> Consumer: ...

    def init_transactions(self, bootstrap: str, transactional_id: str) -> None: ...

    def close(self) -> None: ...


def produce(
    client: Client, bootstrap: str, topic: str, records: Iterable[Record], config: Config | None = None
) -> list[Ack]:
    """Produce all and wait for their acks. Raises the first refusal."""
    producer = client.producer(bootstrap, config or {})
    for record in records:
        producer.send(topic, record)
    acks = []
    for answer in producer.finish():
        if isinstance(answer, Refused):
            raise answer
        acks.append(answer)
    return acks


def read(
    client: Client,
    bootstrap: str,
    starts: Mapping[tuple[str, int], int | None],
    count: int,
    config: Config | None = None,
) -> list[Stored]:
    """Read `count` records or more from assigned partitions, without a group."""
    consumer = client.consumer(
        bootstrap, {"auto.offset.reset": "earliest", "enable.auto.commit": False, **(config or {})}
    )
    try:
        consumer.assign(starts)
        return take(consumer, count)
    finally:
        consumer.close()


def take(consumer: Consumer, count: int, limit_s: float = LIMIT_S) -> list[Stored]:
    """Poll until there are `count` records or more."""
    found: list[Stored] = []
    deadline = time.monotonic() + limit_s
    while len(found) < count:
        found += consumer.poll(0.2)
        assert time.monotonic() < deadline, f"only {len(found)} of {count} records came in {limit_s} s"
    return found


class Member:
    """A member of a group that polls in a thread of its own, as applications do, until it leaves."""

    def __init__(
        self, client: Client, bootstrap: str, group: str, topics: Sequence[str], config: Config | None = None
    ) -> None:
        defaults = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        self.seen: list[Stored] = []
        self.assigned: set[tuple[str, int]] = set()
        self._consumer = client.consumer(bootstrap, {**defaults, **(config or {})})
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._left = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(list(topics),), daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """False when it failed; `leave` then raises why."""
        return self._thread.is_alive()

    def commit(self) -> None:
        self._call(self._consumer.commit)

    def leave(self) -> list[Stored]:
        """Close the consumer; everything it saw. Raises what went wrong in its thread."""
        self._left.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the consumer does not close"
        if self._failure is not None:
            raise self._failure
        return self.seen

    def _call(self, work: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()
        self._work.put((work, done))
        return done.result(LIMIT_S)

    def _run(self, topics: Sequence[str]) -> None:
        try:
            self._consumer.subscribe(topics)
            while not self._left.is_set():
                self.seen += self._consumer.poll(0.1)
                self.assigned = self._consumer.assignment()
                with contextlib.suppress(queue.Empty):
                    self._do(*self._work.get_nowait())
        except BaseException as failure:
            self._failure = failure
        finally:
            self._consumer.close()

    @staticmethod
    def _do(work: Callable[[], Any], done: "Future[Any]") -> None:
        try:
            done.set_result(work())
        except Exception as failure:
            done.set_exception(failure)


def underscored(config: Config) -> dict[str, Any]:
    """Kafka's names as the Python clients write them."""
    return {name.replace(".", "_"): value for name, value in config.items()}
