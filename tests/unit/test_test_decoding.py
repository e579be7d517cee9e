"""Lines of PostgreSQL's test_decoding: whole transactions of what is captured, and what is refused."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path

import pytest

from cdc_lake.connectors.spool import Spool
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb import columnar
from cdc_lake.decode.gaussdb.batches import SpooledRecords, tabulate_plain
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.test_decoding import LineAssembler, MessageLine, PhaseLine, line
from cdc_lake.devtools.wire_dump import described_line
from cdc_lake.errors import DecodeError, OutOfSequence, PreparedUnread, SpoolFull, StreamedBlock, UnknownStatement
from cdc_lake.model.change import Boundaries
from cdc_lake.model.relation import ReplicaIdentity, TableName
from tests import both_plugins
from tests.tally import tally

T = TableName("public", "t")
ROW = b"table public.t: INSERT: id[integer]:1"
FACTS = GaussDbTableMetadata((GaussDbColumn("id", "int4", 23),), ("id",), identity_columns=("id",), oid=7)


def assembler(takes=lambda _: True, **given) -> LineAssembler:
    return LineAssembler(Codec(), takes, **given)


def fed(one: LineAssembler, *lines: bytes):
    return [raw for at, line in enumerate(lines, start=10) for raw in one.feed(line, at)]


@pytest.mark.parametrize(
    ("begin", "commit", "xid", "time"),
    [
        (b"BEGIN 693", b"COMMIT 693 (at 2026-01-01 00:00:00.5+00)", 693, 1_767_225_600_500_000),
        (b"BEGIN", b"COMMIT", None, None),
        (b"BEGIN 693", b"COMMIT 693", 693, None),
        (b"BEGIN", b"COMMIT (at 2026-01-01 01:00:00+01)", None, 1_767_225_600_000_000),
    ],
)
def test_a_transaction_is_whole_at_its_commit_whose_position_is_that_of_its_message(begin, commit, xid, time):
    one = assembler()
    assert fed(one, begin, ROW) == []
    assert (one.in_transaction, one.open_bytes, one.open_csn) == (True, len(ROW), None)
    (raw,) = one.feed(commit, 99)
    assert raw.bounds == Boundaries(99, 99, xid=xid, commit_ts=time)
    assert (raw.records, raw.lsns, raw.size) == ([ROW], [11], len(ROW))
    assert (one.in_transaction, one.open_bytes) == (False, 0)


def test_only_rows_of_captured_tables_are_kept():
    taken = {T, TableName("s: x", 'a.b": INSERT:')}
    asked = []

    def takes(table):
        asked.append(table)
        return table in taken

    rows = [
        ROW,
        b'table "s: x"."a.b"": INSERT:": UPDATE: id[integer]:1',
        b'table "s: x".other: DELETE: id[integer]:1',
        b"table public.tt: INSERT: v[text]:'table public.t: INSERT:'",
        b"table public.t: DELETE: (no-tuple-data)",
        b"table public.tt: INSERT: (no-tuple-data)",
        b"table public.tt, public.t: TRUNCATE: restart_seqs cascade",
        b"table public.tt: TRUNCATE: (no-flags)",
        b"table what nobody reads",
    ]
    (raw,) = fed(assembler(takes), b"BEGIN 1", *rows, b"COMMIT 1")
    assert raw.records == [rows[0], rows[1], rows[4], rows[6], rows[8]]
    assert raw.lsns == [11, 12, 15, 17, 19]
    assert asked.count(T) == 2  # of its row, and of the truncate
    assert asked.count(TableName("public", "tt")) == 2


def test_messages_are_left_out_wherever_they_stand():
    one = assembler()
    message = b"message: transactional: 1 prefix: BEGIN, sz: 8 content:COMMIT 7"
    (raw,) = fed(one, message, b"BEGIN 1", message, ROW, b"COMMIT 1", message)
    assert raw.records == [ROW]
    assert one.messages == 3


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"opening a streamed block for transaction TXN 12", StreamedBlock),
        (b"streaming change for TXN 12", StreamedBlock),
        (b"streaming change for transaction", StreamedBlock),
        (b"streaming truncate for TXN 12", StreamedBlock),
        (b"streaming message: transactional: 1 prefix: test, sz: 50", StreamedBlock),
        (b"closing a streamed block for transaction TXN 12", StreamedBlock),
        (b"aborting streamed (sub)transaction TXN 12", StreamedBlock),
        (b"committing streamed transaction TXN 12 (at 2026-01-01 00:00:00+00)", StreamedBlock),
        (b"preparing streamed transaction TXN 'g', txid 12", StreamedBlock),
        (b"PREPARE TRANSACTION 'COMMIT', txid 12", PreparedUnread),
        (b"COMMIT PREPARED 'it''s', txid 12", PreparedUnread),
        (b"ROLLBACK PREPARED E'a\\\\b', txid 12", PreparedUnread),
        (b"COMMIT", OutOfSequence),
        (ROW, OutOfSequence),
        (b"BEGIN PREPARED", UnknownStatement),
        (b"BEGIN 1 ", UnknownStatement),
        (b"", UnknownStatement),
    ],
)
def test_what_has_no_place_is_refused_with_its_position(line, error):
    with pytest.raises(error) as caught:
        assembler(keeps=True).feed(line, 16)
    assert caught.value.where == "the line at 0/10"


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([b"BEGIN 1", b"BEGIN 2"], OutOfSequence),
        ([b"BEGIN 1", b"COMMIT 2"], DecodeError),
        ([b"BEGIN 1", b"COMMIT 1 (at 2026-13-01 00:00:00+00)"], DecodeError),
        ([b"BEGIN 1", b"INSERT"], UnknownStatement),
        ([b"BEGIN 1", b"opening a streamed block for transaction"], StreamedBlock),
    ],
)
def test_a_transaction_that_cannot_be_followed_is_refused(lines, error):
    with pytest.raises(error):
        fed(assembler(), *lines)


def test_a_commit_without_a_position_is_refused():
    one = assembler()
    fed(one, b"BEGIN 1")
    for position in (0, 1 << 63):
        with pytest.raises(DecodeError):
            one.feed(b"COMMIT 1", position)


def test_a_line_of_a_transaction_that_nobody_knows_may_be_kept():
    (raw,) = fed(assembler(keeps=True), b"BEGIN 1", b"something new", b"COMMIT 1")
    assert raw.records == [b"something new"]
    with pytest.raises(DecodeError):
        tabulate([raw], RelationResolver(lambda _: None, takes_back=False))


def test_a_transaction_that_outgrows_memory_is_on_disk_until_it_is_released_or_forgotten(tmp_path: Path):
    with Spool(tmp_path, 5_000, 500) as spool:
        one = assembler(frames=spool)
        (small,) = fed(one, b"BEGIN 1", ROW, b"COMMIT 1")
        (large,) = fed(one, b"BEGIN 2", *[ROW] * 40, b"COMMIT 2")
        assert (small.count, large.count, large.size) == (1, 40, 40 * len(ROW))
        assert isinstance(large, SpooledRecords)
        assert [part.records for part in large.parts()] == [[ROW] * 14, [ROW] * 14, [ROW] * 12]
        assert [lsn for part in large.parts() for lsn in part.lsns] == list(range(11, 51))
        large.release()
        assert spool.used == 0
        with pytest.raises(SpoolFull):
            fed(one, b"BEGIN 3", *[ROW] * 400)
        assert one.open_bytes > 4_000
        one.reset()
        assert (spool.used, one.open_bytes) == (0, 0)


def test_a_delete_without_a_key_takes_nothing_back():
    rows = (b"table public.t: INSERT: id[integer]:1", b"table public.t: DELETE: (no-tuple-data)")
    (raw,) = fed(assembler(), b"BEGIN 1", *rows, b"COMMIT 1")
    for facts in (FACTS, GaussDbTableMetadata(FACTS.columns, identity=ReplicaIdentity.NOTHING)):
        found = tabulate([raw], RelationResolver(lambda _, facts=facts: facts, takes_back=False))
        assert bytes(found.op) == b"ID"


# ── what servers sent ──


@pytest.mark.parametrize("file", both_plugins.recorded(), ids=lambda file: file.stem)
def test_what_a_server_printed_is_what_pgoutput_sent(file: Path, monkeypatch: pytest.MonkeyPatch):
    sent = both_plugins.read(file)
    changes, bounds = both_plugins.expected(sent)
    raws = sent.by_lines()
    assert [asdict(raw.bounds) for raw in raws] == bounds
    assert both_plugins.changes(tabulate_plain(raws, sent.layouts())) == changes
    monkeypatch.setattr(columnar, "SMALL", 1)
    for size in (7, len(raws)):
        layouts = sent.layouts()
        parts = [both_plugins.changes(tabulate(raws[at : at + size], layouts)) for at in range(0, len(raws), size)]
        found = [change for part in parts for change in part]
        assert [one | {"transaction": 0} for one in found] == [one | {"transaction": 0} for one in changes]
    tally("R7", **{"recorded streams": 1, "recorded rows": len(changes)})


@pytest.mark.parametrize("file", both_plugins.recorded()[:1], ids=lambda file: file.stem)
def test_a_line_that_was_damaged_is_an_error_or_another_line(file: Path):
    """No input makes more of it than a DecodeError, and both decoders say the same."""
    sent = both_plugins.read(file)
    dice = random.Random(8)
    lines = [line for _, line in sent.lines if len(line) < 2000]
    for _ in range(400):
        damaged = bytearray(dice.choice(lines))
        for _ in range(dice.randint(1, 3)):
            at = dice.randrange(len(damaged) + 1)
            damaged[at : at + dice.randrange(3)] = bytes(dice.choices(b"' \":[].,\\\nB\xff", k=dice.randrange(3)))
        one, told = assembler(keeps=True), []
        for decode in (tabulate, tabulate_plain):
            one.reset()
            try:
                (raw,) = fed(one, b"BEGIN 1", bytes(damaged), b"COMMIT 1")
                told.append(both_plugins.changes(decode([raw], sent.layouts())))
            except DecodeError as error:
                told.append(error.code + error.message)
        assert told[0] == told[1]


CASES = [
    (b"message: transactional: 1 prefix: test, sz: 4 content:msg1", MessageLine(True, "test", "msg1")),
    (b"message: transactional: 0 prefix: test, sz: 0 content:", MessageLine(False, "test", "")),
    (b"message: transactional: 1 prefix: a, sz: 3 content:x, sz: 4 content:abcd", MessageLine(True, "a, sz: 3 content:x", "abcd")),
    (b"message: transactional: 1 prefix: p, sz: 3 content:a\nb", MessageLine(True, "p", "a\nb")),
    (b"streaming message: transactional: 1 prefix: test, sz: 50", MessageLine(True, "test", None)),
    (b"PREPARE TRANSACTION 'test_prepared#1', txid 529", PhaseLine("prepare", "test_prepared#1", 529)),
    (b"COMMIT PREPARED 'it''s', txid 529 (at 2024-02-06 07:17:19.45874+08)", PhaseLine("commit_prepared", "it's", 529, "2024-02-06 07:17:19.45874+08")),
    (b"ROLLBACK PREPARED E'a\\\\b', txid 7", PhaseLine("rollback_prepared", "a\\b", 7)),
    (b"PREPARE TRANSACTION 'g'", PhaseLine("prepare", "g")),
    (b"opening a streamed block for transaction TXN 12", PhaseLine("stream_start", None, 12)),
    (b"opening a streamed block for transaction", PhaseLine("stream_start")),
    (b"closing a streamed block for transaction", PhaseLine("stream_stop")),
    (b"aborting streamed (sub)transaction", PhaseLine("stream_abort")),
    (b"streaming change for transaction", PhaseLine("stream_change")),
    (b"streaming change for TXN 3", PhaseLine("stream_change", None, 3)),
    (b"streaming truncate for transaction", PhaseLine("stream_truncate")),
    (b"preparing streamed transaction 'test1', txid 5", PhaseLine("stream_prepare", "test1", 5)),
    (b"preparing streamed transaction TXN 'test1', txid 5", PhaseLine("stream_prepare", "test1", 5)),
    (b"committing streamed transaction TXN 5 (at 2020-01-01 00:00:00+00)", PhaseLine("stream_commit", None, 5, "2020-01-01 00:00:00+00")),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "expected"), CASES)
def test_a_line_is_read(payload, expected):
    assert line(payload, bytes.decode) == expected


@pytest.mark.parametrize(
    "payload",
    [
        b"BEGIN 693",
        b"COMMIT 693 (at 2020-01-01 00:00:00+00)",
        b"COMMIT",
        b"PREPARE 12",
        b"table public.t: INSERT: a[integer]:1",
        b"message: prefix deparse, relid 1, cmdtype: Simple, sz: 3 content: abc",
        b"message: transactional: 1 prefix: test, sz: 5 content:four",
        b"",
    ],
)
def test_another_line_is_left_to_others(payload):
    assert line(payload, bytes.decode) is None


def test_a_line_is_described():
    assert described_line(MessageLine(True, "p", "c"), 16) == {
        "type": "message",
        "lsn": "0/10",
        "prefix": "p",
        "transactional": True,
        "content": "c",
    }
    assert described_line(PhaseLine("prepare", "g", 5), None) == {"type": "prepare", "gid": "g", "xid": 5}
