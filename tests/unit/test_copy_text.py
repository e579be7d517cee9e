"""COPY text lines are read back exactly (PostgreSQL docs, COPY: Text Format)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdc_lake.source.copy_text import parse_line

_WRITTEN = {"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
_TEXT = st.text(st.one_of(st.sampled_from("\\\\Nbfnrtv\b\f\n\r\t\v"), st.characters(exclude_categories=["Cs"])))


def written(value: str | None) -> str:
    """As the server's CopyAttributeOutText does it."""
    return "\\N" if value is None else "".join(_WRITTEN.get(char, char) for char in value)


@given(st.lists(st.one_of(st.none(), _TEXT), min_size=1))
def test_a_line_reads_back_as_its_values(values: list[str | None]) -> None:
    assert parse_line("\t".join(map(written, values)), len(values)) == values
