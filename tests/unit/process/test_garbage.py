"""Collections stay short, and cycles go all the same. In a process of its own: the collector is everybody's."""

import subprocess
import sys
import textwrap


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_outlived_one_collection_is_not_looked_at_again() -> None:
    run(
        """
        import gc
        from lakestream.process import garbage
        garbage.keep_collections_short()
        kept = [[number] for number in range(20 * garbage.YOUNG_OBJECTS)]
        looked_at = len(gc.get_objects(0)) + len(gc.get_objects(1)) + len(gc.get_objects(2))
        assert looked_at <= garbage.YOUNG_OBJECTS + 1000, looked_at
        """
    )


def test_a_cycle_that_was_set_aside_goes_with_the_sweep() -> None:
    run(
        """
        import gc, weakref
        from lakestream.process import garbage
        class Knot: pass
        garbage.keep_collections_short()
        knot = Knot()
        knot.own = knot
        seen = weakref.ref(knot)
        gc.collect(0)
        del knot
        gc.collect()
        assert seen() is not None
        assert garbage.sweep() and seen() is None
        """
    )


def test_it_is_swept_while_nobody_produces_and_at_last_even_then() -> None:
    said = run(
        """
        import asyncio, logging, sys
        from lakestream.process import garbage

        class Clock:
            now = 0.0
            def monotonic(self): return self.now

        clock, ticks, swept = Clock(), [0], []
        garbage.sweep = lambda: swept.append(clock.now / garbage.SWEEP_EVERY_S) or 0
        async def sleep(seconds):
            clock.now += seconds
            if clock.now < 4.5 * garbage.SWEEP_EVERY_S or clock.now > 6 * garbage.SWEEP_EVERY_S:
                ticks[0] += 1
            if clock.now > 10 * garbage.SWEEP_EVERY_S:
                raise asyncio.CancelledError
        garbage.asyncio.sleep = sleep
        try:
            garbage.sweep_now_and_then(lambda: ticks[0], clock).send(None)
        except asyncio.CancelledError:
            print([round(one, 1) for one in swept])
        """
    )
    assert said.strip() == "[4.0, 5.0, 6.0, 10.0]"
