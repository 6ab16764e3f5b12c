"""An external catalog (REST, SQL, Glue, Hive), through PyIceberg and with PyIceberg's settings.

PyIceberg's backends raise the errors of their libraries, which are translated here: Missing (no such table), Stale
(another writer was faster), Retry (nothing happened), Unknown (look first, then act). All calls block.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from lakestream.data.tables.iceberg.commit import Stale
from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.iceberg.topic_table import topic_schema
from lakestream.errors import Exists, LakestreamError, Missing, Retry, Unknown
from lakestream.redaction import Redactor, secrets_in

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as IcebergTable

T = TypeVar("T")
NAME = "lakestream"
"""The name of a catalog that has none in PyIceberg's configuration."""
_URI = re.compile(r"[a-z][a-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class CatalogAddress:
    """The settings of a catalog: a name in PyIceberg's configuration or a URI, properties, the topics' namespace."""

    catalog: str = field(repr=False)
    namespace: str = "streams"
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return NAME if _URI.match(self.catalog) else self.catalog

    def given(self) -> dict[str, str]:
        """The properties out of our own settings."""
        return {**({"uri": self.catalog} if _URI.match(self.catalog) else {}), **self.properties}

    def all_properties(self) -> dict[str, str]:
        """The properties out of our settings and PyIceberg's (`.pyiceberg.yaml`, PYICEBERG_CATALOG__*)."""
        from pyiceberg.utils.config import Config

        configured = Config().get_catalog_config(self.name) or {}
        return {name: str(value) for name, value in {**configured, **self.given()}.items()}


def parse_properties(text: str) -> dict[str, str]:
    """`name=value` pairs with commas between them. Raises ValueError."""
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not separator or not name.strip() for name, separator, _ in pairs):
        raise ValueError("expected name=value,name=value")
    return {name.strip(): value.strip() for name, _, value in pairs}


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A table as the catalog has it now: its metadata file, and PyIceberg's handle to commit by."""

    location: str
    handle: "IcebergTable"


