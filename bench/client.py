"""The client's side of each question, in a process of its own on the clients' core.

    python -m bench.client '{"job": "produce", "bootstrap": "127.0.0.1:9092", ...}'

The same code and the same settings for whichever broker is at the other end. Prints one line of JSON: what was done,
and the CPU time of the processes in `pids` while it was done.
"""

import json
import sys
import threading
import time
from dataclasses import asdict
from random import Random
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

from bench import pipelined
from bench.process import Meter

CHUNK = 250
POOL_BYTES = 16_000_000
"""The number of different random values: more than a compressor looks back."""
QUEUED_MAX = 200_000
FLUSH_LIMIT_S = 180
COMMON = {"broker.address.family": "v4", "log_level": 3}
PRODUCER = {
    **COMMON,
    "acks": "all",
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 65_536,
    "delivery.report.only.error": True,
}
CONSUMER = {
    **COMMON,
    "group.id": "bench",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 100,
    "queued.max.messages.kbytes": 65_536,
}

Job = dict[str, Any]


def produce(job: Job) -> Job:
    """Produce as much as possible for some seconds, round robin; the time includes the last acknowledgement."""
    failed: list[str] = []
    producer = Producer({**PRODUCER, "bootstrap.servers": job["bootstrap"], "enable.idempotence": job["idempotent"]})
    report = _reporter(failed)
    topic, partitions, size = job["topic"], job["partitions"], job["size"]
    pool = _chunks(size, job.get("noise", 0.0))
    queued_max = min(QUEUED_MAX, 48_000_000 // size)
    for partition in range(partitions):
        producer.produce(topic, b"x" * size, partition=partition, on_delivery=report)
    _flush(producer, failed)
    meter, chunks = Meter(job["pids"]), 0
    end = time.perf_counter() + job.get("seconds", 1e9)
    chunks_max = job.get("records", 1 << 60) // CHUNK
    while time.perf_counter() < end and chunks < chunks_max:
        while len(producer) > queued_max:
            producer.poll(0.002)
        producer.produce_batch(topic, pool[chunks % len(pool)], partition=chunks % partitions, on_delivery=report)
        chunks += 1
    _flush(producer, failed)
    return {"records": chunks * CHUNK, "bytes": chunks * CHUNK * size, "failed": failed, **asdict(meter.read())}


def consume(job: Job) -> Job:
    """Consume a topic from its beginning, `passes` times; timed from the first records to the last.

    With `limit_s` no pass goes on beyond it.
    """
    total, size, passes = job["records"], job["size"], job["passes"]
    limit = time.perf_counter() + job.get("limit_s", 1e9)
    consumer = Consumer({**CONSUMER, "bootstrap.servers": job["bootstrap"]})
    start = [TopicPartition(job["topic"], number, OFFSET_BEGINNING) for number in range(job["partitions"])]
    seconds, records, meter = 0.0, 0, Meter(job["pids"])
    for _ in range(passes):
        if time.perf_counter() > limit:
            break
        consumer.assign(start)
        got = _some(consumer, total)
        first, begin = got, time.perf_counter()
        while got < total and time.perf_counter() < limit:
            got += _some(consumer, total - got)
        seconds += time.perf_counter() - begin
        records += got - first
        consumer.unassign()
    usage = asdict(meter.read())
    consumer.close()
    read_bytes = total * passes * size
    return {**usage, "records": records, "bytes": records * size, "read_bytes": read_bytes, "reading_s": seconds}


def latency(job: Job) -> Job:
    """One record every 1/rate seconds, each timed from `produce` to its acknowledgement."""
    failed: list[str] = []
    times: list[float] = []
    settings = {**COMMON, "acks": "all", "linger.ms": 0, "bootstrap.servers": job["bootstrap"]}
    producer = Producer(settings)
    meter, clock = Meter(job["pids"]), time.perf_counter
    step, due, stopping = 1 / job["rate"], clock() + 0.1, threading.Event()
    value = b"x" * job["size"]

    def listen() -> None:
        """Poll in a loop of its own: librdkafka's time-outs are whole milliseconds, and a record is due in each."""
        while not stopping.is_set():
            producer.poll(0.1)

    listener = threading.Thread(target=listen)
    listener.start()
    for _ in range(job["warm"] + job["records"]):
        time.sleep(max(0.0, due - clock()))
        begin = clock()

        def acked(error: KafkaError | None, _: object, begin: float = begin) -> None:
            times.append(clock() - begin)
            if error is not None:
                failed.append(str(error))

        producer.produce(job["topic"], value, partition=0, on_delivery=acked)
        due += step
    stopping.set()
    listener.join()
    _flush(producer, failed)
    return {"times": times[job["warm"] :], "failed": failed, **asdict(meter.read())}


def tail(job: Job) -> Job:
    """Records at a steady rate, each timed from `produce` to the consumer that waits at the end of the log."""
    failed: list[str] = []
    times: list[float] = []
    topic, clock, stopping = job["topic"], time.perf_counter_ns, threading.Event()
    consumer = Consumer({**CONSUMER, "bootstrap.servers": job["bootstrap"]})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])

    def listen() -> None:
        while not stopping.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                times.append((clock() - int(message.value() or 0)) / 1e9)

    listener = threading.Thread(target=listen)
    listener.start()
    producer = Producer({**COMMON, "acks": "all", "linger.ms": 0, "bootstrap.servers": job["bootstrap"]})
    meter, report = Meter(job["pids"]), _reporter(failed)
    due, end = time.perf_counter() + 0.5, time.perf_counter() + job["seconds"]
    while due < end:
        time.sleep(max(0.0, due - time.perf_counter()))
        producer.produce(topic, b"%d" % clock(), partition=0, on_delivery=report)
        producer.poll(0)
        due += 1 / job["rate"]
    _flush(producer, failed)
    time.sleep(0.5)
    stopping.set()
    listener.join()
    consumer.close()
    return {"times": times[job["warm"] :], "failed": failed, **asdict(meter.read())}


