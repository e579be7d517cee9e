"""Rows that were read again: what they end, where they stand in bronze, and that a receiver goes on beside them."""

from __future__ import annotations

import datetime as dt
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.span_index import outline, touching
from cdc_lake.cli.commands.inspect import row_text
from cdc_lake.control.quarantine import QuarantineLog, open_quarantine
from cdc_lake.control.snapshots import refetched_rows, refetched_tables
from cdc_lake.model.change import UNCHANGED, Delete, Insert, OldKind, Transaction, Truncate, Update
from cdc_lake.model.position import Span
from cdc_lake.model.quarantine import RefetchedRows
from cdc_lake.ops.inspect import RowChange, RowEverywhere, inspect_row
from cdc_lake.silver.row_tracing import MISSING, Event, QuarantineState, trace
from cdc_lake.tables.control_schema import SnapshotRow, schema_of
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.bronze_formats import Place
from tests.seeds import one_seed

T = table("public.t", id="int8", body="text")
ONE, TWO, NINE = ("1",), ("2",), ("9",)
KIND = pa.list_(pa.string())


# ── what they end ──


def test_a_row_read_again_ends_the_hold_of_its_key_and_of_no_other():
    events = [
        Event(10, 1, "U", ONE, ONE, partial=True),
        Event(20, 1, "U", TWO, TWO, failed=True),
        Event(31, -7, "I", None, ONE, again=True),
        Event(40, 1, "U", ONE, ONE),
        Event(40, 2, "U", TWO, TWO),
    ]
    traced, closings = trace(events, existing=frozenset({TWO}))
    assert [(t.quarantined, t.broke) for t in traced] == [
        (True, MISSING), (True, None), (False, None), (False, None), (True, None),
    ]  # fmt: skip
    assert [(c.position, c.key) for c in closings] == [(31, ONE)]
    assert traced[2].row == traced[3].row, "what comes later changes that row"
    assert traced[2].origin is None, "silver had none"


def test_a_row_that_moved_while_it_was_held_is_where_the_source_has_it():
    events = [
        Event(10, 1, "U", ONE, NINE, failed=True),
        Event(21, -8, "D", ONE, again=True),
        Event(21, -7, "I", None, NINE, again=True),
        Event(30, 1, "I", None, ONE),
    ]
    traced, _ = trace(events, existing=frozenset({ONE}))
    assert [t.quarantined for t in traced] == [True, False, False, False]
    assert traced[1].origin == ONE, "silver's row is deleted where it was"
    assert [traced[2].origin, traced[3].origin] == [None, None]
    assert len({t.row for t in traced[1:]}) == 3


def test_a_row_read_again_that_breaks_a_rule_is_held_for_that_and_for_nothing_else():
    quarantined = QuarantineState({(5, 1): frozenset({ONE})})
    traced, closings = trace([Event(11, -7, "I", None, ONE, failed=True, again=True)], quarantined=quarantined)
    assert [(t.quarantined, t.waits, t.broke) for t in traced] == [(True, False, None)]
    assert closings == []


def held_rows(*rows: tuple[int, str, list[str] | None, tuple[str, ...] | None, tuple[str, ...] | None]) -> pa.Table:
    schema = pa.schema(
        [
            ("position", pa.int64()), ("reason", pa.string()), ("rules", KIND), ("key", KIND), ("from_key", KIND),
            ("ordinal", pa.int64()), ("relation", pa.string()), ("epoch", pa.int32()), ("generation", pa.int32()),
        ]
    )  # fmt: skip
    names = ("position", "reason", "rules", "key", "from_key")
    own = {"ordinal": 1, "relation": "public.t", "epoch": 1, "generation": 1}
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) | own for row in rows], schema)


def log(quarantined: pa.Table) -> QuarantineLog:
    return QuarantineLog(quarantined, schema_of("decisions").empty_table())


