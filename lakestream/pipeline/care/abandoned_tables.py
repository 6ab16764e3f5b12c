"""Abandoned tables: a first metadata file whose pipeline died before it could bind the table to its topic.

    folders unknown to the catalog -> those with only a first metadata file -> fold to the end -> judge -> delete

The properties of a topic's table name the member and the epoch that made it. Once that epoch has ended no command can
bind the table any more, so a table that is not in the catalog by then never will be. Other files in such folders stay:
they may be those of a table that an engine dropped without a purge.
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
from lakestream.pipeline.landing.round_names import epoch_is_over

_FIRST = re.compile(r"/metadata/0+-[^/]*\.metadata\.json$")
_MAKER = re.compile(r"(\d{1,10})-(\d{1,10})")


class UnboundTable(NamedTuple):
    """The only file in the folder of a table that is not bound, and the member and epoch that wrote it."""

    uri: str
    member: int
    epoch: int


def find_unbound(store: TableStore, place: str, known: Collection[str]) -> list[UnboundTable]:
    """The unbound tables below `place`, in folders that are not `known`. Blocks; raises Retry."""
    found = (_unbound(store, folder) for folder in store.folders(f"{place}/") if folder not in known)
    return [one for one in found if one is not None]


def _unbound(store: TableStore, folder: str) -> UnboundTable | None:
    files = store.list(f"{folder}/")
    if len(files) != 1 or not _FIRST.search(files[0][0]):
        return None
    uri = files[0][0]
    try:
        written_by = _MAKER.fullmatch(TableMetadata.parse(store.get(uri)).properties.get(MAKER_PROPERTY, ""))
    except (Missing, Corrupt):
        return None
    return UnboundTable(uri, int(written_by[1]), int(written_by[2])) if written_by else None


def judge_unbound(found: Collection[UnboundTable], state: State) -> list[str]:
    """The files of tables that no command can bind any more. Fold the state to the end after finding them."""
    known = state.catalog.places()
    over = (one for one in found if epoch_is_over(state, one.member, one.epoch))
    return [one.uri for one in over if root_of(one.uri) not in known]
