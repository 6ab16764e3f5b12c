"""The expressions that a condition over a topic's rows may have, judged by the tree of DuckDB's parser.

Allowed expressions are listed; all others are refused: subqueries, table functions, aggregates, window
functions, stars and parameters, functions whose results differ from call to call, and functions that make lists or
texts of any length out of a number.
"""

from collections.abc import Iterator, Set
from typing import Any

CLASSES = frozenset(
    ["BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION",
     "LAMBDA", "OPERATOR"]
)  # fmt: skip
"""The kinds of expressions that look at one row."""
SAID = {
    "SUBQUERY": "a condition has no subquery and no ANY or ALL; write `x in (1, 2)` or `list_contains(list, x)`",
    "WINDOW": "a condition sees one row at a time, so it has no window function",
    "STAR": "a condition names its columns; it has no *",
    "PARAMETER": "a condition has no parameters",
}
GROWING = frozenset(["generate_series", "generate_subscripts", "range", "repeat", "list_resize", "array_resize"])
"""Functions whose result may be as large as a number says."""
MACROS = frozenset(["ago", "date_add", "days_in_month", "fdiv", "fmod", "nullif", "round_even", "roundbankers",
                    "split_part", "pg_typeof"])  # fmt: skip
"""DuckDB's own macros that are expressions over their arguments; those that begin so are, too:"""
MACRO_FAMILIES = ("list_", "array_", "map_")
KNOWN_FUNCTIONS = """
SELECT DISTINCT lower(function_name) FROM duckdb_functions()
WHERE function_type = 'scalar' AND stability IS DISTINCT FROM 'VOLATILE'
"""
"""The names that DuckDB says are functions of one row, always with the same result for the same arguments."""


def condition_problem(tree: Any, known: Set[str], own_macros: Set[str]) -> str:
    """Why the WHERE clause of this tree is not a condition; empty if it is one.

    `known` are DuckDB's functions of one row, `own_macros` those that are made for conditions.
    """
    if tree.get("error"):
        return str(tree.get("error_message", "the condition cannot be parsed"))
    clause = tree["statements"][0]["node"].get("where_clause")
    if clause is None:
        return "a condition is one expression"
    for node in _expressions(clause):
        kind = node["class"]
        if kind not in CLASSES:
            return SAID.get(kind, f"a condition has no {kind.lower().replace('_', ' ')}")
        if kind == "FUNCTION":
            name = str(node.get("function_name", "")).lower()
            if not _may_call(name, known, own_macros):
                return f"a condition may not call {name}(); docs/TABLES.md says which functions there are"
            if node.get("filter") or (node.get("order_bys") or {}).get("orders") or node.get("distinct"):
                return "a condition sees one row at a time, so it has no aggregate"
    return ""


def _may_call(name: str, known: Set[str], own_macros: Set[str]) -> bool:
    if name in GROWING or name.startswith("__internal"):
        return False
    return name in known or name in own_macros or name in MACROS or name.startswith(MACRO_FAMILIES)


def _expressions(root: Any) -> Iterator[dict[str, Any]]:
    """Every node of an expression's tree that has a class, without recursion: a tree may be deep."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if isinstance(node.get("class"), str):
                yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
