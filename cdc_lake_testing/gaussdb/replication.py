"""Executes replication commands."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, assert_never

from cdc_lake_testing.gaussdb.commands import (
    AdvanceSlot,
    BadCommand,
    Command,
    CreateSlot,
    DropSlot,
    Identify,
    StartStream,
    lsn_text,
    parse,
)
from cdc_lake_testing.gaussdb.faults import Faults, FaultySender
from cdc_lake_testing.gaussdb.options import Refused, StreamOptions, parse_options
from cdc_lake_testing.gaussdb.shape import Plugin, View
from cdc_lake_testing.gaussdb.slots import Slot, SlotError, SlotOrder
from cdc_lake_testing.gaussdb.sql import Failed, ResultColumn, SqlAnswers, SqlSession
from cdc_lake_testing.gaussdb.state import ServerState
from cdc_lake_testing.gaussdb.stream import Ended, Stream
from cdc_lake_testing.gaussdb.wire import COPY_BOTH, Channel, complete, data_row, error, ready, row_description

PLUGINS: Final = frozenset(["mppdb_decoding", "test_decoding", "sql_decoding"])
VENDOR_PLUGINS: Final = frozenset(["parallel_binary_decoding", "parallel_json_decoding", "parallel_text_decoding"])
"""Plugins of GaussDB's documents alone."""


