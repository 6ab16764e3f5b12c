"""`lakestream verify` where records and tables lie in a bucket."""

from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")

from tests.support.broker_and_pipeline import live_files
from tests.support.s3_server import BUCKET, s3_server
from tests.support.verified_broker import plain_records, verify_world


def test_a_topic_in_a_bucket_is_checked_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weed").mkdir()
    with s3_server(tmp_path / "weed") as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_access_key)
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        with verify_world(tmp_path, f"s3://{BUCKET}/lake") as remote:
            remote.landed("far", 300, partitions=2)
            remote.append("far", 1, plain_records(5, "tail"))
            checked = remote.verify("far")
            assert checked.findings == [] and checked.code == 0
            assert (checked.topic["proven_rows"], checked.topic["tail_records"]) == (600, 5)
            [file] = live_files(remote.store, remote.location("far"))
            remote.store.delete([file])
            assert {"missing-file", "lost-rows"} <= remote.verify("far").kinds
