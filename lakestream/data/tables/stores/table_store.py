"""The stores of table files: whole objects by URI, create-only, called from threads, never on the event loop.

Every URI must lie under the store's root: metadata also comes from other engines, and must not make us read or delete
other files.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from lakestream.data.placer import Placer, near, near_by_name
from lakestream.data.synced_files import Directories, is_synced_copy, open_to_read, read_bytes
from lakestream.errors import Exists, Missing, Rejected, Retry, Unknown
from lakestream.model.catalog.names import canonical
from lakestream.model.reasons import Reason

T = TypeVar("T")
REQUESTS_AT_ONCE = 8
FOLDERS_KNOWN_MAX = 50_000
REQUEST_TIMEOUT_S = 120.0
"""For a whole request: a data file of 128 MB on a slow line takes a minute."""


class TableStore(Protocol):
    """Blocking and safe to use from several threads. Answer i belongs to request i."""

    root: str
    """The URI that all others start with, without a slash at its end."""
    requests_at_once: int
    """How many requests of one caller may be under way at once; with 1 no threads are needed."""

    def put(self, uri: str, data: bytes) -> None:
        """Create the object, durably. Raises Exists if other bytes are there, Retry or Unknown as a Wal does."""
        ...

    def get(self, uri: str) -> bytes:
        """Raises Missing if there is no such object."""
        ...

    def read(self, uri: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Byte ranges (start, length), cut where the object ends. Raises Missing."""
        ...

    def list(self, prefix: str) -> list[tuple[str, int]]:
        """The URIs that start with `prefix` and their sizes, in order."""
        ...

    def folders(self, prefix: str) -> Sequence[str]:
        """The folders right below `prefix`, which ends with a slash, in order, and without one."""
        ...

    def delete(self, uris: Sequence[str]) -> None:
        """Deletes objects; missing ones are no error."""
        ...


class DatedStore(TableStore, Protocol):
    """A store that also tells how old its objects are."""

    def list_dated(self, prefix: str) -> Sequence[tuple[str, int, int]]:
        """As `list`, with the time (ms since 1970) of each object's last change."""
        ...


def open_table_store(root: str, **options: Any) -> DatedStore:
    """The store of a warehouse: `file:///...`, or a URL and options that obstore knows."""
    if urlsplit(root).scheme in ("", "file"):
        return FolderTableStore(unquote(urlsplit(root).path))
    return ObjectTableStore(root, options)


def key_below(root: str, uri: str) -> str:
    """The part of a URI after the root. Raises Rejected if it leads elsewhere, however it is spelled."""
    plain = canonical(uri)
    key = plain[len(root) + 1 :]
    if not plain.startswith(f"{root}/") or not key or any(part in ("", ".", "..") for part in key.split("/")):
        raise Rejected(Reason.INVALID_REQUEST, f"{uri} does not lie in {root}")
    return key


