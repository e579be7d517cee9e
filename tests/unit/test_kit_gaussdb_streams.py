"""Streams of the family's server: what is sent, when it is sent again, timers, traps and faults."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.records import (
    Begin,
    Commit,
    Ddl,
    Field,
    Heartbeat,
    Operation,
    Record,
    Row,
    Style,
    Truncated,
)
from cdc_lake.decode.gaussdb.serial import records
from cdc_lake.errors import ServerUnreachable, StreamProtocol
from cdc_lake.model.relation import TableName
from cdc_lake.source.gaussdb.stream import GaussDbStream
from cdc_lake.source.gaussdb.wire.protocol import WireTarget, WireTls
from cdc_lake.source.gaussdb.wire.session import connect
from cdc_lake_testing.gaussdb.faults import Faults, HeartbeatForm
from cdc_lake_testing.gaussdb.ledger import Ledger, LedgerTransaction
from cdc_lake_testing.gaussdb.recorded import ledger_of, messages, payloads
from cdc_lake_testing.gaussdb.server import GaussServer
from cdc_lake_testing.gaussdb.slots import SlotOrder
from cdc_lake_testing.gaussdb.sql import Exported
from tests.gauss_client import Raw, fields, wait_until
from tests.unit.test_kit_gaussdb_encode import HEADS, streams

TABLE, OTHER = TableName("public", "t"), TableName("public", "u")
UTF8 = Codec("UTF8")
POINT = Exported("", 0, 0)
PARALLEL = {"parallel-decode-num": "2", "decode-style": "b", "sending-batch": "0"}
BATCHED = PARALLEL | {"sending-batch": "1"}


def insert(number: int, table: TableName = TABLE) -> Row:
    return Row(Operation.INSERT, table, (Field("id", str(number), "integer", 23), Field("v", f"v{number}", "text", 25)))


def delete(number: int) -> Row:
    return Row(Operation.DELETE, TABLE, None, (Field("id", str(number), "integer", 23), Field("v", None, "text", 25)))


def quoted(options: dict[str, str]) -> str:
    return ", ".join(f"\"{name}\" '{value}'" for name, value in options.items())


def free(server: GaussServer, slot: str = "s") -> None:
    """Until the server has noticed that the stream before has gone."""
    wait_until(lambda: slot not in [held.name for held, pid in server.state.slots.all() if pid is not None])


def open_raw(server: GaussServer, options: dict[str, str] = PARALLEL, slot: str = "s") -> Raw:
    free(server, slot)
    raw = Raw(server, replication=True)
    raw.until()
    assert raw.stream(slot, quoted(options)) == ("W", bytes(3))
    return raw


def open_stream(server: GaussServer, options: dict[str, str] = PARALLEL, slot: str = "s") -> GaussDbStream:
    free(server, slot)
    target = WireTarget(
        ((server.host, server.port),), "postgres", "u", replication_port=server.port, tls=WireTls("disable")
    )
    session = connect(target, replication=True)
    return GaussDbStream(session, slot, 0, options, keepalives_confirm=False, status_interval=5)


def served(opened: GaussDbStream, size: int) -> list[tuple[int, bytes]]:
    """Frames up to so many bytes of payload in all; the stream is closed then."""
    frames: list[tuple[int, bytes]] = []
    got = 0
    while got < size:
        polled = [(lsn, bytes(payload)) for lsn, payload in opened.poll(60)]
        assert polled, f"the stream is silent after {got} of {size} bytes"
        frames += polled
        got += sum(len(payload) for _, payload in polled)
    opened.close()
    return frames


def decoded(frames: Sequence[tuple[int, bytes]], style: Style, *, batch: bool = False) -> list[Record]:
    return [r for lsn, p in frames for r in records(p, style, batch=batch, codec=UTF8, header_lsn=lsn)]


def xids(found: Sequence[Record]) -> list[int | None]:
    return [record.xid for record in found if isinstance(record, Commit)]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def server(ledger: Ledger) -> Iterator[GaussServer]:
    with GaussServer(ledger) as running:
        running.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
        yield running


@pytest.fixture(scope="module")
def recorded() -> list[LedgerTransaction]:
    """What the recorded 6.0.2 must have had in its log."""
    known = streams("6.0.2")
    timed = (
        record
        for lsn, payload in payloads(messages(known["og_a_par2_t_batch1_xon_ton_soff"]))
        for record in records(payload, Style.TEXT, batch=True, codec=UTF8, header_lsn=lsn, tables=HEADS)
    )
    return ledger_of(messages(known["og_a_par2_b_batch0"]), timed)


ON, OFF = {"include-xids": "on", "include-timestamp": "on"}, {"include-xids": "off", "include-timestamp": "off"}
SKIP = {"skip-empty-xacts": "on"}
RECORDED = {
    "og_a_par2_b_batch0": {},
    "og_a_par2_t_batch0": {},
    "og_a_par2_j_batch0": {},
    "og_a_par2_b_batch1": {},
    "og_a_par2_t_batch1": {},
    "og_a_par2_j_batch1": {},
    "og_a_par2_b_batch1_xon_ton_soff": ON,
    "og_a_par2_t_batch1_xon_ton_soff": ON,
    "og_a_par2_b_batch1_whitelist": SKIP | {"white-table-list": "public.t_pk,public.zz_end"},
}


@pytest.mark.parametrize("name", RECORDED)
def test_the_log_of_a_recorded_server_is_streamed_as_that_server_did(
    recorded: list[LedgerTransaction], name: str
) -> None:
    """Every byte of every payload, where messages are cut, and the LSN of every header."""
    wanted = list(payloads(messages(streams("6.0.2")[name])))
    ledger = Ledger()
    for transaction in recorded:
        ledger.append(transaction)
    options = PARALLEL | {"decode-style": name.split("_")[3], "sending-batch": name.split("batch")[1][0]}
    with GaussServer(ledger) as running:
        running.state.batch_seconds = 0.2
        running.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
        found = served(open_stream(running, options | RECORDED[name]), sum(len(p) for _, p in wanted))
    assert found == wanted


@pytest.mark.parametrize("name", ["og_a_ser_default", "og_a_test_decoding"])
def test_serial_lines_are_those_of_the_recorded_server(recorded: list[LedgerTransaction], name: str) -> None:
    """But for TRUNCATE and rows behind a DDL, which no parallel recording holds, and first LSNs of DDL."""

    def transactions(frames: Sequence[tuple[int, bytes]]) -> dict[int, list[tuple[int, bytes]]]:
        found, lines = {}, []
        for lsn, line in frames:
            lines.append((0 if line.startswith(b"BEGIN") else lsn, line))
            if line.startswith(b"COMMIT"):
                found[lsn] = lines
                lines = []
        return found

    wanted = transactions(list(payloads(messages(streams("6.0.2")[name]))))
    ledger = Ledger()
    for transaction in recorded:
        if transaction.commit_end in wanted:
            ledger.append(transaction)
    plugin = "test_decoding" if name.endswith("test_decoding") else "mppdb_decoding"
    with GaussServer(ledger) as running:
        running.state.create_slot("s", plugin, "postgres", POINT)
        opened, frames = open_stream(running, {}), []
        while not frames or frames[-1][0] != ledger[len(ledger) - 1].commit_end:
            frames += [(lsn, bytes(line)) for lsn, line in opened.poll(60)]
        opened.close()
    found = transactions(frames)
    assert found.keys() == wanted.keys()
    assert sum(found[end] != wanted[end] for end in wanted) == 10


def test_a_recording_is_played_as_it_is(server: GaussServer) -> None:
    bodies = messages(streams("6.0.2")["og_a_par2_b_batch1_whitelist"])
    server.play("r", bodies)
    with open_raw(server, BATCHED, slot="r") as raw:
        raw.keepalive(), raw.keepalive()
        assert [raw.read() for _ in bodies] == [("d", body) for body in bodies]


@pytest.mark.parametrize(("style", "batch"), [(s, b) for s in "btj" for b in "01"])
def test_what_comes_while_a_stream_is_open_is_sent(server: GaussServer, ledger: Ledger, style: str, batch: str) -> None:
    server.state.batch_bytes, server.state.batch_seconds = 2000, 0.1
    options = PARALLEL | {"decode-style": style, "sending-batch": batch}
    opened = open_stream(server, options)

    def write() -> None:
        for number in range(200):
            ledger.commit([insert(number), delete(number)])
            time.sleep(0.0005)

    writer = threading.Thread(target=write)
    writer.start()
    found: list[Record] = []
    while len(found) < 800:
        frames = opened.poll(60)
        assert frames
        found += decoded([(lsn, bytes(p)) for lsn, p in frames], Style(style), batch=batch == "1")
    writer.join()
    opened.close()
    assert xids(found) == [transaction.xid for transaction in ledger.since(0)]
    rows = [record for record in found if isinstance(record, Row)]
    assert [row.new[0].value for row in rows[::2] if row.new] == [str(n) for n in range(200)]


@pytest.mark.parametrize(("version", "again"), [("6.0.2", True), ("5.0.3", True), ("3.0.0", False)])
def test_a_transaction_that_commits_where_the_slot_stands_is_sent_again_from_5_on(version: str, again: bool) -> None:
    ledger = Ledger()
    with GaussServer(ledger, version=version) as running:
        running.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
        first, second = ledger.commit([insert(1)]), ledger.commit([])
        assert second.commit_start == first.commit_end  # an empty transaction begins where the last one ended
        third = ledger.commit([insert(3)])
        wanted = {
            first.commit_start: [first, second, third] if again else [second, third],
            first.commit_end - 1: [second, third],
            first.commit_end: [second, third] if again else [third],
            first.commit_end + 1: [third],
        }
        running.state.create_slot("serial", "mppdb_decoding", "postgres", Exported("", 0, first.commit_end))
        with open_raw(running, {}, slot="serial") as raw:  # serial decoding of every version counts what starts there
            assert xids(decoded(raw.data(5), Style.SERIAL)) == [second.xid, third.xid]
        for position, expected in wanted.items():
            name = f"s{position}"
            running.state.create_slot(name, "mppdb_decoding", "postgres", Exported("", 0, position))
            with open_raw(running, slot=name) as raw:
                count = sum(2 + len(transaction.changes) for transaction in expected)
                assert xids(decoded(raw.data(count), Style.BINARY)) == [t.xid for t in expected], hex(position)


def test_only_the_flush_position_of_a_reply_moves_the_slot_and_never_backwards(
    server: GaussServer, ledger: Ledger
) -> None:
    ledger.commit([])
    with open_raw(server) as raw:
        raw.reply(0, received=ledger.end_lsn)
        raw.reply(0x2000030)
        raw.reply(0x2000020)
        raw.reply(0, wanted=True)
        raw.keepalive(), raw.keepalive(), raw.keepalive()
        assert server.state.slots.get("s").confirmed == 0x2000030


def test_a_restart_sends_what_was_not_confirmed_and_a_crash_also_some_that_was(
    server: GaussServer, ledger: Ledger
) -> None:
    first, second, third = (ledger.commit([insert(n)]) for n in range(3))
    with open_raw(server) as raw:
        raw.data(9)
        raw.reply(first.commit_end)
        wait_until(lambda: server.state.slots.get("s").confirmed == first.commit_end)
    server.restart()
    with open_raw(server) as raw:
        assert xids(decoded(raw.data(6), Style.BINARY)) == [second.xid, third.xid]
        raw.reply(third.commit_end)
        wait_until(lambda: server.state.slots.get("s").confirmed == third.commit_end)
    server.crash()
    assert server.state.slots.get("s").confirmed == first.commit_end
    with open_raw(server) as raw:
        assert xids(decoded(raw.data(6), Style.BINARY)) == [second.xid, third.xid]
    server.inject(Faults(repeat_from=0))
    with open_raw(server) as raw:
        assert xids(decoded(raw.data(9), Style.BINARY)) == [first.xid, second.xid, third.xid]


def test_a_slot_in_csn_order_sends_by_csn_whole_and_starts_behind_the_confirmed_one() -> None:
    ledger = Ledger(first_csn=100)
    with GaussServer(ledger, product="GaussDB") as running:
        running.state.create_slot("c", "mppdb_decoding", "postgres", Exported("", 100, 0), SlotOrder.CSN)
        for csn in (100, 102, 101, 103):
            ledger.commit([insert(csn)], csn=csn)
        options = BATCHED | {"output-order": "1"}
        with open_raw(running, options, slot="c") as raw:
            frames = raw.data(4)
            assert [lsn for lsn, _ in frames] == [100, 101, 102, 103]
            for csn, frame in zip(range(100, 104), frames, strict=True):
                begin, row, commit = decoded([frame], Style.BINARY)
                assert isinstance(begin, Begin)
                assert isinstance(row, Row)
                assert isinstance(commit, Commit)
                assert begin.csn == csn
                assert row.new is not None
                assert row.new[0].value == str(csn)
            raw.reply(101)
            wait_until(lambda: running.state.slots.get("c").confirmed == 101)
        running.restart()
        with open_raw(running, options, slot="c") as raw:
            assert [lsn for lsn, _ in raw.data(2)] == [102, 103]


@pytest.mark.parametrize("style", "btj")
@pytest.mark.parametrize("cuts", [(1,), (2,), (3, 1, 4)])
def test_messages_are_cut_at_any_record(ledger: Ledger, style: str, cuts: tuple[int, ...]) -> None:
    with GaussServer(ledger, faults=Faults(cuts=cuts)) as running:
        running.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
        for number in range(6):
            ledger.commit([insert(number), insert(-number)])
        with open_raw(running, BATCHED | {"decode-style": style}) as raw:
            sizes = []
            while sum(sizes) < 24:
                (frame,) = raw.data(1)
                sizes.append(len(decoded([frame], Style(style), batch=True)))
        assert sizes == [cuts[at % len(cuts)] for at in range(len(sizes))]


def test_a_batch_that_waits_is_sent_by_the_timer_with_its_ending(server: GaussServer, ledger: Ledger) -> None:
    with open_raw(server, BATCHED) as raw:
        raw.keepalive()
        first = ledger.commit([insert(1)])
        ledger.commit([insert(2)])
        ((lsn, payload),) = raw.data(1)
    assert lsn == first.commit_start
    assert payload.endswith(b"P\0\0\0\0")
    assert len(decoded([(lsn, payload)], Style.BINARY, batch=True)) == 6


def test_keepalives_have_the_familys_image_and_zero_first_in_parallel(server: GaussServer, ledger: Ledger) -> None:
    server.state.keepalive_every = 0.05
    ledger.commit([])
    with open_raw(server) as raw:
        assert raw.keepalive() == (0, 1, 1, False, False)
        assert raw.keepalive() == (ledger.end_lsn, 1, 1, False, False)
        raw.data(2)
        end = ledger.allot(800) + 800
        found = raw.keepalive()
        while found[0] != end:  # the reader's position moves without a transaction
            found = raw.keepalive()
        raw.reply(0, wanted=True)
        assert raw.keepalive()[0] == end
    server.state.create_slot("ser", "mppdb_decoding", "postgres", Exported("", 0, 0x1FFFFF0))
    with open_raw(server, {}, slot="ser") as raw:
        assert raw.keepalive() == (0x1FFFFF0, 1, 1, False, True)
        assert raw.data(1)[0][1] == b"BEGIN 14000"


@pytest.mark.parametrize("version", ["6.0.2", "3.0.0"])
def test_silence_is_asked_about_at_half_the_timeout_and_ends_the_stream_at_the_whole(
    version: str, ledger: Ledger
) -> None:
    with GaussServer(ledger, version=version) as running:
        running.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
        with open_raw(running, PARALLEL | {"sender-timeout": "600"}) as raw:
            while not raw.keepalive()[3]:
                pass
            raw.reply(1)
            while not raw.keepalive()[3]:
                pass
            tail = [message for message in raw.rest() if message[0] != "d"]
        if version == "3.0.0":
            assert fields(tail[0][1])["C"] == "42809"
        else:
            assert tail == []


def test_a_reply_of_postgresqls_length_ends_the_stream_with_an_error(server: GaussServer) -> None:
    with open_raw(server) as raw:
        raw.say("d", b"r" + bytes(33))
        said = next(fields(body) for letter, body in raw.rest() if letter == "E")
        assert (said["C"], said["M"]) == ("08P01", "insufficient data left in message")
    with open_raw(server) as raw:
        raw.say("c")
        assert [letter for letter, _ in raw.rest() if letter != "d"] == []


FORMS = [(False, b""), (False, b"0"), (False, b"\0"), (False, b"\0\0\0\0"), (True, b"\0\0\0\0")]


@pytest.mark.parametrize(("style", "batch"), [(s, b) for s in "btj" for b in "01"])
@pytest.mark.parametrize(("framed", "end"), FORMS)
def test_heartbeats_come_in_every_framing_also_inside_a_transaction(
    ledger: Ledger, style: str, batch: str, framed: bool, end: bytes
) -> None:
    with GaussServer(ledger, product="GaussDB", faults=Faults(heartbeat=True, cuts=(1,))) as running:
        running.state.heartbeat_form = HeartbeatForm(framed, end)
        running.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
        ledger.commit([insert(1)])
        options = PARALLEL | {"decode-style": style, "sending-batch": batch, "enable-heartbeat": "on"}
        with open_raw(running, options) as raw:
            found = decoded(raw.data(6), Style(style), batch=batch == "1")
    assert [type(record) for record in found] == [Heartbeat, Begin, Heartbeat, Row, Heartbeat, Commit]
    if style == "b":
        assert found[0].read == ledger.end_lsn


def test_filtered_transactions_are_empty_pairs_or_nothing(server: GaussServer, ledger: Ledger) -> None:
    changes = {
        "ours": {},
        "other table": {"changes": [insert(1, OTHER)]},
        "other database": {"database": "elsewhere"},
        "other origin": {"origin_id": 3},
        "no change": {"changes": []},
    }
    made = {what: ledger.commit(**({"changes": [insert(1)]} | given)) for what, given in changes.items()}
    listed = {"white-table-list": "public.t"}

    def shape(options: dict[str, str], slot_options: dict[str, str]) -> dict[str, int]:
        ledger.commit([insert(99)])  # the last one: it marks the end
        opened, found = open_stream(server, options | slot_options), []
        style = Style(options["decode-style"]) if options else Style.SERIAL
        while not any(isinstance(r, Row) and r.new and r.new[0].value == "99" for r in found):
            found += decoded([(lsn, bytes(p)) for lsn, p in opened.poll(60)], style)
        opened.close()
        rows: dict[int | None, int] = {}
        xid = None
        for record in found:
            if isinstance(record, Begin):
                xid = record.xid
                rows[xid] = 0
            elif isinstance(record, Row):
                rows[xid] += 1
        return {what: rows[t.xid] for what, t in made.items() if t.xid in rows}

    empty = dict.fromkeys(("other table", "other database", "other origin", "no change"), 0)
    assert shape(PARALLEL, listed) == {"ours": 1} | empty
    assert shape(PARALLEL, listed | SKIP) == {"ours": 1}
    assert shape(PARALLEL, {"only-local": "off"}) == {"ours": 1} | empty | {"other table": 1, "other origin": 1}
    assert shape({}, listed) == {"ours": 1, "other table": 0, "no change": 0}
    assert shape({}, listed | SKIP) == {"ours": 1, "other table": 0}  # what only the list removes still counts


def trap_changes() -> list[Row | Truncated | Ddl]:
    keyless = Row(Operation.DELETE, TABLE)
    return [insert(1), keyless, delete(2), Truncated((TABLE,)), insert(3), Ddl("deparse", "Simple", ""), insert(4)]


PRINTED = {
    ("6.0.2", "parallel"): ["INSERT", "DELETE", "DELETE id v"],
    ("5.0.3", "parallel"): ["INSERT", "DELETE", "DELETE id v"],
    ("3.0.0", "parallel"): ["INSERT", "DELETE id"],
    ("6.0.2", "serial"): ["INSERT", "DELETE", "DELETE id v", "TRUNCATE", "INSERT", "INSERT"],
    ("5.0.3", "serial"): ["INSERT", "DELETE", "DELETE id v"],
    ("3.0.0", "serial"): ["INSERT", "DELETE", "DELETE id"],
}


@pytest.mark.parametrize(("version", "mode"), PRINTED)
def test_each_version_prints_and_drops_what_the_real_one_did(version: str, mode: str, ledger: Ledger) -> None:
    def word(record: Record) -> str:
        if isinstance(record, Truncated):
            return "TRUNCATE"
        assert isinstance(record, Row)
        names = [f.name for f in record.old or ()]
        return " ".join([record.operation.name, *names])

    with GaussServer(ledger, version=version) as running:
        running.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
        ledger.commit(trap_changes())
        with open_raw(running, PARALLEL if mode == "parallel" else {}) as raw:
            style = Style.BINARY if mode == "parallel" else Style.SERIAL
            found = decoded(raw.data(2 + len(PRINTED[version, mode])), style)
        assert isinstance(found[-1], Commit)
        assert [word(record) for record in found[1:-1]] == PRINTED[version, mode]


def test_ddl_is_a_line_of_serial_decoding_only(server: GaussServer, ledger: Ledger) -> None:
    ddl = Ddl("deparse", "Simple", '{"a": 1}\ndecode to: CREATE TABLE t (), [owner rep]', 18466)
    ledger.commit([ddl])
    with open_raw(server, {}) as raw:
        found = decoded(raw.data(3), Style.SERIAL)
    assert isinstance(found[1], Ddl)
    assert (found[1].command, found[1].content, found[1].relation_id) == (ddl.command, ddl.content, ddl.relation_id)


def test_3_0_without_a_style_prints_rows_as_text_and_garbage_for_lsns(ledger: Ledger) -> None:
    with GaussServer(ledger, version="3.0.0") as running:
        running.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
        first = ledger.commit([insert(1)])
        for _ in range(4):
            ledger.commit([])
        with open_raw(running, {"parallel-decode-num": "2"}) as raw:
            frames = raw.data(11)
        assert [lsn for lsn, _ in frames[:3]] == [first.commit_start] * 3
        assert frames[1][1] == b"table public t INSERT: id[integer]:1 v[text]:'v1'F"
        begins = [r for r in decoded([frames[0], *frames[3:]], Style.BINARY) if isinstance(r, Begin)]
        assert 0x6D6F6320656C6269 in [begin.first_lsn for begin in begins]


def test_a_cut_comes_after_exactly_so_many_bytes_and_the_rest_after_reconnecting(
    server: GaussServer, ledger: Ledger
) -> None:
    for number in range(50):
        ledger.commit([insert(number)])
    for after in (1, 66, 67, 500, 1009):
        server.inject(Faults(cut_after=after))
        with open_raw(server) as raw:
            data = b""
            while more := raw.socket.recv(65536):
                data += more
        assert len(data) == after
    with open_raw(server) as raw:
        assert len(raw.data(150)) == 150


def test_resets_stalls_garbage_and_single_bytes_reach_the_client(server: GaussServer, ledger: Ledger) -> None:
    for number in range(20):
        ledger.commit([insert(number)])
    server.inject(
        Faults(reset_after=1000),
        Faults(garbage_after=76, garbage=b"\xff" * 9),
        Faults(single_bytes=700, stall_after=400, stall_seconds=0.1),
    )
    with pytest.raises(ServerUnreachable):
        served(open_stream(server), 10**6)
    with pytest.raises((StreamProtocol, ServerUnreachable)):
        served(open_stream(server), 10**6)
    with open_raw(server) as raw:
        assert len(raw.data(60)) == 60


def test_a_parallel_reader_can_be_ahead_of_what_is_sent(server: GaussServer, ledger: Ledger) -> None:
    server.state.keepalive_every = 0.02
    for number in range(3):
        ledger.commit([insert(number)])
    server.inject(Faults(hold_last=2, keepalive_ahead=1000))
    with open_raw(server) as raw:
        assert xids(decoded(raw.data(3), Style.BINARY)) == [ledger[0].xid]
        assert raw.keepalive()[0] == ledger.end_lsn + 1000  # beyond two transactions that were not sent
        server.release()
        assert xids(decoded(raw.data(6), Style.BINARY)) == [ledger[1].xid, ledger[2].xid]


def test_a_keepalive_of_serial_decoding_never_names_more_than_was_sent(server: GaussServer, ledger: Ledger) -> None:
    wide = Row(Operation.INSERT, TABLE, (Field("v", "x" * 1_000_000, "text", 25),))
    made = [ledger.commit([wide]) for _ in range(40)]
    with open_raw(server, {}) as raw:
        raw.reply(0, wanted=True)
        sent = 0
        while sent < made[-1].commit_end:
            message = raw.read()
            assert message is not None
            if message[1][:1] == b"w":
                lsn = struct.unpack_from(">Q", message[1], 1)[0]
                sent = lsn if message[1][25:31] == b"COMMIT" else sent
            else:
                named = struct.unpack_from("<Q", message[1], 1)[0]
                unsent = next((t.commit_start for t in made if t.commit_end > sent), named)
                assert named <= unsent
            raw.reply(0, wanted=True)


def test_one_stream_a_slot_and_a_cut_one_may_linger(server: GaussServer) -> None:
    server.state.lingering = 1.5
    with open_raw(server):
        wait_until(lambda: server.state.slots.all()[0][1] is not None)
    with Raw(server, replication=True) as second:
        second.until()
        letter, body = second.stream("s", quoted(PARALLEL))
        assert (letter, fields(body)["C"]) == ("E", "55006")
    assert server.state.slots.all()[0][1] is not None
    open_raw(server).close()


def test_a_client_that_does_not_read_stops_the_stream_and_is_still_heard(server: GaussServer, ledger: Ledger) -> None:
    wide = Row(Operation.INSERT, TABLE, (Field("v", "x" * 1_000_000, "text", 25),))
    for _ in range(40):
        ledger.commit([wide])
    with open_raw(server) as raw:
        raw.reply(ledger[3].commit_end, wanted=True)
        wait_until(lambda: server.state.slots.get("s").confirmed == ledger[3].commit_end)
        assert len(raw.data(120)) == 120  # what was asked for came between messages, not in one
        assert raw.keepalive()[0] == ledger.end_lsn


@pytest.mark.parametrize("style", ["b", "t", "j", "serial"])
def test_a_database_in_gbk_is_streamed_in_gbk(ledger: Ledger, style: str) -> None:
    table = TableName("公", "表")
    row = Row(Operation.INSERT, table, (Field("编", "誠\\'", "text", 25),))
    options = {} if style == "serial" else PARALLEL | {"decode-style": style}
    with GaussServer(ledger, encoding="GBK") as running:
        running.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
        ledger.commit([row])
        with open_raw(running, options) as raw:
            (lsn, payload) = raw.data(2)[1]
    assert "誠".encode("gbk")[:1] in payload
    (found,) = records(payload, Style(style), batch=False, codec=Codec("GBK"), header_lsn=lsn)
    assert isinstance(found, Row)
    assert found.table == table
    assert [(f.name, f.value) for f in found.new or ()] == [("编", "誠\\'")]


def test_prepared_transactions_are_sent_from_their_bytes(ledger: Ledger) -> None:
    source = Ledger()
    made = [source.commit([insert(n) for n in range(50)], time_us=0) for _ in range(30)]
    with GaussServer(ledger) as running:
        running.state.batch_seconds = 0.1
        running.state.create_slot("s", "mppdb_decoding", "postgres", POINT)
        size = running.prepare(made, list(BATCHED.items()))
        assert size > 30 * 50 * 50
        assert all(not transaction.changes for transaction in ledger.since(0))
        with open_raw(running, BATCHED) as raw:
            found = decoded(raw.data(1), Style.BINARY, batch=True)
    assert sum(isinstance(record, Row) for record in found) == 1500


def test_a_ledger_refuses_what_does_not_fit_behind_the_others(ledger: Ledger) -> None:
    first = ledger.commit([])
    with pytest.raises(ValueError, match="stands behind"):
        ledger.append(first)
    with pytest.raises(ValueError, match="is none"):
        ledger.append(LedgerTransaction(1, 1, 1, 0x3000000, 0x3000000, 0))
    assert not ledger.wait(1, 0.01)
    assert struct.calcsize("<cQiiqBB6s") == 33
