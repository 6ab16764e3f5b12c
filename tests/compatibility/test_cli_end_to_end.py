"""Every command against a running cluster of two brokers, as a script would use them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import ROOT

Run = Callable[..., str]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("cluster")
    flags = ["--data", str(folder / "data"), "--brokers", "2", "--kafka-port", "0", "--http-port", "0", "--no-tables"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "lakestream.cli.main", "serve", *flags], cwd=folder, stdout=subprocess.PIPE,
            stderr=log, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            assert line.startswith("ready kafka="), (folder / "log").read_text()
            yield line.split()[1].removeprefix("kafka=")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@pytest.fixture
def run(bootstrap: str, tmp_path: Path) -> Run:
    def command(*argv: str, stdin: str = "", code: int = 0, remarks: bool = False) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "lakestream.cli.main", *argv], cwd=tmp_path, input=stdin, capture_output=True,
            text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT), "LAKESTREAM_BOOTSTRAP": bootstrap},
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 and not remarks else done.stderr

    return command


def parsed(text: str) -> Any:
    return json.loads(text)


def test_topics_are_created_listed_described_altered_and_deleted(run: Run) -> None:
    run("topics", "create", "one", "--partitions", "3", "--config", "retention.ms=100000")
    assert "TOPIC_ALREADY_EXISTS" in run("topics", "create", "one", code=1)
    run("topics", "create", "one", "--if-not-exists")
    assert {"one"} <= {topic["name"] for topic in parsed(run("topics", "list", "--json"))}
    run("topics", "alter", "one", "--partitions", "4", "-c", "max.message.bytes=2000000", "-d", "retention.ms")
    (described,) = parsed(run("topics", "describe", "one", "--json"))
    assert described["configs"] == {"max.message.bytes": "2000000"}
    assert [(p["partition"], p["earliest"], p["latest"]) for p in described["partitions"]] == [
        (i, 0, 0) for i in range(4)
    ]
    run("topics", "delete", "one")
    assert "UNKNOWN_TOPIC_OR_PARTITION" in run("topics", "delete", "one", code=1)
    run("topics", "delete", "one", "--if-exists")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_goes_in_comes_out_with_keys_and_headers(run: Run, codec: str) -> None:
    topic = f"through-{codec}"
    run("topics", "create", topic, "--partitions", "2")
    run("produce", topic, "-k", ":", "-H", "h=1", "--compression", codec, stdin="k1:v1\nk2:v2\nk1:v3\n")
    run(
        "produce", topic, "--json", stdin='{"value": null, "key": {"base64": "/w=="}, "partition": 1, "timestamp": 7}\n'
    )
    records = [json.loads(line) for line in run("consume", topic, "--from-beginning", "-e", "--json").splitlines()]
    by_key = {(r["key"], r["value"]) for r in records if r["timestamp"] != 7}
    assert by_key == {("k1", "v1"), ("k2", "v2"), ("k1", "v3")}
    assert all(r["headers"] == [["h", "1"]] for r in records if r["timestamp"] != 7)
    (odd,) = [r for r in records if r["timestamp"] == 7]
    assert (odd["key"], odd["value"], odd["partition"]) == ({"base64": "/w=="}, None, 1)


def test_consuming_can_start_and_stop_anywhere(run: Run) -> None:
    run("topics", "create", "places")
    told = run("produce", "places", stdin="".join(f"{i}\n" for i in range(10)), remarks=True)
    assert told.startswith("produced 10 records (10 bytes) to places in ")
    assert run("consume", "places", "-o", "7", "-e") == "7\n8\n9\n"
    assert run("consume", "places", "-o", "-2", "-e") == "8\n9\n"
    assert run("consume", "places", "--from-beginning", "-n", "2") == "0\n1\n"
    assert run("consume", "places", "-o", "@0", "-n", "1") == "0\n"
    assert run("consume", "places", "-e") == ""
    assert run("consume", "places", "-o", "11", "-e", remarks=True).startswith("places-0 ends at 10, before offset 11")
    assert "has no partition 5" in run("consume", "places", "-p", "5", code=1)


def test_an_interrupted_producer_says_what_it_has_written(run: Run, bootstrap: str, tmp_path: Path) -> None:
    run("topics", "create", "cut")
    argv = [sys.executable, "-m", "lakestream.cli.main", "produce", "cut", "--bootstrap", bootstrap]
    with subprocess.Popen(
        argv, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"one\ntwo\npart")
        process.stdin.flush()
        assert run("consume", "cut", "--from-beginning", "-n", "2") == "one\ntwo\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 1
        assert process.stderr.read().decode().startswith("interrupted; produced 2 records (6 bytes) to cut in ")
    assert run("consume", "cut", "--from-beginning", "-e") == "one\ntwo\n"


def test_a_group_goes_on_where_it_was_until_its_offsets_are_reset(run: Run) -> None:
    run("topics", "create", "work", "--partitions", "2")
    run("produce", "work", "-k", ":", stdin="".join(f"k{i}:{i}\n" for i in range(20)))
    first = run("consume", "work", "-g", "g", "--from-beginning", "-e").split()
    assert sorted(map(int, first)) == list(range(20))
    assert run("consume", "work", "-g", "g", "-e") == ""
    (described,) = parsed(run("groups", "describe", "g", "--json"))
    assert (described["state"], described["lag"]) == ("Empty", 0)
    assert {"group": "g", "state": "Empty", "protocol_type": "consumer"} in parsed(run("groups", "list", "--json"))
    run("groups", "reset-offsets", "g", "-t", "work:0", "--to-earliest")
    (described,) = parsed(run("groups", "describe", "g", "--json"))
    ends = {p["partition"]: p["end"] for p in described["partitions"]}
    assert {p["partition"]: p["lag"] for p in described["partitions"]} == {0: ends[0], 1: 0}
    assert len(run("consume", "work", "-g", "g", "-e").split()) == ends[0]
    run("groups", "delete-offsets", "g", "-t", "work")
    run("groups", "delete", "g")
    assert "there is no such group" in run("groups", "delete", "g", code=1)


def test_two_members_share_a_group(run: Run, bootstrap: str, tmp_path: Path) -> None:
    run("topics", "create", "shared", "--partitions", "4")
    argv = [sys.executable, "-m", "lakestream.cli.main", "consume", "shared", "-g", "pair", "--from-beginning"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LAKESTREAM_BOOTSTRAP": bootstrap}
    outputs = [(tmp_path / str(i)).open("w+") for i in range(2)]
    members = [subprocess.Popen(argv, cwd=tmp_path, stdout=out, env=environment) for out in outputs]
    try:
        deadline = time.monotonic() + 40
        owners: set[str] = set()
        while len(owners) < 2 and time.monotonic() < deadline:
            time.sleep(0.3)
            listed = [g["group"] for g in parsed(run("groups", "list", "--json"))]
            if "pair" in listed:
                (described,) = parsed(run("groups", "describe", "pair", "--json"))
                owners = {p["member"] for p in described["partitions"] if p["member"]}
        assert len(owners) == 2
        lines = "".join(f"k{i}:{i}\n" for i in range(100))
        run("produce", "shared", "-k", ":", stdin=lines)
        while sum(p["lag"] or 0 for p in parsed(run("groups", "describe", "pair", "--json"))[0]["partitions"]):
            assert time.monotonic() < deadline + 20
    finally:
        for member in members:
            member.send_signal(signal.SIGTERM)
        codes = [member.wait(20) for member in members]
    assert codes == [0, 0]
    shares = [(tmp_path / str(i)).read_text().split() for i in range(2)]
    assert all(shares) and sorted(map(int, shares[0] + shares[1])) == list(range(100))


def test_brokers_say_who_they_are_and_any_of_them_may_be_asked(run: Run, bootstrap: str) -> None:
    brokers = parsed(run("brokers", "--json", "--bootstrap", bootstrap.split(",")[1]))
    assert [broker["id"] for broker in brokers] == [0, 1]
    assert ",".join(f"{broker['host']}:{broker['port']}" for broker in brokers) == bootstrap
    for broker in brokers:
        assert broker["epoch"] >= 0 and Path(f"/proc/{broker['pid']}").exists() and ":" in broker["http"]


def test_the_state_is_shown_and_its_commands_are_followed(run: Run) -> None:
    run("topics", "create", "seen")
    state = parsed(run("metadata", "show", "--json"))
    assert state["sequence"] > 0
    assert run("metadata", "show")
    after = str(max(0, state["sequence"] - 3))
    lines = run("metadata", "follow", "--json", "--after", after, "-n", "2").splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == [int(after) + 1, int(after) + 2]
