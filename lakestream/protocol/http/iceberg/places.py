"""The locations that users' tables and views may have for their files."""

from collections.abc import Callable, Collection, Iterable

from lakestream.data.tables.iceberg.metadata.schemas import Invalid
from lakestream.model.catalog.names import STREAMS, Warehouse, canonical, overlap, within


class TablePlaces:
    """Judges locations. `roots` returns the folders of all tables and views."""

    def __init__(self, warehouse: Warehouse, roots: Callable[[], Iterable[str]]) -> None:
        self.warehouse = warehouse
        self._roots = roots

    def judge(self, what: str, place: str, own: Collection[str] = (), kept: bool = False) -> None:
        """Raises Invalid unless a user's table may have files there."""
        if problem := self.problem(what, place, own, kept):
            raise Invalid(problem)

    def problem(self, what: str, place: str, own: Collection[str] = (), kept: bool = False) -> str:
        """Why a user's table cannot have files there; empty if it can.

        `own` are the folders that it has already. `kept`: the table was that of a deleted topic, at the same location.
        """
        if not self.warehouse.admits(place):
            return f"{what} {place} is outside the warehouse {self.warehouse.uri}"
        if self.warehouse.of_streams(place) and not kept and not any(within(folder, place) for folder in own):
            return f"{what} {place} is in the folder {STREAMS}, which belongs to the topics' tables"
        mine = {canonical(folder) for folder in own}
        others = (root for root in map(canonical, self._roots()) if root not in mine)
        if any(overlap(canonical(place), root) for root in others):
            return f"{what} {place} overlaps the folder of another table"
        return ""
