"""The tables that an SQL statement reads, by DuckDB's tree of it. Only plain queries have a tree."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb

Name = tuple[str, ...]
"""As it stands in the query: (table,), (schema, table) or (catalog, schema, table)."""


def tables_in(database: "duckdb.DuckDBPyConnection", statement: str) -> list[Name]:
    """Every mention of a table, those of the statement's own CTEs too; none if there is no tree."""
    [(tree,)] = database.execute("SELECT json_serialize_sql(?::VARCHAR)", [statement]).fetchall()
    return list(_in_tree(json.loads(tree)))


def _in_tree(node: Any) -> Iterator[Name]:
    if isinstance(node, dict):
        if node.get("type") == "BASE_TABLE":
            parts = (node.get("catalog_name"), node.get("schema_name"), node.get("table_name"))
            yield tuple(part for part in parts if part)
        for child in node.values():
            yield from _in_tree(child)
    elif isinstance(node, list):
        for child in node:
            yield from _in_tree(child)
