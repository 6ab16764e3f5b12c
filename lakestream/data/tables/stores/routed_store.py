"""Routes to the cluster's own store, or to the folder of a table that another catalog has placed outside of it.

Only folders of topics' tables are opened, so that metadata written by other engines cannot lead anywhere else.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from threading import Lock

from lakestream.data.tables.stores.table_store import DatedStore, TableStore, open_table_store
from lakestream.errors import Rejected
from lakestream.model.catalog.names import canonical, root_of
from lakestream.model.catalog.tables import Catalog
from lakestream.model.reasons import Reason

OPEN_MAX = 4096
"""Folders that are kept open."""
_OBSTORE = {
    "s3.endpoint": "endpoint", "s3.access-key-id": "access_key_id", "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token", "s3.region": "region", "client.access-key-id": "access_key_id",
    "client.secret-access-key": "secret_access_key", "client.session-token": "session_token",
    "client.region": "region", "adls.account-name": "account_name", "adls.account-key": "account_key",
}  # fmt: skip
"""PyIceberg's names of a store's options, and obstore's."""


def store_options(properties: Mapping[str, str]) -> dict[str, str]:
    """The options of obstore, from a catalog's properties; names of a store win over those of a client."""
    named = sorted((name for name in properties if name in _OBSTORE), key=lambda name: not name.startswith("client."))
    return {_OBSTORE[name]: str(properties[name]) for name in named}


def external_roots(catalog: Catalog) -> list[str]:
    """The folders of all tables that are in other catalogs."""
    return [root_of(landing.location) for landing in list(catalog.landings.values()) if landing.location]


def open_folder(root: str, options: Callable[[], Mapping[str, str]]) -> DatedStore:
    """The store of one folder. A folder of this machine needs no options."""
    return open_table_store(root, **({} if root.startswith("file:") else options()))


def open_store_of(root: str, metadata_location: str) -> TableStore:
    """The store that a table is read from: the cluster's, or that of its folder, by the environment's settings."""
    return open_table_store(place_of(root, metadata_location))


def place_of(root: str, metadata_location: str) -> str:
    """The root of a table's files: the cluster's, or a folder outside of it."""
    return root if metadata_location.startswith(f"{root}/") else root_of(metadata_location)


def open_routed(root: str, roots: Callable[[], Iterable[str]]) -> "RoutedStore":
    """For tools that only read: options of other stores come from the environment."""
    return RoutedStore(open_table_store(root), roots, dict)


class RoutedStore:
    """A TableStore. `roots` returns the folders outside of its own, `options` the options of their object stores."""

    def __init__(
        self, own: DatedStore, roots: Callable[[], Iterable[str]], options: Callable[[], Mapping[str, str]]
    ) -> None:
        self.root = own.root
        self.requests_at_once = own.requests_at_once
        self._own = own
        self._roots = roots
        self._options = options
        self._stores: dict[str, DatedStore] = {}
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"RoutedStore({self._own!r}, {len(self._stores)} elsewhere)"

    def allow(self, root: str) -> None:
        """Opens the folder of a table that was just created, before the state has it."""
        if not f"{root}/".startswith(f"{self.root}/"):
            self._opened(root)

    def options(self) -> dict[str, str]:
        """The options of the other object stores; empty if there are none."""
        return dict(self._options())

    def put(self, uri: str, data: bytes) -> None:
        self._of(uri).put(uri, data)

    def get(self, uri: str) -> bytes:
        return self._of(uri).get(uri)

    def read(self, uri: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._of(uri).read(uri, ranges)

    def list(self, prefix: str) -> list[tuple[str, int]]:
        return self._of(prefix).list(prefix)

    def list_dated(self, prefix: str) -> Sequence[tuple[str, int, int]]:
        return self._of(prefix).list_dated(prefix)

    def folders(self, prefix: str) -> Sequence[str]:
        return self._of(prefix).folders(prefix)

    def delete(self, uris: Sequence[str]) -> None:
        for store, some in groupby(uris, self._of):
            store.delete(list(some))

    def _of(self, uri: str) -> DatedStore:
        plain = canonical(uri)
        if plain.startswith(f"{self.root}/"):
            return self._own
        above = _above(plain)
        for folder in above:
            if folder in self._stores:
                return self._stores[folder]
        known = set(self._roots())
        for folder in above:
            if folder in known:
                return self._opened(folder)
        raise Rejected(Reason.INVALID_REQUEST, f"{uri} lies in no folder of ours")

    def _opened(self, root: str) -> DatedStore:
        with self._lock:
            found = self._stores.pop(root, None) or open_folder(root, self._options)
            self._stores[root] = found
            if len(self._stores) > OPEN_MAX:
                del self._stores[next(iter(self._stores))]
            return found


def _above(uri: str) -> list[str]:
    """All folders that a URI lies in, the nearest first."""
    steps = uri.split("/")
    return ["/".join(steps[:end]) for end in range(len(steps) - 1, 2, -1)]
