"""Consumer groups while brokers die: members carry on from what they committed, no record goes unprocessed (L30)."""

import threading
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.support.acked_workload import Ledger, create_topic, producing
from tests.support.serve_process import eventually, serving

QUICK_SESSION = {"broker_session_ms": 1500, "broker_heartbeat_ms": 300, "group_min_session_timeout_ms": 1000}
GROUP = {
    "group.id": "workers",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 500,
    "reconnect.backoff.max.ms": 500,
    "socket.timeout.ms": 5000,
    "fetch.wait.max.ms": 100,
    "log_level": 0,
}


class Worker(threading.Thread):
    """A group member that processes, commits, and only then counts the record as done."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer({**GROUP, "bootstrap.servers": bootstrap})
        self._over = threading.Event()
        self.processed: list[tuple[int, int, bytes]] = []
        self.committed: dict[int, int] = {}
        self.went_back: list[str] = []
        self.failed: list[str] = []

    def run(self) -> None:
        self._consumer.subscribe(["load"], on_assign=self._on_assign)
        try:
            while not self._over.is_set():
                self._work()
        except KafkaException as error:
            self.failed.append(str(error))
        finally:
            self._consumer.close()

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        """Whoever takes a partition over starts at what was committed last, never below what this member committed."""
        for found in consumer.committed(assigned, timeout=20):
            if 0 <= found.offset < self.committed.get(found.partition, 0):
                self.went_back.append(f"{found.partition}: {found.offset} < {self.committed[found.partition]}")

    def _work(self) -> None:
        messages = [one for one in self._consumer.consume(200, timeout=0.2) if one.error() is None]
        ends: dict[int, int] = {}
        for one in messages:
            partition, offset, value = one.partition(), one.offset(), one.value()
            assert partition is not None and offset is not None and value is not None
            self.processed.append((partition, offset, value))
            ends[partition] = offset + 1
        if ends:
            self._commit(ends)

    def _commit(self, ends: dict[int, int]) -> None:
        try:
            done = self._consumer.commit(
                offsets=[TopicPartition("load", one, end) for one, end in ends.items()], asynchronous=False
            )
        except KafkaException as error:
            # A rebalance took the partitions, or no coordinator was found in time: somebody processes them again.
            assert not error.args[0].fatal(), error
            return
        for one in done or []:
            if one.error is None:
                self.committed[one.partition] = max(one.offset, self.committed.get(one.partition, 0))

    def stop(self) -> None:
        self._over.set()
        self.join(60)
        assert not self.is_alive()


def test_a_group_processes_every_acked_record_while_its_coordinators_are_killed(tmp_path: Path) -> None:
    with serving(tmp_path, brokers=3, **QUICK_SESSION) as cluster:
        create_topic(cluster.bootstrap, "load", 6)
        ledger = Ledger("load")
        workers = [Worker(cluster.bootstrap) for _ in range(3)]
        with producing(cluster.kafka, ledger, burst=5):
            for worker in workers:
                worker.start()
            for broker in range(3):
                time.sleep(2.0)
                pid = cluster.kill(broker)
                cluster.await_broker(broker, not_pid=pid)
        eventually(lambda: set(ledger.acked) <= seen(workers), "records are not processed", 60, cluster)
        ends = Counter(partition for partition, _ in ledger.acked.values())
        # What every member knows to be committed is what the group goes on from.
        eventually(lambda: committed(cluster.bootstrap) == dict(ends), "not all is committed", 30, cluster)
        for worker in workers:
            worker.stop()
        assert [worker.failed for worker in workers] == [[], [], []]
        assert [worker.went_back for worker in workers] == [[], [], []]
        assert sum(len(worker.processed) for worker in workers) < 3 * len(ledger.acked)
        ledger.check(cluster.bootstrap)
        assert nothing_left(cluster.bootstrap)


def seen(workers: list[Worker]) -> set[bytes]:
    return {value for worker in workers for *_, value in worker.processed}


def committed(bootstrap: str) -> dict[int, int]:
    consumer = Consumer({**GROUP, "bootstrap.servers": bootstrap})
    try:
        found = consumer.committed([TopicPartition("load", one) for one in range(6)], timeout=20)
        return {one.partition: one.offset for one in found}
    except KafkaException as error:
        assert error.args[0].code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._WAIT_COORD), error
        return {}
    finally:
        consumer.close()


def nothing_left(bootstrap: str) -> bool:
    """A member that joins afterwards gets no record a second time."""
    worker = Worker(bootstrap)
    worker.start()
    time.sleep(3.0)
    worker.stop()
    return worker.processed == []
