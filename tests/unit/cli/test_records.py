"""Lines to records and back, the placing of keys, and the sharing out of partitions in a group."""

import contextlib

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.partitioner.default import murmur2 as their_murmur2

from lakestream.cli.client.assignment import (
    ASSIGNORS,
    assign_range,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from lakestream.cli.client.producer import BATCH_BYTES, batches, murmur2
from lakestream.cli.client.texts import BadLine, Line, format_json, format_text, parse_json, parse_text, size_of
from lakestream.cli.groups import parse_time
from lakestream.cli.output import size_text, span_text
from lakestream.errors import Corrupt

maybe_bytes = st.none() | st.binary(max_size=20)
lines = st.builds(
    Line, key=maybe_bytes, value=maybe_bytes, headers=st.lists(st.tuples(st.text(), maybe_bytes), max_size=3).map(tuple)
)
names = st.text("abc", min_size=1, max_size=3)


@given(lines, st.integers(0, 99), st.integers(0, 1 << 60))
def test_what_consume_prints_as_json_is_what_produce_reads(line: Line, partition: int, timestamp: int) -> None:
    read = parse_json(format_json("t", partition, 7, timestamp, line))
    assert read == Line(key=line.key, value=line.value, headers=line.headers, partition=partition, timestamp=timestamp)


def test_json_values_that_are_no_text_are_kept_as_json() -> None:
    read = parse_json(b'{"value": {"a": [1, 2]}, "key": 5, "headers": {"h": null}}')
    assert (read.value, read.key, read.headers) == (b'{"a":[1,2]}', b"5", (("h", None),))


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b'{"partition": -1}', b'{"headers": [1]}', b'{"value": {"base64": "!"}}', b'{"timestamp": true}'],
)
def test_a_line_that_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(BadLine):
        parse_json(line)


def test_a_field_that_no_record_has_is_refused_by_its_name_with_those_that_it_has() -> None:
    with pytest.raises(BadLine, match="there is no field 'kee'; known are key, value, headers, partition, timestamp"):
        parse_json(b'{"kee": "a"}')


def test_text_lines_have_keys_only_with_a_separator() -> None:
    assert parse_text(b"a:b:c", None) == Line(key=None, value=b"a:b:c")
    assert parse_text(b"a:b:c", ":") == Line(key=b"a", value=b"b:c")
    with pytest.raises(BadLine, match="no key separator"):
        parse_text(b"abc", ":")


def test_text_output_shows_what_was_asked_for() -> None:
    line = Line(key=b"k", value=None, headers=(("h", b"x"), ("i", None)))
    assert format_text(line, None, False) == b"null\n"
    assert format_text(line, "=", True) == b"h:x,i:null\tk=null\n"


@given(st.binary(max_size=40))
def test_keys_go_where_other_clients_put_them(key: bytes) -> None:
    assert murmur2(key) & 0x7FFFFFFF == their_murmur2(key) & 0x7FFFFFFF


def test_the_size_of_a_record_is_what_its_user_gave_it() -> None:
    assert size_of(Line(key=b"k", value=b"value", headers=(("h", b"xy"), ("i", None)))) == 1 + 5 + 3 + 1
    assert size_of(Line(key=None, value=None)) == 0


def test_no_batch_grows_too_large_and_order_is_kept() -> None:
    many = [Line(key=None, value=b"%06d" % i + b"x" * 1000) for i in range(2000)]
    cut = list(batches(many))
    assert [line for batch in cut for line in batch] == many
    assert all(sum(len(line.value or b"") for line in batch) <= BATCH_BYTES for batch in cut)
    huge = [Line(key=None, value=b"x" * 2 * BATCH_BYTES)] * 2
    assert [len(batch) for batch in batches(huge)] == [1, 1]


@given(st.lists(names, unique=True), st.lists(st.tuples(names, st.integers(0, 9)), unique=True))
def test_subscriptions_and_assignments_survive_their_bytes(topics: list[str], places: list[tuple[str, int]]) -> None:
    assert decode_subscription(encode_subscription(topics)) == topics
    assert sorted(decode_assignment(encode_assignment(places))) == sorted(places)
    assert decode_assignment(b"") == []


@given(st.binary(max_size=30))
def test_bytes_that_are_no_assignment_are_an_error_and_nothing_worse(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        with contextlib.suppress(Corrupt):
            decode(data)


subscriptions = st.dictionaries(names, st.lists(names, unique=True, max_size=3), min_size=1, max_size=4)
partitions = st.dictionaries(names, st.integers(0, 5).map(lambda n: list(range(n))), max_size=3)


@given(subscriptions, partitions, st.sampled_from(sorted(ASSIGNORS)))
def test_each_partition_that_somebody_wants_goes_to_exactly_one_who_wants_it(
    wanted: dict[str, list[str]], there: dict[str, list[int]], assignor: str
) -> None:
    given_out = ASSIGNORS[assignor](wanted, there)
    assert set(given_out) == set(wanted)
    places = [place for own in given_out.values() for place in own]
    assert sorted(places) == sorted(
        (topic, number)
        for topic, numbers in there.items()
        for number in numbers
        if any(topic in w for w in wanted.values())
    )
    assert all(topic in wanted[member] for member, own in given_out.items() for topic, _ in own)


def test_range_gives_neighbours_and_the_first_members_get_one_more() -> None:
    given_out = assign_range({"b": ["t"], "a": ["t"], "c": ["u"]}, {"t": [0, 1, 2], "u": [0]})
    assert given_out == {"a": [("t", 0), ("t", 1)], "b": [("t", 2)], "c": [("u", 0)]}
    assert "range" == RangePartitionAssignor.name == next(iter(ASSIGNORS))


def test_times_are_iso_or_milliseconds() -> None:
    assert parse_time("1700000000000") == 1_700_000_000_000
    assert parse_time("2023-11-14T22:13:20+00:00") == 1_700_000_000_000
    with pytest.raises(click.BadParameter, match="is not a time"):
        parse_time("yesterday")


def test_sizes_are_said_as_people_say_them() -> None:
    assert [size_text(n) for n in (999, 1500, 2_500_000, 7_000_000_000)] == ["999 bytes", "1.5 KB", "2.5 MB", "7.0 GB"]


def test_spans_of_time_are_said_in_a_unit_that_fits() -> None:
    seconds = (0, 119.94, 120, 7199, 7200, 172_799, 172_800, 365 * 86_400)
    assert [span_text(int(s * 1000)) for s in seconds] == [
        "0.0 s", "119.9 s", "2 min", "119 min", "2 h", "47 h", "2 d", "365 d"
    ]  # fmt: skip
