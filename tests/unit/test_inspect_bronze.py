"""`inspect span`, `tx`, `row`, `chain` as they are read: in 60 columns, in both order domains, and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.cli.app import app
from cdc_lake.cli.process import run_command
from cdc_lake.model.change import UNCHANGED, Delete, Insert, OldKind, Transaction, Truncate, Update
from cdc_lake.model.relation import ReplicaIdentity
from cdc_lake.tables.control_schema import GapRow, StreamRow, utc_now
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.messages import boundaries, raw_transaction, table

ORDERS = table("public.orders", id="int8", note="text")
PRICES = table("shop.prices", id="int4", price="numeric")
SHOP = """\
version: 1
pipeline: shop
source: {type: postgres, host: 127.0.0.1, port: 1, database: shop, user: u, tables: ["public.*"]}
"""
GAUSS = SHOP.replace("type: postgres", "type: gaussdb")


class Shell:
    """Runs `cdc-lake inspect` in a project."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str) -> tuple[str, int]:
        code = run_command(app, ["inspect", *arguments])
        said = self._capture.readouterr()
        return said.out + said.err, code

    def document(self, *arguments: str) -> dict[str, Any]:
        said, code = self(*arguments, "--json")
        assert code == 0, said
        return dict(json.loads(said))


@pytest.fixture
def inspect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "shop.yaml").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    return Shell(capsys)


@pytest.fixture
def bronze(tmp_path: Path) -> DeltaBronze:
    """Three transactions of a PostgreSQL, and a copied row."""
    writer = DeltaBronze(tmp_path / "lake" / "bronze" / "shop", durability="os")
    writer.begin_stream("pg:7:shop:shop:0/3E8", 1000)
    writer.append_snapshot("initial-1", 0, ORDERS, pa.array([["1", "new"]]), 0, 1000)
    for position, changes in (
        (2000, (Insert(ORDERS, ("2", "new")), Insert(PRICES, ("1", "2.50")))),
        (3000, (Update(ORDERS, ("1", "paid")), Update(ORDERS, ("3", UNCHANGED), ("2", None), OldKind.KEY))),
        (4000, (Delete(ORDERS, ("3", None), OldKind.KEY), Truncate(PRICES))),
    ):
        writer.append([raw_transaction(Transaction(boundaries(position, origin="branch"), changes))])
    return writer


def dense(folder: Path, *csns: tuple[int, int]) -> DeltaBronze:
    """Transactions of a stream that shows every CSN: CSN, and how many empty ones it says stand before it."""
    (folder / "pipelines" / "shop.yaml").write_text(GAUSS)
    writer = DeltaBronze(folder / "lake" / "bronze" / "shop", durability="os")
    stream = "gauss:7:shop:shop:csn:100@0/3E8"
    writer.begin_stream(stream, 100, 1000)
    ControlTables(folder / "lake" / "control" / "shop").record(
        StreamRow(1, stream, 100, "shop", "7", "shop", "csn", utc_now(), dense=True)
    )
    for csn, empty in csns:
        raw = raw_transaction(Transaction(boundaries(csn), (Insert(ORDERS, (str(csn), "a")),)))
        writer.append([with_bounds(raw, csn=csn, empty_before=empty)])
    return writer


def with_bounds(raw: Any, **bounds: Any) -> Any:
    return replace(raw, bounds=replace(raw.bounds, **bounds))


# ── span ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_span_is_a_line_a_transaction_and_its_totals(inspect: Shell, bronze: DeltaBronze) -> None:
    said, code = inspect("span")
    assert code == 0
    assert (
        said
        == """\
epoch 1, from the start up to 0/FA0
3 transactions, 6 changes, 118 B

  0/7D0  2026-01-01T00:00:00Z  2 changes  45 B
  0/BB8  2026-01-01T00:00:00Z  2 changes  48 B
  0/FA0  2026-01-01T00:00:00Z  2 changes  25 B

  public.orders  I 1  U 2  D 1
  shop.prices    I 1            T 1
"""
    )
    assert max(map(len, said.splitlines())) <= 60


def test_a_part_of_it_lies_behind_its_start_and_up_to_its_end(inspect: Shell, bronze: DeltaBronze) -> None:
    said, _ = inspect("span", "--from", "0/7D0", "--to", "0/FA0", "--limit", "1")
    assert said.splitlines()[0] == "epoch 1, after 0/7D0 up to 0/FA0"
    assert said.splitlines()[4] == "  … and 1 more (`--limit`)"


