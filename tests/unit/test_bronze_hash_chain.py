"""The chain: whatever is taken out of bronze, put in, or edited, is found and named by its position."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_lake.bronze.contract import SCHEMA
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.errors import BronzeDamaged
from cdc_lake.model.change import UNCHANGED, Delete, Insert, Message, OldKind, Transaction, Truncate, Update
from cdc_lake.model.position import Span
from cdc_lake.model.relation import ReplicaIdentity
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.bronze_formats import Place

ORDERS = table("public.orders", id="int8", note="text")
FULL = table("public.full", identity=ReplicaIdentity.FULL, id="int8", note="text")
ALL = Span(1, -1, 1 << 62)

TRANSACTIONS = (
    Transaction(boundaries(200), (Insert(ORDERS, ("1", "a")), Insert(ORDERS, ("2", None)), Insert(FULL, ("7", "")))),
    Transaction(
        boundaries(300), (Update(ORDERS, ("1", UNCHANGED)), Update(ORDERS, ("3", "x"), ("2", None), OldKind.KEY))
    ),
    Transaction(boundaries(400), ()),
    Transaction(boundaries(500), (Delete(FULL, ("7", ""), OldKind.FULL), Message("app", b"\x00\xff"))),
    Transaction(boundaries(600), (Truncate(ORDERS, cascade=True), Truncate(FULL, restart_identity=True))),
)

Rows = list[dict[str, Any]]


@pytest.fixture
def landed(place: Place) -> Place:
    """One commit of all transactions."""
    writer = place.writer()
    writer.begin_stream("s", 100)
    writer.append([raw_transaction(t) for t in TRANSACTIONS])
    return place


def tamper(landed: Place, edit: Callable[[Rows], Rows]) -> None:
    """Rewrite the only data file; the table knows nothing of it."""
    (path,) = landed.data_files()
    rows = edit(pq.read_table(path, schema=SCHEMA).to_pylist())
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)


def broken(landed: Place, span: Span | None = None) -> tuple[int, int] | None:
    verdict = verify(landed.reader(), span)
    assert verdict.holds == (verdict.broken_at is None)
    return verdict.broken_at


def at(rows: Rows, position: int, op: str) -> dict[str, Any]:
    return next(row for row in rows if row["position"] == position and row["op"] == op)


def test_what_was_landed_holds(landed: Place):
    verdict = verify(landed.reader())
    assert verdict.holds, verdict.reason
    assert (verdict.transactions, verdict.changes, verdict.last) == (5, 9, (1, 600))


def test_a_span_holds_by_itself(landed: Place):
    verdict = verify(landed.reader(), Span(1, 300, 500))
    assert verdict.holds, verdict.reason
    assert (verdict.transactions, verdict.last) == (2, (1, 500))


def test_every_epoch_is_verified(landed: Place):
    writer = landed.writer()
    writer.begin_stream("s2", 50)
    writer.append([raw_transaction(t) for t in TRANSACTIONS])
    assert verify(landed.reader()).transactions == 10


def test_markers_beyond_the_last_transaction_hold(landed: Place):
    landed.writer().advance(9000, 9000)
    assert broken(landed) is None


def test_an_empty_stream_holds(place: Place):
    assert verify(place.reader()).holds
    place.writer().begin_stream("s", 1)
    assert verify(place.reader()).transactions == 0


def test_an_edited_value_is_found(landed: Place):
    def edit(rows: Rows) -> Rows:
        at(rows, 200, "I")["new"] = ["1", "b"]
        return rows

    tamper(landed, edit)
    assert broken(landed) == (1, 200)


EDITS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "NULL into empty text": (500, "D", {"old": ["7", None]}),
    "an old tuple taken away": (500, "D", {"old": None, "old_kind": None}),
    "another kind of old tuple": (500, "D", {"old_kind": "key"}),
    "unchanged into NULL": (300, "U", {"unchanged": None}),
    "an insert into an update": (200, "I", {"op": "U"}),
    "another table": (200, "I", {"relation": "public.full", "layout": FULL.layout}),
    "another layout of the table": (200, "I", {"layout": 1}),
    "a truncate's flags": (600, "T", {"info": '{"cascade": false, "restart_identity": false}'}),
    "a message's content": (500, "M", {"info": '{"prefix": "app", "content": ""}'}),
    "an info that is no JSON": (500, "M", {"info": "{"}),
    "an unknown operation": (500, "M", {"op": "Q"}),
    "a COMMIT row without hash": (400, "C", {"info": "{}"}),
    "a moved change": (200, "I", {"ordinal": 7}),
    "a moved transaction's begin": (400, "B", {"position": 401}),
}


@pytest.mark.parametrize("name", EDITS)
def test_any_edit_is_found_where_it_is(landed: Place, name: str):
    position, op, change = EDITS[name]

    def edit(rows: Rows) -> Rows:
        at(rows, position, op).update(change)
        return rows

    tamper(landed, edit)
    assert broken(landed) in {(1, position), (1, 401)}


def test_a_removed_row_is_found(landed: Place):
    tamper(landed, lambda rows: [row for row in rows if row is not at(rows, 300, "U")])
    assert broken(landed) == (1, 300)


def test_a_doubled_row_is_found(landed: Place):
    tamper(landed, lambda rows: [twice for row in rows for twice in [row] * (1 + (row is at(rows, 200, "I")))])
    assert broken(landed) == (1, 200)


def test_a_row_taken_out_with_its_count_is_found(landed: Place):
    def edit(rows: Rows) -> Rows:
        commit = at(rows, 500, "C")
        info = json.loads(commit["info"])
        info["counts"] = {}
        commit.update(info=json.dumps(info), ordinal=2)
        at(rows, 500, "M")["ordinal"] = 1
        return [row for row in rows if row is not at(rows, 500, "D")]

    tamper(landed, edit)
    assert broken(landed) == (1, 500)


@pytest.mark.parametrize(("gone", "found"), [(200, 300), (400, 500), (600, 500)])
def test_a_removed_transaction_is_found_at_the_next_or_at_the_end(landed: Place, gone: int, found: int):
    tamper(landed, lambda rows: [row for row in rows if row["position"] != gone or row["op"] == "R"])
    assert broken(landed) == (1, found)


def test_a_doubled_transaction_is_found(landed: Place):
    tamper(landed, lambda rows: [*rows, *(row for row in rows if row["position"] == 300)])
    assert broken(landed) == (1, 300)


def test_a_layout_row_that_lies_is_found(landed: Place):
    def edit(rows: Rows) -> Rows:
        layout = rows[0]
        layout["info"] = layout["info"].replace('"note"', '"memo"')
        return rows

    tamper(landed, edit)
    assert broken(landed) == (1, 200)


@pytest.mark.parametrize("place", ["delta"], indirect=True)
def test_a_commit_taken_out_of_the_log_is_found(landed: Place):
    writer = landed.writer()
    writer.append([raw_transaction(Transaction(boundaries(700), (Insert(ORDERS, ("9", "z")),)))])
    writer.append([raw_transaction(Transaction(boundaries(800), (Insert(ORDERS, ("8", "z")),)))])
    middle = landed.folder / "_delta_log" / f"{3:020d}.json"
    middle.write_text("".join(line for line in middle.read_text().splitlines(keepends=True) if '"add"' not in line))
    assert broken(landed) == (1, 800)
    assert broken(landed, ALL) == (1, 800)
    assert broken(landed, Span(1, 100, 600)) is None


def test_the_chain_of_a_bronze_that_grows_meanwhile_holds(place: Place) -> None:
    writer = place.writer()
    writer.begin_stream("s", 100)
    ended = threading.Event()

    def receive() -> None:
        for position in range(200, 230):
            writer.append([raw_transaction(Transaction(boundaries(position), (Insert(ORDERS, ("1", "a")),)))])
        writer.begin_stream("s2", 50)
        writer.append([raw_transaction(Transaction(boundaries(60), (Insert(ORDERS, ("1", "a")),)))])
        ended.set()

    receiver = threading.Thread(target=receive)
    receiver.start()
    reader, seen = place.reader(), 0
    while not ended.is_set():
        verdict = verify(reader)
        assert verdict.holds, verdict.reason
        assert verdict.transactions >= seen
        seen = verdict.transactions
    receiver.join()
    assert verify(reader).transactions == 31


@pytest.mark.parametrize("left", [None, 100], ids=["gone", "cut"])
def test_a_data_file_that_is_gone_or_cut_is_named_where_the_chain_breaks(landed: Place, left: int | None):
    for position in (900, 910):
        landed.writer().append([raw_transaction(Transaction(boundaries(position), (Insert(ORDERS, ("9", "n")),)))])
    files = landed.reader().files()
    (path,) = [Path(one) for one in files.select(epoch=1, after=899, upto=900)]
    if left is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:left])
    verdict = verify(landed.reader())
    assert verdict.broken_at == (1, 900)
    assert path.name in verdict.reason
    assert verdict.transactions > 0
    with pytest.raises(BronzeDamaged) as damaged:
        landed.reader().files().read([str(path)], ["position"])
    assert path.name in damaged.value.where
