"""Tables that never were: the first metadata file of one whose maker died before it could bind it to its topic.

    folders of tables -> those of no table: a single first file, and who wrote it -> fold to the end -> judge -> delete

Whoever makes a topic's table says so in its properties, by member and epoch. When that epoch has ended no command can
bind the table any more; one that is not in the catalog by then never will be. Everything else in such places is left
alone: files of a table that somebody dropped without a purge are theirs.
"""

import re
from collections.abc import Collection
from typing import NamedTuple

from lakestream.data.tables.iceberg.metadata.table_metadata import TableMetadata
from lakestream.data.tables.iceberg.topic_table import MAKER_PROPERTY
from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import Corrupt, Missing
from lakestream.model.catalog.names import root_of
from lakestream.model.state import State
from lakestream.pipeline.care.sweep import epoch_is_over

_FIRST = re.compile(r"/metadata/0+-[^/]*\.metadata\.json$")
_MAKER = re.compile(r"(\d{1,10})-(\d{1,10})")


class UnboundTable(NamedTuple):
    """The only file of a folder that belongs to no table, and who wrote it."""

    uri: str
    member: int
    epoch: int


def maker(member: int, epoch: int) -> str:
    """As the property says it, and the names of manifests and their lists do."""
    return f"{member}-{epoch}"


def find_unbound(store: TableStore, place: str, known: Collection[str]) -> list[UnboundTable]:
    """Look into all folders below `place` but the known ones. Blocking; raises Retry."""
    found = (_unbound(store, folder) for folder in store.folders(f"{place}/") if folder not in known)
    return [one for one in found if one is not None]


def _unbound(store: TableStore, folder: str) -> UnboundTable | None:
    files = store.list(f"{folder}/")
    if len(files) != 1 or not _FIRST.search(files[0][0]):
        return None
    uri = files[0][0]
    try:
        told = _MAKER.fullmatch(TableMetadata.parse(store.get(uri)).properties.get(MAKER_PROPERTY, ""))
    except (Missing, Corrupt):
        return None
    return UnboundTable(uri, int(told[1]), int(told[2])) if told else None


def judge_unbound(found: Collection[UnboundTable], state: State) -> list[str]:
    """Those that no command can bind any more. The state is folded to the end after they were found."""
    known = state.catalog.places()
    over = (one for one in found if epoch_is_over(state, one.member, one.epoch))
    return [one.uri for one in over if root_of(one.uri) not in known]