def test_a_span_as_json(inspect: Shell, bronze: DeltaBronze) -> None:
    found = inspect.document("span", "--to", "0/7D0")
    assert found["schema"] == "cdc-lake/span/1"
    assert (found["epoch"], found["transactions"], found["changes"]) == (1, 1, 2)
    assert found["counts"] == {"public.orders": {"I": 1}, "shop.prices": {"I": 1}}
    assert [(t["position"], t["origin"], t["bytes"]) for t in found["listed"]] == [(2000, "branch", 45)]


def test_what_is_not_a_position_of_the_stream_is_refused(inspect: Shell, bronze: DeltaBronze, tmp_path: Path) -> None:
    assert "STA601" in inspect("span", "--from", "yesterday")[0]
    said, code = inspect("span", "--epoch", "9")
    assert (code, "0 transactions" in said) == (0, True)


def test_a_span_in_the_csn_domain_takes_csns(inspect: Shell, tmp_path: Path) -> None:
    dense(tmp_path, (101, 0), (105, 3))
    said, _ = inspect("span", "--from", "101")
    assert said.splitlines()[:4] == [
        "epoch 1, after 101 up to 105",
        "1 transaction, 3 without rows, 1 change, 22 B",
        "",
        "  105  2026-01-01T00:00:00Z  1 change  22 B",
    ]
    said, code = inspect("span", "--from", "0/65")
    assert (code, "ordered by CSN" in said) == (1, True)


# ── transaction and row ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_transaction_fits_60_columns(inspect: Shell, bronze: DeltaBronze) -> None:
    said, _ = inspect("tx", "0/BB8")
    head = said.splitlines()[:5]
    assert head[0] == "transaction 0/BB8, epoch 1, xid 3000"
    assert [line[:12] for line in head[1:]] == ["committed   ", "size        ", "content     ", "hash        "]
    assert max(map(len, head)) <= 60
    assert said.splitlines()[-1] == "     2 update   public.orders  old (id='2')  new (id='3', note=<unchanged>)"
    assert inspect.document("tx", "0/BB8")["schema"] == "cdc-lake/tx/1"


def test_a_row_is_followed_across_epochs(inspect: Shell, bronze: DeltaBronze) -> None:
    bronze.begin_stream("pg:8:shop:shop:0/64", 100)
    raw = raw_transaction(Transaction(boundaries(200), (Insert(ORDERS, ("2", "again")),)))
    bronze.append([raw])
    lines = inspect("row", "public.orders", "2")[0].splitlines()
    assert lines[0] == "public.orders (id=2): 4 events"
    assert [line.split()[:3] for line in lines[2:6]] == [
        ["epoch", "1", "0/7D0:1"],
        ["epoch", "1", "0/BB8:2"],
        ["epoch", "1", "0/FA0:1"],
        ["epoch", "2", "0/C8:1"],
    ]
    assert inspect("tx", "0/7D0", "--epoch", "1")[1] == 0
    assert "STA623" in inspect("tx", "0/7D0")[0]


def test_a_row_says_what_each_change_made_of_it_and_where_it_stands(inspect: Shell, bronze: DeltaBronze) -> None:
    lines = inspect("row", "public.orders", "2")[0].splitlines()
    assert [line.split("  ", 3)[3].strip() for line in lines[2:5]] == [
        "insert    (id='2', note='new')",
        "update    id '2' → '3'",
        "delete    (id='3', note='new')",
    ]
    assert lines[6:] == ["bronze     no row", "silver     has nothing of this table yet"]
    copied = inspect("row", "public.orders", "1")[0].splitlines()
    assert copied[2].endswith("snapshot  (id='1', note='new')")
    assert copied[3].endswith("update    note 'new' → 'paid'")
    assert copied[-2] == "bronze     (id='1', note='paid')"
    document = inspect.document("row", "public.orders", "2")
    assert [(one["before"], one["after"]) for one in document["changes"]] == [
        (None, {"id": "2", "note": "new"}),
        ({"id": "2", "note": "new"}, {"id": "3", "note": "new"}),
        ({"id": "3", "note": "new"}, None),
    ]
    assert (document["net"], document["quarantined"], document["silver"]) == (None, [], None)


