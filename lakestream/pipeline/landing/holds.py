"""How the reasons of holds begin, so that who held a topic can tell its own, and release it when the cause is gone."""

import logging

from lakestream.errors import LakestreamError
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.tables import HoldTopic
from lakestream.pipeline.landing.planner import waits

log = logging.getLogger(__name__)

HELD_BY_US = "landing: "
"""The pipeline's: those it may release."""
TABLE = "the table: "
HELD_BY_TABLE = f"{HELD_BY_US}{TABLE}"
"""What another engine did to a table in another catalog, or that this catalog is away."""


async def hold(replica: Replica, topic_id: bytes, reason: str) -> None:
    """Say in the state why a topic waits, once. A hold by another party stays."""
    landing = replica.state.catalog.landings.get(topic_id)
    wanted = f"{HELD_BY_US}{reason}"
    held = landing.held if landing is not None else ""
    if held and (held == wanted or not held.startswith(HELD_BY_US)):
        return
    try:
        await replica.propose(HoldTopic(topic_id, wanted))
    except LakestreamError as error:
        log.warning("the reason why a topic waits could not be noted: %s", error)


async def release_idle(replica: Replica) -> None:
    """Where nothing waits nothing is held up by us: another pipeline may have landed what we could not."""
    state = replica.state
    for topic_id, landing in list(state.catalog.landings.items()):
        topic = state.topics.by_id.get(topic_id)
        if topic is None or not landing.held.startswith(HELD_BY_US):
            continue
        if not any(waits(state.streams.by_id[one]) for one in topic.streams):
            try:
                await replica.propose(HoldTopic(topic_id, ""))
            except LakestreamError as error:
                log.warning("a topic that waits for nothing could not be released: %s", error)