def test_holds_end_key_by_key_and_begin_again():
    rows = held_rows(
        (10, "failed", [MISSING], ONE, ONE),
        (20, "waiting", None, TWO, ONE),
        (31, "closed", None, ONE, None),
        (40, "failed", ["late"], NINE, None),
    )
    found = open_quarantine(log(rows), "public.t", 1, 1, 50)
    assert found.keys == {TWO, NINE}
    assert found.rows["position"].to_pylist() == [20, 40], "a change waits while one of its keys does"
    assert open_quarantine(log(rows), "public.t", 1, 1, 30).keys == {ONE, TWO}, (
        "what is above the watermark does not count"
    )
    more = pa.concat_tables([rows, held_rows((45, "closed", None, TWO, None), (50, "waiting", None, ONE, ONE))])
    assert open_quarantine(log(more), "public.t", 1, 1, 50).keys == {ONE, NINE}
    assert open_quarantine(log(more), "public.t", 1, 1, 50).rows["position"].to_pylist() == [40, 50]
    after = pa.concat_tables([more, held_rows((60, "closed", None, None, None), (70, "failed", ["late"], TWO, None))])
    assert open_quarantine(log(after), "public.t", 1, 1, 70).keys == {TWO}, "a truncate ends all"


# ── in bronze ──


def change(position: int, *row: Any) -> Any:
    made = Insert(T, row) if UNCHANGED not in row else Update(T, row)
    return raw_transaction(Transaction(boundaries(position), (made,)))


def test_they_land_beside_a_receiver_before_the_changes_at_their_position_and_outside_the_chain(place: Place):
    receiver = place.writer()
    receiver.begin_stream("s1", 100)
    receiver.append([change(200, "1", UNCHANGED)])
    there, absent = pa.array([["1", "large"]], KIND), pa.array([["7", None]], KIND)
    first = place.writer().append_reread(T, there, absent, 201)
    second = place.writer().append_reread(T, pa.array([["1", None]], KIND), pa.array([], KIND), 201)
    receiver.append([change(201, "1", UNCHANGED)])
    receiver.append([change(300, "2", "b")])
    assert (first.position, first.rows, second.rows) == (201, 2, 1)
    assert first.last < second.first < 0
    reader = place.reader()
    rows = reader.history_rows(T.table)
    assert rows["op"].to_pylist() == ["U", "S", "S", "S", "U", "I"]
    assert rows["new"].to_pylist()[1:4] == [["1", "large"], None, ["1", None]]
    assert rows["old"].to_pylist()[1:4] == [None, ["7", None], None]
    assert verify(place.reader()).holds
    assert [commit.position for commit in reader.commits(Span(1, 100, 300))] == [200, 201, 300]


def test_a_span_takes_those_it_is_told_of_and_no_others(place: Place):
    receiver = place.writer()
    receiver.begin_stream("s1", 100)
    receiver.append([change(200, "1", UNCHANGED)])
    writer = place.writer()
    lost = writer.append_reread(T, pa.array([["1", "lost"]], KIND), pa.array([], KIND), 201)
    told = writer.append_reread(T, pa.array([["1", "told"]], KIND), pa.array([["7", None]], KIND), 201)
    receiver.append([change(300, "2", "b")])
    files = place.reader().files()
    assert outline(files, T.table, Span(1, 200, 300), snapshot=False).rows == 1
    seen = outline(files, T.table, Span(1, 200, 300), snapshot=False, rereads=[told])
    assert (seen.rows, seen.inserts, seen.rereads) == (3, 1, (told,)), "what is read again is not proven to be new"
    assert outline(files, T.table, Span(1, 201, 300), snapshot=False, rereads=[told, lost]).rows == 1


def test_what_was_read_again_is_known_by_its_stream_table_and_position(tmp_path: Path):
    control = ControlTables(tmp_path / "control", durability="os")
    now = dt.datetime.now(dt.UTC)
    own = '{"relation": "public.t", "first": -9, "rows": 2}'
    other = '{"relation": "public.u", "first": -5, "rows": 1}'
    control.record(SnapshotRow("initial-1", "s1", 1, 90, "[]", "complete", now))
    for stream, position, told in (("s1", 201, own), ("s1", 301, other), ("s0", 202, own)):
        control.record(SnapshotRow(f"reread{position}", stream, 1, position, told, "reread", now))
    rows = control.snapshots()
    assert refetched_rows(rows, "s1", "public.t", Span(1, 200, 300)) == (RefetchedRows(201, -9, 2),)
    assert refetched_rows(rows, "s1", "public.t", Span(1, 201, 300)) == ()
    assert refetched_rows(rows, "s1", "public.t", Span(2, 200, 300)) == ()
    assert refetched_tables(rows, "s1", Span(1, 200, 301)) == {"public.t", "public.u"}
    assert refetched_tables(rows, "s1", Span(1, 200, 300)) == {"public.t"}


