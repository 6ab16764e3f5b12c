"""Orphans: files in a table's folder that nothing leads to, and nothing ever will (T12).

Ours are known by their names, whatever their age: data files by the round that wrote them, manifests and their lists
by the epoch, metadata files by their version, since one that is not newer than the current one can never become
current. What a pipeline that was killed had still to delete is among them. Files of others go when they are old: a
writer of theirs may be slow, and nobody can tell.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lakestream.model.state import State
from lakestream.pipeline.sweep import is_over, round_of

OTHERS_MS = 3 * 86_400_000
_OWNED = re.compile(r"/metadata/(?:snap-\d+-1-)?(\d+)-(\d+)(?:-[0-9a-f-]{36}-m\d+)?\.avro$")
_VERSION = re.compile(r"/metadata/(\d+)-[^/]*\.metadata\.json$")

Listed = Sequence[tuple[str, int, int]]
"""URI, size, time of the last change."""


@dataclass(frozen=True, slots=True)
class Orphans:
    """What may be deleted: our own leftovers, and files of others that are old enough."""

    ours: tuple[str, ...]
    others: tuple[str, ...]
    sizes: dict[str, int]


def judge_orphans(
    listed: Listed, known: set[str], state: State, location: str, *, before_ms: int, spared: set[str]
) -> Orphans:
    """`listed` was made before `known` and `state`; `spared` are files that have their grace.

    `location` is the current metadata file, empty if others name them: then all of these are others' files.
    """
    ours, others, sizes = [], [], {}
    for uri, length, changed_ms in listed:
        if uri in known or uri in spared:
            continue
        if is_ours_and_over(uri, state, location):
            ours.append(uri)
        elif changed_ms < before_ms and not is_ours(uri):
            others.append(uri)
        else:
            continue
        sizes[uri] = length
    return Orphans(tuple(ours), tuple(others), sizes)


def is_ours(uri: str) -> bool:
    return round_of(uri) is not None or _OWNED.search(uri) is not None


def is_ours_and_over(uri: str, state: State, location: str) -> bool:
    """Whether a file of ours that nothing leads to stays like that for good."""
    name = round_of(uri)
    if name is not None:
        return is_over(state, name)
    owned = _OWNED.search(uri)
    if owned is not None:
        member = state.members.by_id.get(int(owned[1]))
        ended = member is None or not member.alive or member.epoch != int(owned[2])
        return ended and int(owned[2]) < state.members.next_epoch
    version, current = _VERSION.search(uri), _VERSION.search(location)
    return version is not None and current is not None and int(version[1]) <= int(current[1])
