"""The catalog's namespaces: made below one that is there, changed in their properties, and dropped when empty."""

from typing import TYPE_CHECKING, ClassVar

from lakestream.model.catalog.names import SEPARATOR, STREAMS, namespace_problem, parent_of, shown
from lakestream.model.commands import Body
from lakestream.model.members import Member
from lakestream.model.reasons import No, Reason

if TYPE_CHECKING:
    from lakestream.model.state import State

MAX_PROPERTIES_BYTES = 65_536


class CreateNamespace(Body, frozen=True, array_like=True):
    """A new namespace; its parent has to be there."""

    KIND: ClassVar[int] = 40
    namespace: str
    properties: dict[str, str]


class DropNamespace(Body, frozen=True, array_like=True):
    """An empty namespace goes."""

    KIND: ClassVar[int] = 41
    namespace: str


class UpdateNamespace(Body, frozen=True, array_like=True):
    """Properties of a namespace go, others are set."""

    KIND: ClassVar[int] = 42
    namespace: str
    removals: list[str]
    updates: dict[str, str]


def create_namespace(state: "State", member: Member, body: CreateNamespace) -> No | None:
    namespaces = state.catalog.namespaces
    if problem := namespace_problem(body.namespace) or properties_problem(body.properties):
        return No(Reason.INVALID_REQUEST, problem)
    if body.namespace in namespaces:
        return No(Reason.NAMESPACE_EXISTS, f"Namespace already exists: {shown(body.namespace)}")
    parent = parent_of(body.namespace)
    if parent and parent not in namespaces:
        return No(Reason.UNKNOWN_NAMESPACE, f"Namespace does not exist: {shown(parent)}")
    namespaces[body.namespace] = dict(body.properties)
    return None


def drop_namespace(state: "State", member: Member, body: DropNamespace) -> No | None:
    catalog = state.catalog
    if body.namespace not in catalog.namespaces:
        return No(Reason.UNKNOWN_NAMESPACE, f"Namespace does not exist: {shown(body.namespace)}")
    if body.namespace == STREAMS:
        return No(Reason.TABLE_BOUND, f"the namespace {STREAMS} belongs to the topics")
    below = body.namespace + SEPARATOR
    held = any(namespace == body.namespace for held in (catalog.tables, catalog.views.by_key) for namespace, _ in held)
    if held or any(namespace.startswith(below) for namespace in catalog.namespaces):
        return No(Reason.NAMESPACE_NOT_EMPTY, f"Namespace {shown(body.namespace)} is not empty")
    del catalog.namespaces[body.namespace]
    return None


def update_namespace(state: "State", member: Member, body: UpdateNamespace) -> list[str] | No:
    """Which of the removals were there."""
    properties = state.catalog.namespaces.get(body.namespace)
    if properties is None:
        return No(Reason.UNKNOWN_NAMESPACE, f"Namespace does not exist: {shown(body.namespace)}")
    gone = [name for name in dict.fromkeys(body.removals) if name in properties]
    changed = {name: value for name, value in properties.items() if name not in gone} | body.updates
    if problem := properties_problem(changed):
        return No(Reason.INVALID_REQUEST, problem)
    state.catalog.namespaces[body.namespace] = changed
    return gone


def properties_problem(properties: dict[str, str]) -> str:
    size = sum(len(name) + len(value) for name, value in properties.items())
    return "" if size <= MAX_PROPERTIES_BYTES else f"a namespace's properties have at most {MAX_PROPERTIES_BYTES} bytes"


RULES = (
    (CreateNamespace, create_namespace),
    (DropNamespace, drop_namespace),
    (UpdateNamespace, update_namespace),
)
