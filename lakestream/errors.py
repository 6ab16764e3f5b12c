"""The few kinds of failure, named by what the caller should do about them."""


class LakestreamError(Exception):
    """Base of every error we raise on purpose."""


class Retry(LakestreamError):
    """Nothing happened, or it is safe to do it again: try later."""


class NoRoom(Retry):
    """Nothing happened, since the store's disk is full or a quota is used up: an operator has to make room."""


class Unknown(LakestreamError):
    """It may or may not have happened (a lost answer): ask before you assume either."""


class Rejected(LakestreamError):
    """A definite no: the request itself has to change. `reason` is one of our reasons, see model/reasons.py."""

    def __init__(self, reason: int, message: str = "") -> None:
        super().__init__(message or f"rejected, reason {reason}")
        self.reason = reason


class Fenced(LakestreamError):
    """This member's epoch has ended: register again before doing anything else."""


class Missing(LakestreamError):
    """The object, command or file asked for is not there (any more)."""


class Exists(LakestreamError):
    """The object is there already, with other content."""


class Unusable(LakestreamError):
    """A store refuses access, or does not answer: an operator has to check its settings, though it may come back."""


class NoTables(LakestreamError):
    """A broker without tables was asked for tables."""

    def __init__(self, broker: str) -> None:
        super().__init__(f"the broker at {broker} has no tables: start it with tables on (lakestream serve --tables)")


class Corrupt(LakestreamError):
    """Stored bytes differ from those that were written: stop, and tell an operator."""


class Halted(LakestreamError):
    """This replica must not go on (log went backwards, unknown command, diverged digest).

    An operator has to act, unless `restart_helps`: then the state in memory is wrong, but the stored data is right.
    """

    def __init__(self, message: str = "", *, restart_helps: bool = False) -> None:
        super().__init__(message)
        self.restart_helps = restart_helps
