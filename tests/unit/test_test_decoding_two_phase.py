"""Prepared transactions in lines of test_decoding: parked at their PREPARE, whole where they are committed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.connectors.prepared_transactions import PreparedTransactions, read_file
from cdc_lake.connectors.spool import Spool
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.batches import SpooledRecords
from cdc_lake.decode.pgoutput.parser import Prepared
from cdc_lake.decode.test_decoding import LineAssembler
from cdc_lake.errors import (
    DecodeError,
    MalformedMessage,
    NoOrderNumber,
    OutOfSequence,
    PreparedUnknown,
    SpoolFull,
    StreamedBlock,
    UnreadableTime,
)
from cdc_lake.model.change import Boundaries
from cdc_lake.tables.control_files import LocalControlFiles

STATE = StreamCheckpoint("pg:1:d:s:0/0", 3, 50, 50, b"")
ROW = b"table public.t: INSERT: id[integer]:1"
AT, TIME = b" (at 2026-01-01 00:00:00.5+00)", 1_767_225_600_500_000
BEGIN, PREPARE = b"BEGIN 7", b"PREPARE TRANSACTION 'g', txid 7" + AT
COMMIT, ROLLBACK = b"COMMIT PREPARED 'g', txid 7" + AT, b"ROLLBACK PREPARED 'g', txid 7" + AT


@pytest.fixture
def place(tmp_path: Path) -> LocalControlFiles:
    return LocalControlFiles(tmp_path / "prepared", durable=False)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with Spool(tmp_path / "spool", 10_000, 1 << 20) as made:
        yield made


def parking(
    place: LocalControlFiles, spool: Spool, state: StreamCheckpoint = STATE, *, changed: bool = True
) -> PreparedTransactions:
    return PreparedTransactions(place, spool, state, highest=lambda: None, changed=lambda *_: changed)


def assembler(parked: PreparedTransactions, spool: Spool, codec: Codec | None = None, **given) -> LineAssembler:
    return LineAssembler(
        codec or Codec(), lambda _: True, frames=spool, prepared_storage=parked, landed=STATE.upto, **given
    )


def fed(to: LineAssembler, *lines: bytes, first: int = 100):
    return [raw for at, line in enumerate(lines, start=first) for raw in to.feed(line, at)]


def names(place: LocalControlFiles) -> list[str]:
    return sorted(place.sizes())


def test_it_waits_from_its_prepare_on_and_lands_where_it_is_committed(place: LocalControlFiles, spool: Spool) -> None:
    to = assembler(parking(place, spool), spool)
    assert fed(to, BEGIN, ROW) == []
    assert (to.in_transaction, to.open_bytes) == (True, len(ROW))
    assert to.feed(PREPARE, 102) == ()
    assert (to.in_transaction, to.open_bytes) == (False, 0)
    [name] = names(place)
    prepared, content = read_file(place, name, part=1)
    assert prepared == Prepared(7, "g", 102, 102, TIME)
    assert (content.tables, content.encoding) == (["public.t"], "UTF8")
    [between] = fed(to, b"BEGIN 8", ROW, b"COMMIT 8", first=200)
    assert between.bounds.xid == 8
    [raw] = to.feed(COMMIT, 300)
    assert raw.bounds == Boundaries(300, 300, xid=7, commit_ts=TIME)
    assert (raw.records, raw.lsns, raw.size) == ([ROW], [101], len(ROW))


def test_it_outlives_the_connection_on_which_it_was_prepared(place: LocalControlFiles, spool: Spool) -> None:
    fed(assembler(parking(place, spool), spool), BEGIN, ROW, PREPARE)
    later = parking(place, spool, replace(STATE, upto=200, confirm=200))
    assert [one.gid for one in later.waiting] == ["g"]
    later.clean(150, 200)
    assert len(names(place)) == 1, "the server never sends it again"
    [raw] = assembler(later, spool).feed(COMMIT, 300)
    assert raw.records == [ROW]


def test_confirmed_exactly_at_its_prepare_it_stays(place: LocalControlFiles, spool: Spool) -> None:
    """A line says where the record of a PREPARE ends, and that is what is confirmed where nothing follows it."""
    fed(assembler(parking(place, spool), spool), BEGIN, ROW, PREPARE)
    later = parking(place, spool, replace(STATE, upto=102, confirm=102))
    later.clean(0, 400)
    [raw] = assembler(later, spool).feed(COMMIT, 500)
    assert raw.records == [ROW]


def test_of_a_log_that_the_server_left_it_goes(place: LocalControlFiles, spool: Spool) -> None:
    fed(assembler(parking(place, spool), spool), BEGIN, ROW, PREPARE)
    later = parking(place, spool, replace(STATE, upto=101, confirm=101))
    later.clean(0, 200)
    assert names(place) == []


def test_a_prepare_that_comes_again_is_the_same_one(place: LocalControlFiles, spool: Spool) -> None:
    fed(assembler(parking(place, spool), spool), BEGIN, ROW, PREPARE)
    before = (place.sizes(), spool.used)
    again = assembler(parking(place, spool), spool)
    fed(again, BEGIN, ROW, PREPARE.replace(b"00:00:00.5+00", b"03:00:00.5+03"))
    assert place.sizes() == before[0]
    assert [raw.records for raw in again.feed(COMMIT, 300)] == [[ROW]]


def test_rolled_back_it_is_dropped(place: LocalControlFiles, spool: Spool) -> None:
    parked = parking(place, spool)
    to = assembler(parked, spool)
    assert fed(to, BEGIN, ROW, PREPARE, ROLLBACK, b"ROLLBACK PREPARED 'nobody knows it', txid 8") == []
    assert parked.waiting == []
    parked.clean(200, 200)
    assert names(place) == []


def test_one_that_was_prepared_before_the_slot_was_made_is_printed_whole_at_its_end(
    place: LocalControlFiles, spool: Spool
) -> None:
    to = assembler(parking(place, spool), spool)
    lines = [(BEGIN, 20), (ROW, 21), (PREPARE, 30), (COMMIT, 300)]  # at their own places in the log
    [raw] = [raw for line, lsn in lines for raw in to.feed(line, lsn)]
    assert (raw.bounds.position, raw.records) == (300, [ROW])


@pytest.mark.parametrize(
    ("printed", "gid"),
    [
        ("'it''s'", "it's"),
        (r"E'a\\b''c'", r"a\b'c"),
        ("'two\nlines, txid 9'", "two\nlines, txid 9"),
        ("'ü 数'", "ü 数"),
        ("'PREPARE TRANSACTION ''x'', txid 1'", "PREPARE TRANSACTION 'x', txid 1"),
        ("''", ""),
    ],
)
def test_a_name_may_hold_anything(place: LocalControlFiles, spool: Spool, printed: str, gid: str) -> None:
    parked = parking(place, spool)
    to = assembler(parked, spool)
    fed(to, BEGIN, ROW, f"PREPARE TRANSACTION {printed}, txid 7".encode() + AT)
    assert [(one.gid, one.xid) for one in parked.waiting] == [(gid, 7)]
    [raw] = to.feed(f"COMMIT PREPARED {printed}, txid 7".encode() + AT, 300)
    assert raw.records == [ROW]


def test_empty_ones_are_parked_too_with_or_without_a_beginning(place: LocalControlFiles, spool: Spool) -> None:
    to = assembler(parking(place, spool), spool)
    locked = PREPARE.replace(b"'g', txid 7", b"'locks', txid 8")  # as PostgreSQL 18 prints it
    fed(to, BEGIN, b"message: transactional: 1 prefix: p, sz: 1 content:x", PREPARE, locked)
    found = fed(to, COMMIT, COMMIT.replace(b"'g', txid 7", b"'locks', txid 8"), first=300)
    assert [(raw.bounds.xid, raw.count) for raw in found] == [(7, 0), (8, 0)]
    assert to.messages == 1


def test_a_commit_of_what_is_not_kept_is_an_error_where_the_server_says_it_changed_something(
    place: LocalControlFiles, spool: Spool
) -> None:
    to = assembler(parking(place, spool), spool)
    assert to.feed(COMMIT, STATE.upto) == (), "it landed"
    with pytest.raises(PreparedUnknown) as unknown:
        to.feed(COMMIT, STATE.upto + 1)
    assert "`g` (xid 7)" in unknown.value.message
    [raw] = assembler(parking(place, spool, changed=False), spool).feed(COMMIT, 300)
    assert (raw.bounds.position, raw.count) == (300, 0)


def test_only_rows_of_captured_tables_are_parked(place: LocalControlFiles, spool: Spool) -> None:
    to = LineAssembler(
        Codec(), lambda table: table.name != "other", frames=spool, prepared_storage=parking(place, spool), landed=50
    )
    rows = [
        ROW,
        b"table public.other: INSERT: id[integer]:1",
        b'table "a: b".t: DELETE: id[integer]:1',
        b'table "a: b".u: DELETE: id[integer]:1',
        b"table public.t, public.v: TRUNCATE: (no-flags)",
    ]
    fed(to, BEGIN, *rows, PREPARE)
    _, content = read_file(place, names(place)[0], part=1)
    assert content.tables == ["a: b.t", "a: b.u", "public.t", "public.v"]
    [raw] = to.feed(COMMIT, 300)
    assert raw.records == [row for row in rows if b"other" not in row]


def test_a_large_one_waits_on_disk_and_lands_in_parts(place: LocalControlFiles, tmp_path: Path) -> None:
    with Spool(tmp_path / "spool", 10_000, 500) as spool:
        to = assembler(parking(place, spool), spool)
        fed(to, BEGIN, *[ROW] * 40, PREPARE)
        assert spool.used == 40 * len(ROW), "of the file"
        [large] = to.feed(COMMIT, 300)
        assert isinstance(large, SpooledRecords)
        assert [lsn for part in large.parts() for lsn in part.lsns] == list(range(101, 141))
        with pytest.raises(SpoolFull) as full:
            fed(to, b"BEGIN 8", *[ROW] * 300)
        assert "of them prepared transactions" in full.value.message
        to.reset()
        assert (to.open_bytes, to.in_transaction) == (0, False)


def test_lines_that_were_parked_in_another_encoding_are_read_in_it(place: LocalControlFiles, spool: Spool) -> None:
    """A stream has the database's, what SQL functions answer is UTF-8."""
    said, row = PREPARE.replace(b"'g'", "'ü'".encode("latin-1")), "table public.t: INSERT: a[text]:'ü'"
    fed(assembler(parking(place, spool), spool, Codec("LATIN1")), BEGIN, row.encode("latin-1"), said)
    later = parking(place, spool, replace(STATE, upto=200, confirm=200))
    [raw] = assembler(later, spool).feed(COMMIT.replace(b"'g'", "'ü'".encode()), 300)
    assert (raw.records, raw.lsns) == ([row.encode()], [101])


