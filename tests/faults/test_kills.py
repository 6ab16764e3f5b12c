"""Processes that die under load: what was acknowledged is read exactly once, at its offset, without gaps (C1-C3)."""

import contextlib
import os
import random
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.support.acked_workload import Ledger, create_topic, ends, producing
from tests.support.serve_process import Cluster, eventually, serving

QUICK_SESSION = {"broker_session_ms": 1500, "broker_heartbeat_ms": 300}


def kill_every(cluster: Cluster, pause_s: float, seconds: float, seed: int) -> int:
    """kill -9 a broker that serves, chosen by chance, again and again; at times two are away; returns how many."""
    rng = random.Random(seed)
    deadline, kills = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        ready = eventually(lambda: [one for one in range(3) if cluster.is_ready(one)], "no broker is back", 30, cluster)
        cluster.kill(rng.choice(ready))
        kills += 1
        time.sleep(pause_s)
    for broker in range(3):
        cluster.await_broker(broker)
    return kills


def await_acks(ledger: Ledger, count: int, cluster: Cluster) -> None:
    """Wait until so many more records are acknowledged."""
    wanted = len(ledger.acked) + count
    eventually(lambda: len(ledger.acked) >= wanted, "producing does not go on", 30, cluster)


def run_with_kills(folder: Path, seconds: float, pause_s: float, **settings: int) -> None:
    with serving(folder, brokers=3, **settings) as cluster:
        create_topic(cluster.bootstrap, "load", 6)
        ledger = Ledger("load")
        with producing(cluster.kafka, ledger):
            kills = kill_every(cluster, pause_s, seconds, seed=7)
        records = ledger.check(cluster.bootstrap)
        print(f"{kills} kills, {records} records, longest silence {ledger.longest_silence_s():.2f} s")
        for address in cluster.kafka:
            assert sum(end for _, end in ends(address, "load", 6)) == records


def test_kill_9_of_brokers_loses_and_doubles_nothing(tmp_path: Path) -> None:
    run_with_kills(tmp_path, seconds=12, pause_s=1.5, **QUICK_SESSION)


@pytest.mark.long
def test_kill_9_every_few_seconds_for_a_minute_loses_and_doubles_nothing(tmp_path: Path) -> None:
    run_with_kills(tmp_path, seconds=60, pause_s=3.0)


def test_kill_9_of_the_process_that_owns_the_command_log_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, brokers=2, **QUICK_SESSION) as cluster:
        create_topic(cluster.bootstrap, "load", 6)
        ledger = Ledger("load")
        with producing(cluster.kafka, ledger):
            for _ in range(3):
                time.sleep(1.0)
                pid = eventually(cluster.owner_pid, "the command log has no owner", 30, cluster)
                os.kill(pid, signal.SIGKILL)
                await_acks(ledger, 100, cluster)
                assert cluster.owner_pid() != pid
        ledger.check(cluster.bootstrap)


def test_kill_9_of_everything_at_once_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """C1: every process dies at once, twice, and the same producers go on when all are started again."""
    ledger = Ledger("load")
    port = free_ports_in_a_row(2)
    addresses = [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]
    with contextlib.ExitStack() as load:
        for life in range(3):
            with serving(tmp_path, brokers=2, kafka_port=port, **QUICK_SESSION) as cluster:
                if life == 0:
                    create_topic(cluster.bootstrap, "load", 6)
                    load.enter_context(producing(addresses, ledger))
                await_acks(ledger, 500, cluster)
                if life < 2:
                    cluster.crash()
                    continue
                load.close()
                ledger.check(cluster.bootstrap)


@pytest.mark.long
def test_a_broker_acknowledges_again_within_3_s_of_its_kill_9_under_load(tmp_path: Path) -> None:
    """A matter of time, and so of the machine: run it alone."""
    ledger = Ledger("load")
    with serving(tmp_path) as cluster:
        create_topic(cluster.bootstrap, "load", 6)
        with producing(cluster.kafka * 2, ledger, burst=50):
            time.sleep(2.0)
            pid = cluster.kill(0)
            killed_at = time.monotonic()
            cluster.await_broker(0, not_pid=pid)
            eventually(lambda: ledger.ack_times[-1] > killed_at + 0.5, "nothing is acknowledged", 30, cluster)
        ledger.check(cluster.bootstrap)
        print(f"first ack {ledger.longest_silence_s():.2f} s after the last one before")
        assert ledger.longest_silence_s() < 3.0


def free_ports_in_a_row(count: int) -> int:
    """The first of some neighbouring ports that are free."""
    for _ in range(100):
        with contextlib.ExitStack() as held, contextlib.suppress(OSError, OverflowError):
            first = 0
            for number in range(count):
                one = held.enter_context(socket.socket())
                one.bind(("127.0.0.1", first + number if first else 0))
                first = first or one.getsockname()[1]
            return first
    raise AssertionError(f"there are no {count} neighbouring free ports")
