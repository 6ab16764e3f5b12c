"""Requests for care, one at a time: begun, watched, answered, or given up.

    note the attempt in the state -> run the job -> note its result

An attempt is noted before its work begins, so an attempt that kills the pipeline counts, too. A request that is refused
ends with the reason. A request that hangs, or whose engine or pipeline dies, is tried once more, then given up, so that
the next request and the landing go on. The number of attempts is among the request's figures in the state as
`attempt`, so every version of the state machine keeps it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from lakestream.errors import LakestreamError
from lakestream.interfaces import Clock
from lakestream.metadata.replica import Replica
from lakestream.model.catalog.care import DONE, FAILED, RUNNING, CareRequest, TellCare
from lakestream.pipeline.care.results import Hung, Progress, Result
from lakestream.pipeline.landing.rounds import JobFailed

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 2
"""The number of attempts of a request."""
ATTEMPT = "attempt"
PROGRESS_S = 2.0
"""The pause between two notes of a job's progress in the state."""
PUT_BACK_S = 2.0
"""How long a stopping pipeline tries to note that its attempt does not count."""

DoRequest = Callable[[CareRequest, Progress], Awaitable[Result]]


class CareRequests:
    """Answers the requests of one pipeline."""

    def __init__(self, replica: Replica, clock: Clock, do: DoRequest, hang_s: float) -> None:
        """`do` answers one request; without progress for `hang_s` it is taken for hung."""
        self._replica = replica
        self._clock = clock
        self._do = do
        self._hang_s = hang_s
        self._told_s = 0.0
        self._moved_s = 0.0
        self.stopping = False
        """Set before the task that runs this is cancelled: the attempt under way does not count then."""

    async def answer(self, request: bytes) -> None:
        one = self._replica.state.care.requests.get(request)
        if one is None or one.over:
            return
        attempt = attempts_of(one) + 1
        if attempt > ATTEMPTS_MAX:
            why = f"given up: a pipeline died or was taken over in each of {ATTEMPTS_MAX} attempts ({one.text})"
            self._log(one, why, None)
            await self._tell(request, FAILED, why, {})
            return
        await self._tell(request, RUNNING, f"begun, attempt {attempt} of {ATTEMPTS_MAX}", {ATTEMPT: attempt})
        try:
            result = await self._watched(self._do(one, lambda text: self._progress(request, text, attempt)))
        except asyncio.CancelledError:
            if self.stopping:
                await self._put_back(request, attempt - 1)
            raise
        except (Hung, JobFailed) as error:
            await self._failed(request, one, attempt, error)
        except Exception as error:
            self._log(one, reason_of(error), error)
            await self._tell(request, FAILED, reason_of(error), {})
        else:
            await self._tell(request, DONE, result.text, result.figures)

    async def _watched(self, work: Awaitable[Result]) -> Result:
        """The result. Raises Hung if there is no progress for too long; the work is cancelled then."""
        self._moved_s = self._clock.monotonic()
        doing = asyncio.ensure_future(work)
        try:
            while not doing.done():
                left_s = self._moved_s + self._hang_s - self._clock.monotonic()
                if left_s <= 0:
                    raise Hung(f"nothing moved for {self._hang_s:.0f} s")
                await asyncio.wait([doing], timeout=left_s)
            return doing.result()
        finally:
            doing.cancel()

    async def _progress(self, request: bytes, text: str, attempt: int) -> None:
        self._moved_s = now = self._clock.monotonic()
        if now - self._told_s >= PROGRESS_S:
            self._told_s = now
            await self._tell(request, RUNNING, text, {ATTEMPT: attempt})

    async def _failed(self, request: bytes, one: CareRequest, attempt: int, error: Exception) -> None:
        if attempt < ATTEMPTS_MAX:
            why = f"attempt {attempt} of {ATTEMPTS_MAX} failed: {reason_of(error)}"
            self._log(one, why, error)
            await self._tell(request, RUNNING, why, {ATTEMPT: attempt})
            return
        why = f"given up after {attempt} attempts: {reason_of(error)}"
        self._log(one, why, error)
        await self._tell(request, FAILED, why, {})

    async def _put_back(self, request: bytes, attempts: int) -> None:
        text = "put back by a pipeline that stopped"
        with suppress(LakestreamError, TimeoutError):
            async with asyncio.timeout(PUT_BACK_S):
                await self._tell(request, RUNNING, text, {ATTEMPT: attempts})

    async def _tell(self, request: bytes, status: str, text: str, figures: dict[str, int]) -> None:
        await self._replica.propose(TellCare(request, status, text, figures))

    def _log(self, one: CareRequest, why: str, error: Exception | None) -> None:
        topic = self._replica.state.topics.by_id.get(one.topic_id)
        log_failure(error, "%s of topic %s was asked for and failed: %s", one.kind, topic and topic.name, why)


def attempts_of(one: CareRequest) -> int:
    """The number of attempts so far of a request that is not over."""
    return (one.figures or {}).get(ATTEMPT, 0)


def log_failure(error: Exception | None, text: str, *values: Any) -> None:
    """Log an expected error as one line, an unexpected one with its traceback. Care of other tables goes on."""
    expected = error is None or isinstance(error, LakestreamError | OSError)
    log.warning(text, *values, exc_info=None if expected else error)


def reason_of(error: Exception) -> str:
    return str(error) or type(error).__name__
