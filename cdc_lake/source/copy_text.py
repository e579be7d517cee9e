"""COPY's text format (PostgreSQL docs, COPY: File Formats) as arrays of text; the GaussDB family prints it alike.

A chunk is read as a whole, by its delimiters; what may hold bytes that are no text is read line by line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_lake.decode.mppdb.codec import Codec, Policy
from cdc_lake.decode.not_text import PREFIX
from cdc_lake.model.change import Value
from cdc_lake.model.relation import Relation
from cdc_lake.source.odd_text import in_columns, text_of

_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPED = np.arange(256, dtype=np.uint8)
for _letter, _byte in _ESCAPES.items():
    _ESCAPED[ord(_letter)] = ord(_byte)
_TAB, _LF, _BACKSLASH, _N = b"\t\n\\N"
_CHUNK_BYTES = 64 << 20  # wide rows close a chunk before `chunk_rows` does


def chunks_of(blocks: Iterable[Any], relation: Relation, chunk_rows: int, codec: Codec) -> Iterator[pa.ListArray]:
    """A table's rows as the server sends them, one a block (bytes or a view) with its line feed, in arrays of
    list<string>.

    `codec` is one of UTF-8, which the server sends, or a database in SQL_ASCII does not. Raises TextNotInEncoding.
    """
    lines: list[Any] = []
    size = 0
    for block in blocks:
        lines.append(block)
        size += len(block)
        if len(lines) >= chunk_rows or size >= _CHUNK_BYTES:
            yield _chunk(lines, relation, codec)
            lines, size = [], 0
    if lines:
        yield _chunk(lines, relation, codec)


def _chunk(lines: Sequence[Any], relation: Relation, codec: Codec) -> pa.ListArray:
    width = len(relation.columns)
    data = b"".join(lines)
    if width and _is_text(data) and (codec.policy is Policy.STOP or PREFIX.encode() not in data):
        values = fields_of(data)
        if len(values) == width * len(lines):
            return _lists(values, width, len(lines))
    rows = [_values(bytes(line).removesuffix(b"\n"), relation, codec) for line in lines]
    return _lists(pa.array([value for row in rows for value in row], pa.string()), width, len(lines))


def fields_of(data: bytes) -> pa.StringArray:
    r"""The fields of whole lines of COPY's text format in UTF-8, unescaped, `\N` as NULL."""
    given = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero((given == _TAB) | (given == _LF))
    keep = np.ones(len(given), bool)
    keep[ends] = False
    sizes = np.diff(ends, prepend=-1) - 1
    null = np.zeros(len(ends), bool)
    if (slashes := np.flatnonzero(given == _BACKSLASH)).size:
        given = given.copy()
        begins = _begins_of_escapes(slashes)
        fields = np.searchsorted(ends, begins)
        null[fields[(sizes[fields] == 2) & (given[begins + 1] == _N)]] = True  # nothing else is written so
        keep[begins] = False
        given[begins + 1] = _ESCAPED[given[begins + 1]]
        keep[begins[null[fields]] + 1] = False
        sizes -= np.bincount(fields, minlength=len(ends))
        sizes[null] = 0
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    valid = pa.array(~null).buffers()[1] if null.any() else None
    text = pa.py_buffer(given[keep])
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), text, valid, int(null.sum()))


def _begins_of_escapes(slashes: Any) -> Any:
    """The backslashes that begin an escape: of a run of them every second one, from its first on."""
    first = np.diff(slashes, prepend=-2) != 1
    numbers = np.arange(len(slashes))
    run = numbers[first][np.cumsum(first) - 1]
    return slashes[(numbers - run) % 2 == 0]


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _values(data: bytes, relation: Relation, codec: Codec) -> Sequence[Value]:
    line = data.decode() if _is_text(data) else None
    if line is not None and (codec.policy is Policy.STOP or PREFIX not in line):
        return parse_line(line, len(relation.columns))
    fields = data.split(b"\t") if relation.columns else []
    values = tuple(None if field == b"\\N" else text_of(_unescaped_bytes(field), relation, codec) for field in fields)
    return in_columns(values, relation, codec)


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


def _unescaped_bytes(field: bytes) -> bytes:
    return _unescaped(field.decode("latin-1")).encode("latin-1")


def _lists(values: pa.StringArray, width: int, rows: int) -> pa.ListArray:
    offsets = np.arange(rows + 1, dtype=np.int32) * width
    return pa.ListArray.from_arrays(pa.array(offsets), values)
