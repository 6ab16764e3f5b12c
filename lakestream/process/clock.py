"""The machine's own time and chance: only this module touches them, all others are handed a Clock or a Random."""

import random
import time


class SystemClock:
    """interfaces.Clock as this machine tells it."""

    __slots__ = ()

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def __repr__(self) -> str:
        return "SystemClock()"


def system_random(seed: int | None = None) -> random.Random:
    """Chance for ids, nonces and jitter: the kernel's by default, so that no two processes ever draw the same id.

    A seed gives a repeatable sequence instead.
    """
    return random.SystemRandom() if seed is None else random.Random(seed)
