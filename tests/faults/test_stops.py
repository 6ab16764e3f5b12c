"""Processes that freeze, drain or come back late: nothing is lost, nothing is doubled, nobody is held up."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.acked_workload import Ledger, create_topic, ends, producing, send
from tests.support.serve_process import Cluster, eventually, serving

QUICK_SESSION = {"broker_session_ms": 1500, "broker_heartbeat_ms": 300}


def freeze_in_turn(cluster: Cluster, ledger: Ledger, rounds: int, frozen_s: float) -> None:
    """Each broker is stopped for longer than its session, the others go on, and it finds itself fenced."""
    for turn in range(rounds):
        broker = turn % 3
        pid = cluster.stop(broker)
        before = len(ledger.acked)
        time.sleep(frozen_s)
        assert len(ledger.acked) > before, "a frozen broker froze the others (L15)"
        cluster.resume(pid)
        cluster.await_broker(broker)
        time.sleep(0.5)


def run_with_freezes(folder: Path, rounds: int, frozen_s: float, **settings: int) -> None:
    with serving(folder, brokers=3, **settings) as cluster:
        create_topic(cluster.bootstrap, "load", 6)
        ledger = Ledger("load")
        with producing(cluster.kafka, ledger, settings={"socket.timeout.ms": 3000}):
            freeze_in_turn(cluster, ledger, rounds, frozen_s)
        records = ledger.check(cluster.bootstrap)
        assert "expiring it" in cluster.log_text()
        for address in cluster.kafka:
            assert sum(end for _, end in ends(address, "load", 6)) == records


def test_brokers_stopped_for_longer_than_their_session_lose_and_double_nothing(tmp_path: Path) -> None:
    run_with_freezes(tmp_path, rounds=3, frozen_s=3.0, **QUICK_SESSION)


@pytest.mark.long
def test_brokers_stopped_for_longer_than_the_default_session_lose_and_double_nothing(tmp_path: Path) -> None:
    run_with_freezes(tmp_path, rounds=4, frozen_s=13.0)


def test_a_broker_whose_own_session_ended_while_it_was_stopped_never_acknowledges_with_its_old_epoch(
    tmp_path: Path,
) -> None:
    """It is fenced by the log, joins with a new epoch and serves again; offsets go on without a gap."""
    with serving(tmp_path, brokers=2, **QUICK_SESSION) as cluster:
        create_topic(cluster.bootstrap, "t", 1)
        assert send(cluster.kafka[0], "t", [b"a-1"]) == [0]
        pid = cluster.stop(0)
        eventually(lambda: "member 0 was not heard" in cluster.log_text(), "it is not expired", 15, cluster)
        assert send(cluster.kafka[1], "t", [b"b-1", b"b-2"]) == [1, 2]
        cluster.resume(pid)
        eventually(lambda: "of member 0 has ended" in cluster.log_text(), "it does not notice", 15, cluster)
        assert cluster.await_broker(0) == pid, "it goes on in the same process"
        assert send(cluster.kafka[0], "t", [b"c-1"]) == [3]


def test_a_stopped_owner_of_the_command_log_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """All are blind for a while (L8): clients are let go, and served again without losing anything."""
    with serving(tmp_path, brokers=2, **QUICK_SESSION) as cluster:
        create_topic(cluster.bootstrap, "load", 6)
        ledger = Ledger("load")
        with producing(cluster.kafka, ledger, settings={"socket.timeout.ms": 3000}):
            pid = eventually(cluster.owner_pid, "no owner", 10, cluster)
            os.kill(pid, signal.SIGSTOP)
            try:
                eventually(lambda: cluster.log_text().count("blind: ") >= 2, "nobody notices", 20, cluster)
                assert not cluster.is_ready(0)
            finally:
                cluster.resume(pid)
            cluster.await_broker(0)
            cluster.await_broker(1)
            before = len(ledger.acked)
            eventually(lambda: len(ledger.acked) > before + 100, "producing does not go on", 30, cluster)
        ledger.check(cluster.bootstrap)
        # An outage of the store expires nobody (L13).
        assert "expiring it" not in cluster.log_text()


def test_sigterm_of_one_broker_under_load_answers_what_is_in_flight(tmp_path: Path) -> None:
    with serving(tmp_path, brokers=2, **QUICK_SESSION) as cluster:
        create_topic(cluster.bootstrap, "load", 6)
        ledger = Ledger("load")
        with producing(cluster.kafka, ledger):
            for turn in range(2):
                time.sleep(1.0)
                pid = cluster.kill(turn, signal.SIGTERM)
                cluster.await_broker(turn, not_pid=pid)
        ledger.check(cluster.bootstrap)
        # It left by itself: nobody had to wait for its session to pass.
        assert "expiring it" not in cluster.log_text()
        assert "not answered" not in cluster.log_text()


def test_sigterm_of_everything_under_load_loses_nothing_and_ends_cleanly(tmp_path: Path) -> None:
    ledger = Ledger("load")
    with serving(tmp_path, brokers=2, **QUICK_SESSION) as cluster:
        create_topic(cluster.bootstrap, "load", 6)
        with producing(cluster.kafka, ledger, settings={"message.timeout.ms": 3000}):
            time.sleep(2.0)
            began = time.monotonic()
            assert cluster.shut_down() == 0
            assert time.monotonic() - began < 10.0
            assert "killing it" not in cluster.log_text()
    assert len(ledger.acked) > 500
    with serving(tmp_path, brokers=2, **QUICK_SESSION) as cluster:
        ledger.check(cluster.bootstrap, may_fail=True)