class Replication:
    """Executes the commands of one logical walsender."""

    def __init__(
        self,
        state: ServerState,
        answers: SqlAnswers,
        channel: Channel,
        session: SqlSession,
        faults: Callable[[], Faults],
        released: threading.Event,
        stopping: threading.Event,
    ) -> None:
        self._state = state
        self._answers = answers
        self._channel = channel
        self._session = session
        self._faults = faults
        self._released = released
        self._stopping = stopping

    def execute(self, sql: str) -> bool:
        """Run one command; False where the session is over: every error of a walsender ends it."""
        try:
            return self._run(parse(sql))
        except (BadCommand, SlotError, Refused) as refused:
            self._fail(refused.failed, "LOGICAL_DECODE" if isinstance(refused, Refused) else "BACKEND")
            return False

    def _run(self, command: Command) -> bool:
        match command:
            case Identify(what):
                self._identify(what)
            case CreateSlot():
                self._create(command)
            case DropSlot(name):
                self._state.slots.drop(name)
                self._channel.send(complete("DROP_REPLICATION_SLOT") + complete("SELECT") + self._ready())
            case AdvanceSlot(name, _, confirmed):
                confirmed = min(confirmed, self._state.ledger.end_lsn)
                if not confirmed:
                    words = "invalid target wal lsn while advancing logical replication restart lsn."
                    raise SlotError(Failed("22023", words, severity="FATAL"))
                self._state.slots.get(name)
                self._state.slots.confirm(name, confirmed)
                self._row({"slot_name": name, "confirmed_flush": lsn_text(confirmed)})
            case StartStream():
                self._start(command)
                return False
            case _:
                assert_never(command)
        return True

    def _ready(self) -> bytes:
        return ready(self._session.status)

    def _fail(self, failed: Failed, where: str = "BACKEND", extra: tuple[tuple[bytes, str], ...] = ()) -> None:
        self._channel.send(error(failed, where=where, extra=extra) + self._ready())

    def _row(self, row: dict[str, str | None], oids: dict[str, int] | None = None) -> None:
        sizes = {23: 4}
        columns = [ResultColumn(n, (oids or {}).get(n, 25), sizes.get((oids or {}).get(n, 25), -1)) for n in row]
        answer = row_description(columns) + data_row(list(row.values())) + complete("SELECT")
        self._channel.send(answer + self._ready())

    def _identify(self, what: str) -> None:
        if what == "IDENTIFY_VERSION":
            self._row({"sversion": "90204", "pversion": "MPPDB", "term": "1"}, {"sversion": 23, "term": 23})
        elif what == "IDENTIFY_MODE":
            self._row({"smode": "3" if self._state.in_recovery else "1"}, {"smode": 23})
        else:
            position = lsn_text(self._state.ledger.end_lsn)
            row = {
                "systemid": self._state.system,
                "timeline": str(self._state.timeline),
                "xlogpos": position,
                "dbname": self._session.database,
            }
            self._row(dict(row), {"timeline": 23})

    def _create(self, command: CreateSlot) -> None:
        state, session = self._state, self._session
        known = PLUGINS | VENDOR_PLUGINS if state.product == "GaussDB" else PLUGINS
        if state.in_recovery:
            raise SlotError(Failed("0A000", "Standby mode doesn't support create logical slot", severity="FATAL"))
        if command.use_snapshot and session.status != "T":
            words = "CREATE_REPLICATION_SLOT ... USE_SNAPSHOT must be called inside a transaction"
            raise SlotError(Failed("42809", words, severity="FATAL"))
        if command.plugin not in known:
            words = f'could not access file "{command.plugin}": No such file or directory'
            raise SlotError(Failed("58P01", words, severity="FATAL"))
        if any(slot.name == command.name for slot, _ in state.slots.all()):
            raise SlotError(Failed("42710", f'replication slot "{command.name}" already exists', severity="FATAL"))
        exported = self._answers.export(session, use=command.use_snapshot)
        slot = state.create_slot(command.name, command.plugin, session.database, exported)
        row: dict[str, str | None] = {
            "slot_name": slot.name,
            "consistent_point": lsn_text(exported.consistent_point),
            "snapshot_name": None if command.use_snapshot else exported.name,
            "output_plugin": command.plugin,
        }
        if command.use_snapshot:
            row["snapshot_csn"] = str(exported.csn)
        self._row(row)

    def _start(self, command: StartStream) -> None:
        state, session = self._state, self._session
        slot = state.slots.acquire(command.slot, session.pid)
        try:
            options = self._open(slot, command)
            if options is None:
                return
            self._stream(slot, command.start, options)
        except Ended as ended:
            if ended.failed is not None:
                self._fail(ended.failed)
        except OSError:
            self._stopping.wait(state.lingering)
            raise
        finally:
            state.slots.release(command.slot, session.pid)

    def _stream(self, slot: Slot, start: int, options: StreamOptions) -> None:
        state = self._state
        if options.parallel > 1 and not state.dispatchers.acquire(blocking=False):
            raise SlotError(Failed("XX000", "can't create logical decode dispatcher", severity="FATAL"))
        try:
            self._channel.send(COPY_BOTH)
            faults = self._faults()
            sender = FaultySender(self._channel, self._channel.socket, faults)
            plugin: Plugin = "test_decoding" if slot.plugin == "test_decoding" else "mppdb_decoding"
            view = View(self._session.database, plugin, options, state.dialect)
            Stream(state, self._channel, sender, slot, start, view, faults, self._released, self._stopping).run()
        finally:
            if options.parallel > 1:
                state.dispatchers.release()

    def _open(self, slot: Slot, command: StartStream) -> StreamOptions | None:
        """The options, their mistakes found in the server's order; None where the stream is over already."""
        foreign = slot.database != self._session.database
        try:
            options = parse_options(command.options, self._state.dialect)
        except Refused as refused:
            if not refused.in_stream:
                raise
            self._channel.send(COPY_BOTH)
            if foreign:
                self._foreign(slot)
                return None
            where = f'slot "{slot.name}", output plugin "{slot.plugin}", in the startup callback'
            self._fail(refused.failed, "LOGICAL_DECODE", ((b"W", where),))
            return None
        self._check_place(slot, options)
        self._check_order(slot, options)
        if foreign:
            self._channel.send(COPY_BOTH)
            self._foreign(slot)
            return None
        return options

    def _check_place(self, slot: Slot, options: StreamOptions) -> None:
        state = self._state
        if options.standby and not state.in_recovery:
            raise SlotError(Failed("XX000", "walsender closed because of role is primary.", severity="FATAL"))
        if slot.restart_lsn < state.wal_start:
            segment = f"{1:08X}{slot.restart_lsn >> 32:08X}{slot.restart_lsn >> 24 & 0xFF:08X}"
            words = f"requested WAL segment {segment} has already been removed"
            raise SlotError(Failed("58P01", words, severity="FATAL"))

    def _check_order(self, slot: Slot, options: StreamOptions) -> None:
        """The order of the slot, and the options of distributed decoding; a coordinator always sends by CSN."""
        node = self._state.node
        by_csn = node == "coordinator" or bool(options.output_order)
        if (slot.order is SlotOrder.CSN) is not by_csn:
            words = f'output-order {options.output_order or 0} does not fit the order of slot "{slot.name}"'
            raise SlotError(Failed("22023", words, severity="FATAL"))
        for name, given, place in (
            ("logical-receiver-num", options.receivers, "coordinator"),
            ("slice-id", options.slice_id, "data_node"),
        ):
            if given is not None and (not by_csn or node not in {place, "single"}):
                raise SlotError(Failed("22023", f'option "{name}" cannot be used here', severity="FATAL"))

    def _foreign(self, slot: Slot) -> None:
        words = f'replication slot "{slot.name}" was not created in this database'
        self._fail(Failed("55000", words, severity="FATAL"), "LOGICAL_DECODE")
