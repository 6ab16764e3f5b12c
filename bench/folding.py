"""The batches that `apply` folds per second on one core: idempotent and plain, by batches per command."""

import gc
import time

from lakestream.model.append_rows import pack_append
from lakestream.model.commands import APPEND, CreateTopic, Register, encode, pack
from lakestream.model.state import State, apply


def prepared(partitions: int) -> State:
    state = State()
    register = Register(b"i" * 16, "bench", "broker", "127.0.0.1", 1, "", 1, 1)
    apply(state, 1, encode(1, Register.KIND, 0, 0, 0, pack(register)))
    topic = CreateTopic("t", b"t" * 16, partitions, 1, {})
    apply(state, 2, encode(1, CreateTopic.KIND, 0, 1, 1, pack(topic)))
    return state


def commands(state: State, batches: int, per_command: int, partitions: int, idempotent: bool) -> list[bytes]:
    made = []
    sequences = [0] * (partitions + 1)
    tick = 0
    while tick * per_command < batches:
        tick += 1
        rows = []
        for index in range(per_command):
            stream = 1 + index * partitions // per_command
            rows.append((stream, 10, 16 + index * 100, 100, 1000, 7 if idempotent else -1, 0, sequences[stream]))
            sequences[stream] += 10
        made.append(encode(1, APPEND, 0, 1, tick + 1, pack_append(tick, per_command * 100, rows)))
    return made


def main() -> None:
    gc.freeze()
    for idempotent in (False, True):
        for per_command in (1, 100, 1000):
            partitions = min(per_command, 100)
            best = 0.0
            for _ in range(3):
                state = prepared(partitions)
                log = commands(state, 200_000, per_command, partitions, idempotent)
                started = time.process_time()
                for sequence, command in enumerate(log, 3):
                    results = apply(state, sequence, command)
                    assert results[0] >= 0
                state.moved.clear()
                best = max(best, len(log) * per_command / (time.process_time() - started))
            kind = "idempotent" if idempotent else "plain"
            print(f"fold {kind:10} {per_command:5} batches a command: {best / 1e6:.2f} M batches/s")


if __name__ == "__main__":
    main()
