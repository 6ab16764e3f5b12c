"""The size of an answer with records, so that all answers that are not sent yet stay within bounds together.

Each answer may take a quarter of what is left, so that early answers leave room for later ones. With nothing left an
answer still gets one batch, or healthy consumers would starve beside clients that take nothing; at twice the limit it
gets none, and the client asks again. The server closes connections that take nothing for long.
"""

from collections.abc import Callable


class AnswerBudget:
    """Counts the answers in the making; the server counts those that are made and not sent."""

    def __init__(self, answer_bytes: int, limit_bytes: int, unsent: Callable[[], int]) -> None:
        self._answer_bytes = answer_bytes
        self._limit_bytes = limit_bytes
        self._unsent = unsent
        self._taken = 0

    def take(self, wanted: int) -> int:
        """Reserve up to `wanted` bytes; returns the number. 0 is room for one batch, below 0 there is room for none."""
        left = self._limit_bytes - self._unsent() - self._taken
        granted = max(min(wanted, self._answer_bytes, left // 4), 0)
        self._taken += granted
        return granted if left > -self._limit_bytes else -1

    def give_back(self, granted: int) -> None:
        """The answer is on its way to the socket, or was never made."""
        self._taken -= max(granted, 0)

    @property
    def scarce(self) -> bool:
        """Whether to copy the bytes of an answer: a small view would keep a whole cached piece in memory."""
        return 2 * (self._unsent() + self._taken) > self._limit_bytes
