"""A bare state at level BOUNDED, and short words for commands: for tests of limits and of long topics."""

from typing import Any

from lakestream.model.append_rows import pack_append
from lakestream.model.commands import (
    APPEND,
    AlterConfigs,
    Body,
    CreateTopic,
    Heartbeat,
    RaiseLevel,
    Register,
    encode,
    pack,
)
from lakestream.model.levels import BOUNDED, FIRST
from lakestream.model.state import State, apply, dump, load


class BoundedState:
    """Folds what one broker proposes; after each command a checkpoint has to give the same state."""

    def __init__(self, level: int = BOUNDED, **limits: int) -> None:
        self.state = State()
        self._n = 0
        self._tick = 0
        self._fold(Register(b"i" * 16, "cluster", "broker", "host", 1, "", 1, BOUNDED))
        if level >= BOUNDED:
            self.say(RaiseLevel(BOUNDED))
        for name, value in limits.items():
            self.limit(name.replace("_", "."), value)

    def say(self, body: Body) -> Any:
        outcome = self._fold(body)
        stored = dump(self.state)
        assert dump(load(stored)) == stored
        return outcome

    def _fold(self, body: Body) -> Any:
        epoch = 0 if isinstance(body, Register) else 1
        outcome = apply(
            self.state,
            self.state.sequence + 1,
            encode(body.needed_level(), body.KIND, 0, epoch, self._n, pack(body)),
        )
        self._n += 1
        return outcome

    def limit(self, name: str, value: int) -> None:
        assert self.say(AlterConfigs(b"", [(f"lakestream.{name}", str(value))])) is None

    def topic(self, name: str, partitions: int = 1) -> Any:
        return self.say(CreateTopic(name, name.encode().ljust(16, b"."), partitions, 1, {}))

    def streams(self, name: str) -> list[int]:
        return self.state.topics.by_name[name].streams

    def append(self, *rows: tuple[int, int, int]) -> Any:
        """Batches of one record: (stream, producer, sequence), in the order of their streams."""
        self._tick += 1
        made = [(stream, 1, 100 * at, 100, 7, producer, 0, n) for at, (stream, producer, n) in enumerate(rows)]
        command = encode(FIRST, APPEND, 0, 1, self._n, pack_append(self._tick, 100 * len(rows), made))
        self._n += 1
        return apply(self.state, self.state.sequence + 1, command)

    def clock(self, time_ms: int) -> None:
        self.say(Heartbeat(time_ms, 0, 0, 0))

    @property
    def producers(self) -> list[int]:
        return list(self.state.producers.by_id)
