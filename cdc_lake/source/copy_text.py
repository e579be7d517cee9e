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
_TAB, _BACKSLASH, _N = b"\t\\N"
_DELIMITERS = 2  # the tab and, right behind it, the line feed
_OF_NULL = 2  # bytes
_CHUNK_BYTES = 16 << 20  # wide rows close a chunk before `chunk_rows` does; every reader holds two or three
_PIECE_BYTES = 2 << 20  # of a chunk are read at a time, which takes several times their memory


def chunks_of(blocks: Iterable[Any], relation: Relation, chunk_rows: int, codec: Codec) -> Iterator[pa.ChunkedArray]:
    """A table's rows as the server sends them, one a block (bytes or a view) with its line feed, in arrays of
    list<string>.

    `codec` is one of UTF-8, which the server sends, or a database in SQL_ASCII does not. Raises TextNotInEncoding.
    """
    pieces: list[pa.ListArray] = []
    data = bytearray()
    rows = size = read = 0  # of the chunk, its bytes, and of these rows how many are in pieces
    for block in blocks:
        data += block  # not kept: each has memory of its own
        rows += 1
        ends = rows >= chunk_rows or size + len(data) >= _CHUNK_BYTES
        if ends or len(data) >= _PIECE_BYTES:
            pieces.append(_piece(data, rows - read, relation, codec))
            size, read, data = size + len(data), rows, bytearray()
        if ends:
            whole, pieces = pa.chunked_array(pieces), []
            yield whole
            del whole
            rows = size = read = 0
    if data:
        pieces.append(_piece(data, rows - read, relation, codec))
    if pieces:
        yield pa.chunked_array(pieces)


def _piece(data: bytearray, rows: int, relation: Relation, codec: Codec) -> pa.ListArray:
    width = len(relation.columns)
    if width and _is_text(data) and (codec.policy is Policy.STOP or PREFIX.encode() not in data):
        values = fields_of(data)
        if len(values) == width * rows:
            return _lists(values, width, rows)
    lines = [_values(bytes(line), relation, codec) for line in data.split(b"\n")[:-1]]
    return _lists(pa.array([value for line in lines for value in line], pa.string()), width, rows)


def fields_of(data: bytes | bytearray) -> pa.StringArray:
    r"""The fields of whole lines of COPY's text format in UTF-8, unescaped, `\N` as NULL."""
    given = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero((given - _TAB) < _DELIMITERS)
    sizes = np.diff(ends, prepend=-1) - 1
    null = np.zeros(len(ends), bool)
    text: Any = None
    if b"\\" in data:
        begins = _begins_of_escapes(np.flatnonzero(given == _BACKSLASH))
        fields = np.searchsorted(ends, begins)
        of_null = (sizes[fields] == _OF_NULL) & (given[begins + 1] == _N)  # nothing else is written so
        null[fields[of_null]] = True
        if not of_null.all():
            text = _unescaped_text(given, ends, begins[~of_null])
            sizes -= np.bincount(fields[~of_null], minlength=len(ends))
    if text is None:
        text = data.translate(None, b"\t\n")
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    valid = pa.array(~null).buffers()[1] if null.any() else None
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text), valid, int(null.sum()))


def _unescaped_text(given: Any, ends: Any, begins: Any) -> Any:
    """The bytes without delimiters and without the backslashes that begin escapes, which are done."""
    out, keep = given.copy(), np.ones(len(given), bool)
    keep[ends] = False
    keep[begins] = False
    out[begins + 1] = _ESCAPED[given[begins + 1]]
    return out[keep]


def _begins_of_escapes(slashes: Any) -> Any:
    """The backslashes that begin an escape: of a run of them every second one, from its first on."""
    first = np.diff(slashes, prepend=-2) != 1
    numbers = np.arange(len(slashes))
    run = numbers[first][np.cumsum(first) - 1]
    return slashes[(numbers - run) % 2 == 0]


def _is_text(data: bytes | bytearray) -> bool:
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
