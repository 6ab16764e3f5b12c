"""A source of commands for tests of the state machine: plausible ones, strange ones and garbage, from a seed."""

import sys
from random import Random
from typing import Any

import msgspec

from lakestream.errors import Halted
from lakestream.model import state as state_module
from lakestream.model.append_rows import pack_append
from lakestream.model.bounds import CONFIGS as BOUND_CONFIGS
from lakestream.model.catalog.care import DONE, RUNNING, NoteCare, NotePipeline, RequestCare, TellCare
from lakestream.model.catalog.care import KINDS as CARE_KINDS
from lakestream.model.catalog.landed import HoldTopic, Land, LandedRange
from lakestream.model.catalog.namespaces import CreateNamespace, DropNamespace, UpdateNamespace
from lakestream.model.catalog.rebinding import Rebind
from lakestream.model.catalog.tables import TablesPurged
from lakestream.model.catalog.views import CommitView
from lakestream.model.commands import (
    APPEND,
    ENVELOPE,
    AdvanceLogStart,
    AllocateProducerId,
    AlterConfigs,
    Body,
    Collected,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    Expire,
    ExpireProducers,
    Heartbeat,
    Leave,
    MovedSlice,
    Noop,
    RaiseLevel,
    Register,
    ReplaceEntries,
    encode,
    pack,
)
from lakestream.model.groups.group import MemberRow
from lakestream.model.groups.membership import (
    Assign,
    DeleteGroup,
    NewGeneration,
    RemoveMembers,
    ReplaceMember,
    coordinator,
)
from lakestream.model.groups.offsets import CommitOffsets, DeleteOffsets, ExpireGroups, ExpireOffsets
from lakestream.model.levels import BOUNDED, FIRST, NEWEST
from lakestream.model.pieces import BeginTopic, Dismantle, ExtendTopic
from lakestream.model.stamped_append import STAMPED_APPEND, pack_stamped
from lakestream.model.state import State, apply, dump

BODIES: dict[int, type[Body]] = {body.KIND: body for family in state_module.FAMILIES for body, _ in family.RULES}
"""Every cold command but `Register`, by its kind."""
KINDS = frozenset({Register.KIND, APPEND, STAMPED_APPEND, *BODIES})
NUMBERS = (0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**63, 2**64 - 1)
"""What a msgpack integer can be at its ends."""
MARK = "~~~"


def level_of(kind: int) -> int:
    """The level that members propose commands of this kind with."""
    if kind == STAMPED_APPEND:
        return BOUNDED
    return BODIES[kind].LEVEL if kind in BODIES else FIRST


