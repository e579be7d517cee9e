"""A stream's identity says what orders it, and positions are printed and read in that form everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_lake.bronze.contract import TransactionBatch
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.cli.commands.inspect import chain_text, row_text, transaction_text
from cdc_lake.config.model import Pipeline
from cdc_lake.config.project import Project
from cdc_lake.connectors.failover import check_fed_from
from cdc_lake.connectors.gaussdb.csn_order import record_gap, recorded_gaps
from cdc_lake.connectors.open_stream import Gap
from cdc_lake.control.streams import snapshot_id
from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.pgoutput.columnar import columns_of
from cdc_lake.decode.transaction import BufferedTransaction, ReceivedTransaction
from cdc_lake.errors import MalformedPosition, NotInBronze, OtherSource
from cdc_lake.model.change import Delete, Insert, Transaction
from cdc_lake.model.position import Csn, Lsn, OrderDomain, Span, format_position, parse_position
from cdc_lake.model.relation import TableName
from cdc_lake.ops.inspect import inspect_transaction, row_everywhere
from cdc_lake.ops.status import status
from cdc_lake.source.base import Kind, StreamIdentity, domain_of, format_stream_position
from cdc_lake.tables.control_schema import CutRow, GapRow, SnapshotRow, utc_now
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.messages import boundaries, raw_transaction, table

ORDERS = table("public.orders", id="int8", note="text")
CSN_STREAM = "gauss:715:shop:s:csn:2013@0/3E8"


# ── identities ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_identities_are_written_as_documented() -> None:
    point = Lsn(0x3E8)
    assert str(StreamIdentity("715", "shop", "s", point)) == "pg:715:shop:s:0/3E8"
    assert str(StreamIdentity("715", "shop", "s", point, kind=Kind.GAUSS)) == "gauss:715:shop:s:lsn:0/3E8"
    assert str(StreamIdentity("715", "shop", "s", point, Csn(2013), Kind.GAUSS)) == CSN_STREAM


_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
_NUMBERS = st.integers(0, (1 << 63) - 1)


@given(
    _NAMES, st.from_regex(r"[a-z0-9_.?-]{1,20}", fullmatch=True), _NUMBERS, st.none() | _NUMBERS, st.sampled_from(Kind)
)
def test_an_identity_reads_back_whatever_the_database_is_called(
    database: str, slot: str, point: int, csn: int | None, kind: Kind
) -> None:
    number = None if csn is None or kind is Kind.POSTGRES else Csn(csn)
    identity = StreamIdentity("715", database, slot, Lsn(point), number, kind)
    again = StreamIdentity.parse(str(identity))
    assert again == identity
    assert again.domain is (OrderDomain.LSN if number is None else OrderDomain.CSN)
    assert again.start == (point if number is None else csn)
    assert domain_of(str(identity)) is again.domain


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s1",
        "pg:715:shop:s",
        "pg::shop:s:0/1",
        "mysql:715:shop:s:0/1",
        "gauss:715:shop:s:0/1",
        "gauss:715:shop:s:csn:0/1",
        "gauss:715:shop:s:csn:12",
        "gauss:715:shop:s:csn:x@0/1",
        "gauss:715:shop:s:xid:12@0/1",
        "gauss:715::s:csn:12@0/1",
    ],
)
def test_what_is_no_identity_is_refused(text: str) -> None:
    with pytest.raises(OtherSource, match="which this version does not know"):
        StreamIdentity.parse(text)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"system": "716"}, "server's system identifier is `716`, but bronze was fed from `715`"),
        ({"database": "b"}, "database is `b`"),
        ({"slot": "t"}, "slot is `t`"),
    ],
)
def test_a_stream_goes_on_at_no_other_server_database_or_slot(other: dict[str, str], words: str) -> None:
    stream, same = StreamIdentity.parse("pg:715:a:s:0/1"), {"system": "715", "database": "a", "slot": "s"}
    check_fed_from(stream, **same)
    with pytest.raises(OtherSource, match=words):
        check_fed_from(stream, **same | other)


@given(_NUMBERS, st.sampled_from(OrderDomain))
def test_what_is_printed_can_be_pasted_back(position: int, domain: OrderDomain) -> None:
    assert parse_position(format_position(position, domain)) == position


def test_positions_are_shown_in_the_form_of_their_stream() -> None:
    assert format_stream_position("pg:715:shop:s:0/3E8", 2014) == "0/7DE"
    assert format_stream_position("gauss:715:shop:s:lsn:0/3E8", 2014) == "0/7DE"
    assert format_stream_position(CSN_STREAM, 2014) == "2014"
    with pytest.raises(MalformedPosition):
        parse_position("-1")


# ── bronze ───────────────────────────────────────────────────────────────────────────────────────────────────────


def committed(csn: int, lsn: int, *changes: Insert, empty_before: int = 0) -> BufferedTransaction:
    raw = raw_transaction(Transaction(boundaries(lsn), changes or (Insert(ORDERS, (str(csn), "x")),)))
    bounds = replace(raw.bounds, position=csn, csn=csn, confirm=lsn - 1, empty_before=empty_before)
    return replace(raw, bounds=bounds)


@pytest.fixture
def bronze(tmp_path: Path) -> DeltaBronze:
    writer = DeltaBronze(tmp_path / "lake" / "bronze" / "shop", durability="os")
    writer.begin_stream(CSN_STREAM, 2013, 1000)
    return writer


def test_order_and_slot_position_are_two_numbers(bronze: DeltaBronze, tmp_path: Path) -> None:
    state = bronze.state()
    assert state is not None
    assert (state.upto, state.confirm) == (2013, 1000)
    batch = TransactionBatch([committed(2014, 5000), committed(2017, 4000, empty_before=2)], 2019, 4999, 2)
    landed = bronze.append(batch)
    assert (landed.upto, landed.confirm, landed.transactions) == (2019, 4999, 2)
    again = DeltaBronze(tmp_path / "lake" / "bronze" / "shop").state()
    assert again is not None
    assert (again.upto, again.confirm, again.empty) == (2019, 4999, 2)
    landed = bronze.advance(2025, 6000, 8)
    assert (landed.upto, landed.confirm) == (2025, 6000)
    again = DeltaBronze(tmp_path / "lake" / "bronze" / "shop").state()
    assert again is not None
    assert (again.upto, again.confirm, again.empty) == (2025, 6000, 8)
    reader = BronzeReader(tmp_path / "lake" / "bronze" / "shop")
    assert [c.position for c in reader.commits(Span(1, 0, 9999))] == [2014, 2017]
    assert inspect_transaction(BronzeReader(tmp_path / "lake" / "bronze" / "shop"), 2017).empty_before == 2
    assert verify(reader).holds


def test_a_batch_of_repeats_still_moves_the_markers(bronze: DeltaBronze) -> None:
    bronze.append(TransactionBatch([committed(2014, 5000)], 2014, 4999))
    landed = bronze.append(TransactionBatch([committed(2014, 5000)], 2016, 7000, 2))
    assert (landed.upto, landed.confirm, landed.repeats, landed.transactions) == (2016, 7000, 1, 0)
    state = bronze.state()
    assert state is not None
    assert state.empty == 2


def test_the_confirm_position_moves_alone_where_only_repeats_came(bronze: DeltaBronze) -> None:
    bronze.append(TransactionBatch([committed(2014, 5000)], 2015, 4999, 1))
    landed = bronze.advance(2015, 9000, 1)
    assert (landed.upto, landed.confirm) == (2015, 9000)
    assert bronze.advance(2014, 100).confirm == 9000


def nameless(batch: Sequence[ReceivedTransaction]) -> ChangeColumns:
    """A delete as the family sends it for a table without a key."""
    return columns_of([(nth, 1, Delete(ORDERS, None, None)) for nth, _ in enumerate(batch)])


def test_a_delete_without_an_old_row_lands_and_is_read_back(bronze: DeltaBronze, tmp_path: Path) -> None:
    bronze.append([committed(2014, 5000)], nameless)
    folder = tmp_path / "lake" / "bronze" / "shop"
    reader = BronzeReader(folder)
    assert verify(reader).holds
    (deleted,) = reader.changes(TableName("public", "orders"), Span(1, 0, 9999)).to_pylist()
    assert (deleted["op"], deleted["old"], deleted["new"], deleted["old_kind"]) == ("D", None, None, None)
    found = inspect_transaction(BronzeReader(folder), 2014)
    assert found.counts == {"public.orders": {"D": 1}}
    assert "delete" in transaction_text(found)


# ── what people see ──────────────────────────────────────────────────────────────────────────────────────────────


def test_inspect_prints_csns(bronze: DeltaBronze, tmp_path: Path) -> None:
    folder = tmp_path / "lake" / "bronze" / "shop"
    bronze.append([committed(2014, 5000), committed(2015, 6000)])
    assert "transaction 2014, epoch 1" in transaction_text(
        inspect_transaction(BronzeReader(folder), parse_position("2014"))
    )
    found = row_everywhere(project_of(tmp_path), BronzeReader(folder), TableName("public", "orders"), {"id": "2015"})
    assert "  2015:1  " in row_text(found)
    with pytest.raises(NotInBronze, match="committed at position 2016"):
        inspect_transaction(BronzeReader(folder), 2016)
    assert chain_text(verify(BronzeReader(folder))).startswith("the chain holds")
    broken = replace(verify(BronzeReader(folder)), broken_at=(1, 2015), reason="it is not", stream=CSN_STREAM)
    assert "broken at 2015 of epoch 1" in chain_text(broken)


def test_a_broken_chain_names_its_stream(tmp_path: Path) -> None:
    for stream in ("pg:1:d:s:0/1", CSN_STREAM):
        folder = tmp_path / stream.partition(":")[0]
        writer = DeltaBronze(folder, durability="os")
        writer.begin_stream(stream, 10)
        writer.append([committed(2014, 5000)])
        (path,) = folder.glob("*.parquet")
        edit(path)
        found = verify(BronzeReader(folder))
        assert found.stream == stream
        assert f"at {format_stream_position(stream, 2014)} of" in chain_text(found)


def project_of(root: Path) -> Project:
    document = {
        "version": 1,
        "pipeline": "shop",
        "source": {"type": "postgres", "host": "127.0.0.1", "port": 1, "database": "d", "user": "u", "tables": ["*.*"]},
    }
    return Project(Pipeline.model_validate(document), root / "shop.yaml", root)


def edit(path: Path) -> None:

    rows = pq.read_table(path)
    pq.write_table(rows.filter([op != "I" for op in rows["op"].to_pylist()]), path)


def test_status_counts_transactions_where_positions_are_csns(bronze: DeltaBronze, tmp_path: Path) -> None:
    project = project_of(tmp_path)
    assert project.bronze == tmp_path / "lake" / "bronze" / "shop"
    bronze.append([committed(2014, 5000), committed(2015, 6000)])
    control = ControlTables(project.control, "os")
    control.record(SnapshotRow(snapshot_id(1), CSN_STREAM, 1, 2013, "[]", "complete", utc_now()))
    control.record(CutRow(1, CSN_STREAM, 2014, utc_now(), "{}", utc_now()))
    found = status(project)
    assert (found.bronze_position, found.silver_position) == ("2015", "2014")
    assert found.applied.bytes is None
    assert found.applied.transactions == 1
    assert found.landed.bytes is None


# ── gaps ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_recorded_gaps_come_back_without_what_bronze_holds(bronze: DeltaBronze, tmp_path: Path) -> None:
    control = ControlTables(tmp_path / "control", "os")
    state = bronze.state()
    assert state is not None
    assert recorded_gaps(control, reader := BronzeReader(tmp_path / "lake" / "bronze" / "shop"), state) == []
    record_gap(control, state, Gap(2014, 2016, None, 77))  # the receiver died before it landed anything above
    record_gap(control, state, Gap(2014, 2014, None, 66))  # the others came in time then
    record_gap(control, state, Gap(2030, 2031, 5, 6))  # bronze has not passed it
    control.record(GapRow(9, "another stream", 1, 99999, None, None, utc_now()))
    bronze.append(TransactionBatch([committed(2015, 5000), committed(2016, 5100), committed(2020, 6000)], 2025, 5999))
    state = bronze.state()
    assert state is not None
    assert [(gap.first, gap.last) for gap in recorded_gaps(control, reader, state)] == [(2014, 2014)]
    bronze.advance(2040, 9000)
    state = bronze.state()
    assert state is not None
    assert [(gap.first, gap.last) for gap in recorded_gaps(control, reader, state)] == [(2014, 2014), (2030, 2031)]
