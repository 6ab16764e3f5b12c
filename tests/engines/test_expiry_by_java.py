"""Expiry by Iceberg's Java library, as Trino and Flink call it, on a table whose history is thinned (T11)."""

import random
import subprocess
from pathlib import Path
from typing import Final

import pytest

from lakestream.data.tables.iceberg.committer import Committer
from lakestream.data.tables.iceberg.snapshot_history import SnapshotHistory
from tests.compatibility.clients.java import FLAGS
from tests.support.iceberg_tables import Lake
from tests.support.places import ROOT

PROGRAM: Final = Path(__file__).resolve().parent / "clients" / "programs" / "ExpireSnapshots.java"
TRINO: Final = ROOT / ".venv-engines" / "trino" / "server"
KEPT_MS: Final = 150_000


@pytest.mark.needs("java", "javac")
@pytest.mark.skipif(not TRINO.is_dir(), reason="Trino, which brings the library, is installed by `make environments`")
def test_icebergs_library_expires_a_thinned_history_and_deletes_no_file_that_the_table_has(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "warehouse")
    quick = SnapshotHistory(all_ms=60_000, tiers=((600_000, 30_000), (3_000_000, 300_000)), removed_ms=300_000)
    lake.committer = Committer(lake.store, random.Random(7), history=quick)
    for offset in range(61):
        lake.store.delete(lake.append([(0, offset, offset + 1)], step_ms=12_000).obsolete)
    before = lake.table.metadata.snapshots
    lake.table = lake.committer.load(expired_by_java(lake.location, lake.now_ms - KEPT_MS))
    assert len(lake.table.metadata.snapshots) < len(before)
    assert lake.cells() == [(0, offset) for offset in range(61)]


def expired_by_java(location: str, older_than_ms: int) -> str:
    """The table's metadata file afterwards."""
    jars = [*(TRINO / "plugin" / "iceberg").glob("*.jar"), *(TRINO / "lib").glob("*jackson-annotations-*.jar")]
    done = subprocess.run(
        ["java", *FLAGS, "-cp", ":".join(map(str, jars)), str(PROGRAM), location, str(older_than_ms)],
        capture_output=True, text=True, timeout=120.0,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()
