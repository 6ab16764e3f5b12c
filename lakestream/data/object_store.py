"""A WAL in an object store, by URL: s3://, gs://, az://, and memory:// for a try.

A WAL needs conditional puts (L21), so `probe` refuses a store that silently overwrites. Requests are retried here and
not in the client: only code that sees each attempt can tell "certainly not there" from "unknown".
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import MemoryStore, ObjectStore, from_url

from lakestream.errors import Exists, Halted, Missing, Retry, Unknown
from lakestream.interfaces import Buffer, StoredObject

LINGER_MS = 250
COALESCE_GAP_BYTES = 256 * 1024
"""A request costs about as much as so many bytes read in vain."""
MAX_COALESCED_BYTES = 8 * 1024 * 1024
MAX_READS_IN_FLIGHT = 32
PAGE = 1000
"""Names in one page of a listing."""
FIRST_PAUSE_S = 0.1
PROBE_ATTEMPTS = 3
SETTLE_S = 0.2

ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")

Range = tuple[int, int]
T = TypeVar("T")


class ObjectStoreWal:
    """Objects in a bucket. `options` are those of obstore's store for the URL; it reads the usual environment, too."""

    def __init__(
        self,
        url: str,
        *,
        linger_ms: int = LINGER_MS,
        request_timeout_s: float = 20.0,
        attempts: int = 4,
        **options: Any,
    ) -> None:
        self.linger_ms = linger_ms
        self._url = url
        self._attempts = attempts
        self._store = _open(url, request_timeout_s, options)
        self._reads = asyncio.Semaphore(MAX_READS_IN_FLIGHT)

    def __repr__(self) -> str:
        return f"ObjectStoreWal({self._url!r})"

    async def put(self, key: str, parts: Sequence[Buffer]) -> None:
        in_doubt = False
        failure: Exception | None = None
        for attempt in range(self._attempts):
            await _pause(attempt)
            try:
                # Never multipart: its completion would not be conditional.
                await obstore.put_async(self._store, key, list(parts), mode="create", use_multipart=False)
                return
            except AlreadyExistsError as error:
                failure = error
                if await self._is_same(key, parts):
                    return
            except (BaseError, OSError) as error:
                failure = error
                in_doubt = in_doubt or not _surely_refused(error)
                if is_hopeless(error):
                    break
        kind = Unknown if in_doubt else Retry
        raise kind(f"{key} cannot be put: {first_line(failure)}") from failure

    async def _is_same(self, key: str, parts: Sequence[Buffer]) -> bool:
        """Whether the object is our own, after a lost answer. False if it is gone meanwhile. Raises Exists."""
        try:
            [found] = await self.read(key, [(0, sum(map(len, parts)) + 1)])
        except Missing:
            return False
        except Retry as error:
            raise Unknown(f"{key} is there, but cannot be compared: {error}") from error
        if found != b"".join(parts):
            raise Exists(f"{key} exists with other content")
        return True

    async def read(self, key: str, ranges: Sequence[Range]) -> list[bytearray]:
        spans = coalesce(ranges)
        if not spans:
            await self._size(key)
        read = await asyncio.gather(*(self._read_span(key, span) for span in spans), return_exceptions=True)
        found = []
        for (start, _), data in zip(spans, read, strict=True):
            if isinstance(data, BaseException):
                raise data
            found.append((start, data))
        return [_cut(found, start, length) for start, length in ranges]

    async def _read_span(self, key: str, span: Range) -> memoryview:
        start, length = span

        async def get() -> memoryview:
            async with self._reads:
                return memoryview(await obstore.get_range_async(self._store, key, start=start, length=length))

        try:
            return await self._retried(key, get)
        except Retry:
            # A range that starts at the end or beyond is an error in the store, and empty here.
            if await self._size(key) <= start:
                return memoryview(b"")
            raise

    async def _size(self, key: str) -> int:
        async def head() -> int:
            return (await obstore.head_async(self._store, key))["size"]

        return await self._retried(key, head)

    async def list(self, prefix: str, after: str = "", limit: int = 0) -> list[StoredObject]:
        # The store's own prefixes are whole steps of the path; ours are any characters.
        directory = prefix.rpartition("/")[0]

        async def collect() -> list[StoredObject]:
            found: list[StoredObject] = []
            pages = obstore.list(self._store, prefix=directory or None, offset=after or None, chunk_size=PAGE)
            async for page in pages:
                names = ((meta["path"], meta["size"]) for meta in page)
                found += [StoredObject(key, size) for key, size in names if key.startswith(prefix) and key > after]
                if limit and len(found) >= limit:
                    break
            return found

        return sorted(await self._retried(prefix, collect), key=lambda stored: stored.key)

    async def delete(self, keys: Sequence[str]) -> None:
        async def delete_all() -> None:
            await obstore.delete_async(self._store, list(keys))

        try:
            await self._retried("delete", delete_all)
        except Missing:
            # Some stores stop at a missing key: go on one by one.
            for key in keys:
                await self._delete_one(key)

    async def _delete_one(self, key: str) -> None:
        async def delete() -> None:
            try:
                await obstore.delete_async(self._store, key)
            except FileNotFoundError:
                return

        await self._retried(key, delete)

    async def probe(self, key: str = "probe/conditional-put") -> None:
        """Check that the store refuses a second create and serves byte ranges. Raises Halted if it does not.

        The object of a failed probe is removed by the next one.
        """
        for _ in range(PROBE_ATTEMPTS):
            refused = await self._refuses_to_overwrite(key)
            await self.delete([key])
            if refused:
                return
        raise Halted(
            f"{self._url} overwrites an object although it was told to create it only. Acknowledged records could be "
            "lost there: use a store with conditional writes (If-None-Match), such as Amazon S3, GCS or Azure"
        )

    async def _refuses_to_overwrite(self, key: str) -> bool:
        """Whether a second create is refused. Also False if another broker's probe deleted the object in between."""
        for content in (b"first", b"other"):
            try:
                await self.put(key, [content])
            except Exists:
                [middle] = await self.read(key, [(1, 3)])
                if bytes(middle) not in (b"irs", b"the"):
                    raise Halted(f"{self._url} does not give the byte range that it was asked for") from None
                return True
        return False

    async def close(self) -> None:
        # The client's threads use the interpreter for a moment after the last answer, and an exit in that moment aborts
        # the process (SIGABRT). A short wait avoids it.
        await asyncio.sleep(SETTLE_S)

    async def _retried(self, key: str, request: Callable[[], Awaitable[T]]) -> T:
        """A request that may be repeated; raises Missing or Retry."""
        failure: Exception | None = None
        for attempt in range(self._attempts):
            await _pause(attempt)
            try:
                return await request()
            except FileNotFoundError:
                raise Missing(f"{key} is not there") from None
            except (BaseError, OSError) as error:
                failure = error
                if is_hopeless(error):
                    break
        raise Retry(f"{key}: {first_line(failure)}") from failure