def test_a_value_that_never_came_is_said_to_be_that(inspect: Shell, bronze: DeltaBronze) -> None:
    update = Update(ORDERS, ("8", UNCHANGED), ("7", None), OldKind.KEY)
    bronze.append([raw_transaction(Transaction(boundaries(5000), (update,)))])
    lines = inspect("row", "public.orders", "8")[0].splitlines()
    assert lines[2].endswith("update    (id='8'), from (id='7'), note was not sent")


def test_rows_that_swap_keys_inside_a_transaction_are_told_apart(inspect: Shell, bronze: DeltaBronze) -> None:
    seats = table("public.seats", identity=ReplicaIdentity.FULL, id="int4", who="text")
    swapped = [
        Update(seats, ("2", "ann"), ("1", "ann"), OldKind.FULL),
        Update(seats, ("1", "bob"), ("2", "bob"), OldKind.FULL),
    ]
    for position, changes in (
        (5000, (Insert(seats, ("1", "ann")), Insert(seats, ("2", "bob")))),
        (6000, tuple(swapped)),
        (7000, (Insert(seats, ("2", "eve")), Delete(seats, ("2", "ann"), OldKind.FULL))),
    ):
        bronze.append([raw_transaction(Transaction(boundaries(position), changes))])
    found = inspect.document("row", "public.seats", "2")
    assert found["net"] == {"id": "2", "who": "eve"}
    made = [(one["before"] and one["before"]["who"], one["after"] and one["after"]["who"]) for one in found["changes"]]
    assert made == [(None, "ann"), (None, "bob"), ("ann", "ann"), ("bob", "bob"), (None, "eve"), ("ann", None)]


def test_a_table_that_bronze_has_nothing_of_is_said_to_be_that(inspect: Shell, bronze: DeltaBronze) -> None:
    said, code = inspect("row", "public.nothing", "2")
    assert "bronze has no changes of public.nothing" in said
    assert code == 1


# ── chain ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_chain_that_holds(inspect: Shell, bronze: DeltaBronze) -> None:
    assert inspect("chain", "-q") == ("the chain holds: 3 transactions, 6 changes\n", 0)
    assert inspect("chain", "-q", "--from", "0/7D0") == ("the chain holds: 2 transactions, 4 changes\n", 0)
    assert inspect.document("chain", "-q")["schema"] == "cdc-lake/chain/1"


def test_the_end_of_an_epoch_is_known_by_the_next_one(inspect: Shell, bronze: DeltaBronze, tmp_path: Path) -> None:
    state = bronze.state()
    assert state is not None
    control = ControlTables(tmp_path / "lake" / "control" / "shop")
    bronze.begin_stream("pg:8:shop:shop:0/64", 100)
    row = StreamRow(2, "pg:8:shop:shop:0/64", 100, "shop", "8", "shop", "lsn", utc_now(), False, state.upto, "00" * 32)
    control.record(row)
    said, code = inspect("chain", "-q")
    assert code == 1
    assert said.splitlines()[0].startswith("the chain is broken at 0/FA0 of epoch 1: the table's last transactions")


def test_every_csn_is_a_transaction_an_empty_one_or_a_gap(inspect: Shell, tmp_path: Path) -> None:
    writer = dense(tmp_path, (101, 0), (105, 3), (110, 2))
    said, code = inspect("chain", "-q")
    assert code == 1
    assert (
        said
        == """\
the chain is broken at 110 of epoch 1: 2 empty transactions and 0 recorded as missing do not account for the CSNs between 105 and 110
verified before it: 2 transactions, 2 changes, 3 without rows
"""
    )
    control = ControlTables(tmp_path / "lake" / "control" / "shop")
    control.record(GapRow(1, "gauss:7:shop:shop:csn:100@0/3E8", 106, 107, None, None, utc_now()))
    assert inspect("chain", "-q") == (
        "the chain holds: 3 transactions, 3 changes, 5 without rows, 2 CSNs in recorded gaps\n",
        0,
    )
    writer.advance(115, 2000, empty=4)
    assert "between 110 and 116" in inspect("chain", "-q")[0]
    writer.advance(116, 2000, empty=6)
    assert inspect("chain", "-q")[1] == 0


def test_a_stream_cannot_count_more_than_there_is(inspect: Shell, tmp_path: Path) -> None:
    dense(tmp_path, (101, 1))
    assert "1 empty transactions" in inspect("chain", "-q")[0]
