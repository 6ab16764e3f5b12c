"""Notices at a start that the command log is an older copy: the object store may know more than the log (L5).

    a checkpoint   of a sequence above the log's end
    a WAL object   of an epoch that the log never gave: a writer has folded the registration of its epoch;
                   or with a header which says that its writer had folded more than the log holds

The check costs a few requests for each member, however many objects there are: one page of the objects behind those
that the log knows to be settled, and the header of the last one. List, then fold, then judge (L22): a healthy log holds
all that a writer had folded before it wrote, so a healthy log is never accused.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from lakestream.errors import Corrupt, Missing
from lakestream.interfaces import Wal
from lakestream.model.batches.wal_object import (
    HEADER_BYTES,
    ObjectName,
    checkpoint_prefix,
    folded_by_writer,
    merged_key,
    merged_prefix,
    parse_checkpoint_key,
    parse_merged_key,
    parse_wal_key,
    wal_key,
    wal_prefix,
)
from lakestream.model.state import State

PAGE = 1000
MEMBERS_MAX = 10_000
"""Most folders of members that are listed."""
_LAST = "~"
"""Sorts behind every number."""
_KINDS = ((wal_prefix, wal_key, parse_wal_key), (merged_prefix, merged_key, parse_merged_key))
_ADVICE = (
    "the log was restored from an older copy, and going on would give offsets away a second time and remove records. "
    "Put the newest copy of the metadata back, one that was made after these objects were written. If there is none, "
    "keep the data folder as it is and start a new one: see docs/OPERATIONS.md, An older copy of the metadata"
)


@dataclass(slots=True)
class Traces:
    """Signs in the object store of how far the command log once went."""

    checkpoint: int = 0
    epochs: dict[int, str] = field(default_factory=dict)
    """Epochs in which objects were written, each with the key of one."""
    folded: dict[int, str] = field(default_factory=dict)
    """Sequences that writers had folded, each with the key of one object."""


async def traces(wal: Wal, state: State) -> Traces:
    """Collect the signs. `state` is what was folded before."""
    found = Traces()
    if not state.cluster:
        return found  # a cluster without a name has no objects
    keys = [one.key for one in await wal.list(checkpoint_prefix(state.cluster))]
    found.checkpoint = max((name.number for name in map(parse_checkpoint_key, keys) if name is not None), default=0)
    starts = [(member.id, member.epoch, (member.tick, member.move)) for member in list(state.members.by_id.values())]
    for kind, (prefix_of, key_of, parse) in enumerate(_KINDS):
        prefix = prefix_of(state.cluster)
        places = {f"{prefix}{at}/": key_of(state.cluster, at, epoch, ends[kind]) for at, epoch, ends in starts}
        places |= dict.fromkeys(await _folders(wal, prefix) - places.keys(), "")
        listed = await asyncio.gather(*(wal.list(place, after, PAGE) for place, after in places.items()))
        for objects in listed:
            names = [(name, one.key) for one in objects if (name := parse(one.key)) is not None]
            await _note(wal, names, found)
    return found


async def _folders(wal: Wal, prefix: str) -> set[str]:
    """The folders of all members, also of members that the log does not know."""
    found: set[str] = set()
    after = ""
    while len(found) < MEMBERS_MAX and (first := await wal.list(prefix, after, 1)):
        step = first[0].key.removeprefix(prefix).partition("/")[0]
        after = f"{prefix}{step}/{_LAST}"
        found.add(f"{prefix}{step}/")
    return found


async def _note(wal: Wal, names: list[tuple[ObjectName, str]], found: Traces) -> None:
    """Note the epochs of a page, and the sequence of its last object: later objects know at least as much."""
    if not names:
        return
    last, key = max(names)
    found.epochs[last.epoch] = key
    try:
        [start] = await wal.read(key, [(0, HEADER_BYTES)])
        found.folded[folded_by_writer(start)] = key
    except (Missing, Corrupt):
        return  # an object that was collected meanwhile, or is damaged, proves nothing


def contradiction(found: Traces, state: State) -> str:
    """The proof that the log has held more than it holds now; empty if there is none."""
    end = state.sequence
    if found.checkpoint > end:
        return f"the command log ends at {end}, but there is a checkpoint of {found.checkpoint}: {_ADVICE}"
    if unknown := unknown_epoch(found.epochs, state):
        key = found.epochs[unknown]
        return f"the command log ends at {end} and never gave epoch {unknown}, in which {key} was written: {_ADVICE}"
    folded = max(found.folded, default=0)
    if folded > end:
        return f"the command log ends at {end}, but the writer of {found.folded[folded]} had folded {folded}: {_ADVICE}"
    return ""


def unknown_epoch(epochs: Iterable[int], state: State) -> int:
    """The highest epoch if the state has never given it, else 0. List the epochs before the state is folded."""
    highest = max(epochs, default=0)
    return highest if highest >= state.members.next_epoch else 0