class PyIcebergCatalog:
    """The tables of one namespace. The catalog is opened by the first call, since it may be down at start-up."""

    def __init__(self, address: CatalogAddress) -> None:
        self.address = address
        self._opened: Catalog | None = None
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"PyIcebergCatalog({self.address.name!r}, {self.address.namespace!r})"

    def load(self, name: str) -> CatalogEntry:
        """Raises Missing if there is no such table, or its metadata file is gone; Retry."""

        def load() -> CatalogEntry:
            table = self._catalog().load_table(self._identifier(name))
            return CatalogEntry(_plain(table.metadata_location), table)

        return self._asked(load, Retry)

    def place_for(self, name: str, uuid: str) -> str:
        """The folder of a new table: the one that a REST catalog says, else one of its own. Raises Retry.

        Catalogs other than REST put all tables of a name into one folder, where a new table would meet older files.
        """

        def ask() -> str:
            from pyiceberg.catalog.rest import RestCatalog
            from pyiceberg.schema import Schema

            catalog = self._catalog()
            catalog.create_namespace_if_not_exists(self._namespace())
            schema = Schema.model_validate(topic_schema())
            staged = catalog.create_table_transaction(self._identifier(name), schema)
            place = _plain(staged.table_metadata.location)
            return place if isinstance(catalog, RestCatalog) else f"{place}-{uuid}"

        return self._asked(ask, Retry)

    def create(self, name: str, metadata: TableMetadata) -> CatalogEntry:
        """Make the table with exactly this metadata, field ids included. Raises Exists, Retry, Unknown."""
        updates = _from_nothing(metadata)

        def create() -> None:
            from pyiceberg.io import load_file_io
            from pyiceberg.table import StagedTable
            from pyiceberg.table.metadata import TableMetadataUtil

            catalog = self._catalog()
            parsed = TableMetadataUtil.parse_raw(metadata.encode().decode())
            staged = StagedTable(self._identifier(name), parsed, "", load_file_io({}), catalog)
            catalog.commit_table(staged, *_in_pyiceberg([{"type": "assert-create"}], updates))

        try:
            self._asked(create, Unknown)
        except Stale as error:
            raise Exists(f"the catalog has a table {name} already") from error
        return self.load(name)

    def commit(
        self, handle: "IcebergTable", requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> str:
        """The new metadata file. Raises Stale if a requirement is not met, Missing, Retry, Unknown."""

        def commit() -> str:
            response = self._catalog().commit_table(handle, *_in_pyiceberg(requirements, updates))
            return _plain(response.metadata_location)

        return self._asked(commit, Unknown)

    def register(self, name: str, location: str) -> None:
        """Register an existing table by its metadata file. Raises Exists, Retry, Unknown."""
        self._asked(lambda: self._catalog().register_table(self._identifier(name), location), Unknown)

    def drop(self, name: str) -> None:
        """Drop the table and its files. Raises Missing, Retry, Unknown."""
        self._asked(lambda: self._catalog().purge_table(self._identifier(name)), Unknown)

    def rename(self, name: str, to: str) -> None:
        self._asked(lambda: self._catalog().rename_table(self._identifier(name), self._identifier(to)), Unknown)

    def _asked(self, ask: Callable[[], T], otherwise: type[LakestreamError]) -> T:
        """The answer; an unknown error becomes `otherwise`. Messages hold none of the catalog's secrets."""
        return _asked(ask, otherwise, lambda text: Redactor(secrets_in(self.address.all_properties()))(text))

    def _catalog(self) -> "Catalog":
        with self._lock:
            if self._opened is None:
                from pyiceberg.catalog import load_catalog

                logging.getLogger("pyiceberg").setLevel(logging.WARNING)
                self._opened = load_catalog(self.address.name, **self.address.given())
            return self._opened

    def _namespace(self) -> tuple[str, ...]:
        return tuple(self.address.namespace.split("."))

    def _identifier(self, name: str) -> tuple[str, ...]:
        return (*self._namespace(), name)


def _plain(location: str) -> str:
    """A full URI: PyIceberg takes bare paths, too."""
    return f"file://{location}" if location.startswith("/") else location.rstrip("/")


def _asked(ask: Callable[[], T], otherwise: type[LakestreamError], redact: Callable[[str], str]) -> T:
    from pyiceberg import exceptions as known

    try:
        return ask()
    except (known.NoSuchTableError, FileNotFoundError) as error:
        raise Missing(_told(error, redact)) from error
    except known.TableAlreadyExistsError as error:
        raise Exists(_told(error, redact)) from error
    except known.CommitFailedException as error:
        raise Stale(_told(error, redact)) from error
    except (
        known.BadRequestError, known.ForbiddenError, known.UnauthorizedError, known.NotInstalledError,
        known.ServiceUnavailableError, known.TooManyRequestsError, known.NoSuchNamespaceError,
    ) as error:  # fmt: skip
        raise Retry(_told(error, redact)) from error
    except Exception as error:
        # Databases, HTTP clients and cloud libraries each have their own family of errors.
        raise otherwise(_told(error, redact)) from error


def _told(error: Exception, redact: Callable[[str], str]) -> str:
    lines = redact(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _in_pyiceberg(requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]) -> tuple[Any, Any]:
    """Requirements and updates of the REST protocol as PyIceberg's objects."""
    from pydantic import TypeAdapter
    from pyiceberg.table.update import TableRequirement, TableUpdate

    return (
        TypeAdapter(tuple[TableRequirement, ...]).validate_python(tuple(requirements)),
        TypeAdapter(tuple[TableUpdate, ...]).validate_python(tuple(updates)),
    )


def _from_nothing(metadata: TableMetadata) -> list[dict[str, Any]]:
    """The updates that create a table with this metadata."""
    wanted = metadata.value("default-sort-order-id")
    orders = [order for order in metadata.value("sort-orders") if order["order-id"] == wanted]
    return [
        {"action": "assign-uuid", "uuid": metadata.uuid},
        {"action": "upgrade-format-version", "format-version": metadata.value("format-version")},
        {"action": "add-schema", "schema": metadata.schema},
        {"action": "set-current-schema", "schema-id": -1},
        *({"action": "add-spec", "spec": spec} for spec in metadata.specs.values()),
        {"action": "set-default-spec", "spec-id": -1},
        *({"action": "add-sort-order", "sort-order": order} for order in orders),
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": metadata.location},
        {"action": "set-properties", "updates": metadata.properties},
    ]


def address_of(catalog: str, namespace: str, properties: str) -> CatalogAddress | None:
    """The address out of the settings `catalog...`; None if tables are in our own catalog."""
    return CatalogAddress(catalog, namespace, parse_properties(properties)) if catalog else None
