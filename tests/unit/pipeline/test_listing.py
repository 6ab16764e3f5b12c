"""What `lakestream tables` says: every topic's table, its lag, what holds it, and whether anybody lands."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from lakestream import metrics
from lakestream.cli import tables
from lakestream.cli.main import cli
from lakestream.cli.tables import AT_ONCE
from lakestream.model.catalog.care import DONE, REQUESTS_MAX, NotePipeline, TellCare
from lakestream.model.catalog.landed import HoldTopic
from lakestream.pipeline.care.caretaker import quiet
from lakestream.protocol.http.server import HttpServer
from tests.support.care_cluster import CareWorld, start_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[CareWorld]:
    made = await start_world(tmp_path)
    yield made
    await made.stop()


async def test_a_table_is_listed_with_rows_progress_and_what_waits(world: CareWorld) -> None:
    streams = await world.broker.topic("orders", 2)
    await world.land(*streams)
    await world.fill(streams[0], records=3)
    result = await world.command("list", "--json")
    assert result.exit_code == 0
    told = json.loads(result.output)
    assert told["pipeline"]["running"] and told["pipeline"]["members"][0]["id"] == 1_000_000
    [one] = told["tables"]
    assert (one["topic"], one["table"], one["rows"], one["files"]) == ("orders", "streams.orders", 20, 1)
    assert one["uuid"] and one["location"].startswith(f"file://{world.folder}")
    assert (one["records_waiting"], one["freshness_ms"], one["held"]) == (3, 5000, "")
    assert one["bytes_waiting"] > 0 and one["committed_ms"] > 0
    assert [(part["landed"], part["end"], part["waiting"]) for part in one["partitions"]] == [(10, 13, 3), (10, 10, 0)]
    plain = await world.command()
    assert plain.output.splitlines()[0].split()[:3] == ["TOPIC", "ROWS", "FILES"]
    assert "orders" in plain.output and " ok" in plain.output


async def test_one_table_is_described_partition_by_partition(world: CareWorld) -> None:
    streams = await world.broker.topic("orders", 2)
    await world.land(*streams)
    result = await world.command("describe", "orders")
    assert result.exit_code == 0 and "metadata location" in result.output and "partitions" in result.output
    for name in ("landed", "committed"):
        assert re.search(rf"^{name} +[0-9.]+ s ago$", result.output, re.MULTILINE)
    assert re.search(r"^freshness +5\.0 s$", result.output, re.MULTILINE)
    missing = await world.command("describe", "nothing")
    assert missing.exit_code != 0 and str(missing.exception) == "there is no topic 'nothing'"


async def test_a_table_says_how_far_back_it_goes_and_what_its_snapshots_pin(world: CareWorld) -> None:
    [stream] = await world.broker.topic("orders")
    for _ in range(3):
        await world.land(stream)
    small = sum(path.stat().st_size for path in world.folder.rglob("*.parquet"))
    [one] = json.loads((await world.command("describe", "orders", "--json")).output)["tables"]
    assert (one["pinned_files"], one["pinned_bytes"], one["snapshots"]) == (0, 0, 3)
    await world.jobs.optimize(stream.topic.id, quiet, asked=True)
    [one] = json.loads((await world.command("describe", "orders", "--json")).output)["tables"]
    assert (one["pinned_files"], one["pinned_bytes"], one["snapshots"]) == (3, small, 4)
    assert one["pinned_metadata_bytes"] > 0 and one["oldest_snapshot_ms"] <= one["committed_ms"]
    shown = (await world.command("describe", "orders")).output
    assert re.search(r"^pinned bytes +[0-9.]+ (bytes|KB)$", shown, re.MULTILINE)
    assert re.search(r"^oldest snapshot +[0-9.]+ s ago$", shown, re.MULTILINE)
    listed = (await world.command("list")).output
    assert "HISTORY" in listed.splitlines()[0] and "pinned" not in listed


async def test_options_of_the_group_count_for_its_commands_unless_they_have_their_own(world: CareWorld) -> None:
    await world.broker.topic("orders")
    for command in (["list"], ["describe", "orders"]):
        told = json.loads((await world.command("--json", *command)).output)
        assert [one["topic"] for one in told["tables"]] == ["orders"]
    nobody = ("--http", "127.0.0.1:1", "--bootstrap", "127.0.0.1:1")
    assert "orders" in (await world.command(*nobody, "list")).output
    reached = await asyncio.to_thread(CliRunner().invoke, cli, ["tables", "--http", world.page, "list"])
    assert "orders" in reached.output


async def test_a_held_topic_says_why_and_is_released_by_command(world: CareWorld) -> None:
    [stream] = await world.broker.topic("orders")
    await world.land(stream)
    await world.broker.replica.propose(HoldTopic(stream.topic.id, "a person said so"))
    assert "held: a person said so" in (await world.command("list")).output
    released = await world.command("release", "orders")
    assert (released.exit_code, released.output) == (0, "orders: released\n")
    assert "held" not in (await world.command("list")).output


async def test_a_topic_without_a_table_is_off_and_one_with_a_lost_metadata_file_says_so(world: CareWorld) -> None:
    await world.broker.topic("private", **{"lakestream.table.enabled": "false"})
    [stream] = await world.broker.topic("orders")
    await world.land(stream)
    location = world.pipeline.replica.state.catalog.tables["streams", "orders"].location
    world.pipeline.store.delete([location])
    output = (await world.command("list")).output
    assert "off (lakestream.table.enabled=false)" in output and "metadata cannot be read" in output


async def test_without_a_pipeline_it_is_said_and_why_if_known(world: CareWorld) -> None:
    [stream] = await world.broker.topic("orders")
    await world.pipeline.membership.leave()
    await world.fill(stream)
    result = await world.command("list")
    assert "waits for a pipeline" in result.output and "no pipeline runs" in result.stderr
    assert "Spark takes some seconds to start" in result.stderr
    await world.broker.replica.propose(NotePipeline("there is no Java"))
    assert "there is no Java" in (await world.command("list")).stderr
    asked = await world.command("optimize", "orders", "--no-wait")
    assert asked.exit_code == 0 and "waiting" in asked.output


@pytest.mark.parametrize("argv", [["list"], ["describe", "orders"], ["optimize"], ["optimize", "orders"]])
async def test_a_broker_without_tables_says_so(world: CareWorld, argv: list[str]) -> None:
    bare = HttpServer(replace(world.http._sources, tables=None, tail=None), "127.0.0.1", 0)
    host, port = await bare.start()
    try:
        result = await replace(world, page=f"{host}:{port}").command(*argv)
    finally:
        await bare.stop()
    assert str(result.exception) == (
        f"the broker at {host}:{port} has no tables: start it with tables on (lakestream serve --tables)"
    )


def test_sizes_among_the_figures_of_care_are_told_once() -> None:
    one = {"status": DONE, "text": "", "figures": {"files": 1200, "bytes": 0, "freed_bytes": 5000}}
    assert tables._answer(one) == "done; files 1,200, 0 bytes, freed 5.0 KB"


async def test_more_topics_than_requests_are_noted_are_taken_care_of_a_few_at_a_time(world: CareWorld) -> None:
    streams = [(await world.broker.topic(f"t{number:03}"))[0] for number in range(REQUESTS_MAX + 5)]
    await world.land(*streams, records=1)

    async def do_all() -> None:
        replica = world.broker.replica
        while True:
            for request in replica.state.care.waiting():
                await replica.propose(TellCare(request, DONE, "seen", {}))
            await asyncio.sleep(0.01)

    doing = asyncio.create_task(do_all())
    try:
        result = await world.command("repair")
    finally:
        doing.cancel()
    assert result.exit_code == 0
    assert result.output.splitlines() == [f"t{number:03}: seen" for number in range(REQUESTS_MAX + 5)]


async def test_without_a_pipeline_only_some_of_many_topics_are_asked_for_and_that_is_said(
    world: CareWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [(await world.broker.topic(f"t{number:03}"))[0] for number in range(AT_ONCE + 2)]
    await world.land(*streams, records=1)
    await world.pipeline.membership.leave()
    monkeypatch.setattr(tables, "NO_PIPELINE_S", 0.1)
    result = await world.command("optimize")
    assert result.exit_code == 2 and result.stderr.count("no pipeline runs") == 1
    assert "2 more topics, t020 to t021, have no request" in result.stderr
    assert len(world.broker.replica.state.care.waiting()) == AT_ONCE


async def test_a_request_is_asked_for_by_http_and_its_answer_found_there(world: CareWorld) -> None:
    [stream] = await world.broker.topic("orders")
    async with httpx.AsyncClient(base_url=f"http://{world.page}") as client:
        asked = await client.post("/tables/orders/delete", json={"where": "true"})
        assert asked.status_code == 202
        request = asked.json()["request"]
        assert (await client.get(f"/care/{request}")).json()["status"] == "waiting"
        await world.broker.replica.propose(TellCare(bytes.fromhex(request), DONE, "all", {"rows": 5}))
        told = (await client.get(f"/care/{request}")).json()
        assert (told["status"], told["figures"], told["topic"]) == (DONE, {"rows": 5}, stream.topic.name)
        assert (await client.get("/care/00")).status_code == 404
        assert (await client.get("/care/zz")).status_code == 404
        assert (await client.get("/tables/nothing")).status_code == 404
        assert (await client.post("/tables/nothing/optimize", json={})).status_code == 404
        assert (await client.post("/tables/orders/dance", json={})).status_code == 400
        assert (await client.post("/tables/orders/delete", json={"where": 5})).status_code == 400
        assert (await client.post("/tables/orders/delete", json={"where": "x" * 70_000})).status_code == 413
        assert (await client.post("/tables/orders/optimize", data={"a": "b"})).status_code == 415


async def test_each_topics_lag_is_a_metric(world: CareWorld) -> None:
    [stream] = await world.broker.topic("orders")
    await world.fill(stream)
    series = {figure.name: found for figure, found in world.metrics.series()}
    found = series[metrics.TOPIC_TABLE_LAG_SECONDS.name]
    assert list(found) == [("orders",)]
