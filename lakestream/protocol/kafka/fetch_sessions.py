"""Fetch sessions (KIP-227): a consumer names its partitions once, then only changes; answers have only what is new.

    id 0, epoch 0          a full request that asks for a session; it gets an id and goes on with epoch 1
    id n, epoch e          the next incremental request of session n
    id n, epoch -1         a full request that ends session n
    id 0, epoch -1         a full request without a session

Sessions live in one broker's memory. A client with an unknown session, for example another broker's, gets an error and
sends a full request. A new session may displace one that was not used for a while; where all are in use, the newcomer
gets no session and goes on with full requests. The partitions of all sessions together are bounded: a session that
would exceed the bound is ended, or not begun. The same holds for a session that names a topic by a longer name than
topics can have, so that the bytes of all names are bounded as well.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from random import Random

from lakestream.interfaces import Clock
from lakestream.model.configs import MAX_NAME
from lakestream.protocol.kafka.errors import ErrorCode
from lakestream.protocol.kafka.wire.fast_requests import ParsedFetch, Topic, Wanted
from lakestream.stream.long_work import Steps

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
MAX_ID = (1 << 31) - 1
PARTITIONS_AT_ONCE = 1_000
"""Partitions of one request that are handled before the handler yields to the event loop: some milliseconds."""
UNUSED_S = 120.0
"""Kafka's: a session that was not used for longer may give way."""

PartitionKey = tuple[Topic, int]


@dataclass(slots=True)
class Session:
    """The partitions that one consumer reads, in the order in which they are served, and the last answer for each."""

    id: int
    by_ids: bool
    used_s: float
    epoch: int = 1
    wanted: dict[PartitionKey, Wanted] = field(default_factory=dict)
    sent: dict[PartitionKey, tuple[int, int]] = field(default_factory=dict)
    """High watermark and log start."""

    def news(self, key: PartitionKey, high_watermark: int, log_start: int, has_more: bool) -> bool:
        """Whether the answer has to name this partition. Remembers the figures that are sent."""
        previous = self.sent.get(key)
        self.sent[key] = (high_watermark, log_start)
        if has_more and key in self.wanted:
            # A served partition goes to the end, so that the next answer begins with the others.
            self.wanted[key] = self.wanted.pop(key)
        return has_more or previous != (high_watermark, log_start)


Resolved = tuple[Session | None, dict[PartitionKey, Wanted], int]


class Sessions:
    """The sessions of one broker, the least recently used first."""

    def __init__(self, random: Random, clock: Clock, limit: int = 1000, most_partitions: int = 200_000) -> None:
        self._random = random
        self._clock = clock
        self._limit = limit
        self._most_partitions = most_partitions
        self._by_id: OrderedDict[int, Session] = OrderedDict()
        self.partitions = 0
        """Of all sessions together."""

    def __len__(self) -> int:
        return len(self._by_id)

    def resolve(self, request: ParsedFetch, by_ids: bool) -> Steps[Resolved]:
        """The session if there is one, the partitions to read, and an error code. `by_ids`: how it names topics."""
        asked = yield from _asked(request)
        if request.session_epoch == FINAL_EPOCH:
            self._end(request.session_id)
            return None, asked, 0
        if request.session_epoch == INITIAL_EPOCH:
            self._end(request.session_id)
            return None if _too_long(request) else self._begin(asked, by_ids), asked, 0
        session = self._by_id.get(request.session_id)
        if session is None:
            return None, {}, int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return None, {}, int(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_ids != by_ids:
            # Its answer could not name the topics that were asked for in the other way.
            return None, {}, int(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if _too_long(request):
            self._end(session.id)
            return None, {}, int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._by_id.move_to_end(session.id)
        session.used_s = self._clock.monotonic()
        session.epoch = 1 if session.epoch == MAX_ID else session.epoch + 1
        if not (yield from self._change(session, asked, request.forgotten)):
            return None, {}, int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return session, dict(session.wanted), 0

    def _change(
        self, session: Session, asked: dict[PartitionKey, Wanted], forgotten: list[tuple[Topic, list[int]]]
    ) -> Steps[bool]:
        """Take up and drop partitions; False if the session ends, now or between two steps."""
        for place, (key, one) in enumerate(asked.items(), 1):
            if key not in session.wanted:
                if self.partitions >= self._most_partitions:
                    self._end(session.id)
                    return False
                self.partitions += 1
            session.wanted[key] = one
            if place % PARTITIONS_AT_ONCE == 0:
                yield
                if self._by_id.get(session.id) is not session:
                    return False
        place = 0
        for topic, partitions in forgotten:
            for partition in partitions:
                if session.wanted.pop((topic, partition), None) is not None:
                    self.partitions -= 1
                session.sent.pop((topic, partition), None)
                place += 1
                if place % PARTITIONS_AT_ONCE == 0:
                    yield
                    if self._by_id.get(session.id) is not session:
                        return False
        return True

    def _begin(self, asked: dict[PartitionKey, Wanted], by_ids: bool) -> Session | None:
        now = self._clock.monotonic()
        while len(self._by_id) >= self._limit or self.partitions + len(asked) > self._most_partitions:
            oldest = next(iter(self._by_id.values()), None)
            if oldest is None or now - oldest.used_s <= UNUSED_S:
                return None
            self._end(oldest.id)
        session_id = self._random.randint(1, MAX_ID)
        while session_id in self._by_id:
            session_id = self._random.randint(1, MAX_ID)
        session = self._by_id[session_id] = Session(session_id, by_ids, now, wanted=dict(asked))
        self.partitions += len(asked)
        return session

    def _end(self, session_id: int) -> None:
        """Forget a session, if there is one."""
        session = self._by_id.pop(session_id, None)
        if session is not None:
            self.partitions -= len(session.wanted)


def _asked(request: ParsedFetch) -> Steps[dict[PartitionKey, Wanted]]:
    """The partitions that a request names."""
    asked: dict[PartitionKey, Wanted] = {}
    for topic, partitions in request.topics:
        for one in partitions:
            asked[topic, one.partition] = one
            if len(asked) % PARTITIONS_AT_ONCE == 0:
                yield
    return asked


def _too_long(request: ParsedFetch) -> bool:
    """Whether the request names a topic by a longer name than topics can have."""
    return any(isinstance(topic, str) and len(topic) > MAX_NAME for topic, _ in request.topics)
