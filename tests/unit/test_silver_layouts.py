"""Layouts of a table in a span: where each begins, which one the table needs another shape for, how its rows are read."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_lake.bronze import span_index
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.span_index import SpanSummary, cleared_before, outline
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.comparison.pending_changes import quarantined_changes
from cdc_lake.config.project import Target
from cdc_lake.decode.historic_catalog import Attribute
from cdc_lake.decode.pgoutput.messages import AnnouncedColumn, RelationMessage
from cdc_lake.decode.pgoutput.relations import ColumnFacts, RelationCache, TableFacts
from cdc_lake.errors import NoKey, Unconvertible
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, OldKind, Transaction, Truncate, Update
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Column, Missing, Relation, ReplicaIdentity, TableName
from cdc_lake.runtime.apply.schema_changes import next_layout
from cdc_lake.runtime.apply.table_schema import check_key
from cdc_lake.silver.layout_mapping import RelationMapping, key_moved, make_shape
from cdc_lake.silver.row_tracing import NOTHING_WAITS, QuarantineState
from cdc_lake_testing.messages import boundaries, raw_transaction

T = TableName("public", "t")
ID = Column("id", "int4", 23, key=True, number=1)
A = Column("a", "float4", 700, number=2)
NARROW = Relation(T, (ID, A), ReplicaIdentity.DEFAULT, ("id",), 7)
WIDE = replace(NARROW, columns=(ID, A, Column("b", "int4", 23, number=3, missing=Missing("5"))))
TARGET = Target(T, "s", "t", "delta", None, ())


def seen(root: Path, *transactions: tuple[Change, ...]) -> tuple[SpanSummary, BronzeReader]:
    bronze = DeltaBronze(root / "bronze", durability="os")
    bronze.begin_stream("test", 10)
    for n, changes in enumerate(transactions, start=1):
        bronze.append([raw_transaction(Transaction(boundaries(100 * n), changes))])
    reader = BronzeReader(root / "bronze")
    return outline(reader.applied_files(), T, Span(1, 10, 10_000), snapshot=False), reader


def row(relation: Relation, key: int) -> Insert:
    return Insert(relation, (str(key), *("1" for _ in relation.columns[1:])))


def test_a_layout_that_comes_back_begins_again_and_the_newest_is_the_last(tmp_path: Path) -> None:
    found, reader = seen(
        tmp_path, (row(NARROW, 1), row(NARROW, 2)), (row(WIDE, 3),), (row(WIDE, 4), row(NARROW, 5)), (row(NARROW, 6),)
    )
    narrow, wide = NARROW.layout, WIDE.layout
    assert [(run.layout, run.position) for run in found.runs] == [(narrow, 100), (wide, 200), (narrow, 300)]
    assert found.layouts == (wide, narrow)
    assert next_layout(found, reader.layouts([T]), TARGET) == 200


def test_a_large_span_is_summarized_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [
        (row(NARROW, 1), Delete(NARROW, ("9", None), OldKind.KEY), row(NARROW, 2)),
        (Update(WIDE, ("3", "1", UNCHANGED)), Update(NARROW, ("4", UNCHANGED), ("3", None), OldKind.KEY)),
        (row(WIDE, 5), Truncate(NARROW), Delete(WIDE, ("5", "1", "1"), OldKind.FULL)),
        (Delete(NARROW, ("9", None), OldKind.KEY), row(NARROW, 6)),
    ]
    whole, reader = seen(tmp_path, *changes)
    assert (whole.rows, len(whole.runs), whole.bare, whole.olds, whole.whole_deletes) == (10, 7, 100, 1, 1)
    monkeypatch.setattr(span_index, "_READ_AT_ONCE_BYTES", 1)
    for after in (10, 100, 200, 300, 400):
        span = Span(1, after, 10_000)
        parts = outline(reader.applied_files(), T, span, snapshot=False)
        with monkeypatch.context() as patch:
            patch.setattr(span_index, "_READ_AT_ONCE_BYTES", 1 << 30)
            assert parts == outline(reader.applied_files(), T, span, snapshot=False)


def test_a_layout_inside_the_first_transaction_needs_no_other_span(tmp_path: Path) -> None:
    found, reader = seen(tmp_path, (row(NARROW, 1), row(WIDE, 2)), (row(WIDE, 3),))
    assert next_layout(found, reader.layouts([T]), TARGET) is None


def test_a_layout_that_silver_does_not_see_needs_no_other_span(tmp_path: Path) -> None:
    other = replace(NARROW, columns=(replace(ID, modifier=7), A))
    found, reader = seen(tmp_path, (row(NARROW, 1),), (row(other, 2),))
    assert len(found.runs) == 2
    assert next_layout(found, reader.layouts([T]), TARGET) is None


def test_rows_of_a_table_that_was_made_again_end_right_before_its_first_change(tmp_path: Path) -> None:
    again = replace(NARROW, oid=8)
    found, reader = seen(tmp_path, (row(NARROW, 1),), (row(NARROW, 2), row(again, 3)))
    cleared = cleared_before(reader.applied_files(), T, Span(1, 10, 10_000), found.runs[1])
    assert (cleared.position, cleared.ordinal) == (200, found.runs[1].ordinal - 1)
    assert cleared.commit_ts is not None


def test_a_column_is_read_where_its_layout_has_it_and_is_its_default_where_it_was_not_there() -> None:
    renamed = replace(WIDE, columns=(WIDE.columns[2], ID, replace(A, name="aa")))
    shape = RelationMapping(renamed, {1: NARROW, 2: renamed}, (1,))
    assert shape.places == {1: (None, 0, 1), 2: (0, 1, 2)}
    assert shape.text(0, "new") == "CASE layout WHEN 1L THEN '5' WHEN 2L THEN new[0] END"
    assert shape.text(2, "new") == "CASE layout WHEN 1L THEN new[1] WHEN 2L THEN new[2] END"
    assert shape.sent_sql(0).startswith("CASE layout WHEN 1L THEN true WHEN 2L THEN NOT ")


def test_a_value_is_read_by_its_own_layouts_type_and_then_converted() -> None:
    wider = replace(NARROW, columns=(ID, replace(A, type_name="float8", type_oid=701)))
    shape = RelationMapping(wider, {1: NARROW, 2: wider}, (0,))
    assert shape.value(0, "x") == "try_cast(x AS int)"
    assert shape.value(1, "x") == (
        "CASE layout WHEN 1L THEN CAST(try_cast(x AS float) AS double) ELSE try_cast(x AS double) END"
    )
    text = replace(NARROW, columns=(ID, replace(A, type_name="text", type_oid=25)))
    assert RelationMapping(text, {1: NARROW, 2: text}, (0,)).value(1, "x") == "CASE layout WHEN 1L THEN x ELSE x END"
    flag = replace(NARROW, columns=(ID, replace(A, type_name="bool", type_oid=16)))
    with pytest.raises(Unconvertible):
        RelationMapping(flag, {1: NARROW, 2: flag}, (0,)).value(1, "x")


def test_a_layout_has_what_the_catalog_of_now_knows_of_its_columns() -> None:
    facts = TableFacts(("id",), {23: "int4"}, {"id": ColumnFacts(1), "b": ColumnFacts(3, Missing("5"))})
    columns = tuple(AnnouncedColumn(name, 23, -1, name == "id") for name in ("id", "gone", "b"))
    relation = RelationCache({T: facts}).relation(RelationMessage(7, T, ReplicaIdentity.DEFAULT, columns))
    assert [(c.number, c.missing) for c in relation.columns] == [(1, None), (None, None), (3, Missing("5"))]
    assert relation.oid == 7


@pytest.mark.parametrize(
    ("now", "names"),
    [((None, "b"), ["b (2)", "b"]), (("c", "b"), ["c", "b"]), (("b", "d"), ["b", "d"]), ((None, None), ["b", "b (3)"])],
)
def test_two_columns_that_a_server_announces_by_one_name_are_told_apart(
    now: tuple[str | None, ...], names: list[str]
) -> None:
    """PostgreSQL 18 does so behind an ALTER TABLE that was rolled back to a savepoint, where one renames b and the
    next gives its name to another column.
    """
    attributes = (
        Attribute(1, "id", 23),
        *(
            Attribute(number, name, kind if name else 0)
            for number, name, kind in zip((2, 3), now, (25, 20), strict=True)
        ),
    )
    facts = TableFacts(
        ("id",),
        {23: "int4", 25: "text", 20: "int8"},
        {a.name: ColumnFacts(a.number) for a in attributes if a.name is not None},
        attributes,
    )
    columns = (
        AnnouncedColumn("id", 23, -1, key=True),
        AnnouncedColumn("b", 25, -1, key=False),
        AnnouncedColumn("b", 20, -1, key=False),
    )
    relation = RelationCache({T: facts}).relation(RelationMessage(7, T, ReplicaIdentity.DEFAULT, columns))
    assert [(c.name, c.type_name, c.number) for c in relation.columns] == [
        ("id", "int4", 1),
        (names[0], "text", 2),
        (names[1], "int8", 3),
    ]


def test_held_changes_of_an_older_layout_are_told_by_the_names_of_now() -> None:
    now = replace(WIDE, columns=(ID, replace(A, name="aa"), WIDE.columns[2]))
    quarantined = {"epoch": 1, "position": 5, "ordinal": 1, "op": "U", "layout": 1, "unchanged": [1]}
    quarantined |= {"new": ["1", None], "old": None, "old_kind": None}
    (change,) = quarantined_changes([quarantined], {1: NARROW}, now, lambda _, text: text)
    assert change.new == {"id": "1", "aa": None, "b": "5"}
    assert change.unchanged == {"aa"}


CODE = Column("code", "int4", 23, number=3)
BY_ID = Relation(T, (ID, A, CODE), ReplicaIdentity.FULL, ("id",), 7)
BY_CODE = replace(BY_ID, primary_key=("code",))
DEFAULT = replace(BY_ID, identity=ReplicaIdentity.DEFAULT)


def keyed(relation: Relation, *names: str) -> Relation:
    """Under the default identity: the server logs the primary key."""
    return replace(
        relation, primary_key=names, columns=tuple(replace(c, key=c.name in names) for c in relation.columns)
    )


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        (BY_ID, BY_CODE, True),
        (BY_ID, replace(BY_ID, columns=(replace(ID, name="ident"), A, CODE), primary_key=("ident",)), False),
        (BY_ID, replace(BY_ID, columns=(replace(ID, name="code"), A, replace(CODE, name="id"))), True),
        (BY_ID, replace(BY_ID, primary_key=("id", "code")), True),
        (BY_ID, replace(BY_ID, primary_key=()), True),
        (keyed(DEFAULT, "id"), keyed(DEFAULT, "code"), True),
        (keyed(DEFAULT, "id"), keyed(DEFAULT), True),
        (keyed(DEFAULT), keyed(DEFAULT, "code"), False),
        (keyed(DEFAULT, "id"), BY_ID, False),
    ],
)
def test_a_span_ends_where_the_key_of_the_table_moves(
    tmp_path: Path, before: Relation, after: Relation, moved: bool
) -> None:
    found, reader = seen(tmp_path, (row(before, 1),), (row(after, 2),))
    assert key_moved(before, after) == moved
    if before.names == after.names:
        assert next_layout(found, reader.layouts([T]), TARGET) == (200 if moved else None)
        assert next_layout(found, reader.layouts([T]), replace(TARGET, keys=("id",))) is None
    together, reader = seen(tmp_path / "together", (row(before, 1), row(after, 2)))
    shape = make_shape(together.layouts, reader.layouts([T]), None, keyed=bool(after.primary_key))
    with pytest.raises(NoKey, match="changes within") if moved else nullcontext():
        check_key(together, shape, TARGET, NOTHING_WAITS, None, "test")
    with pytest.raises(NoKey, match="held by the former one") if moved else nullcontext():
        check_key(replace(together, runs=()), shape, TARGET, QuarantineState({(1, 1): frozenset()}), before, "test")
