"""Resolves names in a query to topics, or to users' own tables in the catalog.

Any of orders, streams.orders, "with.dots-and-dashes", my.topic (if a topic has that name) and namespace.table.
"""

import difflib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from lakestream.data.tables.conditions.sql_trees import Name, tables_in
from lakestream.data.tables.reading.tail import TIMEOUT_S, TopicTail, fetch_tails
from lakestream.errors import Missing, NoTables, Retry
from lakestream.lake.sql.columns import quoted
from lakestream.lake.sql.files import ReadFaults
from lakestream.lake.sql.sources import RepeatableRows
from lakestream.model.catalog.names import STREAMS

OWN_SCHEMAS = ("main", "temp", "information_schema", "pg_catalog")
NEAR_MAX = 3
_PART = r'(?:"(?:[^"]|"")*"|[^.\s"]+)'


def names_in(database: duckdb.DuckDBPyConnection, statement: str) -> set[Name]:
    """Names that a statement reads from; a few more, of its own CTEs, do no harm."""
    names = set(tables_in(database, statement))
    if names:
        return names
    # Only plain queries have a tree. This has the others, but fails on columns of tables that are not there yet.
    try:
        return {parse_name(text) for text in database.get_table_names(statement, qualified=True)}
    except duckdb.Error:
        return set()


def parse_name(text: str) -> Name:
    """The parts of a name, of which some may be quoted; an alias may follow."""
    named = re.match(rf"{_PART}(?:\.{_PART})*", text)
    parts = re.findall(_PART, named[0]) if named else []
    return tuple(part[1:-1].replace('""', '"') if part.startswith('"') else part for part in parts)


class UserTable:
    """A table of the catalog that is no topic's."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def rows(self, faults: ReadFaults) -> RepeatableRows:
        return RepeatableRows(self._scanned().schema, self._scanned, faults)

    def _scanned(self) -> Any:
        return self._table.scan().to_arrow_batch_reader()


@dataclass(frozen=True, slots=True)
class ResolvedNames:
    """The topics and tables that the names of a query stand for."""

    topics: dict[Name, TopicTail] = field(default_factory=dict)
    tables: dict[Name, UserTable] = field(default_factory=dict)


class Directory:
    """The topics and tables that a broker knows."""

    def __init__(self, broker: str) -> None:
        self._broker = broker

    def find(self, names: Sequence[Name]) -> ResolvedNames:
        """Finds topics and tables. Other names are left out: they may be files, or defined by the query itself."""
        wanted = {name: topic_name(name) for name in names if len(name) == 1 or _may_be_ours(name)}
        tails = self._tails(wanted.values())
        if missing := [topic for topic in wanted.values() if topic not in tails]:
            folded = {topic.casefold(): topic for topic in self.topics()}
            others = {topic: folded[topic.casefold()] for topic in missing if topic.casefold() in folded}
            if others:
                wanted = {name: others.get(topic, topic) for name, topic in wanted.items()}
                tails = self._tails(wanted.values())
        found = ResolvedNames({name: tails[topic] for name, topic in wanted.items() if topic in tails})
        for name, topic in wanted.items():
            if topic not in tails and len(name) > 1 and (table := self._user_table(name)) is not None:
                found.tables[name] = table
        return found

    def _tails(self, topics: Iterable[str]) -> dict[str, TopicTail]:
        asked = list(topics)
        if not asked:
            return {}
        try:
            return {tail.topic: tail for tail in fetch_tails(self._broker, asked)}
        except Missing:
            raise NoTables(self._broker) from None

    def topics(self) -> list[str]:
        """The names of all topics. Raises Retry."""
        url = f"http://{self._broker}/metadata"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                return [str(topic["name"]) for topic in json.load(answer)["topics"]]
        except (OSError, ValueError, KeyError) as error:
            raise Retry(f"{url}: {error}") from error

    def _user_table(self, name: Name) -> UserTable | None:
        from pyiceberg.catalog.rest import RestCatalog
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, RESTError

        try:
            catalog = RestCatalog("lakestream", uri=f"http://{self._broker}/iceberg")
            return UserTable(catalog.load_table((*name[0].split("."), name[1])))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except RESTError as error:
            raise Retry(f"the catalog at {self._broker}: {error}") from error

    def unknown(self, name: str) -> str:
        """The message for a name that is unknown."""
        known = self.topics()
        near = difflib.get_close_matches(name, known, n=NEAR_MAX)
        near += [topic for topic in known if name in topic.split(".") and topic not in near][:NEAR_MAX]
        hint = f"did you mean {' or '.join(_spelled(topic) for topic in near)}?" if near else _listed(known)
        return f"there is no topic or table {name!r}; {hint}"


def _may_be_ours(name: Name) -> bool:
    """Whether a name may be in our catalog: DuckDB's own schemas are no namespaces, but may be topics."""
    return len(name) == 2 and name[0] not in OWN_SCHEMAS


def topic_name(name: Name) -> str:
    """The topic that a name means, with or without the namespace of topics."""
    return ".".join(name[1:] if len(name) > 1 and name[0].casefold() == STREAMS else name)


def _spelled(topic: str) -> str:
    return topic if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", topic) else quoted(topic)


def _listed(known: Sequence[str]) -> str:
    return "`lakestream topics list` has them all" if known else "there are no topics yet"
