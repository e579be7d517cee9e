"""Undecodable transactions in bronze: whole, at their position, in the chain; an edit of them is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_lake.bronze.contract import SCHEMA
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.undecodable import READING, PgoutputFormat, StoreUndecodable
from cdc_lake.errors import InvalidText
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.model.position import Span
from cdc_lake_testing.messages import boundaries, raw_transaction, table

ORDERS = table("public.orders", id="int8", note="text")
Rows = list[dict[str, Any]]


def transactions() -> list:
    """Three; the one in the middle has text that is not UTF-8."""
    out = [
        raw_transaction(Transaction(boundaries(at), tuple(Insert(ORDERS, (f"{at}{n}", "BAD")) for n in range(2))))
        for at in (200, 300, 400)
    ]
    out[1].frames[1] = out[1].frames[1].replace(b"BAD", b"\xff\xfe!")
    return out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    writer = DeltaBronze(tmp_path / "b", durability="os")
    writer.begin_stream("s", 100)
    writer.append(transactions(), StoreUndecodable(PgoutputFormat(tabulate)))
    return tmp_path / "b"


def test_without_the_policy_nothing_lands(tmp_path: Path):
    writer = DeltaBronze(tmp_path / "b", durability="os")
    writer.begin_stream("s", 100)
    with pytest.raises(InvalidText):
        writer.append(transactions())
    assert BronzeReader(tmp_path / "b").highest_commit(1) is None


def test_it_lands_between_its_neighbours_as_bytes(folder: Path):
    rows = BronzeReader(folder).rows(300).to_pylist()
    assert [(row["ordinal"], row["op"]) for row in rows if row["op"] != "R"] == [(0, "B"), (1, "X"), (2, "X"), (3, "C")]
    first, second = (row for row in rows if row["op"] == "X")
    assert json.loads(first["info"]) == {"reading": READING}
    assert (second["raw"], second["relation"], second["layout"]) == (
        transactions()[1].frames[1],
        "public.orders",
        ORDERS.layout,
    )
    assert all(row["raw"] is None for row in BronzeReader(folder).rows(200).to_pylist())


def test_its_commit_row_says_why_and_counts_no_table(folder: Path):
    before, commit, _ = BronzeReader(folder).commits(Span(1, 0, 1000))
    assert before.undecoded is None
    assert commit.undecoded is not None
    assert (commit.undecoded.code, commit.undecoded.frames, commit.counts) == ("DEC304", 2, {})
    assert commit.undecoded.tables == ("public.orders",)


def test_no_value_of_it_stands_in_its_reason(folder: Path):
    commit = BronzeReader(folder).commits(Span(1, 200, 300))[0]
    assert commit.undecoded is not None
    assert "300" not in commit.undecoded.message


def test_the_chain_holds_over_it(folder: Path):
    verdict = verify(BronzeReader(folder))
    assert verdict.holds, verdict.reason
    assert (verdict.transactions, verdict.changes) == (3, 6)


def undecodable(rows: Rows) -> Rows:
    return [row for row in rows if row["op"] == "X"]


def _info(rows: Rows, change: Callable[[dict[str, Any]], object]) -> None:
    commit = next(row for row in rows if row["op"] == "C" and row["position"] == 300)
    info = json.loads(commit["info"])
    change(info)
    commit["info"] = json.dumps(info)


EDITS: dict[str, Callable[[Rows], object]] = {
    "another byte": lambda rows: undecodable(rows)[1].update(raw=b"\xff"),
    "no bytes": lambda rows: undecodable(rows)[1].update(raw=None),
    "another reading": lambda rows: undecodable(rows)[0].update(info='{"reading": "mppdb_decoding b GBK"}'),
    "no reading": lambda rows: undecodable(rows)[0].update(info=None),
    "another table": lambda rows: undecodable(rows)[0].update(relation=None, layout=None),
    "a reason that is gone": lambda rows: _info(rows, lambda info: info.pop("undecodable")),
    "a wrong number of frames": lambda rows: _info(rows, lambda info: info["undecodable"].update(frames=1)),
    "a row as if it were decoded": lambda rows: undecodable(rows)[0].update(op="I", new=["1", "x"]),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_found(folder: Path, name: str):
    (path,) = folder.glob("*.parquet")
    rows = pq.read_table(path, schema=SCHEMA).to_pylist()
    EDITS[name](rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
    assert verify(BronzeReader(folder)).broken_at == (1, 300)
