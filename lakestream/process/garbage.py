"""Short garbage collections: objects that survive one collection are not examined again until a quiet moment.

The state and the cache keep a few objects for each tick, and none of them is garbage. Python's collector would examine
them again and again: 10 to 35 ms in which nothing is acknowledged. So young objects are examined often, a few at a
time, and the survivors are set aside. A cycle that survives waits for `sweep`, which examines all objects: rarely, and
if possible while no client produces.
"""

import asyncio
import gc
import logging
from collections.abc import Callable

from lakestream.interfaces import Clock

YOUNG_OBJECTS = 5_000
"""New objects that are examined together, in about a millisecond."""
SWEEP_EVERY_S = 3600.0
SWEEP_AT_LAST_S = 4 * SWEEP_EVERY_S
"""After this time the sweep no longer waits for a quiet moment."""
QUIET_S = 10.0

log = logging.getLogger(__name__)


def keep_collections_short() -> None:
    """Keep collections of this process short from now on."""
    if _set_aside not in gc.callbacks:
        gc.callbacks.append(_set_aside)
    gc.set_threshold(YOUNG_OBJECTS, 1000, 1000)
    sweep()


def sweep() -> int:
    """Examine all objects, and set aside the survivors; returns how many objects were garbage."""
    gc.unfreeze()
    return gc.collect()


async def sweep_now_and_then(progress: Callable[[], object], clock: Clock) -> None:
    """Sweep until cancelled. A moment is quiet while `progress` stays the same."""
    swept, before = clock.monotonic(), progress()
    while True:
        await asyncio.sleep(QUIET_S)
        before, quiet = progress(), before == progress()
        began = clock.monotonic()
        if began - swept >= (SWEEP_EVERY_S if quiet else SWEEP_AT_LAST_S):
            found = sweep()
            swept = clock.monotonic()
            log.info("swept %d objects in %.0f ms", found, (swept - began) * 1000)


def _set_aside(phase: str, _: dict[str, int]) -> None:
    if phase == "stop":
        gc.freeze()
