"""The machine's own time and chance."""

import random
import time

from lakestream.interfaces import Clock
from lakestream.process.clock import SystemClock, system_random


def test_the_monotonic_clock_never_goes_back() -> None:
    clock: Clock = SystemClock()
    readings = [clock.monotonic() for _ in range(1000)]
    assert readings == sorted(readings)


def test_wall_time_is_in_whole_milliseconds_since_1970() -> None:
    before = int(time.time() * 1000)
    now = SystemClock().wall_ms()
    assert isinstance(now, int)
    assert before - 1 <= now <= time.time() * 1000 + 1


def test_chance_is_the_kernels_unless_a_seed_asks_for_repetition() -> None:
    assert isinstance(system_random(), random.SystemRandom)
    assert system_random().getrandbits(128) != system_random().getrandbits(128)
    assert system_random(7).getrandbits(128) == system_random(7).getrandbits(128)
