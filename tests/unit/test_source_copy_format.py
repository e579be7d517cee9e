"""COPY text lines are read back exactly (PostgreSQL docs, COPY: Text Format)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdc_lake.decode.encoding import Codec, Policy
from cdc_lake.source.copy_format import chunks_of, fields_of, parse_line
from cdc_lake_testing.messages import table

_WRITTEN = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
_TEXT = st.text(st.one_of(st.sampled_from("\\\\Nbfnrtv\b\f\n\r\t\v"), st.characters(exclude_categories=["Cs"])))


def written(value: str | None) -> str:
    """As the server's CopyAttributeOutText does it."""
    return "\\N" if value is None else "".join(_WRITTEN.get(char, char) for char in value)


@given(st.lists(st.one_of(st.none(), _TEXT), min_size=1))
def test_a_line_reads_back_as_its_values(values: list[str | None]) -> None:
    assert parse_line("\t".join(map(written, values)), len(values)) == values


@given(st.lists(st.lists(st.one_of(st.none(), _TEXT), min_size=3, max_size=3)))
def test_a_chunk_reads_back_as_its_rows(rows: list[list[str | None]]) -> None:
    lines = [("\t".join(map(written, row)) + "\n").encode() for row in rows]
    relation = table("public.t", a="text", b="text", c="text")
    for policy in Policy:
        chunks = list(chunks_of(lines, relation, 4, Codec(policy=policy)))
        assert [row for chunk in chunks for row in chunk.to_pylist()] == rows
        assert all(len(chunk) == 4 for chunk in chunks[:-1])


@given(st.lists(st.one_of(st.none(), _TEXT), min_size=1))
def test_fields_are_read_as_line_by_line(values: list[str | None]) -> None:
    fields = fields_of(("\t".join(map(written, values)) + "\n").encode())
    fields.validate(full=True)
    assert fields.to_pylist() == values


def test_wide_rows_are_read_in_pieces_and_close_a_chunk_early() -> None:
    lines = [f"{n}\t{chr(97 + n) * (1 << 20)}\n".encode() for n in range(20)]
    relation = table("public.t", a="text", b="text")
    for chunk_rows, sizes in ((5, [5] * 4), (100, [16, 4])):
        chunks = list(chunks_of(lines, relation, chunk_rows, Codec()))
        assert [len(chunk) for chunk in chunks] == sizes
        assert all(chunk.num_chunks > 1 for chunk in chunks)
        rows = [row for chunk in chunks for row in chunk.to_pylist()]
        assert [(row[0], row[1][0], len(row[1])) for row in rows] == [(str(n), chr(97 + n), 1 << 20) for n in range(20)]


def test_a_table_without_columns_has_rows() -> None:
    (chunk,) = chunks_of([b"\n", b"\n"], table("public.t"), 10, Codec())
    assert chunk.to_pylist() == [[], []]
