"""A table store as a file system of Arrow: data files are read by ranges, through the store's own client and limits.

Errors are kept here, since Arrow and DuckDB turn every error into plain text.
"""

import io
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyarrow import fs

from lakestream.data.tables.stores.table_store import TableStore
from lakestream.errors import LakestreamError


class ReadFaults:
    """The first LakestreamError of a query."""

    def __init__(self) -> None:
        self.first: LakestreamError | None = None

    def note(self, error: LakestreamError) -> None:
        self.first = self.first or error


class StoreFiles(fs.FileSystemHandler):  # type: ignore[misc]
    """Some files of a store, by their URIs, whose sizes are known."""

    def __init__(self, store: TableStore, sizes: Mapping[str, int], faults: ReadFaults) -> None:
        self._store = store
        self._sizes = sizes
        self._faults = faults

    def get_type_name(self) -> str:
        return "lakestream"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [fs.FileInfo(path, fs.FileType.File, size=self._sizes[path]) for path in paths]

    def open_input_file(self, path: str) -> Any:
        return pa.PythonFile(RangedFile(self._store, path, self._sizes[path], self._faults), mode="r")

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def get_file_info_selector(self, selector: Any) -> Any:
        raise NotImplementedError("files are named, never looked for")

    def create_dir(self, path: str, recursive: bool) -> None:
        raise NotImplementedError("a query writes nothing")

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError("a query writes nothing")

    open_append_stream = open_output_stream
    delete_dir = delete_file = delete_dir_contents = delete_root_dir_contents = move = copy_file = create_dir


class RangedFile(io.RawIOBase):
    """One file of a store, read range by range as it is asked for."""

    def __init__(self, store: TableStore, uri: str, size: int, faults: ReadFaults) -> None:
        self._store = store
        self._uri = uri
        self._size = size
        self._faults = faults
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        self._at = position + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        wanted = self._size - self._at if size < 0 else min(size, self._size - self._at)
        try:
            [data] = self._store.read(self._uri, [(self._at, wanted)])
        except LakestreamError as error:
            self._faults.note(error)
            raise OSError(str(error)) from error
        self._at += len(data)
        return data
