"""`StampedAppend`: an `Append` of a tick some of whose batches get an append time (append_times.py, L19)."""

import struct
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lakestream.model import streams
from lakestream.model.append_rows import with_max_timestamps
from lakestream.model.members import Member
from lakestream.model.reasons import No, Reason

if TYPE_CHECKING:
    from lakestream.model.state import State

STAMPED_APPEND = 75
"""The kind of an `Append` with append times."""
_HEAD = struct.Struct("<qI")
"""The broker's time, and the number of streams whose batches are stamped."""


def pack_stamped(time_ms: int, stamped: Iterable[int], append: bytes) -> bytes:
    """The body of a `StampedAppend`: the streams whose batches are stamped, and the body of an `Append`."""
    names = array("I", sorted(stamped))
    return _HEAD.pack(time_ms, len(names)) + names.tobytes() + append


def unpack_stamped(payload: memoryview) -> tuple[int, list[int], memoryview] | None:
    """Time, streams and the body of the `Append`; None if it is malformed."""
    if len(payload) < _HEAD.size:
        return None
    time_ms, count = _HEAD.unpack_from(payload)
    end = _HEAD.size + 4 * count
    if len(payload) < end or time_ms < 0:
        return None
    return time_ms, list(struct.unpack_from(f"<{count}I", payload, _HEAD.size)), payload[end:]


def append_stamped(state: "State", member: Member, payload: memoryview) -> list[int] | No:
    """As `Append`, with an append time for the streams that are named."""
    found = unpack_stamped(payload)
    if found is None:
        return No(Reason.MALFORMED, "an append whose streams do not agree with its head")
    time_ms, named, body = found
    known, by_id = state.streams.append_times, state.streams.by_id
    times = {one: max(known.by_stream.get(one, 0), time_ms) for one in named if one in by_id}
    ends = {one: by_id[one].next for one in times}
    outcome = streams.append(state, member, with_max_timestamps(body, times))
    if isinstance(outcome, No):
        return outcome
    number = state.streams.next_object - 1
    for one, end in ends.items():
        if by_id[one].next > end:
            known.by_stream[one] = times[one]
            known.objects[number] = None
    return outcome
