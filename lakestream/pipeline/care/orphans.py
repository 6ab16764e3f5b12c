"""Orphans: files in a table's folder that nothing leads to, and nothing ever will (T12).

Files of ours are judged by their names, whatever their age: data files by the round that wrote them, manifests and
lists by the epoch, metadata files by their version, since one that is not newer than the current one can never become
current. The files that a killed pipeline had still to delete are among them. Files of other engines go when they are
old: their writers may be slow, and their names do not tell.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lakestream.model.state import State
from lakestream.pipeline.landing.round_names import epoch_is_over, is_over, round_of

OTHERS_MS = 3 * 86_400_000
_OWNED = re.compile(r"/metadata/(?:snap-\d+-1-)?(\d+)-(\d+)(?:-[0-9a-f-]{36}-m\d+)?\.avro$")
_VERSION = re.compile(r"/metadata/(\d+)-[^/]*\.metadata\.json$")

Listed = Sequence[tuple[str, int, int]]
"""URI, size, time of the last change."""


@dataclass(frozen=True, slots=True)
class Orphans:
    """Files that may be deleted: our own, and those of other engines that are old enough."""

    ours: tuple[str, ...]
    others: tuple[str, ...]
    sizes: dict[str, int]


def judge_orphans(
    listed: Listed, over: Collection[str], known: Collection[str], location: str, *, before_ms: int, spared: set[str]
) -> Orphans:
    """Judge with three lists made in this order: `listed`, then `over`, then `known`, the table's files (T12).

    A listed file of a round that is over is in the table by then, or never will be. In another order the round could
    commit the file between the look at the table and the look at the state. `spared`: files in their grace.
    `location`: the current metadata file; empty if an external catalog names them, then none of them counts as ours.
    """
    ours, others, sizes = [], [], {}
    for uri, length, changed_ms in listed:
        if uri in known or uri in spared:
            continue
        if uri in over or _is_past(uri, location):
            ours.append(uri)
        elif changed_ms < before_ms and not is_ours(uri):
            others.append(uri)
        else:
            continue
        sizes[uri] = length
    return Orphans(tuple(ours), tuple(others), sizes)


def is_ours(uri: str) -> bool:
    return round_of(uri) is not None or _OWNED.search(uri) is not None


def over_by(listed: Listed, state: State) -> set[str]:
    """Files of ours that no command can make part of a table any more."""
    return {uri for uri, _, _ in listed if _is_over(uri, state)}


def _is_over(uri: str, state: State) -> bool:
    name = round_of(uri)
    if name is not None:
        return is_over(state, name)
    owned = _OWNED.search(uri)
    return owned is not None and epoch_is_over(state, int(owned[1]), int(owned[2]))


def _is_past(uri: str, location: str) -> bool:
    """Whether it is a metadata file that can never become the current one."""
    version, current = _VERSION.search(uri), _VERSION.search(location)
    return version is not None and current is not None and int(version[1]) <= int(current[1])
