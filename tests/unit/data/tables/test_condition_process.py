"""Conditions in a process of their own: whatever they do, they end, and take nothing along."""

import os
import signal

import psutil
import pyarrow as pa
import pytest

from lakestream.data.tables.conditions.condition import BadCondition
from lakestream.data.tables.conditions.process import ConditionHung, ConditionProcess, check_apart
from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA
from tests.unit.data.tables.test_conditions import rows

FOR_EVER = "length(lpad('x', 2000000000, 'y')) > stream_offset"
"""Its constant part is worked out while it is bound, which takes minutes."""
FOR_EVER_ON_ROWS = "length(lpad(text(stream_key), 2000000000, 'y')) > stream_offset"
def doubled(text: str, times: int) -> str:
    """A text that is doubled so many times."""
    items = ", ".join([text] * times)
    return f"length(list_reduce([{items}], lambda one, _: one || one)) > stream_offset"


def children() -> set[int]:
    return {one.pid for one in psutil.Process().children()}


def test_rows_are_judged_piece_by_piece_and_the_process_goes_with_the_condition() -> None:
    before = children()
    condition = ConditionProcess("stream_key = 'alice' or stream_offset = 3")
    for _ in range(2):
        assert condition.holds(rows()).nonzero()[0].tolist() == [0, 3]
    assert condition.holds(ARROW_SCHEMA.empty_table()).tolist() == []
    large = pa.concat_tables([rows()] * 200_000).combine_chunks()
    assert int(condition.holds(large).sum()) == 400_000
    condition.close()
    assert children() <= before


def test_what_is_no_condition_is_told_as_it_is_in_one_process() -> None:
    before = children()
    with pytest.raises(BadCondition, match="nothing"):
        ConditionProcess("nothing = 1")
    assert "no subquery" in check_apart("exists (select 1)")
    assert check_apart("stream_offset = 1") == ""
    assert check_apart("\udcff = 1") != ""
    assert children() <= before


@pytest.mark.parametrize("where", [FOR_EVER, FOR_EVER_ON_ROWS])
def test_a_condition_that_never_ends_is_ended_by_its_deadline(where: str) -> None:
    before = children()
    with pytest.raises(ConditionHung, match="takes longer than 1 s"):
        ConditionProcess(where, check_s=1.0, rows_s=1.0).holds(rows())
    assert children() <= before


def test_all_pieces_of_the_rows_share_one_deadline() -> None:
    condition = ConditionProcess("length(lpad(text(stream_key), 2000000, 'y')) > 0", rows_s=1.0)
    with pytest.raises(ConditionHung, match="takes longer than 1 s"):
        for _ in range(100_000):
            condition.holds(rows())
    condition.close()


@pytest.mark.parametrize("text", ["'alice'", "text(stream_key)"])
def test_a_condition_that_wants_all_memory_does_not_get_it(text: str) -> None:
    with pytest.raises(BadCondition, match=r"(?i)memory|allocat|ended by"):
        ConditionProcess(doubled(text, 40), check_s=60.0).holds(rows())


def test_a_process_that_is_killed_is_told_as_such() -> None:
    condition = ConditionProcess("stream_offset = 1")
    os.kill(condition._process.pid, signal.SIGKILL)
    with pytest.raises(ConditionHung, match="SIGKILL"):
        condition.holds(rows())
    condition.close()


def test_a_process_that_nobody_waits_for_ends_at_its_deadline() -> None:
    """A worker that Spark kills cannot end the process; its timer does."""
    condition = ConditionProcess(FOR_EVER_ON_ROWS, rows_s=0.5)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows().schema) as writer:
        writer.write_table(rows())
    process = condition._process
    assert process.stdin is not None
    process.stdin.write(len(sink.getvalue()).to_bytes(8, "big") + sink.getvalue().to_pybytes())
    process.stdin.flush()
    assert process.wait(timeout=60) == -signal.SIGALRM
    condition.close()
