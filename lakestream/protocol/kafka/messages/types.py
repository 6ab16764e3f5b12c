"""The words in which messages are written down: wire types, and the versions in which a field exists.

A message is one dataclass for all its versions. Each field has Kafka's default, so an answer says only what it has to
say, and a field that the version at hand does not know is left at its default when read and left out when written.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar, dataclass_transform

from lakestream.interfaces import Buffer

# Of fixed width: the annotation is struct's own format character.
Int8 = Annotated[int, "b"]
Int16 = Annotated[int, "h"]
Int32 = Annotated[int, "i"]
Int64 = Annotated[int, "q"]
Float64 = Annotated[float, "d"]
Bool = Annotated[bool, "?"]
Uuid = Annotated[bytes, "16s"]
Records = Annotated[Buffer, "records"]
"""Record batches: read as a view of the frame, never copied."""

T = TypeVar("T")

ZERO_UUID: Final = bytes(16)
NOT_ASKED: Final = -(1 << 31)
"""The authorized operations of a resource in answers to requests that do not ask for them."""
LATEST: Final = 1 << 15
"""Above every version."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Where a field exists (both ends included), where it may be null, and its tag if it is a tagged field."""

    since: int = 0
    until: int = LATEST
    nullable: int = 0
    tag: int | None = None


def field(
    *,
    default: Any = dataclasses.MISSING,
    factory: Callable[[], Any] | None = None,
    since: int = 0,
    until: int = LATEST,
    nullable: int = 0,
    tag: int | None = None,
) -> Any:
    """A field with versions. `nullable` only matters where the annotation allows None."""
    metadata = {"versions": Versions(since=since, until=until, nullable=nullable, tag=tag)}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]:
    """A request, a response or a struct inside one. Not frozen: that would triple the time to make one."""
    return dataclasses.dataclass(slots=True, kw_only=True)(cls)
