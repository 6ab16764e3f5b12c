"""When a round is due: since when each topic has records that are not in its table, and how long they may wait.

Folding notes which streams moved, so that an idle cluster is not scanned. A topic whose round failed is tried again
after pauses that grow, without holding other topics, and for ever, since no acknowledged record may be lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from lakestream.model.configs import TOPIC_CONFIGS
from lakestream.model.state import State
from lakestream.pipeline.landing.planner import TURN_STREAMS, waiting_bytes
from lakestream.pipeline.tables.waiting import FRESHNESS, is_table, waits
from lakestream.stream.long_work import Steps, at_once, chunks

RETRY_FIRST_S, RETRY_MAX_S = 1.0, 60.0
SCAN_EVERY_S = 10.0
ROUND_RESERVE, LOOK_RESERVE_S = 1.25, 0.3
"""Reserves for a round that takes longer than expected, and for records that are noticed a little after they came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessLimits:
    """How long records may wait, and how much may gather, before a round is due."""

    freshness_s: float = 5.0
    waiting_bytes: int = 64 << 20
    """A topic with so many bytes waiting is due at once: a larger round gains nothing."""


@dataclass(frozen=True, slots=True)
class Setback:
    """A topic's last failure: how often in a row, why, and when it is tried again."""

    failures: int
    reason: str
    again_at: float


class Freshness:
    """The topics that wait, and since when, in seconds of a monotonic clock."""

    def __init__(self, limits: FreshnessLimits) -> None:
        self._limits = limits
        self._since: dict[bytes, float] = {}
        self._setbacks: dict[bytes, Setback] = {}
        self._state: State | None = None
        self._scanned = 0.0

    def look(self, state: State, now: float) -> None:
        """Run `looking` without pauses, for callers that have the event loop for themselves."""
        at_once(self.looking(state, now))

    def looking(self, state: State, now: float) -> Steps[None]:
        """Note which topics began to wait. Empties the state's list of moved streams."""
        if state is not self._state or state.all_moved or now - self._scanned > SCAN_EVERY_S:
            # The replica may have begun anew from a checkpoint, or a topic's configs have changed.
            self._state, self._scanned = state, now
            moved = list(state.streams.by_id)
        else:
            moved = list(dict.fromkeys(state.moved))
        state.moved.clear()
        state.all_moved = False
        for some in chunks(moved, TURN_STREAMS):
            for stream_id in some:
                stream = state.streams.by_id.get(stream_id)
                if stream is None or stream.topic.id in self._since:
                    continue
                if waits(stream) and is_table(state, stream.topic.id):
                    self._since[stream.topic.id] = now
            if len(some) == TURN_STREAMS:
                yield

    def due(self, state: State, now: float, round_s: float) -> tuple[list[bytes], float]:
        """Run `finding_due` without pauses."""
        return at_once(self.finding_due(state, now, round_s))

    def finding_due(self, state: State, now: float, round_s: float) -> Steps[tuple[list[bytes], float]]:
        """The topics to land now, and the seconds until another one is due (infinite: not before a command is folded).

        `round_s`: the time of a round. A round begins early enough that its end is in time.
        """
        yield from self.looking(state, now)
        due, next_s = [], float("inf")
        ahead_s = round_s * ROUND_RESERVE + LOOK_RESERVE_S
        for topic_id in list(self._since):
            if topic_id not in state.topics.by_id or not is_table(state, topic_id):
                del self._since[topic_id]
                continue
            wait_s = max(self.target_s(state, topic_id) - ahead_s, 0.0)
            left = self._since[topic_id] + wait_s - now
            if left > 0 and (yield from waiting_bytes(state, topic_id)) >= self._limits.waiting_bytes:
                left = 0.0
            setback = self._setbacks.get(topic_id)
            if setback is not None:
                left = max(left, setback.again_at - now)
            if left <= 0:
                due.append(topic_id)
            else:
                next_s = min(next_s, left)
        return due, next_s

    def wanted(self, state: State) -> set[bytes]:
        """All topics that have records to land, however short these wait."""
        return {
            topic_id
            for topic_id, topic in state.topics.by_id.items()
            if is_table(state, topic_id) and any(waits(state.streams.by_id[one]) for one in topic.streams)
        }

    def target_s(self, state: State, topic_id: bytes) -> float:
        asked = state.topics.by_id[topic_id].configs.get(FRESHNESS)
        if asked is None or TOPIC_CONFIGS.problem(FRESHNESS, asked):
            return self._limits.freshness_s
        return int(asked) / 1000

    def began(self, topic_ids: Iterable[bytes]) -> dict[bytes, float]:
        """A round begins with these topics; since when each waited. Records that are appended from now on wait anew."""
        return {one: self._since.pop(one) for one in topic_ids if one in self._since}

    def landed(self, state: State, topic_id: bytes, began: float) -> None:
        """A round committed this topic. Records that it left, or that came meanwhile, wait since the round began."""
        self._setbacks.pop(topic_id, None)
        topic = state.topics.by_id.get(topic_id)
        if topic is not None and any(waits(state.streams.by_id[one]) for one in topic.streams):
            self._since[topic_id] = min(began, self._since.get(topic_id, began))

    def failed(self, topic_id: bytes, reason: str, since: float, now: float) -> Setback:
        """A round did not commit this topic. Its records go on waiting since `since`."""
        before = self._setbacks.get(topic_id)
        failures = before.failures + 1 if before is not None else 1
        pause = min(RETRY_FIRST_S * 2 ** (failures - 1), RETRY_MAX_S)
        setback = self._setbacks[topic_id] = Setback(failures, reason, now + pause)
        self._since[topic_id] = min(since, self._since.get(topic_id, since))
        return setback

    def lag_s(self, now: float) -> float:
        """How long the record that waits longest has been waiting."""
        return max((now - since for since in self._since.values()), default=0.0)

    @property
    def waiting(self) -> int:
        """The number of topics with records to land, as of the last look."""
        return len(self._since)

    @property
    def setbacks(self) -> dict[bytes, Setback]:
        return self._setbacks


