"""Reads COPY's text and CSV formats into Arrow columns (PostgreSQL docs, COPY: File Formats); GaussDB prints alike.

The initial copy reads the text format: a chunk as a whole, by its delimiters, or line by line if it may contain bytes
that are not valid text (`decode.encoding`). Comparisons read CSV, parsed by Arrow, so that an error in either reader
shows as a difference. In CSV with every value quoted, an unquoted empty field is NULL and `""` the empty string.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from cdc_lake.decode.encoding import PREFIX, Codec, Policy, apply_text_policy
from cdc_lake.errors import TextNotInEncoding
from cdc_lake.model.change import Tuple, Value
from cdc_lake.model.relation import Relation


def text_of(data: bytes, relation: Relation, codec: Codec) -> str:
    """Decode a value of a table. Raises TextNotInEncoding, which names the table."""
    try:
        return codec.text(data)
    except TextNotInEncoding as error:
        error.where = f"a row of {relation.table}"
        raise


def in_columns(values: Tuple, relation: Relation, names: Sequence[str], codec: Codec) -> Tuple:
    """Values decoded for their columns, by a codec with the policy `hex`. Raises TextNotInEncoding."""

    def error(offset: int) -> TextNotInEncoding:
        raised = TextNotInEncoding(codec.encoding, offset=offset)
        raised.where = f"a row of {relation.table}"
        return raised

    return apply_text_policy(relation.table, names, values, codec.in_hex, codec.encode, error)


def odd_column(values: pa.ChunkedArray, relation: Relation, name: str, codec: Codec) -> pa.ChunkedArray:
    """A large_string column that may have invalid text or text in another encoding. Raises TextNotInEncoding."""
    data = values.cast(pa.large_binary())
    if codec.python == "utf-8" and _plain(values):
        return values
    chunks = []
    for chunk in data.chunks:
        texts = tuple(None if value is None else text_of(value, relation, codec) for value in chunk.to_pylist())
        chunks.append(pa.array(in_columns(texts, relation, [name] * len(texts), codec), pa.large_string()))
    return pa.chunked_array(chunks, pa.large_string())


def _plain(values: pa.ChunkedArray) -> bool:
    """Whether all of it is UTF-8 and no value begins like one in hexadecimal form."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return not pc.any(pc.starts_with(values, PREFIX)).as_py()


def csv_statement(query: str) -> str:
    """The COPY statement of a query for `csv_tables`."""
    return f"COPY ({query}) TO STDOUT (FORMAT csv, FORCE_QUOTE *, NULL '')"


def csv_tables(sent: Iterable[bytes], relation: Relation, codec: Codec) -> Iterator[pa.Table]:
    """A table's rows, one per message of the server, as large_string columns in blocks of about 16 MB.

    Raises TextNotInEncoding.
    """
    schema = pa.schema([pa.field(name, pa.large_string()) for name in relation.names])
    for block in _blocks(sent):
        yield _apply_text_policy(_parse_csv(block, schema), relation, codec)


