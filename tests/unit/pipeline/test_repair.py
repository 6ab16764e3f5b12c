"""Repairing a topic's table: what can be put back is put back, or the loss is accepted; nothing lands again (T9)."""

from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

from pyiceberg.expressions import EqualTo

from lakestream.errors import Rejected
from lakestream.model.streams import Stream
from lakestream.pipeline.care.repair import repair
from tests.support.external_catalog_cluster import (  # noqa: F401 (fixtures)
    VALUES,
    OutsideWorld,
    landed_stream,
    outside_world,
    sql_world,
    tools_of,
)
from tests.support.landed_table import rows as made_rows

ORDERS = ("streams", "orders")


def lose_first_file(folder: Path) -> None:
    min(folder.rglob("*.parquet"), key=lambda path: path.parent.name).unlink()


async def go_on(world: OutsideWorld, stream: Stream) -> None:
    """The topic lands again, and consumers read what is there."""
    assert world.landing().held == ""
    await world.fill(stream, tag="x")
    assert await world.land() == 0
    assert world.landing().held == "" and stream.landed == stream.next == 30
    assert (await world.values(stream))[-10:] == [b"x%d" % n for n in range(10)]


async def test_there_is_nothing_to_repair_in_a_table_that_is_as_it_should_be(
    world: OutsideWorld, stream: Stream
) -> None:
    assert await repair(tools_of(world.pipeline), "orders", accept_loss=True) == []
    with pytest.raises(Rejected, match="there is no table"):
        await repair(tools_of(world.pipeline), "nothing", accept_loss=False)


async def test_t9_a_rollback_is_undone(world: OutsideWorld, stream: Stream) -> None:
    with world.table().manage_snapshots() as change:
        change.rollback_to_snapshot(world.table().metadata.snapshots[0].snapshot_id)
    await world.follow()
    done = await repair(tools_of(world.pipeline), "orders", accept_loss=False)
    assert done == ["the main branch is at the last good snapshot again"]
    await go_on(world, stream)
    assert world.offsets() == [(0, n) for n in range(30)]


async def test_t9_a_rollback_is_accepted_and_what_it_took_is_a_gap(world: OutsideWorld, stream: Stream) -> None:
    with world.table().manage_snapshots() as change:
        change.rollback_to_snapshot(world.table().metadata.snapshots[0].snapshot_id)
    await world.follow()
    assert await repair(tools_of(world.pipeline), "orders", accept_loss=True)
    await go_on(world, stream)
    assert world.offsets() == [(0, n) for n in [*range(10), *range(20, 30)]]
    assert (await world.values(stream))[:10] == VALUES[:10]


async def test_what_was_deleted_after_a_rollback_does_not_come_back(world: OutsideWorld, stream: Stream) -> None:
    with world.table().manage_snapshots() as change:
        change.rollback_to_snapshot(world.table().metadata.snapshots[0].snapshot_id)
    world.table().delete(EqualTo("stream_offset", 3))
    await world.follow()
    with pytest.raises(Rejected, match="must not come back"):
        await repair(tools_of(world.pipeline), "orders", accept_loss=False)
    assert await repair(tools_of(world.pipeline), "orders", accept_loss=True)
    await go_on(world, stream)
    assert world.offsets() == [(0, n) for n in [*range(3), *range(4, 10), *range(20, 30)]]


async def test_foreign_rows_are_thrown_out_and_never_accepted(world: OutsideWorld, stream: Stream) -> None:
    world.table().append(made_rows([500]))
    await world.follow()
    with pytest.raises(Rejected, match="offset 500"):
        await repair(tools_of(world.pipeline), "orders", accept_loss=True)
    assert await repair(tools_of(world.pipeline), "orders", accept_loss=False)
    await go_on(world, stream)
    assert world.offsets() == [(0, n) for n in range(30)]


async def test_a_schema_and_properties_are_put_back(world: OutsideWorld, stream: Stream) -> None:
    with world.table().update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("value")
    with world.table().transaction() as change:
        change.remove_properties("lakestream.progress", "lakestream.topic-id")
    await world.follow()
    assert world.landing().held
    done = await repair(tools_of(world.pipeline), "orders", accept_loss=False)
    assert done == ["the schema is what it was", "the properties of Lakestream are what they were"]
    await go_on(world, stream)
    assert (await world.values(stream))[:20] == VALUES


async def test_a_dropped_table_is_registered_again(world: OutsideWorld, stream: Stream) -> None:
    world.catalog.drop_table(ORDERS)
    await world.follow()
    done = await repair(tools_of(world.pipeline), "orders", accept_loss=False)
    assert done == ["the table was dropped, and is registered again"]
    await go_on(world, stream)
    assert (await world.values(stream))[:20] == VALUES


async def test_a_purged_table_is_given_up_only_if_the_loss_is_accepted(world: OutsideWorld, stream: Stream) -> None:
    world.catalog.purge_table(ORDERS)
    await world.follow()
    with pytest.raises(Rejected, match="its files are gone"):
        await repair(tools_of(world.pipeline), "orders", accept_loss=False)
    done = await repair(tools_of(world.pipeline), "orders", accept_loss=True)
    assert done == ["the table is lost: the topic has another one, and goes on where it was"]
    await go_on(world, stream)
    assert world.offsets() == [(0, n) for n in range(20, 30)]


async def test_lost_data_files_are_taken_out_if_the_loss_is_accepted(world: OutsideWorld, stream: Stream) -> None:
    lose_first_file(world.folder.parent / "lake")
    with pytest.raises(Rejected, match="1 files of the table are gone"):
        await repair(tools_of(world.pipeline), "orders", accept_loss=False)
    done = await repair(tools_of(world.pipeline), "orders", accept_loss=True)
    assert done == ["1 files that are gone are not in the table any more"]
    assert await world.values(stream) == VALUES[10:]
    await go_on(world, stream)


# -- our own catalog -------------------------------------------------------------------------------------------------


async def test_lost_data_files_of_our_own_table_are_taken_out(tmp_path: Path) -> None:
    async with outside_world(tmp_path, None) as world:
        stream = await world.landed()
        lose_first_file(tmp_path)
        with pytest.raises(Rejected, match="files of the table are gone"):
            await repair(tools_of(world.pipeline), "orders", accept_loss=False)
        assert await repair(tools_of(world.pipeline), "orders", accept_loss=True)
        assert await world.values(stream) == VALUES[10:]
        await go_on(world, stream)


async def test_a_lost_metadata_file_of_our_own_table_is_replaced_by_an_older_one(tmp_path: Path) -> None:
    async with outside_world(tmp_path, None) as world:
        stream = await world.landed()
        bound = world.pipeline.replica.state.catalog.of_topic(stream.topic.id)
        assert bound is not None
        world.pipeline.store.delete([bound.location])
        tools = tools_of(world.pipeline)
        tools.committer.forget()
        with pytest.raises(Rejected, match="put it back, or accept the loss"):
            await repair(tools, "orders", accept_loss=False)
        assert await repair(tools, "orders", accept_loss=True)
        assert await world.values(stream) == VALUES[:10]
        assert world.landing().unproven, "what was given up is in no account"
        await go_on(world, stream)
