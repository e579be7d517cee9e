"""One slot as text: its facts, a line each, then what they threaten, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.cli.render import size, table, wrapped
from cdc_lake.model.counting import counted
from cdc_lake.model.slot_counters import SlotCounters
from cdc_lake.pipeline.ports.slot_details import BesideBronze, SlotDetails


def details_text(found: SlotDetails, width: int) -> str:
    """The facts that the server has, and the threats; the remedy stays in one line, so that it can be pasted."""
    mine = ", this pipeline's" if found.slot.own else ""
    lines = [f"slot `{found.slot.name}` of {found.source} ({found.server}){mine}", "", *table(list(_facts(found)))]
    lines.append("")
    for threat in found.threats:
        lines += [*wrapped("! ", threat.text, width), f"    → {threat.remedy}"]
    return "\n".join(lines if found.threats else [*lines, "nothing threatens it, and it threatens nothing"])


def _facts(found: SlotDetails) -> Iterator[tuple[str, str]]:
    one = found.slot
    words = [one.kind, one.plugin, f"of database {one.database}" if one.database else None]
    yield "is", ", ".join([word for word in words if word] + (["temporary"] if one.temporary else []))
    since = "" if found.inactive_since is None else f", since {found.inactive_since:%Y-%m-%dT%H:%M:%SZ}"
    yield "state", f"{one.state}: {found.read_by or one.reason}{'' if found.read_by else since}"
    yield "confirmed", f"{one.confirmed or '-'}, in {found.order.upper()} order"
    if found.bronze is not None:
        yield "bronze", _bronze(found.bronze, found.order)
    kept = "" if one.retained_bytes is None else f": {size(one.retained_bytes)} of log"
    yield "kept", f"from {found.restart or '-'} to {found.log_end}{kept}"
    if found.wal_status is not None:
        safe = "" if one.safe_bytes is None else f"; {size(one.safe_bytes)} more before it is in danger"
        yield "log", f"{found.wal_status}{safe}"
    if found.invalidation is not None:
        yield "given up", found.invalidation
    if found.conflicting:
        yield "conflict", "with recovery on this standby"
    if found.catalog_xmin is not None:
        age = "" if found.catalog_age is None else f", {counted(found.catalog_age, 'transaction')} ago"
        yield "catalogs", f"as of transaction {found.catalog_xmin}{age}"
    if one.failover is not None:
        has = "have it after a failover" if one.failover else "do not have it"
        yield "standbys", f"{has}; it is a copy of the primary's" if found.synced else has
    if found.two_phase is not None:
        at = "" if found.two_phase_at is None else f", since {found.two_phase_at}"
        yield "prepared", f"sent at PREPARE{at}" if found.two_phase else "sent at COMMIT PREPARED"
    if found.counters is not None:
        yield "decoded", _counted(found.counters)


def _bronze(there: BesideBronze, order: str) -> str:
    text = f"has everything up to {there.landed}"
    if there.unconfirmed is None:
        return text
    far = size(abs(there.unconfirmed)) if order == "lsn" else counted(abs(there.unconfirmed), "commit number")
    if there.unconfirmed < 0:
        return f"{text}: the slot is {far} further"
    return f"{text}: {far} may be confirmed still" if there.unconfirmed else f"{text}, and all of it is confirmed"


def _counted(counters: SlotCounters) -> str:
    pairs = (
        ("", counters.total_transactions, counters.total_bytes),
        ("spilled ", counters.spilled_transactions, counters.spilled_bytes),
        ("streamed ", counters.streamed_transactions, counters.streamed_bytes),
    )
    told = "; ".join(f"{word}{counted(many, 'transaction')}, {size(much)}" for word, many, much in pairs)
    return f"{told}; {counters.counted_since}"