def csv_chunks(sent: Iterable[bytes], relation: Relation, codec: Codec) -> Iterator[pa.ListArray]:
    """The same as list<string> by position in the layout. Raises TextNotInEncoding."""
    for table in csv_tables(sent, relation, codec):
        rows = [list(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
        yield pa.array(rows, pa.list_(pa.string()))


def _apply_text_policy(table: pa.Table, relation: Relation, codec: Codec) -> pa.Table:
    """The table with every value decoded to text; most need no conversion."""
    if codec.python == "utf-8" and codec.policy is Policy.STOP:
        return table
    pairs = zip(relation.names, table.columns, strict=True)
    return pa.table([odd_column(values, relation, name, codec) for name, values in pairs], schema=table.schema)


def _blocks(sent: Iterable[bytes]) -> Iterator[bytes]:
    """Complete rows in blocks of about 16 MB: the server sends one row per message."""
    rows: list[bytes] = []
    size = 0
    for row in sent:
        rows.append(row)
        size += len(row)
        if size >= 16 << 20:
            yield b"".join(rows)
            rows, size = [], 0
    if rows:
        yield b"".join(rows)


def _parse_csv(block: bytes, schema: pa.Schema) -> pa.Table:
    # one Arrow block for all: a row must not span two, and has no size limit
    read = csv.ReadOptions(column_names=schema.names, block_size=len(block) + 1)
    parse = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    convert = csv.ConvertOptions(
        column_types=schema,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        check_utf8=False,
    )
    return csv.read_csv(pa.BufferReader(block), read_options=read, parse_options=parse, convert_options=convert)


_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPED = np.arange(256, dtype=np.uint8)
for _letter, _byte in _ESCAPES.items():
    _ESCAPED[ord(_letter)] = ord(_byte)
_TAB, _BACKSLASH, _N = b"\t\\N"
_DELIMITERS = 2  # the tab and the line feed after it
_OF_NULL = 2  # bytes
_CHUNK_BYTES = 16 << 20  # wide rows close a chunk before `chunk_rows` does; every reader holds two or three
_PIECE_BYTES = 2 << 20  # bytes of a chunk parsed at a time, which takes several times as much memory


def chunks_of(blocks: Iterable[Any], relation: Relation, chunk_rows: int, codec: Codec) -> Iterator[pa.ChunkedArray]:
    """A table's rows, one per block of the server (bytes or a view) with its line feed, as arrays of list<string>.

    `codec`: UTF-8, which the server sends unless the database is SQL_ASCII. Raises TextNotInEncoding.
    """
    pieces: list[pa.ListArray] = []
    data = bytearray()
    rows = size = read = 0  # rows and bytes of the chunk, and the rows already parsed
    for block in blocks:
        data += block  # copied: each block has memory of its own
        rows += 1
        ends = rows >= chunk_rows or size + len(data) >= _CHUNK_BYTES
        if ends or len(data) >= _PIECE_BYTES:
            pieces.append(_piece(data, rows - read, relation, codec))
            size, read, data = size + len(data), rows, bytearray()
        if ends:
            chunk, pieces = pa.chunked_array(pieces), []
            yield chunk
            del chunk
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
    r"""The fields of complete lines of COPY's text format in UTF-8, unescaped, `\N` as NULL."""
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero((octets - _TAB) < _DELIMITERS)
    sizes = np.diff(ends, prepend=-1) - 1
    null = np.zeros(len(ends), bool)
    text: Any = None
    if b"\\" in data:
        begins = _begins_of_escapes(np.flatnonzero(octets == _BACKSLASH))
        fields = np.searchsorted(ends, begins)
        of_null = (sizes[fields] == _OF_NULL) & (octets[begins + 1] == _N)  # no other value is written like this
        null[fields[of_null]] = True
        if not of_null.all():
            text = _unescaped_text(octets, ends, begins[~of_null])
            sizes -= np.bincount(fields[~of_null], minlength=len(ends))
    if text is None:
        text = data.translate(None, b"\t\n")
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    valid = pa.array(~null).buffers()[1] if null.any() else None
    return pa.StringArray.from_buffers(len(ends), pa.py_buffer(offsets), pa.py_buffer(text), valid, int(null.sum()))


def _unescaped_text(octets: Any, ends: Any, begins: Any) -> Any:
    """The bytes without delimiters and without the backslashes of the processed escapes."""
    unescaped, keep = octets.copy(), np.ones(len(octets), bool)
    keep[ends] = False
    keep[begins] = False
    unescaped[begins + 1] = _ESCAPED[octets[begins + 1]]
    return unescaped[keep]


def _begins_of_escapes(slashes: Any) -> Any:
    """The backslashes that begin an escape: every second one of a run, from its first on."""
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
    raw = [None if field == b"\\N" else _unescape(field.decode("latin-1")).encode("latin-1") for field in fields]
    values = tuple(None if field is None else text_of(field, relation, codec) for field in raw)
    return in_columns(values, relation, relation.names, codec)


def parse_line(line: str, width: int) -> list[str | None]:
    r"""One line of COPY's text format as values, `\N` as None. A table without columns has empty lines."""
    if width == 0:
        return []
    fields: list[str | None] = list(line.split("\t"))
    if "\\" in line:
        return [None if field == "\\N" else _unescape(str(field)) for field in fields]
    return fields


def _unescape(field: str) -> str:
    first, *rest = field.split("\\")
    if not rest:
        return field
    unescaped, pieces = [first], iter(rest)
    for piece in pieces:
        if piece:
            unescaped.append(_ESCAPES.get(piece[0], piece[0]) + piece[1:])
        else:  # an escaped backslash: the text up to the next one is literal
            unescaped.append("\\" + next(pieces, ""))
    return "".join(unescaped)


def _lists(values: pa.StringArray, width: int, rows: int) -> pa.ListArray:
    offsets = np.arange(rows + 1, dtype=np.int32) * width
    return pa.ListArray.from_arrays(pa.array(offsets), values)
