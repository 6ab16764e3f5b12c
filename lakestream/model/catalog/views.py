"""The catalog's views: as tables, by the place of their newest metadata file. They came with level 2.

A view and a table never have one name. The namespace of the topics has none: a view over a stream lies beside it.
"""

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from lakestream.model.catalog.names import STREAMS, name_problem, shown
from lakestream.model.commands import Body
from lakestream.model.levels import BOUNDED
from lakestream.model.members import Member
from lakestream.model.reasons import No, Reason
from lakestream.model.stored import row_of

if TYPE_CHECKING:
    from lakestream.model.catalog.tables import Catalog
    from lakestream.model.state import State

ViewKey = tuple[str, str]


class CommitView(Body, frozen=True, array_like=True):
    """A view moves from metadata file `expected` ("": it is new) to `location` ("": it goes), maybe to a new name."""

    KIND: ClassVar[int] = 65
    LEVEL: ClassVar[int] = BOUNDED
    namespace: str
    name: str
    uuid: str
    expected: str
    location: str
    rename_to: tuple[str, str] | None = None


class CatalogView(NamedTuple):
    """A view: its uuid and its newest metadata file."""

    uuid: str
    location: str


class Views:
    """All views. `keys` finds one by its uuid."""

    __slots__ = ("by_key", "keys")

    def __init__(self) -> None:
        self.by_key: dict[ViewKey, CatalogView] = {}
        self.keys: dict[str, ViewKey] = {}

    def put(self, key: ViewKey, view: CatalogView) -> None:
        self.by_key[key] = view
        self.keys[view.uuid] = key

    def remove(self, key: ViewKey) -> CatalogView:
        view = self.by_key.pop(key)
        del self.keys[view.uuid]
        return view

    def dump(self) -> list[Any]:
        return [[*key, *view] for key, view in self.by_key.items()]

    @classmethod
    def load(cls, fields: list[Any]) -> "Views":
        views = cls()
        for namespace, name, *view in fields:
            views.put((namespace, name), row_of(CatalogView, view))
        return views


def commit_view(state: "State", member: Member, body: CommitView) -> No | None:
    catalog, key = state.catalog, (body.namespace, body.name)
    if not body.expected:
        return _make(catalog, key, body)
    view = catalog.views.by_key.get(key)
    if view is None:
        return No(Reason.UNKNOWN_VIEW, f"View does not exist: {shown(*key)}")
    if view.uuid != body.uuid or view.location != body.expected:
        return No(Reason.STALE_PREMISE, f"view {shown(*key)} has changed")
    target = body.rename_to or key
    if body.location and target != key and (problem := _target_problem(catalog, key, target)):
        return problem
    catalog.views.remove(key)
    if body.location:
        catalog.views.put(target, CatalogView(body.uuid, body.location))
    else:
        catalog.to_purge(body.uuid, body.expected, state.members.time_ms)
    return None


def _make(catalog: "Catalog", key: ViewKey, body: CommitView) -> No | None:
    if problem := _place_problem(catalog, key):
        return problem
    if key in catalog.tables:
        return No(Reason.TABLE_EXISTS, f"Table with same name already exists: {shown(*key)}")
    if key in catalog.views.by_key:
        return No(Reason.VIEW_EXISTS, f"View already exists: {shown(*key)}")
    if not body.uuid or not body.location or body.rename_to is not None:
        return No(Reason.MALFORMED, "a new view needs a uuid and a metadata file, and has one name")
    if body.uuid in catalog.views.keys or body.uuid in catalog.keys:
        return No(Reason.VIEW_EXISTS, f"View already exists: one with the uuid {body.uuid}")
    catalog.views.put(key, CatalogView(body.uuid, body.location))
    return None


def _target_problem(catalog: "Catalog", key: ViewKey, target: ViewKey) -> No | None:
    if problem := _place_problem(catalog, target):
        return problem
    if target in catalog.tables:
        return No(Reason.TABLE_EXISTS, f"Cannot rename {shown(*key)} to {shown(*target)}. Table already exists")
    if target in catalog.views.by_key:
        return No(Reason.VIEW_EXISTS, f"Cannot rename {shown(*key)} to {shown(*target)}. View already exists")
    return None


def _place_problem(catalog: "Catalog", key: ViewKey) -> No | None:
    if key[0] not in catalog.namespaces:
        return No(Reason.UNKNOWN_NAMESPACE, f"Namespace does not exist: {shown(key[0])}")
    if problem := name_problem(key[1]):
        return No(Reason.INVALID_REQUEST, problem)
    if key[0] == STREAMS:
        return No(Reason.TABLE_BOUND, f"the namespace {STREAMS} belongs to the topics")
    return None


RULES = ((CommitView, commit_view),)
