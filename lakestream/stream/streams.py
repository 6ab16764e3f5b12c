"""The front door to streams: everything that a protocol does with records, groups and committed offsets.

For the author of a new protocol: handlers take one `FrontDoor`, and from the other modules of this package only the
values that its methods take and return (`submissions`, `groups/waiting_members`). A handler

- finds a stream by `topic` or `stream`, which look at the state at hand. Before it says that something does not exist
  (no such topic, an offset out of range, nothing committed) it awaits `catch_up` and looks again (L6);
- checks batches against `rules` and gives them to `append`, or to `submit` on a hot path. Batches of one connection
  enter in the order in which they came, and their answers go out in that order (L16). An error of kind `Unknown` is
  never translated to "not written" (L17). `throttle_ms` tells how long to hold an answer back;
- reads with `read`; when there is nothing yet it sleeps in `wait` until a stream moves, and stops once `closing`;
- finds offsets by time with `find_time` and `find_latest`; `stream.start` is the log's start, `stream.next` its end;
- serves consumer groups with `groups` (join, sync, heartbeat, leave) and `offsets` (commit, fetch, delete, describe).

Failures are exceptions of `errors.py`; each protocol translates them to its own codes. All calls run on the event loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from lakestream.errors import LakestreamError, Rejected, Retry
from lakestream.metadata.replica import Replica
from lakestream.model.append_rows import BatchRow
from lakestream.model.groups.membership import coordinator
from lakestream.model.members import Member
from lakestream.model.reasons import Reason
from lakestream.model.state import State
from lakestream.model.streams import Stream
from lakestream.model.topics import Topic
from lakestream.stream.appender import Appender
from lakestream.stream.groups.coordinator import GroupCoordinator
from lakestream.stream.groups.offsets import GroupOffsets
from lakestream.stream.reader import FoundRecord, Reader
from lakestream.stream.rules import Rules
from lakestream.stream.submissions import AppendAnswer, Submission, Submitted
from lakestream.stream.waiting import Waiting

TopicKey = str | bytes
"""A topic's name, or its id."""
THROTTLE_MS = 1000
TIME_LOOKUPS = 3
"""How often a time is looked up again because retention moved the log start meanwhile."""


class FrontDoor:
    """The streams of one broker. `submit`, `read` and the two `wait` are methods of its parts: no call is added."""

    def __init__(
        self,
        replica: Replica,
        appender: Appender,
        reader: Reader,
        waiting: Waiting,
        rules: Rules,
        groups: GroupCoordinator,
    ) -> None:
        self._replica = replica
        self._reader = reader
        self._waiting = waiting
        self.rules = rules
        """The limits and timestamps that a topic's configs demand of its records."""
        self.groups = groups
        """Membership of consumer groups. Only a group's coordinator answers: see `coordinator`."""
        self.offsets = GroupOffsets(replica, groups)
        """Committed offsets, and groups as an operator sees them."""
        self.submit: Callable[[Submitted], None] = appender.submit
        """Takes the batches of one request, in the order of calls, and returns at once: see `submissions.Batches`."""
        self.read = reader.serve
        """Whole batches of a stream from the one that holds an offset on: see `Reader.serve`."""
        self.wait = waiting.wait
        """Sleeps until one of some streams moves, and returns True; False after a time limit."""
        self.wait_for_many = waiting.wait_for_many
        """The same in steps, for very many streams."""

    # -- finding ----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state as this broker has folded it. To look at, never to change."""
        return self._replica.state

    async def catch_up(self) -> None:
        """Fold to the end of the command log, so that a following look-up is current (L6). Raises Retry."""
        await self._replica.catch_up()

    def topic(self, key: TopicKey) -> Topic | None:
        """The topic with this name or id in the state at hand."""
        topics = self._replica.state.topics
        return topics.by_name.get(key) if isinstance(key, str) else topics.by_id.get(key)

    def stream(self, key: TopicKey, partition: int) -> Stream | None:
        """The stream of one partition in the state at hand."""
        topic = self.topic(key)
        if topic is None or not 0 <= partition < len(topic.streams):
            return None
        return self._replica.state.streams.by_id[topic.streams[partition]]

    async def current_stream(self, key: TopicKey, partition: int) -> Stream:
        """The stream of one partition, with its start and end as they are now. Raises Rejected if there is none."""
        await self._replica.catch_up()
        stream = self.stream(key, partition)
        if stream is None:
            raise Rejected(Reason.UNKNOWN_TOPIC)
        return stream

    # -- appending --------------------------------------------------------------------------------------------------

    async def append(
        self, rows: list[BatchRow], views: list[memoryview], stamped: Sequence[int] = ()
    ) -> list[int]:
        """Append checked batches: of each its base offset, or the negative `Reason` why it is not in the log.

        `stamped` has the places of those that get the broker's time. Raises Retry or Fenced if nothing was appended,
        Unknown if that is not certain.
        """
        answered: asyncio.Future[AppendAnswer] = asyncio.get_running_loop().create_future()

        def done(answer: AppendAnswer) -> None:
            if not answered.done():
                answered.set_result(answer)

        self.submit(Submission(rows, views, _keep, done, stamped))
        answer = await answered
        if isinstance(answer, LakestreamError):
            raise answer
        return answer

    def append_time(self, stream: Stream, row: BatchRow) -> int:
        """The time of a batch that was just appended with the broker's time: as the fold or the tick decided (L19)."""
        return self._replica.state.streams.append_times.by_stream.get(stream.id, row[3])

    def throttle_ms(self, appended: Iterable[Stream]) -> int:
        """How long to hold an answer back: from half of a topic's share of entries on, the fuller the longer (L20)."""
        streams = self._replica.state.streams
        if streams.entries * 2 < streams.limit:
            return 0
        fullest = max((stream.topic for stream in appended), key=lambda topic: topic.entries, default=None)
        if fullest is None:
            return 0
        share = streams.share(fullest, len(self._replica.state.topics.by_id))
        return max(0, (2 * fullest.entries - share) * THROTTLE_MS // share)

    # -- reading ----------------------------------------------------------------------------------------------------

    @property
    def closing(self) -> bool:
        """Whether the broker stops: handlers then answer with what they have, and wait no more."""
        return self._waiting.closing

    async def find_time(self, stream: Stream, timestamp: int) -> FoundRecord | None:
        """The first record with this timestamp or a later one."""
        return await self._looked_up(stream, lambda: self._reader.find_timestamp(stream, timestamp))

    async def find_latest(self, stream: Stream) -> FoundRecord | None:
        """The record with the greatest timestamp, the first of several."""
        return await self._looked_up(stream, lambda: self._reader.find_max_timestamp(stream))

    async def _looked_up(
        self, stream: Stream, look_up: Callable[[], Awaitable[FoundRecord | None]]
    ) -> FoundRecord | None:
        for _ in range(TIME_LOOKUPS):
            try:
                return await look_up()
            except Rejected:
                continue
        raise Retry(f"{stream!r}: the log start moves faster than the log can be read")

    # -- groups -----------------------------------------------------------------------------------------------------

    def coordinator(self, group: str) -> Member | None:
        """The broker that coordinates a group; None while no broker is alive."""
        state = self._replica.state
        owner = coordinator(state, group)
        return state.members.by_id[owner] if owner is not None else None


def _keep() -> None:
    """The bytes belong to the caller, and live as long as their views."""
