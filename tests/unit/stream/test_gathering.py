"""When a tick waits for more batches, and how it learns not to wait for senders who wait for us."""

from lakestream.stream.gathering import TRUSTED_TICKS, Gathering
from lakestream.stream.limits import AppendLimits

LIMITS = AppendLimits()
BULK = LIMITS.bulk_bytes
A_MOMENT_S = LIMITS.gather_s / 4


def ticks_that_waited(patience: Gathering, in_flight: int, ticks: int, now: float = 0.0) -> list[int]:
    """Play senders who have `in_flight` requests unanswered at most, each of BULK bytes: which ticks waited in vain."""
    wasted = []
    for number in range(ticks):
        now += A_MOMENT_S
        requests = 1
        if patience.asks(now, BULK, requests):
            while requests < in_flight:
                requests += 1
                if patience.has_enough(requests * BULK, requests):
                    break
            else:
                patience.wasted(requests)
                wasted.append(number)
        patience.ticked(now, requests * BULK)
    return wasted


def gathered(patience: Gathering, in_flight: int, now: float) -> int:
    """How many requests make the next tick."""
    requests = 1
    if patience.asks(now, BULK, requests):
        while requests < in_flight:
            requests += 1
            if patience.has_enough(requests * BULK, requests):
                break
    return requests


def test_after_silence_or_small_ticks_nothing_waits() -> None:
    patience = Gathering(LIMITS)
    ticks_that_waited(patience, in_flight=5, ticks=20)
    patience.ticked(1.0, BULK)
    assert not patience.asks(1.0 + 3 * LIMITS.gather_s, BULK, 1)
    patience.ticked(2.0, BULK - 1)
    assert not patience.asks(2.0 + A_MOMENT_S, BULK, 1)


def test_a_large_tick_waits_for_no_more() -> None:
    patience = Gathering(LIMITS)
    ticks_that_waited(patience, in_flight=5, ticks=20)
    patience.ticked(1.0, BULK)
    assert not patience.asks(1.0 + A_MOMENT_S, LIMITS.enough_bytes, 1)


def test_a_sender_that_waits_for_each_answer_is_hardly_ever_kept_waiting() -> None:
    wasted = ticks_that_waited(Gathering(LIMITS), in_flight=1, ticks=1000)
    assert 1 <= len(wasted) <= 1000 / TRUSTED_TICKS[1] + 8
    assert len([number for number in wasted if number >= 200]) <= 800 / TRUSTED_TICKS[1] + 1


def test_so_many_requests_as_senders_have_in_flight_make_one_tick() -> None:
    patience = Gathering(LIMITS)
    ticks_that_waited(patience, in_flight=5, ticks=40)
    patience.ticked(1.0, BULK)
    assert gathered(patience, 5, 1.0 + A_MOMENT_S) == 5


def test_more_senders_are_noticed() -> None:
    patience = Gathering(LIMITS)
    ticks_that_waited(patience, in_flight=1, ticks=500)
    ticks_that_waited(patience, in_flight=12, ticks=200, now=10.0)
    patience.ticked(20.0, BULK)
    assert gathered(patience, 12, 20.0 + A_MOMENT_S) == 12
