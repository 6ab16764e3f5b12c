"""Sweeping: data files of ours that no table refers to, and never will (T12).

A file's folder names who wrote it: member, epoch and round. Once the epoch has ended, or the round is settled, no
command can refer to it any more, so a file that the table does not know then is an orphan. The files are listed first,
then the log is folded to its end, and only then is judged; others' files are never touched here.
"""

import logging
from collections.abc import Iterable
from typing import NamedTuple

from lakestream.data.tables.manifests import ManifestFile, read_manifest, read_manifest_list
from lakestream.data.tables.store import TableStore
from lakestream.data.tables.table_metadata import TableMetadata
from lakestream.model.catalog_names import canonical
from lakestream.model.state import State

log = logging.getLogger(__name__)


class RoundName(NamedTuple):
    """Who wrote a file, and in which round."""

    member: int
    epoch: int
    round: int


def round_of(uri: str) -> RoundName | None:
    """From `.../data/<member>-<epoch>-<round>/<file>`; None for a file that is not ours."""
    match uri.split("/")[-3:]:
        case ["data", folder, _]:
            numbers = folder.split("-")
            if len(numbers) == 3 and all(number.isdecimal() for number in numbers):
                return RoundName(*map(int, numbers))
    return None


def epoch_is_over(state: State, member_id: int, epoch: int) -> bool:
    """Whether no command of this epoch can come any more."""
    member = state.members.by_id.get(member_id)
    ended = member is None or not member.alive or member.epoch != epoch
    return ended and epoch < state.members.next_epoch


def is_over(state: State, name: RoundName) -> bool:
    """Whether no command of this round can come any more."""
    if epoch_is_over(state, name.member, name.epoch):
        return True
    member = state.members.by_id.get(name.member)
    return member is not None and member.epoch == name.epoch and name.round <= member.tick


def candidates(uris: Iterable[str], state: State) -> list[str]:
    """Files of ours that are either in the table by now or never will be."""
    named = ((uri, round_of(uri)) for uri in uris)
    return [uri for uri, name in named if name is not None and is_over(state, name)]


def referenced(store: TableStore, location: str) -> set[str]:
    """All data and delete files of all snapshots of a table, spelled as stores list them. Blocking; raises Missing.

    What a snapshot only says to have removed is needed by those before it, if there are any left.
    """
    metadata = TableMetadata.parse(store.get(location))
    manifests: dict[str, ManifestFile] = {}
    for head in metadata.snapshots:
        for listed in read_manifest_list(store.get(head.manifest_list)):
            manifests[listed.path] = listed
    found: set[str] = set()
    for listed in manifests.values():
        manifest = read_manifest(store.get(listed.path), listed)
        found.update(canonical(manifest.entries[at]["data_file"]["file_path"]) for at in manifest.live())
    return found