def test_the_history_of_a_row_goes_on_with_what_was_read_again_and_says_by_whom(place: Place, tmp_path: Path):
    receiver = place.writer()
    receiver.begin_stream("s1", 100)
    receiver.append([change(200, "1", "a"), change(210, "7", "old")])
    there, absent = pa.array([["1", "large"]], KIND), pa.array([["7", None]], KIND)
    lost = place.writer().append_reread(T, there, absent, 211)
    told = place.writer().append_reread(T, there, absent, 211)
    again = place.writer().append_reread(T, there, pa.array([], KIND), 212)
    receiver.append([change(300, "1", UNCHANGED), change(310, "7", "new")])
    control = ControlTables(tmp_path / "control", durability="os")
    for one, by in ((told, {"by": "compare --repair"}), (again, {})):
        tables = json.dumps({"relation": "public.t", "first": one.first, "rows": one.rows} | by)
        control.record(SnapshotRow(str(one.first), "s1", 1, one.position, tables, "reread", dt.datetime.now(dt.UTC)))
    found = inspect_row(place.reader(), T.table, {"id": "1"}, control.snapshots())
    assert [(e.position, e.op, e.note) for e in found.events] == [
        (200, "I", ""),
        (211, "S", "read again at the source, but never applied: the process ended before it was recorded"),
        (211, "S", "read again at the source by compare --repair"),
        (212, "S", "read again at the source"),
        (300, "U", ""),
    ]
    assert lost.position == told.position
    changes = tuple(RowChange(None, event.new) for event in found.events)
    said = row_text(RowEverywhere(found.table, found.key, found.events, changes, None, (), None)).splitlines()
    assert said[4] == "  0/D3  read      (id='1', body='large')  read again at the source by compare --repair"
    gone = inspect_row(place.reader(), T.table, {"id": "7"}, control.snapshots())
    assert [(e.op, e.new and e.new["body"]) for e in gone.events] == [
        ("I", "old"),
        ("S", None),
        ("S", None),
        ("I", "new"),
    ]


@pytest.mark.parametrize("place", ["delta"], indirect=True)
def test_the_changes_that_touched_keys_are_those_that_name_them_before_or_after(place: Place):
    dice = random.Random(seed := one_seed())
    print("CDC_LAKE_SEED =", seed)
    receiver = place.writer()
    receiver.begin_stream("s1", 100)
    wider = table("public.t", id="int8", body="text", more="text")
    receiver.append_snapshot("i", 1, T, pa.array([["1", "a"], ["2", None]], KIND), 1, 100)
    expected = {(str(n),): [(100, "S")] if n < 3 else [] for n in range(1, 6)}
    for position in range(200, 400, 10):
        relation = dice.choice([T, wider])
        more = ("x",) if relation is wider else ()
        made, touched = [], []
        for _ in range(dice.randint(1, 4)):
            before, after = (str(dice.randint(1, 9)) for _ in range(2))
            kind = dice.choice("IUMDT")
            touched.append((kind, {"I": {after}, "U": {before}, "M": {before, after}, "D": {before}}.get(kind)))
            made.append(
                {
                    "I": Insert(relation, (after, "b", *more)),
                    "U": Update(relation, (before, UNCHANGED, *more)),
                    "M": Update(relation, (after, "c", *more), (before, None, *(None for _ in more)), OldKind.KEY),
                    "D": Delete(relation, (before, None, *(None for _ in more)), OldKind.KEY),
                    "T": Truncate(relation),
                }[kind]
            )
        receiver.append([raw_transaction(Transaction(boundaries(position), tuple(made)))])
        for kind, keys in touched:
            for (key,), found in expected.items():
                if keys is None or key in keys:
                    found.append((position, "U" if kind == "M" else kind))
    found = touching(place.reader(), T.table, ["id"], frozenset(expected), lambda texts: texts)
    assert {key: [(one.position, one.op) for one in changes] for key, changes in found.items()} == expected


@pytest.mark.parametrize("place", ["delta"], indirect=True)
def test_a_writer_that_the_receiver_overtook_is_told(place: Place):
    receiver = place.writer()
    receiver.begin_stream("s1", 100)
    late = place.writer()
    assert late.state() is not None
    receiver.append([change(200, "1", "a")])
    with pytest.raises(Exception, match="another writer"):
        late.append_reread(T, pa.array([["1", "b"]], KIND), pa.array([], KIND), 150)
