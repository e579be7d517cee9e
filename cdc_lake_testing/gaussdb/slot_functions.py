"""SQL functions of slots: create, drop, advance and read them, and take snapshots at a CSN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from cdc_lake_testing.gaussdb.backlog import Backlog
from cdc_lake_testing.gaussdb.batches import encode
from cdc_lake_testing.gaussdb.commands import lsn_text, parse_lsn
from cdc_lake_testing.gaussdb.encode import Print
from cdc_lake_testing.gaussdb.options import Refused, parse_options
from cdc_lake_testing.gaussdb.replication import PLUGINS, VENDOR_PLUGINS
from cdc_lake_testing.gaussdb.shape import Plugin, View
from cdc_lake_testing.gaussdb.slots import Slot, SlotError, SlotOrder
from cdc_lake_testing.gaussdb.sql import Exported, Failed, ResultColumn, SqlSession


@dataclass(frozen=True, slots=True)
class Table:
    """What a function or view brings."""

    columns: tuple[ResultColumn, ...]
    rows: list[tuple[str | None, ...]]


class Exporter(Protocol):
    """Takes snapshots: the part of SqlAnswers these functions need."""

    def export(self, session: SqlSession, *, use: bool) -> Exported:
        """See SqlAnswers."""


class FunctionError(Exception):
    """A call the server refuses; `failed` is its answer."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.failed = failed


T = TypeVar("T")
Arguments = Sequence[str | None]

_SLOTS: Final = (
    ("slot_name", 25),
    ("plugin", 25),
    ("slot_type", 25),
    ("datoid", 26),
    ("database", 19),
    ("active", 16),
    ("xmin", 28),
    ("catalog_xmin", 28),
    ("restart_lsn", 25),
    ("dummy_standby", 16),
    ("confirmed_flush", 25),
)


def columns(*pairs: tuple[str, int]) -> tuple[ResultColumn, ...]:
    """Result columns of names and type OIDs."""
    return tuple(ResultColumn(name, oid) for name, oid in pairs)


def slots_view(session: SqlSession) -> Table:
    """`pg_replication_slots`; 3.0 has no `confirmed_flush`, GaussDB has one of two, by the slot's order."""
    state = session.server
    vendor = state.product == "GaussDB"
    shown = _SLOTS[:-1] if state.version == "3.0.0" else _SLOTS
    rows: list[tuple[str | None, ...]] = []
    for slot, pid in state.slots.all():
        by_csn = slot.order is SlotOrder.CSN
        row: tuple[str | None, ...] = (
            slot.name,
            slot.plugin,
            "logical",
            str(state.database_oid(slot.database)),
            slot.database,
            "t" if pid is not None else "f",
            None,
            "14727",
            lsn_text(slot.restart_lsn),
            "f",
            None if by_csn else lsn_text(slot.confirmed),
        )
        row = row[: len(shown)]
        rows.append((*row, str(slot.confirmed) if by_csn else None) if vendor else row)
    return Table(columns(*shown, *([("confirmed_csn", 28)] if vendor else [])), rows)


def create_slot(arguments: Arguments, session: SqlSession, exporter: Exporter) -> Table:
    """`pg_create_logical_replication_slot`: two arguments, and for GaussDB the order as a third."""
    state = session.server
    vendor = state.product == "GaussDB"
    if len(arguments) != 2 and not (vendor and len(arguments) == 3):
        kinds = ", ".join("integer" if (a or "").isdigit() else "unknown" for a in arguments)
        hint = "No function matches the given name and argument types. You might need to add explicit type casts."
        words = f"function pg_create_logical_replication_slot({kinds}) does not exist"
        raise FunctionError(Failed("42883", words, hint=hint))
    name, plugin = arguments[0] or "", arguments[1] or ""
    if state.in_recovery:
        raise FunctionError(Failed("0A000", "Standby mode doesn't support create logical slot"))
    if plugin not in (PLUGINS | VENDOR_PLUGINS if vendor else PLUGINS):
        raise FunctionError(Failed("58P01", f'could not access file "{plugin}": No such file or directory'))
    order = SlotOrder.CSN if len(arguments) == 3 and arguments[2] == "1" else SlotOrder.LSN
    exported = exporter.export(session, use=False)
    _slot_call(lambda: state.create_slot(name, plugin, session.database, exported, order))
    point = lsn_text(exported.consistent_point)
    return Table(columns(("slotname", 25), ("xlog_position", 25)), [(name, point)])


