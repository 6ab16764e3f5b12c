"""Requests for care of topics' tables, their progress and their answers.

A broker notes a request, the pipeline's driver (another process) finds it in the state, does it and notes the answer,
which the client reads here. Old answers are forgotten. The state also has the reason why no pipeline runs, if a
pipeline could note one, and for each topic the reason why its regular care fails.
"""

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from lakestream.model.commands import Body
from lakestream.model.levels import BOUNDED
from lakestream.model.members import Member
from lakestream.model.reasons import No, Reason
from lakestream.model.stored import row_of

if TYPE_CHECKING:
    from lakestream.model.state import State

WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"
KINDS = frozenset(["optimize", "expire", "orphans", "delete", "repair"])
"""Checked by the proposer: versions know different kinds, and have to fold every command alike (L3)."""
FIRST_KINDS = frozenset(["optimize", "expire", "orphans", "delete", "repair"])
"""What `apply` accepts below level BOUNDED."""
KIND_CHARACTERS_MAX = 64
REQUESTS_MAX = 100
KEPT_MS = 3_600_000
"""How long an answer is kept."""
ARGUMENTS_BYTES_MAX = 16_384
TEXT_MAX = 4_000
REQUEST_BYTES = 16


class RequestCare(Body, frozen=True, array_like=True):
    """A request for care of one topic's table."""

    KIND: ClassVar[int] = 50
    request: bytes
    topic_id: bytes
    kind: str
    arguments: dict[str, str]


class TellCare(Body, frozen=True, array_like=True):
    """The progress of a request, or its answer."""

    KIND: ClassVar[int] = 51
    request: bytes
    status: str
    text: str
    figures: dict[str, int]


class NotePipeline(Body, frozen=True, array_like=True):
    """Why no pipeline lands (it found no Java, say); an empty reason when one does."""

    KIND: ClassVar[int] = 52
    reason: str


class NoteCare(Body, frozen=True, array_like=True):
    """Why the regular care of a topic's table fails; an empty reason when it succeeds."""

    KIND: ClassVar[int] = 53
    topic_id: bytes
    reason: str


class CareRequest(NamedTuple):
    """One request, and its answer so far. Times are the cluster's."""

    topic_id: bytes
    kind: str
    arguments: dict[str, str]
    asked_ms: int
    status: str = WAITING
    text: str = ""
    figures: dict[str, int] | None = None
    told_ms: int = 0

    @property
    def over(self) -> bool:
        return self.status in (DONE, FAILED)


class Care:
    """All requests by their ids, in the order in which they came."""

    __slots__ = ("requests", "trouble")

    def __init__(self) -> None:
        self.requests: dict[bytes, CareRequest] = {}
        self.trouble = ""

    def waiting(self) -> list[bytes]:
        """Requests without an answer, the oldest first. A running one may have died with its pipeline."""
        return [request for request, one in self.requests.items() if not one.over]

    def forget_old(self, now_ms: int) -> None:
        """Forget old answers."""
        old = [request for request, one in self.requests.items() if one.over and one.told_ms < now_ms - KEPT_MS]
        for request in old:
            del self.requests[request]
        over = [request for request, one in self.requests.items() if one.over]
        for request in over[: max(len(self.requests) - REQUESTS_MAX + 1, 0)]:
            del self.requests[request]

    def dump(self) -> list[Any]:
        return [self.trouble, [[request, *one] for request, one in self.requests.items()]]

    @classmethod
    def load(cls, fields: list[Any]) -> "Care":
        care = cls()
        care.trouble = fields[0]
        care.requests = {request: row_of(CareRequest, one) for request, *one in fields[1]}
        return care


def request_care(state: "State", member: Member, body: RequestCare) -> No | None:
    """A repeated request with the same id is the same request."""
    care = state.care
    if body.request in care.requests:
        return None
    known = body.kind in FIRST_KINDS if state.level < BOUNDED else 0 < len(body.kind) <= KIND_CHARACTERS_MAX
    if len(body.request) != REQUEST_BYTES or not known:
        return No(Reason.INVALID_REQUEST, f"there is no such care; there is {', '.join(sorted(KINDS))}")
    if sum(len(name) + len(value) for name, value in body.arguments.items()) > ARGUMENTS_BYTES_MAX:
        return No(Reason.INVALID_REQUEST, f"the arguments have at most {ARGUMENTS_BYTES_MAX} characters")
    if body.topic_id not in state.topics.by_id:
        return No(Reason.UNKNOWN_TOPIC, "no topic has this id")
    care.forget_old(state.members.time_ms)
    if len(care.requests) >= REQUESTS_MAX:
        return No(Reason.CARE_FULL, f"{REQUESTS_MAX} requests wait already")
    care.requests[body.request] = CareRequest(body.topic_id, body.kind, dict(body.arguments), state.members.time_ms)
    return None


def tell_care(state: "State", member: Member, body: TellCare) -> No | None:
    one = state.care.requests.get(body.request)
    if one is None or one.over:
        return No(Reason.INVALID_REQUEST, "no request waits for this answer")
    if body.status not in (RUNNING, DONE, FAILED) or len(body.figures) > REQUESTS_MAX:
        return No(Reason.MALFORMED, "no answer to a request looks like this")
    state.care.requests[body.request] = one._replace(
        status=body.status, text=body.text[:TEXT_MAX], figures=dict(body.figures), told_ms=state.members.time_ms
    )
    return None


def note_pipeline(state: "State", member: Member, body: NotePipeline) -> None:
    state.care.trouble = body.reason[:TEXT_MAX]


def note_care(state: "State", member: Member, body: NoteCare) -> No | None:
    landing = state.catalog.landings.get(body.topic_id)
    if landing is None:
        return No(Reason.UNKNOWN_TOPIC, "no topic that has a table has this id")
    landing.uncared = body.reason[:TEXT_MAX]
    return None


RULES = (
    (RequestCare, request_care),
    (TellCare, tell_care),
    (NotePipeline, note_pipeline),
    (NoteCare, note_care),
)
