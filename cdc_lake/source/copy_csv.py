"""COPY's CSV format as columns of text, for comparing tables; the GaussDB family prints it alike.

On purpose not the reader of the initial copy: CSV parsed by Arrow, where that one takes COPY's text format apart
itself. A mistake in either shows as a difference. In CSV with every value quoted, an unquoted empty field is NULL and
`""` the empty string (PostgreSQL docs, COPY: CSV Format).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyarrow import csv

from cdc_lake.decode.mppdb.codec import Codec, Policy
from cdc_lake.model.relation import Relation
from cdc_lake.source.odd_text import odd_column

_BLOCK_BYTES = 16 << 20


def csv_statement(query: str) -> str:
    """The statement that copies a query's rows out as `table_of` reads them."""
    return f"COPY ({query}) TO STDOUT (FORMAT csv, FORCE_QUOTE *, NULL '')"


def table_of(sent: Iterable[bytes], relation: Relation, codec: Codec) -> pa.Table:
    """A table's rows as the server sends them, one a message, as large_string columns. Raises TextNotInEncoding."""
    tables = list(csv_tables(sent, relation, codec))
    return pa.concat_tables(tables) if tables else _schema(relation).empty_table()


def csv_tables(sent: Iterable[bytes], relation: Relation, codec: Codec) -> Iterator[pa.Table]:
    """The same a block of about 16 MB at a time. Raises TextNotInEncoding."""
    schema = _schema(relation)
    for block in _blocks(sent):
        yield _settled(_parsed(block, schema), relation, codec)


def csv_chunks(sent: Iterable[bytes], relation: Relation, codec: Codec) -> Iterator[pa.ListArray]:
    """The same as list<string> by position in the layout. Raises TextNotInEncoding."""
    for table in csv_tables(sent, relation, codec):
        rows = [list(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
        yield pa.array(rows, pa.list_(pa.string()))


def _schema(relation: Relation) -> pa.Schema:
    return pa.schema([pa.field(name, pa.large_string()) for name in relation.names])


def _settled(table: pa.Table, relation: Relation, codec: Codec) -> pa.Table:
    """The table with every value in text; most have no other."""
    if codec.python == "utf-8" and codec.policy is Policy.STOP:
        return table
    columns = [
        odd_column(values, relation, name, codec) for name, values in zip(relation.names, table.columns, strict=True)
    ]
    return pa.table(columns, schema=table.schema)


def _blocks(sent: Iterable[bytes]) -> Iterator[bytes]:
    """Whole rows in blocks of about 16 MB: the server sends one row a message."""
    rows: list[bytes] = []
    size = 0
    for row in sent:
        rows.append(row)
        size += len(row)
        if size >= _BLOCK_BYTES:
            yield b"".join(rows)
            rows, size = [], 0
    if rows:
        yield b"".join(rows)


def _parsed(block: bytes, schema: pa.Schema) -> pa.Table:
    # one Arrow block for the whole: a row must not straddle two, and a row can be as large as it likes
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
