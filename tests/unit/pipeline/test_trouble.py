"""A pipeline that cannot start says why in the state, and takes it back when one can."""

from pathlib import Path
from random import Random

import pytest

from lakestream.data.folder import FolderWal
from lakestream.metadata.stores.memory import MemoryLog
from lakestream.pipeline import service
from lakestream.pipeline.listing import describe_pipeline
from lakestream.pipeline.service import Pipeline, ServiceOptions
from lakestream.pipeline.spark.java import NoJava
from lakestream.process.clock import SystemClock
from tests.support.broker_and_pipeline import start_both


class NoSpark:
    @classmethod
    def start(cls, *_: object) -> None:
        raise NoJava("there is no Java here")


async def test_why_no_pipeline_runs_is_noted_unless_another_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "Spark", NoSpark)
    broker, running, log = await start_both(tmp_path)

    async def start() -> None:
        pipeline = Pipeline(
            MemoryLog(log), FolderWal(tmp_path), SystemClock(), Random(3), ServiceOptions(root=f"file://{tmp_path}")
        )
        with pytest.raises(NoJava):
            await pipeline.run(lambda: None)
        await broker.replica.catch_up()

    await start()
    told = describe_pipeline(broker.replica.state)
    assert told["running"] and not told["trouble"], "one that runs is not disturbed by one that cannot"
    assert running.replica.epoch == running.replica.state.members.by_id[1_000_000].epoch
    await running.membership.leave()
    await start()
    told = describe_pipeline(broker.replica.state)
    assert not told["running"] and told["trouble"] == "there is no Java here"
    await running.stop()
    await broker.stop()
