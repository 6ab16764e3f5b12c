"""A topic whose table in an external catalog is lost for good gets another one."""

from typing import TYPE_CHECKING, ClassVar

from lakestream.model.catalog.landed import Landing
from lakestream.model.commands import Body
from lakestream.model.members import Member
from lakestream.model.reasons import No, Reason

if TYPE_CHECKING:
    from lakestream.model.state import State


class Rebind(Body, frozen=True, array_like=True):
    """A topic gets another table in an external catalog, since the one with uuid `before` is lost for good.

    What had landed is given up: its offsets stay, and are gaps.
    """

    KIND: ClassVar[int] = 49
    topic_id: bytes
    before: str
    uuid: str
    location: str


def rebind(state: "State", member: Member, body: Rebind) -> No | None:
    landing = state.catalog.landings.get(body.topic_id)
    if landing is None or not landing.location:
        return No(Reason.UNKNOWN_TABLE, "the topic has no table in another catalog")
    if landing.uuid != body.before:
        return No(Reason.STALE_PREMISE, f"the topic is bound to the table {landing.uuid}")
    if not body.uuid or not body.location or body.uuid in state.catalog.keys:
        return No(Reason.MALFORMED, "a table of another catalog has a uuid of its own and a metadata file")
    fresh = Landing(body.uuid)
    fresh.held, fresh.location = landing.held, body.location
    state.catalog.landings[body.topic_id] = fresh
    return None


RULES = ((Rebind, rebind),)
