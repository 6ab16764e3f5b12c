"""The time from kill -9 under load to the next acknowledgement."""

import contextlib
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable

from bench.figures import Figure, at_most
from bench.frames import error_position, produce_frame, receive
from bench.process import CLIENT_CORE, pinned, say
from bench.yard import PARTITIONS, Broker, Yard

LOAD_S = 3.0
LIMIT_S = 180.0


def measure(yard: Yard) -> list[Figure]:
    alone, together, theirs = [], [], []
    for _ in range(yard.rounds):
        with yard.fresh() as broker:
            broker.start()
            alone.append(_until_ack(yard, broker, broker.kill_broker))
            together.append(_until_ack(yard, broker, lambda: _again(broker)))
    kafka = yard.kafka if not yard.quick else None
    if kafka is not None:
        theirs.append(_until_ack(yard, kafka, lambda: _again(kafka)))
    figures = [
        Figure(name="broker killed, to the first ack", unit="s", ours=alone, bar=at_most(3)),
        Figure(name="all killed, to the first ack", unit="s", ours=together, bar=at_most(3)),
    ]
    if theirs:
        base = theirs * len(together)
        figures.append(
            Figure(name="all killed, to the first ack", unit="s", ours=together, base_name="Kafka", base=base)
        )
    return figures


def _again(broker: Broker) -> None:
    broker.kill()
    broker.start()


def _until_ack(yard: Yard, broker: Broker, crash: Callable[[], None]) -> float:
    """Seconds from just before the kill to the first acknowledgement of a record sent after it."""
    topic = yard.topic(broker)
    load = _load(broker, topic)
    try:
        time.sleep(LOAD_S)
        assert load.poll() is None, "the load ended before the kill"
        begin = time.perf_counter()
        crash()
        _wait_for_ack(broker.bootstrap, topic, begin + LIMIT_S)
        seconds = time.perf_counter() - begin
    finally:
        load.kill()
        load.wait()
    say(f"#   {broker.name} acknowledged {seconds:.2f} s after the kill")
    return seconds


def _load(broker: Broker, topic: str) -> "subprocess.Popen[bytes]":
    asked = {"job": "produce", "bootstrap": broker.bootstrap, "pids": [], "topic": topic, "partitions": PARTITIONS}
    words = json.dumps({**asked, "size": 1000, "idempotent": True, "seconds": 600})
    argv = pinned(CLIENT_CORE, [sys.executable, "-m", "bench.client", words])
    return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _wait_for_ack(bootstrap: str, topic: str, end: float) -> None:
    host, _, port = bootstrap.rpartition(":")
    frame, place = produce_frame(topic, 0, b"x" * 100, 1), error_position(topic)
    while time.perf_counter() < end:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5.0) as connection:
            connection.sendall(frame)
            if struct.unpack_from(">h", receive(connection), place)[0] == 0:
                return
        time.sleep(0.01)
    raise TimeoutError("no acknowledgement after the restart")