def drop_slot(arguments: Arguments, session: SqlSession) -> Table:
    """`pg_drop_replication_slot`."""
    _slot_call(lambda: session.server.slots.drop(arguments[0] or ""))
    return Table(columns(("pg_drop_replication_slot", 2278)), [("",)])


def advance_slot(arguments: Arguments, session: SqlSession) -> Table:
    """`pg_replication_slot_advance`; NULL for the current end."""
    state = session.server
    if state.in_recovery:
        raise FunctionError(Failed("0A000", "couldn't advance in recovery"))
    name, upto = arguments[0] or "", arguments[1] if len(arguments) > 1 else None
    slot = _slot_call(lambda: state.slots.idle(name))
    if slot.order is SlotOrder.CSN:
        target = state.ledger.next_csn - 1 if upto is None else int(upto)
    else:
        end = state.ledger.end_lsn
        target = end if upto is None else min(parse_lsn(upto), end)
    state.slots.confirm(name, target)
    return Table(columns(("slot_name", 25), ("end_lsn", 25)), [(name, lsn_text(target))])


def read_changes(arguments: Arguments, session: SqlSession, *, consume: bool) -> Table:
    """`pg_logical_slot_peek_changes` and `_get_changes`: whole transactions, serially decoded."""
    state = session.server
    if consume and state.in_recovery:
        raise FunctionError(Failed("0A000", "couldn't advance in recovery"))
    name, upto, limit, *rest = arguments
    if len(rest) % 2:
        raise FunctionError(Failed("22023", "array must have even number of elements"))
    pairs = [(rest[i] or "", rest[i + 1]) for i in range(0, len(rest), 2)]
    pairs = [p for p in pairs if p[0] != "parallel-decode-num"]  # accepted here, and without effect
    slot = _slot_call(lambda: state.slots.get(name or ""))
    try:
        options = parse_options(pairs, state.dialect)
    except Refused as refused:
        raise FunctionError(Failed(refused.failed.sqlstate, refused.failed.message, "N/A")) from None
    plugin: Plugin = "test_decoding" if slot.plugin == "test_decoding" else "mppdb_decoding"
    view = View(session.database, plugin, options, state.dialect)
    last = parse_lsn(upto) if upto else None
    rows, confirmed = _decoded(slot, view, session, last, int(limit) if limit else None)
    if consume and confirmed:
        state.slots.confirm(slot.name, confirmed)
    return Table(columns(("location", 25), ("xid", 28), ("data", 25)), rows)


def export_with_csn(session: SqlSession, exporter: Exporter) -> Table:
    """`pg_export_snapshot_and_csn`: the CSN in hexadecimal."""
    if not session.server.csn_export:
        raise FunctionError(Failed("42883", "function pg_export_snapshot_and_csn() does not exist"))
    exported = exporter.export(session, use=False)
    return Table(columns(("snapshot", 25), ("csn", 25)), [(exported.name, f"{exported.csn:X}")])


def _decoded(
    slot: Slot, view: View, session: SqlSession, last: int | None, limit: int | None
) -> tuple[list[tuple[str | None, ...]], int]:
    state = session.server
    how = Print(view.options.style, state.codec, view.plugin)
    backlog = Backlog(state.ledger, slot.confirmed, slot.order, lambda: 0, at_start=True)
    rows: list[tuple[str | None, ...]] = []
    confirmed = 0
    while (limit is None or len(rows) < limit) and (found := backlog.next()) is not None:
        transaction = found[1]
        if last is not None and transaction.commit_start >= last:
            break
        confirmed = transaction.csn if slot.order is SlotOrder.CSN else transaction.commit_end
        encoded = encode(transaction, view, how)
        if encoded is None:
            continue
        start = 0
        for end, lsn in zip(encoded.ends, encoded.lsns, strict=True):
            line = encoded.data[start:end].decode(how.encoding)
            rows.append((lsn_text(lsn or transaction.first_lsn), str(transaction.xid), line))
            start = end
    return rows, confirmed


def _slot_call(call: Callable[[], T]) -> T:
    try:
        return call()
    except SlotError as refused:
        failed = refused.failed
        raise FunctionError(Failed(failed.sqlstate, failed.message, failed.detail, failed.hint)) from None