def coalesce(ranges: Sequence[Range]) -> list[Range]:
    """Few ranges (start, length), in order, that cover all: neighbours with a small gap are joined."""
    spans: list[Range] = []
    for start, length in sorted(ranges):
        if length <= 0:
            continue
        if spans:
            first, covered = spans[-1]
            joined = max(covered, start + length - first)
            near = start - (first + covered) <= COALESCE_GAP_BYTES
            if joined == covered or (near and joined <= MAX_COALESCED_BYTES):
                spans[-1] = (first, joined)
                continue
        spans.append((start, length))
    return spans


def _cut(spans: Sequence[tuple[int, memoryview]], start: int, length: int) -> bytearray:
    """The range, from the last span that can hold it. The end of the object may have cut the span."""
    for first, data in reversed(spans):
        if first <= start:
            return bytearray(data[start - first : max(start - first + length, 0)])
    return bytearray()


def _open(url: str, request_timeout_s: float, options: dict[str, Any]) -> ObjectStore:
    scheme = url.partition(":")[0]
    if scheme == "memory":
        return MemoryStore()
    if scheme in ("", "file") or "://" not in url:
        raise ValueError(f"{url} is a folder: an object store's client would not sync it, FolderWal does")
    client = client_options(request_timeout_s, options)
    return from_url(url, client_options=client, retry_config={"max_retries": 0}, **options)  # type: ignore[call-overload, no-any-return]


def client_options(request_timeout_s: float, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of obstore's client that are the same for every store."""
    found: dict[str, Any] = {"timeout": timedelta(seconds=request_timeout_s)}
    # A named http endpoint is meant. The client reads the variable that allows it only if no options are given.
    named = [*options.values(), *(os.environ.get(variable, "") for variable in ENDPOINT_VARIABLES)]
    if any(str(value).startswith("http://") for value in named):
        found["allow_http"] = True
    return found


async def _pause(attempt: int) -> None:
    if attempt:
        await asyncio.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))


def _surely_refused(error: Exception) -> bool:
    """Whether the store certainly did not do the request. In doubt the outcome is unknown."""
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError, FileNotFoundError)):
        return True
    status = _status(error)
    if status is None:
        return "kind: Connect," in str(error)
    return status in (429, 503) or (400 <= status < 500 and status != 408)


def is_hopeless(error: Exception) -> bool:
    """Whether the same request would get the same answer."""
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError, FileNotFoundError)):
        return True
    status = _status(error)
    if status is None:
        return "Invalid range" in str(error)
    return 400 <= status < 500 and status not in (408, 409, 429)


def _status(error: Exception) -> int | None:
    """The HTTP status, which only the text of the error has."""
    found = re.search(r"status code: (\d{3})", str(error))
    return int(found[1]) if found else None


def first_line(error: Exception | None) -> str:
    return str(error).partition("\n")[0]