class CommandSource:
    """Draws one command after another, looking at the state that the commands so far have made."""

    def __init__(self, seed: int | str) -> None:
        self.chance = Random(f"commands-{seed}")
        self._makers = (
            self._topics, self._topics, self._records, self._records, self._members, self._generation,
            self._generation, self._offsets, self._producers, self._outside,
            self._catalog,
        )  # fmt: skip

    def next(self, state: State) -> bytes:
        chance = self.chance
        live = state.members.live()
        if not live or chance.random() < 0.03:
            return self._register(state)
        member = chance.choice(live)
        kind, payload = self._body(state, member.id)
        n = member.last_n + 1 if chance.random() < 0.97 else chance.randint(0, member.last_n + 3)
        epoch = member.epoch if chance.random() < 0.98 else chance.randint(0, member.epoch + 1)
        level = level_of(kind) if chance.random() < 0.98 else NEWEST + 1
        return encode(level, kind, member.id, epoch, n, payload)

    def _register(self, state: State) -> bytes:
        chance = self.chance
        incarnation = bytes([chance.randint(0, 9)] * 16)
        known = chance.choice((FIRST, NEWEST, NEWEST))
        body = Register(incarnation, state.cluster or "cluster", "broker", "host", 9092, "", 1, known, "rack")
        return encode(FIRST, Register.KIND, chance.randint(0, 3), 0, 0, pack(body))

    def _body(self, state: State, member: int) -> tuple[int, bytes]:
        chance = self.chance
        if chance.random() < 0.35:
            append = self._append(state, member)
            if chance.random() < 0.7:
                return APPEND, append
            stamped = {self._stream(state) for _ in range(chance.randint(0, 4))}
            payload = pack_stamped(chance.randint(0, 10**12), stamped, append)
            return STAMPED_APPEND, payload if chance.random() < 0.95 else self.spoil(payload)
        body = chance.choice(self._makers)(state, member)
        payload = pack(body)
        if chance.random() < 0.05:
            payload = self.spoil(payload)
        return body.KIND, payload

    def spoil(self, payload: bytes) -> bytes:
        """Bytes that are not what anybody packed."""
        chance, spoilt = self.chance, bytearray(payload)
        for _ in range(chance.randint(1, 3)):
            if spoilt and chance.random() < 0.7:
                spoilt[chance.randrange(len(spoilt))] = chance.randint(0, 255)
            else:
                del spoilt[chance.randint(0, len(spoilt)) :]
        return bytes(spoilt) + chance.randbytes(chance.choice((0, 0, 3)))

    def twist(self, state: State, member: int, kind: int) -> bytes:
        """A plausible body of this kind, one of whose values is none: the ends of numbers, bytes that are no text."""
        body: Any = None
        for _ in range(200):
            if kind == Register.KIND:
                body = self._register(state)[ENVELOPE.size :]
                break
            made = self.chance.choice(self._makers)(state, member)
            if kind == made.KIND:
                body = pack(made)
                break
        if body is None:
            return self.chance.randbytes(8)
        fields = self._twisted(msgspec.msgpack.decode(body))
        return msgspec.msgpack.encode(fields).replace(MARK.encode(), b"\xff\xfe\x80")

    def _twisted(self, value: Any) -> Any:
        chance = self.chance
        if isinstance(value, list) and value:
            at = chance.randrange(len(value))
            return [self._twisted(one) if index == at else one for index, one in enumerate(value)]
        if isinstance(value, int):
            return chance.choice(NUMBERS)
        return chance.choice((None, MARK, b"", "", [], 5)) if not isinstance(value, str) else MARK

    # -- one family each --------------------------------------------------------------------------------------------

    def _stream(self, state: State) -> int:
        known = list(state.streams.by_id)
        return self.chance.choice(known) if known and self.chance.random() < 0.95 else self.chance.randint(0, 50)

    def _append(self, state: State, member: int) -> bytes:
        chance = self.chance
        rows, position = [], 16
        for stream in sorted(self._stream(state) for _ in range(chance.randint(0, 6))):
            count, length = chance.randint(0 if chance.random() < 0.05 else 1, 5), chance.randint(61, 300)
            producer = chance.choice((-1, chance.randint(0, 5)))
            epoch, sequence = (-1, -1) if producer < 0 else self._sequence(state, producer, stream)
            rows.append((stream, count, position, length, chance.randint(0, 10**12), producer, epoch, sequence))
            position += length + chance.choice((0, 0, 0, 70))
        tick = min(state.members.by_id[member].tick + chance.choice((1, 1, 1, 2, 0)), NUMBERS[-1])
        return pack_append(tick, position + 90, rows)

    def _sequence(self, state: State, producer: int, stream: int) -> tuple[int, int]:
        chance = self.chance
        known = state.producers.by_id.get(producer)
        past = known.streams.get(stream) if known else None
        if past is None:
            return 0, chance.choice((0, 0, 0, 7, 2**31 - 2))
        if past.recent and chance.random() < 0.3:
            return past.epoch, chance.choice(past.recent)[0]
        if chance.random() < 0.1:
            return past.epoch + chance.choice((-1, 1)), chance.choice((0, 5))
        return past.epoch, past.next if chance.random() < 0.95 else chance.randint(0, 100)

    def _topics(self, state: State, member: int) -> Body:
        chance = self.chance
        ids = [*state.topics.by_id, b"\x07" * 16]
        made = CreateTopic(
            f"topic-{chance.randint(0, 8)}", chance.randbytes(16), chance.randint(0, 4), chance.randint(0, 2),
            chance.choice(({}, {"retention.ms": "1000"}, {"retention.ms": "soon"}, {"no.such": "1"})),
        )  # fmt: skip
        changes: list[tuple[str, str | None]] = [("retention.bytes", chance.choice(("5", None, "many")))]
        return chance.choice((
            made, made, made,
            DeleteTopic(chance.choice(ids), again=True),
            CreatePartitions(chance.choice(ids), chance.randint(0, 6)),
            AlterConfigs(chance.choice(ids), changes),
            AlterConfigs(b"", [("num.partitions", chance.choice(("3", None)))]),
            self._pieces(state),
            self._pieces(state),
        ))  # fmt: skip

    def _pieces(self, state: State) -> Body:
        """Topics in pieces, and small limits."""
        chance = self.chance
        forming = [*state.topics.forming, *state.topics.by_id, b"\x07" * 16]
        doomed = [*state.topics.doomed, *state.topics.by_id, b"\x07" * 16]
        producers, groups = list(state.producers.by_id)[:3], list(state.groups.by_name)[:3]
        limit: tuple[str, str | None] = (chance.choice(list(BOUND_CONFIGS)), chance.choice(("2", "10", "100", None)))
        name = f"topic-{chance.randint(0, 8)}"
        return chance.choice((
            BeginTopic(name, chance.randbytes(16), chance.randint(0, 4), chance.randint(0, 2), {}),
            ExtendTopic(forming[0]), ExtendTopic(forming[0]), ExtendTopic(chance.choice(forming)),
            Dismantle(doomed[0], [*producers, 99], [*groups, "nobody"], chance.random() < 0.5),
            Dismantle(chance.choice(doomed), [], [], True),
            AlterConfigs(b"", [limit]), AlterConfigs(b"", [("lakestream.command.partitions", "1")]),
            DeleteTopic(chance.choice([*state.topics.by_id, b""]), again=True),
        ))  # fmt: skip

    def _records(self, state: State, member: int) -> Body:
        chance = self.chance
        stream = state.streams.by_id.get(self._stream(state))
        if stream is None or not stream.bases or chance.random() < 0.2:
            dead = list(state.streams.dead)[:3]
            return chance.choice((Collected([*dead, 99]), AdvanceLogStart([(1, chance.randint(-1, 9)), (999, 0)])))
        first = chance.randrange(len(stream.bases))
        last = chance.randint(first, min(first + 3, len(stream.bases) - 1))
        base, end = stream.bases[first], stream.entry(last).end
        moved = MovedSlice(stream.id, base, end - base + chance.choice((0, 0, 0, 1)), 16, 500, 7)
        move = min(state.members.by_id[member].move + chance.choice((1, 1, 0)), NUMBERS[-1])
        return chance.choice((
            ReplaceEntries(move, 700, 5, [moved]),
            AdvanceLogStart([(stream.id, chance.randint(stream.start, stream.next))]),
        ))  # fmt: skip

    def _members(self, state: State, member: int) -> Body:
        chance = self.chance
        other = chance.choice(list(state.members.by_id.values()))
        wall = chance.randint(10**12, 2 * 10**12)
        return chance.choice((
            Heartbeat(wall, state.sequence, state.digest, 0), Heartbeat(wall, 1, 1, 0, 0), Noop(), Noop(1, 1),
            Expire(other.id, other.epoch, chance.choice((other.heard, 1))), RaiseLevel(NEWEST),
            RaiseLevel(NEWEST + 5), Leave() if chance.random() < 0.3 else Noop(),
        ))  # fmt: skip

    def _generation(self, state: State, member: int) -> Body:
        chance = self.chance
        name = next((f"group-{n}" for n in range(20) if coordinator(state, f"group-{n}") == member), "group-x")
        group = state.groups.by_name.get(name)
        generation, changed = (group.generation, group.changed) if group else (0, 0)
        rows = [self._row(f"m{n}", chance.choice((None, f"i{n}"))) for n in range(chance.randint(0, 3))]
        members = list(group.members) if group else ["m0"]
        if group is not None and group.members and chance.random() < 0.8:
            heard = group.members[members[0]].heard
            joining = chance.random() < 0.5
            static = next(iter(group.statics.items()), ("i0", "m0"))
            return chance.choice((
                Assign(name, generation, group.leader, [(one, b"a") for one in members]),
                RemoveMembers(name, generation, [(members[0], chance.choice((0, heard, 1)))]),
                ReplaceMember(name, static[1], self._row(f"m{chance.randint(5, 9)}", static[0])),
                CommitOffsets(name, generation, members[0], None, [(self._stream(state), 5, 0, "note")], -1, joining),
                NewGeneration(name, generation, changed, "consumer", rows, []),
                DeleteGroup(name),
            ))  # fmt: skip
        return NewGeneration(name, generation, changed, "consumer", rows, [])

    def _row(self, name: str, instance: str | None) -> MemberRow:
        subscription = b"\x00\x00\x00\x00\x00\x01\x00\x07topic-1\x00\x00\x00\x00"
        return MemberRow(name, instance, "client", "/127.0.0.1", 10_000, 60_000, [("range", subscription)])

    def _offsets(self, state: State, member: int) -> Body:
        chance = self.chance
        name = f"group-{chance.randint(0, 25)}"
        stream = self._stream(state)
        return chance.choice((
            CommitOffsets(name, -1, "", None, [(stream, chance.randint(0, 9), -1, ""), (999, 1, 0, "")]),
            CommitOffsets(name, chance.randint(0, 2), "m0", None, [(stream, 1, 0, "")], 1000),
            DeleteOffsets(name, [stream, 999]), ExpireOffsets(state.members.time_ms - chance.choice((0, 10**9))),
            DeleteGroup(name),
            ExpireGroups(state.members.time_ms - chance.choice((0, 10**9)), [*state.groups.by_name, "nobody"]),
        ))  # fmt: skip

    def _producers(self, state: State, member: int) -> Body:
        if self.chance.random() < 0.4:
            return self._care(state, member)
        past = state.members.time_ms - self.chance.choice((0, 10**10))
        return ExpireProducers(past) if self.chance.random() < 0.1 else AllocateProducerId()

    def _care(self, state: State, member: int) -> Body:
        chance = self.chance
        topic = chance.choice([*state.topics.by_id, b"\x07" * 16])
        known = chance.choice([*state.care.requests, b"\x07" * 16])
        kind = chance.choice([*sorted(CARE_KINDS), "dance"])
        return chance.choice((
            RequestCare(bytes([chance.randint(0, 200)] * 16), topic, kind, {"where": "stream_offset < 5"}),
            RequestCare(b"short", topic, kind, {}),
            TellCare(known, chance.choice((RUNNING, DONE, "lost")), "so far", {"files": chance.randint(0, 9)}),
            NotePipeline(chance.choice(("", "no Java"))),
            NoteCare(topic, chance.choice(("", "a catalog that refuses"))),
        ))  # fmt: skip

    def _outside(self, state: State, member: int) -> Body:
        """Landing in another catalog, told rightly or not."""
        chance = self.chance
        known = list(state.topics.by_id)
        topic_id = chance.choice(known) if known and chance.random() < 0.95 else b"?" * 16
        landing = state.catalog.landings.get(topic_id)
        uuid, before = (landing.uuid, landing.location) if landing is not None else (f"u{chance.randint(0, 9)}", "")
        if chance.random() < 0.1:
            uuid, before = "another", "elsewhere"
        topic = state.topics.by_id.get(topic_id)
        ranges = []
        for number in range(len(topic.streams) if topic is not None else 1):
            stream = state.streams.by_id[topic.streams[number]] if topic is not None else None
            start = max(stream.landed, stream.start) if stream is not None else 0
            end = min(start + chance.randint(0, 3), stream.next if stream is not None else 1)
            if chance.random() < 0.8:
                ranges.append(LandedRange(number, start, end, max(end - start, 0), chance.getrandbits(64)))
        return chance.choice((
            Land(topic_id, uuid, chance.randint(0, 99), ranges, f"file{chance.randint(0, 99)}", before),
            Land(topic_id, uuid, 0, [], f"file{chance.randint(0, 99)}", before),
            Rebind(topic_id, uuid, f"u{chance.randint(0, 9)}", "file"),
            HoldTopic(topic_id, chance.choice(("", "", "somebody did something"))),
            TablesPurged([*list(state.catalog.departed)[:1], "nothing"]),
        ))  # fmt: skip

    def _catalog(self, state: State, member: int) -> Body:
        """Namespaces and views."""
        chance, catalog = self.chance, state.catalog
        if "shop" not in catalog.namespaces or chance.random() < 0.2:
            return chance.choice((
                CreateNamespace("shop", {"owner": "ann"}), UpdateNamespace("shop", ["owner"], {"x": "y"}),
                DropNamespace("shop"),
            ))  # fmt: skip
        known = list(catalog.views.by_key)
        if not known or chance.random() < 0.4:
            return CommitView("shop", f"v{chance.randint(0, 5)}", f"u{chance.randint(10, 30)}", "", "m0")
        key = chance.choice(known)
        view = catalog.views.by_key[key]
        location = chance.choice(("", f"m{chance.randint(1, 9)}"))
        to = chance.choice((None, None, ("shop", f"v{chance.randint(0, 5)}"), ("none", "v")))
        return CommitView(*key, view.uuid, chance.choice((view.location, "stale")), location, to)


def commands(seed: int | str, count: int) -> list[bytes]:
    source, state, made = CommandSource(seed), State(), []
    for sequence in range(1, count + 1):
        made.append(source.next(state))
        apply(state, sequence, made[-1])
    return made


def fold(made: list[bytes], state: State | None = None) -> tuple[State, list[Any]]:
    """The state and the outcomes; a command that nobody can know is left out."""
    state, outcomes = state or State(), []
    for command in made:
        try:
            outcomes.append(apply(state, state.sequence + 1, command))
        except Halted as error:
            outcomes.append(error)
    return state, outcomes


def normal_kind(command: bytes) -> int:
    return ENVELOPE.unpack_from(command)[1] if len(command) >= ENVELOPE.size else -1


if __name__ == "__main__":
    # A process of its own shows whether anything hangs on the hash seed.
    import hashlib

    print(hashlib.sha256(dump(fold(commands(sys.argv[1], int(sys.argv[2])))[0])).hexdigest())
