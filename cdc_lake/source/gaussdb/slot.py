"""Slots of the GaussDB family: creates, finds, validates, advances and drops them.

There are no temporary slots: every slot stays until it is dropped. GaussDB has a second kind, ordered by CSN, whose
confirmed position is a CSN in place of the LSN of an ordinary slot; only an SQL function can create it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cdc_lake.errors import SlotAhead, SlotInvalidated, SlotMissing, SlotNameInvalid, WrongOutputOrder
from cdc_lake.model.position import Lsn, OrderDomain, format_position
from cdc_lake.source.base import check_fits, dropped_when_free
from cdc_lake.source.gaussdb.wire.session import WireSession
from cdc_lake.source.sql_text import identifier, literal

_NAME = re.compile(r"[a-z0-9_?.-]{1,63}")


@dataclass(frozen=True, slots=True)
class GaussDbSlotFacts:
    """A slot in `pg_replication_slots`. `confirmed` is an LSN or a CSN, by `order`.

    The 3.0 servers do not show the confirmed position: `restart`, which is never higher, replaces it, and `exact` is
    False. Vacuum must keep catalog rows deleted since `catalog_xmin`.
    """

    name: str
    kind: str
    plugin: str | None
    database: str | None
    active: bool
    restart: Lsn | None
    confirmed: int | None
    order: OrderDomain
    exact: bool = True
    catalog_xmin: int | None = None


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """A new slot and its consistent point.

    Other sessions can import `snapshot` until the next command on the connection that created the slot; None if the SQL
    function created it.
    """

    name: str
    consistent: Lsn
    snapshot: str | None


def check_name(name: str) -> None:
    """Raise SlotNameInvalid for a text that the servers do not accept as a slot's name."""
    if _NAME.fullmatch(name) is None or name in {".", ".."} or name.startswith("gs_roach"):  # the backup tool's
        raise SlotNameInvalid(f"`{name}` is not a valid slot name")


def find_slot(session: WireSession, name: str) -> GaussDbSlotFacts | None:
    """The slot of a name. Raises SourceError."""
    sql = f"SELECT * FROM pg_replication_slots WHERE slot_name = {literal(name)}"  # columns differ by product
    records = session.query(sql, doing=f"looking up slot `{name}`").records()
    return _facts(records[0]) if records else None


def all_slots(session: WireSession) -> list[GaussDbSlotFacts]:
    """Every slot of the server, of all databases, including physical ones, by name. Raises SourceError."""
    records = session.query("SELECT * FROM pg_replication_slots", doing="listing the slots").records()
    return sorted(map(_facts, records), key=lambda slot: slot.name)


def _facts(row: Mapping[str, str | None]) -> GaussDbSlotFacts:
    csn, lsn = row.get("confirmed_csn"), row.get("confirmed_flush", row.get("restart_lsn"))
    order = OrderDomain.CSN if csn and int(csn) else OrderDomain.LSN
    confirmed = int(csn or 0) if order is OrderDomain.CSN else (Lsn.parse(lsn).value if lsn else None)
    restart = row.get("restart_lsn")
    return GaussDbSlotFacts(
        name=row.get("slot_name") or "",
        kind=row.get("slot_type") or "",
        plugin=row.get("plugin"),
        database=row.get("database"),
        active=row.get("active") == "t",
        restart=Lsn.parse(restart) if restart else None,
        confirmed=confirmed,
        order=order,
        exact=order is OrderDomain.CSN or "confirmed_flush" in row,
        catalog_xmin=int(xmin) if (xmin := row.get("catalog_xmin")) else None,
    )


def create_slot(replication: WireSession, name: str, plugin: str) -> CreatedSlot:
    """Create an ordinary slot on a replication connection; its consistent point waits for running transactions.

    Raises SlotForeign if the name is taken, PluginMissing, SlotNameInvalid and others.
    """
    check_name(name)
    command = f"CREATE_REPLICATION_SLOT {identifier(name)} LOGICAL {identifier(plugin)}"
    row = replication.query(command, doing=f"creating slot `{name}`").records()[0]
    return CreatedSlot(name, Lsn.parse(row["consistent_point"] or ""), row.get("snapshot_name"))


def create_slot_by_function(session: WireSession, name: str, plugin: str, order: OrderDomain | None) -> CreatedSlot:
    """Create a slot by the SQL function; `order` is GaussDB's, None if the server has no orders. Raises SourceError."""
    check_name(name)
    arguments = [literal(name), literal(plugin)]
    if order is not None:
        arguments.append("1" if order is OrderDomain.CSN else "0")
    sql = f"SELECT * FROM pg_create_logical_replication_slot({', '.join(arguments)})"
    row = session.query(sql, doing=f"creating slot `{name}`").rows[0]
    return CreatedSlot(name, Lsn.parse(row[1] or ""), None)


def drop_slot(session: WireSession, name: str) -> None:
    """Drop an unused slot: SlotActive until about a second after its reader's abrupt end."""
    session.query(f"SELECT pg_drop_replication_slot({literal(name)})", doing=f"dropping slot `{name}`")


def drop_slot_when_free(session: WireSession, name: str, patience: float) -> None:
    """The same, waiting up to `patience` seconds until it is unused. Raises SlotActive, SourceError."""
    dropped_when_free(lambda: drop_slot(session, name), patience)


def advance_slot(session: WireSession, name: str, upto: Lsn) -> Lsn:
    """Let an ordinary slot discard everything up to a position; returns its new position. Raises SourceError."""
    sql = f"SELECT * FROM pg_replication_slot_advance({literal(name)}, {literal(str(upto))})"
    return Lsn.parse(session.query(sql, doing=f"advancing slot `{name}`").rows[0][1] or "")


def check_slot(
    facts: GaussDbSlotFacts | None, name: str, plugin: str, database: str, held: int, order: OrderDomain
) -> GaussDbSlotFacts:
    """The slot, if a stream confirmed in bronze up to `held` can resume from it; otherwise raises the error that fits.

    `order` is the slot's, in which `held` is a position. Whether another process uses the slot is not checked here;
    starting the stream finds out.
    """
    here = format_position(held, order)
    if facts is None:
        raise SlotMissing(f"slot `{name}` does not exist; bronze contains changes up to {here}")
    check_fits(name, facts.kind, (facts.plugin, facts.database), (plugin, database))
    if facts.order is not order:
        text = f"slot `{name}` is ordered by {facts.order.name}, but the pipeline reads by {order.name}"
        raise WrongOutputOrder(text)
    if facts.confirmed is None:
        raise SlotInvalidated(f"slot `{name}` has no confirmed position; bronze contains changes up to {here}")
    if facts.confirmed > held:
        missing = facts.confirmed - held
        unit = "bytes" if order is OrderDomain.LSN else "commit numbers"
        # the server would silently move our start forward
        raise SlotAhead(
            f"{missing} {unit} are missing: slot `{name}` is confirmed up to "
            f"{format_position(facts.confirmed, order)}, but bronze ends at {here}"
        )
    return facts
