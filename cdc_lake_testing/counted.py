"""A local file system that counts the bytes read through it, and a bronze reader on it."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs as pafs

from cdc_lake.bronze.data_files import BronzeTable, Files
from cdc_lake.bronze.reader import BronzeReader


class CountedReader(BronzeReader):
    """A bronze reader that counts the bytes of data files it reads: `bytes_read`."""

    def __init__(self, table: BronzeTable | Path) -> None:
        super().__init__(table)
        self._counted = _Counted()
        self._through: tuple[Files, Files] | None = None

    @property
    def bytes_read(self) -> int:
        """So far."""
        return self._counted.bytes_read

    def files(self) -> Files:
        """The same files, read through the counter."""
        files = super().files()
        if self._through is None or self._through[0] is not files:
            self._through = (files, replace(files, filesystem=pafs.PyFileSystem(self._counted)))
        return self._through[1]


class _File(io.FileIO):
    def __init__(self, path: str, counter: _Counted) -> None:
        super().__init__(path, "rb")
        self._counter = counter

    def __del__(self) -> None:
        self.close()  # Arrow drops it and does not close it

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self._counter.bytes_read += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        size = super().readinto(buffer) or 0
        self._counter.bytes_read += size
        return size


class _Counted(pafs.FileSystemHandler):  # type: ignore[misc]  # mypy does not look into pyarrow
    """Reads only."""

    def __init__(self) -> None:
        self._local = pafs.LocalFileSystem()
        self.bytes_read = 0

    def get_type_name(self) -> str:
        return "counted"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self._local.get_file_info(selector)

    def open_input_stream(self, path: str) -> Any:
        return pa.PythonFile(_File(path, self), mode="r")

    def open_input_file(self, path: str) -> Any:
        return pa.PythonFile(_File(path, self), mode="r")

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise io.UnsupportedOperation

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse
