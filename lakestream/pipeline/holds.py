"""How the reasons of holds begin, so that who held a topic can tell its own, and release it when the cause is gone."""

HELD_BY_US = "landing: "
"""The pipeline's: those it may release."""
TABLE = "the table: "
HELD_BY_TABLE = f"{HELD_BY_US}{TABLE}"
"""What another engine did to a table in another catalog, or that this catalog is away."""
