"""`lakestream verify` on a real broker and real tables: clean is clean, and every planted fault is found and named."""

from collections.abc import Iterator

import pytest

pytest.importorskip("pyiceberg")

from lakestream.model.records import Record
from tests.verify_world import VerifyWorld, verify_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VerifyWorld]:
    with verify_world(tmp_path_factory.mktemp("verify")) as one:
        yield one


def test_a_landed_topic_and_its_tail_are_clean(world: VerifyWorld) -> None:
    world.landed("clean", 500, partitions=2)
    world.append("clean", 0, [Record(timestamp=5, key=None, value=b"tail")])
    checked = world.verify("clean")
    assert checked.findings == [] and checked.code == 0
    topic = checked.topic
    assert (topic["table_rows"], topic["proven_rows"], topic["compared_rows"]) == (1000, 1000, 1000)
    assert topic["tail_records"] == 1
