"""Feature levels: what a cluster does once every live member knows how (L3).

A level is a set of rules that all members fold by. The state begins at the first level; the lowest live broker
proposes `RaiseLevel` when every live member knows a newer one. Until then members of both versions fold the older
rules, so that they agree:

    a new command        carries its level (`Body.LEVEL`), and every member refuses it below that level
    a new field          of an old command counts for its level where the command uses it (`Body.needed_level`)
    a changed rule       asks for the state's level (`if state.level >= BOUNDED`)
    a new stored field   is added at the end, and written from its level on, so that older code reads the checkpoints
                         of a cluster that is not raised yet
"""

FIRST = 1
"""The rules of the first version."""

BOUNDED = 2
"""Limits in the state, a cluster time that survives wrong clocks, views in the catalog,
configs and kinds of care that the proposer judges."""

NEWEST = BOUNDED
"""The newest level that this code knows."""
