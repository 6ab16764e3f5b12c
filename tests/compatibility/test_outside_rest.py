"""Topics whose tables are in a REST catalog: another cluster's, which may be down, and SeaweedFS's with its own S3."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo

from lakestream.data.tables.iceberg.pyiceberg_catalog import CatalogAddress
from lakestream.errors import Unknown
from lakestream.pipeline.care.repair import repair
from tests.support.care_cluster import care_jobs, quiet
from tests.support.catalog_server import CatalogServer
from tests.support.external_catalog_cluster import OutsideWorld, outside_world, tools_of
from tests.support.landed_table import rows as made_rows
from tests.support.s3_server import TABLES, iceberg_server


@pytest.fixture
def server(tmp_path: Path) -> CatalogServer:
    return CatalogServer(tmp_path / "theirs")


@pytest.fixture
async def world(tmp_path: Path, server: CatalogServer) -> AsyncIterator[OutsideWorld]:
    with server:
        async with outside_world(tmp_path, CatalogAddress(server.uri, "events")) as world:
            yield world


async def test_a_topic_lands_in_another_clusters_catalog(world: OutsideWorld, server: CatalogServer) -> None:
    streams = await world.broker.topic("orders", 2)
    for tag in ("v", "w"):
        await world.fill(*streams, tag=tag)
        assert await world.land() == 0
    assert world.offsets() == [(p, n) for p in range(2) for n in range(20)]
    assert ("events", "orders") in server.state.catalog.tables
    world.table().delete(EqualTo("stream_offset", 3))
    await world.follow()
    assert len(await world.values(streams[0])) == 19 and world.landing().held == ""


async def test_a_table_in_another_clusters_catalog_is_taken_care_of(world: OutsideWorld) -> None:
    stream = await world.landed()
    world.table().delete(EqualTo("stream_offset", 3))
    await world.caretaker().step()
    assert world.proven()
    jobs = care_jobs(world.pipeline, world.folder)
    await jobs.delete(stream.topic.id, "stream_offset = 12", quiet)
    await jobs.optimize(stream.topic.id, quiet, asked=True)
    assert (await jobs.expire(stream.topic.id, 0)).figures["snapshots_left"] == 1
    await world.caretaker().remove_orphans(stream.topic.id, None, dry_run=False)
    await world.pipeline.tables.delete_obsolete(0.0)
    assert world.offsets() == [(0, n) for n in range(20) if n not in (3, 12)]
    assert len(await world.values(stream)) == 18 and world.proven()


async def test_foreign_rows_and_a_dropped_table_hold_and_are_repaired(world: OutsideWorld) -> None:
    [stream] = await world.broker.topic("orders")
    await world.fill(stream)
    assert await world.land() == 0
    world.table().append(made_rows([500]))
    await world.fill(stream)
    assert await world.land() == 1 and "would be new" in world.landing().held
    assert await repair(tools_of(world.pipeline), "orders", accept_loss=False)
    assert await world.land() == 0 and world.landing().held == ""
    world.catalog.drop_table(("events", "orders"))
    await world.follow()
    assert "not in the catalog any more" in world.landing().held
    assert await repair(tools_of(world.pipeline), "orders", accept_loss=False)
    await world.fill(stream)
    assert await world.land() == 0
    assert world.offsets() == [(0, n) for n in range(30)]


async def test_while_the_catalog_is_down_topics_wait_and_are_served_and_then_catch_up(
    world: OutsideWorld, server: CatalogServer
) -> None:
    [stream] = await world.broker.topic("orders")
    await world.fill(stream)
    assert await world.land() == 0
    server.down()
    [fresh] = await world.broker.topic("fresh")
    await world.fill(stream, fresh, tag="w")
    for _ in range(3):
        assert await world.land() == 2
    assert "the catalog or its store cannot be asked" in world.landing().held
    assert "ConnectionError" in world.landing("fresh").held
    assert len(await world.values(stream)) == 20 and len(await world.values(fresh)) == 10
    server.up()
    assert await world.land() == 0
    assert world.landing().held == "" and world.landing("fresh").held == ""
    assert world.offsets() == [(0, n) for n in range(20)] and world.offsets("fresh") == [(0, n) for n in range(10)]


async def test_t7_a_commit_whose_answer_was_lost_is_looked_up(
    world: OutsideWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    [stream] = await world.broker.topic("orders")
    await world.fill(stream)
    assert await world.land() == 0
    external = world.pipeline.tables.catalogs.external
    assert external is not None
    commit = external.catalog.commit

    def unanswered(*asked: Any) -> str:
        commit(*asked)
        raise Unknown("the connection broke")

    monkeypatch.setattr(external.catalog, "commit", unanswered)
    await world.fill(stream)
    assert await world.land() == 0
    assert world.offsets() == [(0, n) for n in range(20)] and not world.pipeline.driver.freshness.setbacks


async def test_a_topic_lands_in_seaweedfs_with_catalog_and_store_elsewhere(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with iceberg_server(tmp_path_factory.mktemp("weed")) as (s3, uri):
        properties = {
            "warehouse": f"s3://{TABLES}",
            "credential": f"{s3.access_key_id}:{s3.secret_access_key}",
            "s3.endpoint": s3.endpoint,
            "s3.access-key-id": s3.access_key_id,
            "s3.secret-access-key": s3.secret_access_key,
            "s3.region": "us-east-1",
        }
        async with outside_world(tmp_path, CatalogAddress(uri, "events", properties)) as world:
            [stream] = await world.broker.topic("orders")
            for tag in ("v", "w"):
                await world.fill(stream, tag=tag)
                assert await world.land() == 0
            assert world.landing().location.startswith(f"s3://{TABLES}/")
            assert world.offsets() == [(0, n) for n in range(20)]
            world.table().delete(EqualTo("stream_offset", 3))
            await world.follow()
            assert len(await world.values(stream)) == 19
            world.table().append(made_rows([500]))
            await world.follow()
            assert "would be new" in world.landing().held