class FolderTableStore:
    """A folder. A file is synced with its directory before it counts, and appears whole or not at all."""

    requests_at_once = REQUESTS_AT_ONCE

    def __init__(self, path: str | Path, *, nameless: bool = True) -> None:
        self._root = Path(path).absolute()
        self._nameless = nameless
        self.root = f"file://{self._root}"

    @cached_property
    def _placer(self) -> Placer:
        """Created with the first file, so that readers need no right to write."""
        # Tables and rounds never have the folder of another one.
        return Placer(Directories(self._root, FOLDERS_KNOWN_MAX), near if self._nameless else near_by_name)

    def __repr__(self) -> str:
        return f"FolderTableStore({str(self._root)!r})"

    def path(self, uri: str) -> Path:
        return self._root / key_below(self.root, uri)

    def _folder(self, uri: str) -> Path:
        return self._root if uri == self.root else self.path(uri)

    def put(self, uri: str, data: bytes) -> None:
        key = key_below(self.root, uri)
        try:
            placer = self._placer
        except OSError as error:
            raise Retry(f"{uri} cannot be written: {error}") from error
        placer.put(key, [data], lambda: is_synced_copy(open_to_read(self._root / key), [data]))

    def get(self, uri: str) -> bytes:
        return _present(uri, lambda: self.path(uri).read_bytes())

    def read(self, uri: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        file = _present(uri, lambda: open_to_read(self.path(uri)))
        return [read_bytes(file, start, length) for start, length in ranges]

    def list(self, prefix: str) -> list[tuple[str, int]]:
        return [(uri, size) for uri, size, _ in self.list_dated(prefix)]

    def list_dated(self, prefix: str) -> Sequence[tuple[str, int, int]]:
        found = []
        for folder, _, names in os.walk(self._folder(prefix.rpartition("/")[0])):
            for name in names:
                uri = f"file://{folder}/{name}"
                if uri.startswith(prefix):
                    with suppress(FileNotFoundError):
                        told = os.stat(f"{folder}/{name}")
                        found.append((uri, told.st_size, told.st_mtime_ns // 1_000_000))
        return sorted(found)

    def folders(self, prefix: str) -> Sequence[str]:
        with suppress(FileNotFoundError), os.scandir(self._folder(prefix.rstrip("/"))) as entries:
            return sorted(f"{prefix}{entry.name}" for entry in entries if entry.is_dir())
        return []

    def delete(self, uris: Sequence[str]) -> None:
        for uri in uris:
            path = self.path(uri)
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise Retry(f"{uri} cannot be deleted: {error}") from error
            with suppress(OSError):
                path.parent.rmdir()


def _present(uri: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except (FileNotFoundError, NotADirectoryError):
        raise Missing(f"{uri} is not there") from None
    except OSError as error:
        raise Retry(f"{uri} cannot be read: {error}") from error


class ObjectTableStore:
    """An object store, through obstore's blocking calls."""

    requests_at_once = REQUESTS_AT_ONCE

    def __init__(self, root: str, options: dict[str, Any], request_timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        from obstore.store import from_url

        from lakestream.data.object_store import client_options

        self.root = root.rstrip("/")
        client = client_options(request_timeout_s, options)
        self._store = from_url(self.root, client_options=client, **options)  # type: ignore[call-overload]

    def __repr__(self) -> str:
        return f"ObjectTableStore({self.root!r})"

    def put(self, uri: str, data: bytes) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError

        key = key_below(self.root, uri)
        try:
            # Never multipart: its completion would not be conditional.
            obstore.put(self._store, key, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            # Our own answer may have been lost, then the same bytes are there.
            if self.get(uri) != data:
                raise Exists(f"{uri} exists with other content") from None
        except BaseError as error:
            raise Unknown(f"{uri}: {error}") from error

    def get(self, uri: str) -> bytes:
        import obstore

        key = key_below(self.root, uri)
        return self._asked(uri, lambda: bytes(obstore.get(self._store, key).bytes()))

    def read(self, uri: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        import obstore

        key = key_below(self.root, uri)
        wanted = [(start, length) for start, length in ranges if length > 0]
        starts, lengths = [start for start, _ in wanted], [length for _, length in wanted]
        found = iter(
            self._asked(uri, lambda: obstore.get_ranges(self._store, key, starts=starts, lengths=lengths))
            if wanted
            else []
        )
        return [bytes(next(found)) if length > 0 else b"" for _, length in ranges]

    def list(self, prefix: str) -> list[tuple[str, int]]:
        return [(uri, size) for uri, size, _ in self.list_dated(prefix)]

    def list_dated(self, prefix: str) -> Sequence[tuple[str, int, int]]:
        import obstore

        folder = key_below(self.root, f"{prefix}-").rpartition("/")[0]
        metas = self._asked(prefix, lambda: obstore.list(self._store, prefix=folder or None).collect())
        found = [
            (f"{self.root}/{meta['path']}", meta["size"], int(meta["last_modified"].timestamp() * 1000))
            for meta in metas
        ]
        return sorted(each for each in found if each[0].startswith(prefix))

    def folders(self, prefix: str) -> Sequence[str]:
        import obstore

        key = key_below(self.root, f"{prefix}-").removesuffix("-")
        found = self._asked(prefix, lambda: obstore.list_with_delimiter(self._store, prefix=key or None))
        return sorted(f"{self.root}/{one.rstrip('/')}" for one in found["common_prefixes"])

    def delete(self, uris: Sequence[str]) -> None:
        import obstore

        keys = [key_below(self.root, uri) for uri in uris]
        if not keys:
            return
        try:
            self._asked(uris[0], lambda: obstore.delete(self._store, keys))
        except Missing:  # some stores stop at what is gone already
            for uri, key in zip(uris, keys, strict=True):
                with suppress(Missing):
                    self._asked(uri, lambda key=key: obstore.delete(self._store, key))  # type: ignore[misc]

    def _asked(self, uri: str, ask: Callable[[], T]) -> T:
        from obstore.exceptions import BaseError

        try:
            return ask()
        except FileNotFoundError:
            raise Missing(f"{uri} is not there") from None
        except (BaseError, OSError) as error:
            raise Retry(f"{uri}: {error}") from error
