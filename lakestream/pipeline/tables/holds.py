"""Holds of the pipeline: a topic that cannot be landed waits, with a reason in the state that begins as below.

The beginning tells which part set the hold: the pipeline releases only its own, when their cause is gone.
"""

import logging

from lakestream.errors import LakestreamError
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.landed import HoldTopic

log = logging.getLogger(__name__)

HELD_BY_US = "landing: "
"""Set by the pipeline, which may release it."""
TABLE = "the table: "
HELD_BY_TABLE = f"{HELD_BY_US}{TABLE}"
"""Set since another engine changed a table in an external catalog, or since that catalog does not answer."""


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
