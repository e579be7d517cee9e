"""Searches for secrets, texts that must not appear, in every file below a folder, including compressed ones."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def leaks(root: Path, tokens: Iterable[str]) -> list[str]:
    """`file: token` for every token found in a file or its name, unpacked."""
    wanted = [token.encode() for token in tokens]
    return [
        f"{path.relative_to(root)}: {token.decode()}"
        for path in sorted(root.rglob("*"))
        for token in wanted
        if token in path.name.encode() or (path.is_file() and any(token in part for part in unpacked(path)))
    ]


def unpacked(path: Path) -> Iterator[bytes]:
    """The bytes of a file, and what they hold when decompressed."""
    data = path.read_bytes()
    yield data
    if data[:4] == b"PAR1":
        yield from _parquet(path)
    elif data[:4] == b"Obj\x01":
        yield from _avro(data)
    elif data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data)


def _parquet(path: Path) -> Iterator[bytes]:
    """Its rows, a row group at a time: of text that packs well, a small file has more than fits in memory. None of a
    file that was torn before its footer, which nobody can read.
    """
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid:
        return
    for number in range(file.num_row_groups):
        sink = io.BytesIO()
        table = file.read_row_group(number)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        yield sink.getvalue()


def _avro(data: bytes) -> Iterator[bytes]:
    """The blocks of an Avro file (Apache Avro 1.11, object container files)."""
    file = io.BytesIO(data[4:])
    codec = b"null"
    while (count := _long(file)) != 0:
        if count < 0:
            _long(file)
        for _ in range(abs(count)):
            key, value = (file.read(_long(file)) for _ in range(2))
            codec = value if key == b"avro.codec" else codec
    file.read(16)
    while file.tell() < len(data) - 4:
        _long(file)
        block = file.read(_long(file))
        file.read(16)
        assert codec in (b"null", b"deflate"), codec
        yield block if codec == b"null" else zlib.decompress(block, -15)


def _long(file: io.BytesIO) -> int:
    shift = value = 0
    while True:
        byte = file.read(1)[0]
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
