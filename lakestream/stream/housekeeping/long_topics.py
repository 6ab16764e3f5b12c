"""Topics too large for one command: creating, growing and deleting them in pieces, and finishing those of dead brokers.

A piece takes a few milliseconds to fold, and every member serves its clients between two pieces (model/pieces.py).
"""

import logging
from collections.abc import Mapping

from lakestream.errors import LakestreamError, Unknown
from lakestream.metadata.replica import Replica
from lakestream.model.commands import CreatePartitions, CreateTopic
from lakestream.model.levels import BOUNDED
from lakestream.model.pieces import BeginTopic, Dismantle, Doomed, ExtendTopic
from lakestream.model.reasons import No, Reason
from lakestream.model.state import Outcome, State
from lakestream.model.topics import room_problem
from lakestream.stream.housekeeping.collector import is_first_broker
from lakestream.stream.long_work import Steps, chunks, run_in_steps

log = logging.getLogger(__name__)

CHECKED_PER_STEP = 2_000
"""How many producers or groups one step checks."""
NAMED_PER_COMMAND = 500
"""How many producers or groups one command names: each may hold many partitions."""


async def create_topic(replica: Replica, body: CreateTopic) -> Outcome:
    """Create a topic, in pieces if it is large; returns the outcome. Clients see the topic when it is whole.

    Raises Fenced or Retry if the topic was certainly not created. Raises Unknown if the outcome is not known, or if
    the topic was begun: then the first live broker finishes it.
    """
    state = replica.state
    if state.level < BOUNDED or body.partitions <= state.topics.bounds.piece:
        return await replica.propose(body)
    begun = BeginTopic(body.name, body.topic_id, body.partitions, body.replication, body.configs)
    outcome = await replica.propose(begun)
    if isinstance(outcome, No):
        return outcome
    try:
        await _extend(replica, body.topic_id)
    except LakestreamError as error:
        raise Unknown(f"the topic is being created; another broker finishes it if this one cannot: {error}") from error
    return body.partitions


async def grow_topic(replica: Replica, body: CreatePartitions) -> Outcome:
    """Add partitions to a topic, in pieces if there are many; clients see each piece when it is folded.

    Raises Fenced or Retry if no partition was added; Unknown if some were, or if the outcome is not known.
    """
    grown = False
    while True:
        state = replica.state
        topic = state.topics.by_id.get(body.topic_id)
        have = len(topic.streams) if topic is not None else 0
        if not grown and topic is not None and (problem := room_problem(state, 0, body.total - have)):
            return problem
        if grown and topic is not None and have >= body.total:
            return body.total
        total = min(body.total, have + state.topics.bounds.piece) if topic is not None else body.total
        try:
            outcome = await replica.propose(CreatePartitions(body.topic_id, total))
        except LakestreamError as error:
            if not grown:
                raise
            raise Unknown(f"the topic has {have} of {body.total} partitions: {error}") from error
        if isinstance(outcome, No) and not (grown and outcome.reason == Reason.INVALID_PARTITIONS):
            return outcome  # after the first piece, INVALID_PARTITIONS means that another request was faster
        if total == body.total:
            return body.total
        grown = True


async def _extend(replica: Replica, topic_id: bytes) -> None:
    while topic_id in replica.state.topics.forming:
        outcome = await replica.propose(ExtendTopic(topic_id))
        if isinstance(outcome, No) and outcome.reason != Reason.UNKNOWN_TOPIC:
            raise Unknown(outcome.message)


class LongTopics:
    """Finishes topics that are being created or deleted, for the whole cluster; only the first live broker does."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def finish(self) -> int:
        """Run one round; returns how many topics it finished. May raise Retry, Unknown or Fenced."""
        replica, finished = self._replica, 0
        if not is_first_broker(replica.state, replica.member_id):
            return 0
        for topic_id in list(replica.state.topics.forming):
            await _extend(replica, topic_id)
            finished += 1
        for topic_id in list(replica.state.topics.doomed):
            finished += await self._dismantle(topic_id)
        return finished

    async def _dismantle(self, topic_id: bytes) -> int:
        """Remove the deleted topic's streams from producers and groups; none is added once the topic is gone."""
        doomed = self._replica.state.topics.doomed.get(topic_id)
        if doomed is None:
            return 0
        producers = await run_in_steps(_producers_of(self._replica.state, doomed))
        groups = await run_in_steps(_groups_of(self._replica.state, doomed))
        for named in chunks(producers, NAMED_PER_COMMAND):
            await self._propose(Dismantle(topic_id, list(named), []))
        for names in chunks(groups, NAMED_PER_COMMAND):
            await self._propose(Dismantle(topic_id, [], list(names)))
        while await self._propose(Dismantle(topic_id, [], [], last=True)):
            pass
        log.info("topic %s and its %d partitions are deleted", doomed.topic.name, len(doomed.topic.streams))
        return 1

    async def _propose(self, body: Dismantle) -> int:
        """Returns how many of the topic's streams still have entries."""
        outcome = await self._replica.propose(body)
        return 0 if isinstance(outcome, No) else int(outcome)


def _producers_of(state: State, doomed: Doomed) -> Steps[list[int]]:
    found: list[int] = []
    by_id, gone = state.producers.by_id, doomed.places
    for some in chunks(list(by_id), CHECKED_PER_STEP):
        known = ((one, by_id.get(one)) for one in some)
        found += [one for one, producer in known if producer is not None and _overlap(producer.streams, gone)]
        yield
    return found


def _groups_of(state: State, doomed: Doomed) -> Steps[list[str]]:
    found: list[str] = []
    by_name, gone = state.groups.by_name, doomed.places
    for some in chunks(list(by_name), CHECKED_PER_STEP):
        known = ((one, by_name.get(one)) for one in some)
        found += [one for one, group in known if group is not None and _overlap(group.offsets, gone)]
        yield
    return found


def _overlap(one: Mapping[int, object], other: Mapping[int, object]) -> bool:
    smaller, larger = sorted((one, other), key=len)
    return any(key in larger for key in smaller)
