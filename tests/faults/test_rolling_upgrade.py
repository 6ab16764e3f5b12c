"""A rolling upgrade of live brokers, from the last version of the first feature level to this one, under load (L3)."""

import io
import json
import subprocess
import tarfile
import urllib.request
from pathlib import Path

import pytest

from lakestream.model.levels import FIRST, NEWEST
from tests.support.acked_workload import Ledger, create_topic, producing
from tests.support.places import ROOT
from tests.support.serve_process import Cluster, eventually, serving

LAST_OF_THE_FIRST_LEVEL = "8aedd2333608"
BROKERS = 3
QUICK = {"checkpoint_every": 50, "broker_session_ms": 3000, "broker_heartbeat_ms": 500}


def old_code(folder: Path) -> Path:
    """The source tree of the version before, out of the repository's history."""
    asked = ["git", "-C", str(ROOT), "archive", LAST_OF_THE_FIRST_LEVEL, "lakestream"]
    done = subprocess.run(asked, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("the repository's history has no older version (a shallow clone)")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "lakestream"


def level_at(cluster: Cluster, broker: int) -> int:
    with urllib.request.urlopen(f"http://{cluster.http[broker]}/metadata", timeout=5.0) as answer:
        return int(json.loads(answer.read())["level"])


def test_brokers_are_upgraded_one_by_one_under_load_and_the_last_one_raises_the_level_L3(tmp_path: Path) -> None:
    code, old = tmp_path / "code", old_code(tmp_path / "old")
    code.mkdir()
    (code / "lakestream").symlink_to(old)
    ledger = Ledger("upgraded", 3)
    with serving(tmp_path, BROKERS, code=code, **QUICK) as cluster:
        create_topic(cluster.bootstrap, "upgraded", 3)
        with producing(cluster.kafka, ledger, burst=5):
            eventually(lambda: len(ledger.acked) > 300, "the old brokers take no records", 30.0, cluster)
            (code / "lakestream").unlink()
            (code / "lakestream").symlink_to(ROOT / "lakestream")
            for broker in range(BROKERS):
                assert level_at(cluster, broker) == FIRST
                gone = cluster.kill(broker)
                cluster.await_broker(broker, not_pid=gone)
                acked = len(ledger.acked)
                eventually(lambda at=acked: len(ledger.acked) > at + 100, "no records after an upgrade", 30.0, cluster)  # type: ignore[misc]
            eventually(
                lambda: all(level_at(cluster, broker) == NEWEST for broker in range(BROKERS)),
                "the level was not raised", 30.0, cluster,
            )  # fmt: skip
        ledger.check(cluster.bootstrap)
    with serving(tmp_path, BROKERS) as cluster:
        ledger.check(cluster.bootstrap)
        assert level_at(cluster, 0) == NEWEST
    with pytest.raises(AssertionError, match="the cluster is at feature level"), serving(
        tmp_path, BROKERS, code=tmp_path / "old"
    ):
        pass
