"""Consumer groups: generations, members, assignments and committed offsets (L30)."""

from typing import Any


class Groups:
    """All groups, by name."""

    __slots__ = ("by_name",)

    def __init__(self) -> None:
        self.by_name: dict[str, Any] = {}

    def forget_streams(self, streams: set[int]) -> None:
        pass

    def dump(self) -> list[Any]:
        return []

    @classmethod
    def load(cls, fields: list[Any]) -> "Groups":
        return cls()


RULES: tuple[tuple[Any, Any], ...] = ()
