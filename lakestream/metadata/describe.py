"""The state and the commands in words: for `lakestream metadata`, the HTTP port and people who wonder."""

from typing import Any

import msgspec

from lakestream.model import care, catalog, groups, members, producers, rebinding, streams, topics
from lakestream.model.commands import APPEND, ENVELOPE, Register, envelope_of
from lakestream.model.state import State

_FAMILIES: tuple[Any, ...] = (members, topics, streams, producers, groups, catalog, rebinding, care)
_BODIES = {body.KIND: body for family in _FAMILIES for body, _ in family.RULES}
_BODIES[Register.KIND] = Register
ROWS_SHOWN = 20


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
    body = _BODIES.get(envelope.kind)
    try:
        fields = msgspec.to_builtins(msgspec.msgpack.decode(payload, type=body)) if body else None
    except msgspec.MsgspecError as error:
        return told | {"malformed": str(error)}
    if body is not None and fields is not None:
        told["body"] = {name: _plain(value) for name, value in zip(body.__struct_fields__, fields, strict=False)}
    return told


def _name(kind: int) -> str:
    if kind == APPEND:
        return "Append"
    body = _BODIES.get(kind)
    return body.__name__ if body is not None else f"kind {kind}"


def _append(payload: memoryview) -> dict[str, object]:
    if len(payload) < streams.HEAD.size:
        return {"malformed": "no head"}
    tick, size, count = streams.HEAD.unpack_from(payload)
    rows = payload[streams.HEAD.size :]
    if len(rows) != count * streams.ROW.size:
        return {"malformed": "rows"}
    shown = [
        {"stream": row[0], "records": row[1], "bytes": row[3], "producer": row[5]}
        for row in list(streams.ROW.iter_unpack(rows))[:ROWS_SHOWN]
    ]
    return {"tick": tick, "object_bytes": size, "batches": count, "rows": shown}


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def describe_state(state: State) -> dict[str, object]:
    """A summary of everything that all members agree on."""
    return {
        "cluster": state.cluster,
        "sequence": state.sequence,
        "level": state.level,
        "digest": f"{state.digest:08x}",
        "time_ms": state.members.time_ms,
        "members": [_member(member) for member in state.members.by_id.values()],
        "topics": [_topic(state, topic) for topic in state.topics.by_id.values()],
        "configs": state.topics.configs,
        "groups": len(state.groups.by_name),
        "producers": len(state.producers.by_id),
        "entries": state.streams.entries,
        "objects": len(state.streams.objects),
        "dead_objects": len(state.streams.dead),
    }


def describe_brokers(state: State) -> list[dict[str, object]]:
    return [_member(member) for member in state.members.brokers()]


def _member(member: members.Member) -> dict[str, object]:
    return {
        "id": member.id, "role": member.role, "alive": member.alive, "epoch": member.epoch, "host": member.host,
        "port": member.port, "http": member.http, "pid": member.pid, "tick": member.tick, "heard": member.heard,
    }  # fmt: skip


def _topic(state: State, topic: topics.Topic) -> dict[str, object]:
    parts = [state.streams.by_id[stream_id] for stream_id in topic.streams]
    landing, table = state.catalog.landings.get(topic.id), state.catalog.of_topic(topic.id)
    return {
        "name": topic.name,
        "id": topic.id.hex(),
        "configs": topic.configs,
        "entries": topic.entries,
        "bytes": sum(part.size for part in parts),
        "table": table.location if table is not None else "",
        "held": landing.held if landing is not None else "",
        "partitions": [
            {"stream": part.id, "start": part.start, "landed": part.landed, "end": part.next} for part in parts
        ],
    }