def tiny(job: Job) -> Job:
    """Send requests of one batch, of one record by default, with a window of requests on each connection."""
    host, _, port = job["bootstrap"].rpartition(":")
    shape = (job["size"], job["window"], job.get("records", 1))
    pipelines = [
        pipelined.Pipeline((host, int(port)), job["topic"], number % job["partitions"], *shape)
        for number in range(job["connections"])
    ]
    meter = Meter(job["pids"])
    answered = pipelined.run(pipelines, job["seconds"])
    return {"requests": answered, **asdict(meter.read())}


def each_partition(job: Job) -> Job:
    """Send the first record to every partition of some topics; seconds until the last acknowledgement."""
    failed: list[str] = []
    producer = Producer({**PRODUCER, "bootstrap.servers": job["bootstrap"], "enable.idempotence": True})
    for topic in job["topics"]:
        producer.list_topics(topic, 30)
    # librdkafka waits for a producer id before its first record, mostly half a second: this is not measured.
    producer.produce(job["warm_topic"], b"x", partition=0, on_delivery=_reporter(failed))
    _flush(producer, failed)
    meter = Meter(job["pids"])
    for topic in job["topics"]:
        for partition in range(job["partitions"]):
            producer.produce(topic, b"x" * 100, partition=partition, on_delivery=_reporter(failed))
    _flush(producer, failed)
    return {"failed": failed, **asdict(meter.read())}


def _chunks(size: int, noise: float) -> list[list[dict[str, bytes]]]:
    """Lists of values; a share of each value does not compress."""
    random = Random(size)
    own = int(size * noise)
    lists = max(POOL_BYTES // (size * CHUNK), 1) if own else 1
    return [
        [{"value": random.randbytes(own) + b"x" * (size - own)} for _ in range(CHUNK)]
        for _ in range(lists)
    ]


def _some(consumer: Consumer, missing: int) -> int:
    """Consume up to `missing` messages: librdkafka waits for all of them, so ask for no more than exist."""
    messages = consumer.consume(min(missing, 1_000), 10.0)
    if not messages or any(message.error() for message in (messages[0], messages[-1])):
        raise RuntimeError(f"no records: {messages[0].error() if messages else 'ten seconds of silence'}")
    return len(messages)


def _reporter(failed: list[str]) -> Any:
    def report(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(str(error))

    return report


def _flush(producer: Producer, failed: list[str]) -> None:
    if producer.flush(FLUSH_LIMIT_S) or failed:
        raise RuntimeError(f"not acknowledged in {FLUSH_LIMIT_S} s, or refused: {failed[:3]}")


JOBS = {job.__name__: job for job in (produce, consume, latency, tail, tiny, each_partition)}

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(JOBS[asked["job"]](asked)))
