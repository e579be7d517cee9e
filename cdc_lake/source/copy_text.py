"""COPY's text format (PostgreSQL docs, COPY: File Formats) as arrays of text; the GaussDB family prints it alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from cdc_lake.decode.mppdb.codec import Codec, Policy
from cdc_lake.decode.not_text import PREFIX
from cdc_lake.model.change import Value
from cdc_lake.model.relation import Relation
from cdc_lake.source.odd_text import in_columns, text_of

_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CHUNK_BYTES = 64 << 20  # wide rows close a chunk before `chunk_rows` does


def chunks_of(blocks: Iterable[bytes], relation: Relation, chunk_rows: int, codec: Codec) -> Iterator[pa.ListArray]:
    """A table's rows as the server sends them, one a block with its line feed, in arrays of list<string>.

    `codec` is one of UTF-8, which the server sends, or a database in SQL_ASCII does not. Raises TextNotInEncoding.
    """
    width = len(relation.columns)
    values: list[Value] = []
    rows = size = 0
    for block in blocks:
        values.extend(_values(block.removesuffix(b"\n"), relation, codec))
        rows += 1
        size += len(block)
        if rows >= chunk_rows or size >= _CHUNK_BYTES:
            yield _array(values, width, rows)
            values, rows, size = [], 0, 0
    if rows:
        yield _array(values, width, rows)


def _values(data: bytes, relation: Relation, codec: Codec) -> Sequence[Value]:
    line = _text(data)
    if line is not None and (codec.policy is Policy.STOP or PREFIX not in line):
        return parse_line(line, len(relation.columns))
    fields = data.split(b"\t") if relation.columns else []
    values = tuple(None if field == b"\\N" else text_of(_unescaped_bytes(field), relation, codec) for field in fields)
    return in_columns(values, relation, codec)


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


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


def _array(values: list[Value], width: int, rows: int) -> pa.ListArray:
    offsets = pa.array(range(0, rows * width + 1, width) if width else [0] * (rows + 1), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(values, pa.string()))
