"""The catalog's namespaces, and lists in pages."""

from base64 import b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping

from lakestream.metadata.replica import Replica
from lakestream.model.catalog.names import SEPARATOR, STREAMS, parent_of, shown
from lakestream.model.catalog.namespaces import CreateNamespace, DropNamespace, UpdateNamespace
from lakestream.model.commands import Body
from lakestream.model.reasons import No, Reason
from lakestream.protocol.http.iceberg.errors import bad_request, no_such_namespace, of_refusal, unprocessable

PAGE_SIZE_DEFAULT = 1000


class Namespaces:
    """The operations of the REST protocol on namespaces."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def properties(self, namespace: str) -> dict[str, str]:
        await self._replica.catch_up()
        found = self._replica.state.catalog.namespaces.get(namespace)
        if found is None:
            raise no_such_namespace(shown(namespace))
        return found

    async def children(self, parent: str) -> list[str]:
        """The namespaces directly below one, or the top-level ones."""
        await self._replica.catch_up()
        namespaces = self._replica.state.catalog.namespaces
        if parent and parent not in namespaces:
            raise no_such_namespace(shown(parent))
        return [name for name in namespaces if parent_of(name) == parent]

    async def tables(self, namespace: str) -> list[str]:
        await self.properties(namespace)
        return [name for space, name in self._replica.state.catalog.tables if space == namespace]

    async def create(self, namespace: str, properties: dict[str, str]) -> None:
        if namespace.startswith(f"{STREAMS}{SEPARATOR}"):
            raise of_refusal(No(Reason.TABLE_BOUND, f"the namespace {STREAMS} belongs to the topics, and all below it"))
        await self._say(CreateNamespace(namespace, properties))

    async def drop(self, namespace: str) -> None:
        await self._say(DropNamespace(namespace))

    async def update(self, namespace: str, removals: list[str], updates: dict[str, str]) -> list[str]:
        """Updates properties; returns the removals that existed."""
        if both := sorted(set(removals) & updates.keys()):
            raise unprocessable(f"{', '.join(both)} cannot be removed and set at once")
        found: list[str] = await self._say(UpdateNamespace(namespace, removals, updates))
        return found

    async def _say(self, body: Body) -> list[str]:
        outcome = await self._replica.propose(body)
        if isinstance(outcome, No):
            raise of_refusal(outcome)
        return outcome or []


def page(names: Iterable[str], query: Mapping[str, str]) -> tuple[list[str], str | None]:
    """One page of the names, in order, and the token of the next one. Without a page size all names are returned."""
    ordered = sorted(names)
    token, size = query.get("pageToken"), query.get("pageSize")
    if token is None and size is None:
        return ordered, None
    limit = PAGE_SIZE_DEFAULT
    if size is not None:
        if not (size.isascii() and size.isdigit() and 0 < len(size) < 10 and int(size) > 0):
            raise bad_request("pageSize is a number above 0")
        limit = int(size)
    if token:
        try:
            after = b64decode(token.encode(), b"-_", validate=True).decode()
        except ValueError as error:
            raise bad_request("this pageToken is none of ours") from error
        ordered = [name for name in ordered if name > after]
    shown_names = ordered[:limit]
    more = len(ordered) > limit
    return shown_names, urlsafe_b64encode(shown_names[-1].encode()).decode() if more else None