def test_a_line_that_nobody_knows_is_kept_with_it(place: LocalControlFiles, spool: Spool) -> None:
    to = assembler(parking(place, spool), spool, keeps=True)
    fed(to, BEGIN, ROW, b"something new", PREPARE)
    [raw] = to.feed(COMMIT, 300)
    assert raw.records == [ROW, b"something new"]


WRONG: dict[str, tuple[list[bytes], type[DecodeError]]] = {
    "a PREPARE of another one": ([BEGIN, PREPARE.replace(b"txid 7", b"txid 8")], MalformedMessage),
    "a PREPARE without an id": ([BEGIN, b"PREPARE TRANSACTION 'g'"], MalformedMessage),
    "an end without an id": ([b"COMMIT PREPARED 'g'"], MalformedMessage),
    "a time that is none": ([BEGIN, b"PREPARE TRANSACTION 'g', txid 7 (at once)"], UnreadableTime),
    "a commit at a time that is none": ([b"COMMIT PREPARED 'g', txid 7 (at once)"], UnreadableTime),
    "a COMMIT PREPARED inside": ([BEGIN, ROW, COMMIT], OutOfSequence),
    "a ROLLBACK PREPARED inside": ([BEGIN, ROW, ROLLBACK], OutOfSequence),
    "a BEGIN inside": ([BEGIN, ROW, b"BEGIN 8"], OutOfSequence),
    "a streamed one": ([b"preparing streamed transaction TXN 'g', txid 7"], StreamedBlock),
    "a streamed block": ([b"opening a streamed block for transaction TXN 7"], StreamedBlock),
}


@pytest.mark.parametrize("case", WRONG)
def test_lines_out_of_place(place: LocalControlFiles, spool: Spool, case: str) -> None:
    lines, kind = WRONG[case]
    with pytest.raises(kind):
        fed(assembler(parking(place, spool), spool), *lines)


@pytest.mark.parametrize("position", [0, 1 << 63])
def test_without_a_position_it_cannot_be_kept(place: LocalControlFiles, spool: Spool, position: int) -> None:
    to = assembler(parking(place, spool), spool)
    fed(to, BEGIN, ROW)
    for line in (PREPARE, COMMIT):
        with pytest.raises(NoOrderNumber):
            to.feed(line, position)
        to.reset()
