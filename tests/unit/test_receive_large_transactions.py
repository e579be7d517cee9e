"""Large transactions land as the same ones would in memory: one commit, several files, the same rows and hashes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.bronze.contract import SCHEMA, BronzeCommit, Tabulate, TransactionBatch
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze, TableBronze
from cdc_lake.config.model import Batch
from cdc_lake.connectors.open_stream import CommitLsnOrdering
from cdc_lake.connectors.spool import Spool
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.pgoutput.spooled import SpillingTransaction, SpooledTransaction
from cdc_lake.decode.transaction import BufferedTransaction, ReceivedTransaction
from cdc_lake.decode.undecodable import READING, PgoutputFormat, StopAtUndecodable, StoreUndecodable
from cdc_lake.errors import InvalidText
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, Message, OldKind, Transaction, Truncate, Update
from cdc_lake.runtime.receive.commit_pipeline import BronzeCommitPipeline
from cdc_lake.runtime.receive.loop import OpenBatch
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.bronze_formats import Place

A = table("public.a", id="int8", note="text")
WIDER = table("public.a", id="int8", note="text", more="text")
B = table(r'odd"s.with\.dot', id="int8", note="text")
CHANGES: tuple[tuple[Change, ...], ...] = (
    (Insert(A, ("0", "small")),),
    (
        *(Insert(A, (str(n), "x" * 50)) for n in range(40)),
        Truncate(B),
        Message("p", b"x"),
        *(Update(B, (str(n), UNCHANGED), (str(n), None), OldKind.KEY) for n in range(40)),
        *(Insert(WIDER, (str(n), "y", None)) for n in range(40)),
        Delete(A, ("1", None), OldKind.KEY),
    ),
    (Insert(B, ("1", "between")),),
    (Insert(WIDER, ("1", "between", "")),),
    tuple(Delete(B, (str(n), "z" * 30), OldKind.FULL) for n in range(40)),
    (Insert(B, ("2", "last")),),
)
LARGE = (1, 4)


def raws() -> list[BufferedTransaction]:
    lsns = range(1, 1000)
    return [
        raw_transaction(Transaction(boundaries(100 * n + 100), changes, tuple(lsns[: len(changes)])))
        for n, changes in enumerate(CHANGES)
    ]


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with Spool(tmp_path / "spool", 1 << 20, 500) as opened:
        yield opened


def large(raw: BufferedTransaction, spool: Spool) -> SpooledTransaction:
    growing = SpillingTransaction(spool())
    growing.extend(raw.frames, raw.lsns, raw.layouts, raw.truncated)
    growing.frames.seal()
    return SpooledTransaction(raw.bounds, growing.frames, growing.marks)


def bronze(folder: Path, name: str) -> DeltaBronze:
    writer = DeltaBronze(folder / name, durability="os", clock=lambda: 0)
    writer.begin_stream("s", 50)
    return writer


def land(
    writer: TableBronze, transactions: Sequence[ReceivedTransaction], columns: Tabulate = tabulate
) -> BronzeCommitPipeline:
    """As the receiver does it, in one commit."""
    batch, order = OpenBatch(Batch(), lambda: 0.0, 50, 50), CommitLsnOrdering()
    with BronzeCommitPipeline(writer, columns) as landing:
        for nth, one in enumerate(transactions):
            for closed in order.add(one):
                batch.add(closed)
            if nth % 2:
                landing.decode(batch.hand_over())
        landing.decode(batch.hand_over())
        landing.append(batch.take())
        landing.landed = landing.drain()  # type: ignore[attr-defined]
    return landing


def rows(folder: Path) -> list[dict[str, Any]]:
    """All rows in order; layouts once each."""
    reader = BronzeReader(folder)
    found = reader.files().read(reader.files().paths, SCHEMA.names).to_pylist()
    layouts = {row["layout"]: {**row, "position": None} for row in found if row["op"] == "R"}
    ordered = sorted((row for row in found if row["op"] != "R"), key=lambda row: (row["position"], row["ordinal"]))
    return [*(layouts[number] for number in sorted(layouts)), *ordered]


def test_rows_and_hashes_are_those_of_a_landing_in_memory(tmp_path: Path, spool: Spool) -> None:
    one, other = bronze(tmp_path, "memory"), bronze(tmp_path, "disk")
    given = raws()
    expected: BronzeCommit = land(one, given).landed  # type: ignore[attr-defined]
    mixed = [large(raw, spool) if n in LARGE else raw for n, raw in enumerate(given)]
    assert spool.used > 0
    found: BronzeCommit = land(other, mixed).landed  # type: ignore[attr-defined]
    assert rows(tmp_path / "disk") == rows(tmp_path / "memory")
    assert one.state() == other.state()
    assert (found.transactions, found.changes, found.operations) == (6, expected.changes, expected.operations)
    assert found.version == expected.version, "one commit"
    files = BronzeReader(tmp_path / "disk").files()
    assert len(files.paths) > 10
    assert verify(BronzeReader(tmp_path / "disk")).holds
    assert spool.used == 0, "what is landed is forgotten"


def test_in_either_format_it_is_one_commit_of_several_files(place: Place, spool: Spool) -> None:
    writer = place.writer()
    writer.begin_stream("s", 50)
    land(writer, [large(raw, spool) if n in LARGE else raw for n, raw in enumerate(raws())])
    reader = place.reader()
    state = reader.state()
    assert state == writer.state()
    assert state is not None
    assert state.upto == 600
    assert len(reader.files().paths) == len(place.data_files()) > 10
    assert verify(reader).holds


@pytest.mark.parametrize("upto", range(6))
def test_repeats_are_dropped_before_and_behind_large_ones(tmp_path: Path, spool: Spool, upto: int) -> None:
    given, writer = raws(), bronze(tmp_path, "b")
    if upto:
        writer.append(TransactionBatch(given[:upto], given[upto - 1].bounds.position, 0))
    mixed = [large(raw, spool) if n in LARGE else raw for n, raw in enumerate(given)]
    landed: BronzeCommit = land(writer, mixed).landed  # type: ignore[attr-defined]
    assert (landed.transactions, landed.repeats) == (6 - upto, upto)
    whole = bronze(tmp_path, "whole")
    whole.append(given)
    assert rows(tmp_path / "b") == rows(tmp_path / "whole")


def damaged() -> list[BufferedTransaction]:
    """The second large one has a value that is no text, in one of its last changes."""
    given = raws()
    given[4].frames[35] = given[4].frames[35].replace(b"zzz", b"\xff\xfez")
    return given


def test_what_stands_before_a_large_one_that_cannot_be_decoded_is_landed(tmp_path: Path, spool: Spool) -> None:
    mixed = [large(raw, spool) if n in LARGE else raw for n, raw in enumerate(damaged())]
    landing = land(bronze(tmp_path, "b"), mixed, StopAtUndecodable(PgoutputFormat(tabulate)))
    assert isinstance(landing.fault, InvalidText)
    assert "change" in landing.fault.where
    whole = bronze(tmp_path, "whole")
    whole.append(raws()[:4])
    assert rows(tmp_path / "b") == rows(tmp_path / "whole")


def test_by_the_policy_land_all_of_it_is_kept_as_bytes(tmp_path: Path, spool: Spool) -> None:
    columns = StoreUndecodable(PgoutputFormat(tabulate))
    mixed = [large(raw, spool) if n in LARGE else raw for n, raw in enumerate(damaged())]
    landing = land(bronze(tmp_path, "b"), mixed, columns)
    assert landing.fault is None
    whole = bronze(tmp_path, "whole")
    whole.append(damaged(), columns)
    found, expected = rows(tmp_path / "b"), rows(tmp_path / "whole")
    assert [row["raw"] for row in found] == [row["raw"] for row in expected]
    assert [(row["op"], row["layout"], row["lsn"]) for row in found] == [
        (row["op"], row["layout"], row["lsn"]) for row in expected
    ]
    commit, wanted = (json.loads(some[-4]["info"])["undecodable"] for some in (found, expected))
    assert {**commit, "where": wanted["where"]} == wanted
    assert json.loads(next(row for row in found if row["op"] == "X")["info"])["reading"] == READING
    assert verify(BronzeReader(tmp_path / "b")).holds
