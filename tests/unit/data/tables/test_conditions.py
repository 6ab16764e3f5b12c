"""Conditions on rows: one row at a time, the same time for everybody, and nothing but the row."""

import os
import re
import subprocess
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from lakestream.data.tables.conditions.condition import BadCondition, Condition, check_condition
from lakestream.data.tables.files.stream_columns import ARROW_SCHEMA
from tests.support.places import ROOT

TIMES = [datetime(2024, 1, 1, hour, tzinfo=UTC) for hour in range(4)]


def rows() -> pa.Table:
    columns = {
        "stream_partition": [0] * 4, "stream_offset": range(4), "stream_timestamp": TIMES,
        "stream_key": [b"alice", b"", None, b"\xff"], "value": [b'{"name": "alice"}', b"bob", None, b"\xff\xfe"],
        "stream_headers": [[{"key": "who", "value": b"alice"}], [], None, []],
    }  # fmt: skip
    absent = [name for name in ARROW_SCHEMA.names if name not in columns]
    count = {name: pa.nulls(4, ARROW_SCHEMA.field(name).type) for name in absent}
    made = {name: pa.array(values, ARROW_SCHEMA.field(name).type) for name, values in columns.items()} | count
    return pa.table([made[name] for name in ARROW_SCHEMA.names], names=ARROW_SCHEMA.names)


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("stream_key = 'alice'", [0]),
        ("stream_key is null", [2]),
        ("text(value) like '%alice%'", [0]),
        ("text(value) <> 'bob'", [0, 3]),
        ("json(value)->>'name' = 'alice'", [0]),
        ("header(stream_headers, 'who') = 'alice'", [0]),
        ("len([one for one in stream_headers if one.key = 'who']) > 0", [0]),
        ("list_contains([1, 3], stream_offset)", [1, 3]),
        ("stream_offset in (1, 3) and not value is null", [1, 3]),
        ("list_max(list_transform([1, stream_offset], lambda one: one + 1)) = 4", [3]),
        ("stream_timestamp < now() - interval 30 days", [0, 1, 2, 3]),
        ("case when stream_offset between 1 and 2 then true else try_cast(text(value) as int) = 7 end", [1, 2]),
        ("stream_timestamp < '2024-01-01 02:00:00'", [0, 1]),
        ("stream_offset > 1 -- and no more", [2, 3]),
    ],
)
def test_for_which_rows_it_holds(where: str, holds: list[int]) -> None:
    assert check_condition(where) == ""
    condition = Condition(where)
    assert condition.holds(rows()).nonzero()[0].tolist() == holds
    condition.close()


@pytest.mark.parametrize(
    "where",
    [
        "row_number() over (order by stream_offset) <= 1",
        "max(stream_offset) > 0",
        "unnest([true, false])",
        "stream_offset = (select max(stream_offset) from stream_rows)",
        "stream_offset in (with them as (from stream_rows) select stream_offset from them)",
    ],
)
def test_what_looks_at_several_rows_is_refused(where: str) -> None:
    """It would be asked of a row group at a time, and hold for one row of each."""
    assert check_condition(where) != ""


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("exists (select 1)", "no subquery"),
        ("stream_offset = any([1, 3])", "no subquery"),
        ("stream_offset in (from range(3))", "no subquery"),
        ("len(range(stream_offset)) > 0", "may not call range"),
        ("len(repeat('x', 1000000000000)) > 0", "may not call repeat"),
        ("unnest(stream_headers) is null", "may not call unnest"),
        ("random() < 0.5", "may not call random"),
        ("sleep_ms(1000) is null", "may not call sleep_ms"),
        ("pg_sleep(1000) is null", "may not call pg_sleep"),
        ("read_text('/etc/passwd') is null", "may not call read_text"),
        ("list_sum(list_transform([1], lambda one: (select one))) = 1", "no subquery"),
        ("sum(stream_offset) filter (where true) > 0", "may not call sum"),
        ("columns(*) is null", "no \\*"),
        ("stream_offset = $1", "no parameters"),
    ],
)
def test_what_could_go_on_for_ever_or_look_elsewhere_is_refused_with_the_reason(where: str, why: str) -> None:
    assert re.search(why, check_condition(where))


@pytest.mark.parametrize(
    "where", ["", "true) from stream_rows; select (true", "nothing = 1", "value", "spaceship(value)", "set x = 1"]
)
def test_what_is_no_condition_is_refused(where: str) -> None:
    assert check_condition(where) != ""
    with pytest.raises(BadCondition):
        Condition(where).holds(rows())


def test_no_extension_is_looked_for() -> None:
    assert "install" not in check_condition("excel_text(1, 'a') = 'x'")


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_a_time_is_the_same_whatever_the_machine_thinks(zone: str) -> None:
    """`lakestream sql` shows what would go; a delete cannot be undone."""
    program = (
        "from tests.unit.data.tables.test_conditions import *\n"
        "print(Condition(\"stream_timestamp < '2024-01-01 02:00:00'\").holds(rows()).tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "TZ": zone}, cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout == "[True, True, False, False]\n"
