"""The machine's time and chance. Only this module uses them; all other code gets a Clock or a Random."""

import random
import time


class SystemClock:
    """The Clock of this machine."""

    __slots__ = ()

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def __repr__(self) -> str:
        return "SystemClock()"


def system_random(seed: int | None = None) -> random.Random:
    """A source of ids, nonces and jitter: the kernel's by default, so that no two processes draw the same id.

    A seed gives a repeatable sequence instead.
    """
    return random.SystemRandom() if seed is None else random.Random(seed)
