"""The state and the commands as plain values, for `lakestream metadata` and the HTTP port."""

from collections.abc import Iterator
from itertools import islice

import msgspec

from lakestream.model import members, topics
from lakestream.model.append_rows import HEAD, ROW, read_append
from lakestream.model.commands import APPEND, ENVELOPE, Register, envelope_of
from lakestream.model.stamped_append import STAMPED_APPEND, unpack_stamped
from lakestream.model.state import FAMILIES, State

_BODIES = {body.KIND: body for family in FAMILIES for body, _ in family.RULES}
_BODIES[Register.KIND] = Register
ROWS_SHOWN = 20
PARTITIONS_A_PIECE = 1_000
BODY_SHOWN_BYTES = 256 << 10
"""Of a larger body only the size is shown."""


def describe_command(sequence: int, command: bytes) -> dict[str, object]:
    """One command of the log, as plain values."""
    envelope = envelope_of(command)
    if envelope is None:
        return {"sequence": sequence, "command": "unreadable", "bytes": len(command)}
    told: dict[str, object] = {
        "sequence": sequence, "command": _name(envelope.kind), "member": envelope.member, "epoch": envelope.epoch,
        "n": envelope.n,
    }  # fmt: skip
    payload = memoryview(command)[ENVELOPE.size :]
    if envelope.kind == APPEND:
        return told | {"body": _append(payload)}
    if envelope.kind == STAMPED_APPEND:
        return told | {"body": _stamped_append(payload)}
    if len(payload) > BODY_SHOWN_BYTES:
        return told | {"bytes": len(payload)}
    body = _BODIES.get(envelope.kind)
    try:
        fields = msgspec.to_builtins(msgspec.msgpack.decode(payload, type=body)) if body else None
    except msgspec.MsgspecError as error:
        return told | {"malformed": str(error)}
    if body is not None and fields is not None:
        told["body"] = {name: _plain(value) for name, value in zip(body.__struct_fields__, fields, strict=False)}
    return told


def _name(kind: int) -> str:
    if kind in (APPEND, STAMPED_APPEND):
        return "Append" if kind == APPEND else "StampedAppend"
    body = _BODIES.get(kind)
    return body.__name__ if body is not None else f"kind {kind}"


def _append(payload: memoryview) -> dict[str, object]:
    body = read_append(payload)
    if body is None:
        return {"malformed": "no head" if len(payload) < HEAD.size else "rows"}
    shown = [
        {"stream": row[0], "records": row[1], "bytes": row[3], "producer": row[5]}
        for row in islice(ROW.iter_unpack(body.rows), ROWS_SHOWN)
    ]
    return {"tick": body.tick, "object_bytes": body.size, "batches": body.batches, "rows": shown}


def _stamped_append(payload: memoryview) -> dict[str, object]:
    found = unpack_stamped(payload)
    if found is None:
        return {"malformed": "head"}
    time_ms, stamped, body = found
    return _append(body) | {"append_time_ms": time_ms, "stamped_streams": stamped[:ROWS_SHOWN]}


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def describe_state(state: State) -> Iterator[bytes]:
    """A summary of everything that all members agree on, as pieces of one JSON document.

    A piece takes about a millisecond, however large the state is, so that other tasks can run in between. Topics that
    change meanwhile are shown as they are when their piece is made.
    """
    head = {
        "cluster": state.cluster,
        "sequence": state.sequence,
        "level": state.level,
        "digest": f"{state.digest:08x}",
        "time_ms": state.members.time_ms,
        "members": [_member(member) | _clock(state, member) for member in state.members.by_id.values()],
        "configs": state.topics.configs,
        "groups": len(state.groups.by_name),
        "producers": len(state.producers.by_id),
        "entries": state.streams.entries,
        "objects": len(state.streams.objects),
        "dead_objects": len(state.streams.dead),
    }
    yield msgspec.json.encode(head)[:-1] + b',"topics":['
    for number, topic in enumerate(list(state.topics.by_id.values())):
        yield (b"," if number else b"") + msgspec.json.encode(_topic(state, topic))[:-1] + b',"partitions":['
        size = 0
        for first in range(0, len(topic.streams), PARTITIONS_A_PIECE):
            shown = [_partition(state, stream) for stream in topic.streams[first : first + PARTITIONS_A_PIECE]]
            size += sum(one.get("bytes", 0) for one in shown)
            yield (b"," if first else b"") + msgspec.json.encode(shown)[1:-1]
        yield b'],"bytes":%d}' % size
    yield b"]}"


def describe_brokers(state: State) -> list[dict[str, object]]:
    return [_member(member) for member in state.members.brokers()]


def _member(member: members.Member) -> dict[str, object]:
    return {
        "id": member.id, "role": member.role, "alive": member.alive, "epoch": member.epoch, "host": member.host,
        "port": member.port, "http": member.http, "pid": member.pid, "tick": member.tick, "heard": member.heard,
    }  # fmt: skip


def _clock(state: State, member: members.Member) -> dict[str, object]:
    """How far its clock was from cluster time at its last heartbeat; a heartbeat's interval is normal (L14)."""
    known = member.alive and member.clock_ms > 0
    return {"clock_difference_ms": member.clock_ms - state.members.time_ms if known else None}


def _topic(state: State, topic: topics.Topic) -> dict[str, object]:
    landing, table = state.catalog.landings.get(topic.id), state.catalog.of_topic(topic.id)
    return {
        "name": topic.name,
        "id": topic.id.hex(),
        "configs": topic.configs,
        "entries": topic.entries,
        "table": table.location if table is not None else "",
        "held": landing.held if landing is not None else "",
    }


def _partition(state: State, stream_id: int) -> dict[str, int]:
    """With its id alone, if the topic was deleted just now."""
    part = state.streams.by_id.get(stream_id)
    if part is None:
        return {"stream": stream_id}
    return {"stream": part.id, "start": part.start, "landed": part.landed, "end": part.next, "bytes": part.size}
