"""COPY's text format (PostgreSQL docs, COPY: File Formats) as arrays of text; the GaussDB family prints it alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CHUNK_BYTES = 64 << 20  # wide rows close a chunk before `chunk_rows` does


def chunks_of(blocks: Iterable[bytes], width: int, chunk_rows: int) -> Iterator[pa.ListArray]:
    """Rows of `width` values as the server sends them, one a block with its line feed, in arrays of list<string>."""
    values: list[str | None] = []
    rows = size = 0
    for block in blocks:
        line = block.decode().removesuffix("\n")
        values.extend(parse_line(line, width))
        rows += 1
        size += len(line)
        if rows >= chunk_rows or size >= _CHUNK_BYTES:
            yield _array(values, width, rows)
            values, rows, size = [], 0, 0
    if rows:
        yield _array(values, width, rows)


def parse_line(line: str, width: int) -> list[str | None]:
    r"""One line of COPY's text format as values, `\N` as None. A table without columns has empty lines."""
    if width == 0:
        return []
    fields: list[str | None] = list(line.split("\t"))
    if "\\" in line:
        return [None if field == "\\N" else _unescaped(str(field)) for field in fields]
    return fields


def _unescaped(field: str) -> str:
    first, *rest = field.split("\\")
    if not rest:
        return field
    out, pieces = [first], iter(rest)
    for piece in pieces:
        if piece:
            out.append(_ESCAPES.get(piece[0], piece[0]) + piece[1:])
        else:  # an escaped backslash: what follows it up to the next one is plain
            out.append("\\" + next(pieces, ""))
    return "".join(out)


def _array(values: list[str | None], width: int, rows: int) -> pa.ListArray:
    offsets = pa.array(range(0, rows * width + 1, width) if width else [0] * (rows + 1), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(values, pa.string()))
