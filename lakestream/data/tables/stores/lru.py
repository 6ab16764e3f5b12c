"""A cache with a limit, for threads: the least recently used value goes first."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """Values with weights, whose sum stays within the limit. A single heavier value is not kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"Lru({len(self._held)} values, {self._weight} of {self._limit})"

    def __contains__(self, key: K) -> bool:
        return key in self._held

    @property
    def weight(self) -> int:
        return self._weight

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._held.get(key)
            if found is None:
                return None
            self._held.move_to_end(key)
            return found[0]

    def drop(self, key: K) -> None:
        with self._lock:
            _, weight = self._held.pop(key, (None, 0))
            self._weight -= weight

    def cool(self, key: K) -> None:
        """Makes this value the first to go: it is not expected to be read soon."""
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key, last=False)

    def clear(self) -> int:
        """Drops all values; returns the sum of their weights."""
        with self._lock:
            weight, self._weight = self._weight, 0
            self._held.clear()
            return weight

    def put(self, key: K, value: V, weight: int) -> None:
        if weight > self._limit:
            return
        with self._lock:
            _, old = self._held.pop(key, (value, 0))
            self._held[key] = (value, weight)
            self._weight += weight - old
            while self._weight > self._limit:
                _, (_, lost) = self._held.popitem(last=False)
                self._weight -= lost
