"""A WAL in memory, for tests and simulations: no threads, no sleeps, nothing survives the process."""

from collections.abc import Sequence

from lakestream.errors import Exists, Missing
from lakestream.interfaces import Buffer, StoredObject


class MemoryWal:
    """Objects in a dictionary. Each call takes effect before another task can run."""

    def __init__(self) -> None:
        self.linger_ms = 0
        self._objects: dict[str, bytes] = {}

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        whole = b"".join(parts)
        if self._objects.setdefault(key, whole) != whole:
            raise Exists(f"{key} exists with other content")

    async def read(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytearray]:
        whole = self._objects.get(key)
        if whole is None:
            raise Missing(f"{key} is not there")
        view = memoryview(whole)
        return [bytearray(view[start : start + length]) for start, length in ranges]

    async def list(self, prefix: str, after: str = "", limit: int = 0) -> list[StoredObject]:
        keys = sorted(key for key in self._objects if key.startswith(prefix) and key > after)
        return [StoredObject(key, len(self._objects[key])) for key in keys[: limit or None]]

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._objects.pop(key, None)

    async def close(self) -> None:
        pass
