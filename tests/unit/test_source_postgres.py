"""The PostgreSQL source without a server: COPY lines, where a slot begins behind a snapshot, options of pgoutput."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lake.config.source import Pgoutput
from cdc_lake.decode.encoding import Codec, Policy
from cdc_lake.errors import OptionRefused
from cdc_lake.model.position import Lsn
from cdc_lake.source.copy_format import chunks_of, fields_of, parse_line
from cdc_lake.source.postgres.plugins import chosen
from cdc_lake.source.postgres.snapshot import _visible_end
from cdc_lake.source.postgres.snapshot_visibility import SnapshotPredicate
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


def test_the_slot_is_moved_behind_what_is_shown_or_not_at_all():
    for shown in product((True, False), repeat=5):
        hidden = frozenset(7 + at for at, one in enumerate(shown) if not one)
        snapshot = SnapshotPredicate(7, 100, hidden, 60, 100)
        commits = [(Lsn(50 + at), 7 + at) for at in range(5)]
        upto = _visible_end(Lsn(40), snapshot, commits)
        if upto is None:
            assert sorted(shown, reverse=True) != list(shown)
            continue
        # what the slot sends from there, and what it does not, is what the snapshot does not show, and what it does
        assert [lsn > upto for lsn, _ in commits] == [not one for one in shown]
    assert _visible_end(Lsn(40), SnapshotPredicate(7, 100, frozenset(), 60, 100), []) == Lsn(40)


@pytest.mark.parametrize(
    ("major", "given", "asked"),
    [
        (14, {}, {"proto_version": "2", "streaming": "on"}),
        (15, {}, {"proto_version": "3", "streaming": "on"}),
        (16, {}, {"proto_version": "4", "streaming": "on"}),
        (18, {}, {"proto_version": "4", "streaming": "on"}),
        (18, {"proto_version": 1}, {"proto_version": "1"}),
        (18, {"proto_version": 3}, {"proto_version": "3", "streaming": "on"}),
        (15, {"two_phase": True}, {"proto_version": "3", "streaming": "on", "two_phase": "true"}),
        (18, {"streaming": "off"}, {"proto_version": "4"}),
        (18, {"streaming": "parallel"}, {"proto_version": "4", "streaming": "parallel"}),
        (15, {"streaming": "off", "messages": True, "origin": "any"}, {"proto_version": "3", "messages": "true"}),
        (16, {"proto_version": 1, "origin": "none"}, {"proto_version": "1", "origin": "none"}),
        (14, {"proto_version": 1, "binary": True}, {"proto_version": "1", "binary": "true"}),
    ],
)
def test_the_highest_version_streams(major: int, given: dict[str, Any], asked: dict[str, str]) -> None:
    assert chosen(major, Pgoutput.model_validate(given)) == asked


@pytest.mark.parametrize(
    ("major", "given", "asked"),
    [
        (14, {}, {"proto_version": "2"}),
        (18, {"streaming": "off", "binary": True}, {"proto_version": "4", "binary": "true"}),
        (18, {"two_phase": True}, {"proto_version": "4", "two_phase": "true"}),
        (16, {"proto_version": 1, "origin": "none"}, {"proto_version": "1", "origin": "none"}),
    ],
)
def test_functions_are_asked_for_the_same_but_for_what_is_under_way(
    major: int, given: dict[str, Any], asked: dict[str, str]
) -> None:
    assert chosen(major, Pgoutput.model_validate(given), streams=False) == asked


@pytest.mark.parametrize(
    ("major", "given", "hint"),
    [
        (14, {"proto_version": 3}, "proto_version"),
        (15, {"streaming": "parallel"}, "streaming: on"),
        (15, {"origin": "none"}, "remove `origin`"),
        (14, {"two_phase": True}, "two_phase"),
        (18, {"two_phase": True, "proto_version": 2}, "two_phase"),
    ],
)
def test_what_a_server_does_not_have_is_refused_with_the_remedy(major: int, given: dict[str, Any], hint: str) -> None:
    with pytest.raises(OptionRefused) as refused:
        chosen(major, Pgoutput.model_validate(given))
    assert hint in refused.value.remedy
