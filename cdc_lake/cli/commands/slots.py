"""The commands of `slot`: list the server's replication slots; create, advance and drop the pipeline's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from cdc_lake.cli.command import Call, Wait, verb
from cdc_lake.cli.text import table, wrap_line
from cdc_lake.model.diagnostic import pluralize, size

if TYPE_CHECKING:
    from cdc_lake.connectors import base
    from cdc_lake.source.base import SlotCounters

slot_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Manage the replication slots of the source.")


@verb(slot_app, "list", document="slot-list")
def slot_list(call: Call) -> None:
    """List every slot on the server: its reader, its position, and how much WAL the server keeps for it."""
    from cdc_lake.ops.slots import list_slots

    call.show(list_slots(call.project()), list_text)


@verb(slot_app, "inspect", document="slot-inspect")
def slot_inspect(
    call: Call, name: Annotated[str | None, Argument(help="Name of the slot (default: the pipeline's own).")] = None
) -> None:
    """Show one slot in detail: its reader, its positions, what the server keeps for it, and the risks."""
    from cdc_lake.ops.slots import inspect_slot

    details = inspect_slot(call.project(), name)
    call.view.result(details, details_text(details, call.view.width))


@verb(slot_app, "create", document="slot-create")
def slot_create(call: Call) -> None:
    """Start the stream as a first run does (publication, slot, initial snapshot), without receiving changes."""
    from cdc_lake.ops.slots import create_slot

    call.show(create_slot(call.project(), report=call.view.report), made_text)


@verb(slot_app, "advance", document="slot-advance")
def slot_advance(
    call: Call,
    position: Annotated[
        str | None, Argument(help="Position, as printed: 0/16B3748, or a number (default: the last that bronze holds).")
    ] = None,
) -> None:
    """Let the server discard WAL that bronze already holds; never more than that."""
    from cdc_lake.model.position import parse_position
    from cdc_lake.ops.slots import advance_slot

    call.show(advance_slot(call.project(), None if position is None else parse_position(position)), advanced_text)


@verb(slot_app, "drop", document="slot-drop")
def slot_drop(
    call: Call,
    name: Annotated[str | None, Argument(help="Name of the slot (default: the pipeline's own).")] = None,
    yes: Annotated[bool, Option("--yes", help="Drop the slot; without it, only show what would be lost.")] = False,
    wait: Wait = 0.0,
) -> None:
    """Drop a slot, so that the server keeps no more WAL for it. Changes that it has not sent yet are lost."""
    from cdc_lake.ops.slots import drop_slot

    call.show(drop_slot(call.project(), name, yes=yes, wait=wait), dropped_text)


def details_text(details: base.SlotDetails, width: int) -> str:
    """The server's facts and the risks; each remedy is one line, so that it can be pasted."""
    owner = ", this pipeline's" if details.slot.own else ""
    lines = [
        f"slot `{details.slot.name}` of {details.source} ({details.server}){owner}",
        "",
        *table(list(_facts(details))),
        "",
    ]
    for threat in details.threats:
        lines += [*wrap_line("! ", threat.text, width), f"    → {threat.remedy}"]
    return "\n".join(lines if details.threats else [*lines, "no risks found"])


def _facts(details: base.SlotDetails) -> Iterator[tuple[str, str]]:
    slot = details.slot
    words = [slot.kind, slot.plugin, f"of database {slot.database}" if slot.database else None]
    yield "is", ", ".join([word for word in words if word] + (["temporary"] if slot.temporary else []))
    since = "" if details.inactive_since is None else f", since {details.inactive_since:%Y-%m-%dT%H:%M:%SZ}"
    yield "state", f"{slot.state}: {details.read_by or slot.reason}{'' if details.read_by else since}"
    yield "confirmed", f"{slot.confirmed or '-'}, in {details.order.upper()} order"
    if details.bronze is not None:
        yield "bronze", _bronze(details.bronze, details.order)
    retained = "" if slot.retained_bytes is None else f": {size(slot.retained_bytes)} of log"
    yield "kept", f"from {details.restart or '-'} to {details.log_end}{retained}"
    if details.wal_status is not None:
        safe = "" if slot.safe_bytes is None else f"; {size(slot.safe_bytes)} more before it is in danger"
        yield "log", f"{details.wal_status}{safe}"
    if details.invalidation is not None:
        yield "given up", details.invalidation
    if details.conflicting:
        yield "conflict", "with recovery on this standby"
    if details.catalog_xmin is not None:
        age = "" if details.catalog_age is None else f", {pluralize(details.catalog_age, 'transaction')} ago"
        yield "catalogs", f"as of transaction {details.catalog_xmin}{age}"
    if slot.failover is not None:
        has = "have it after a failover" if slot.failover else "do not have it"
        yield "standbys", f"{has}; it is a copy of the primary's" if details.synced else has
    if details.two_phase is not None:
        since_text = "" if details.two_phase_at is None else f", since {details.two_phase_at}"
        yield "prepared", f"sent at PREPARE{since_text}" if details.two_phase else "sent at COMMIT PREPARED"
    if details.counters is not None:
        yield "decoded", _counters_text(details.counters)


def _bronze(bronze: base.BesideBronze, order: str) -> str:
    text = f"holds everything up to {bronze.landed}"
    if bronze.unconfirmed is None:
        return text
    far = size(abs(bronze.unconfirmed)) if order == "lsn" else pluralize(abs(bronze.unconfirmed), "commit number")
    if bronze.unconfirmed < 0:
        return f"{text}: the slot is {far} ahead"
    return (
        f"{text}: {far} can still be acknowledged" if bronze.unconfirmed else f"{text}, and all of it is acknowledged"
    )


def _counters_text(counters: SlotCounters) -> str:
    pairs = (
        ("", counters.total_transactions, counters.total_bytes),
        ("spilled ", counters.spilled_transactions, counters.spilled_bytes),
        ("streamed ", counters.streamed_transactions, counters.streamed_bytes),
    )
    texts = "; ".join(f"{word}{pluralize(many, 'transaction')}, {size(much)}" for word, many, much in pairs)
    return f"{texts}; {counters.counted_since}"


_NUMBERS = frozenset({5, 6})  # columns


def list_text(listing: base.SlotList) -> str:
    """Every slot with its state; `*` is the pipeline's own."""
    if not listing.slots:
        return f"{listing.source} has no slots"
    heads = ("", "slot", "plugin", "database", "confirmed", "WAL kept", "still safe", "state")
    lines = table([heads, *map(_row, listing.slots)], right=_NUMBERS, indent="")
    has_own = any(slot.own for slot in listing.slots)
    return "\n".join([*lines, "", "* this pipeline's slot" if has_own else "none of them is this pipeline's slot"])


def _row(slot: base.SlotView) -> tuple[str, ...]:
    marks = [name for name, on in (("temporary", slot.temporary), ("failover", slot.failover)) if on]
    state = ", ".join([f"{slot.state}: {slot.reason}", *marks])
    plugin, database = slot.plugin or slot.kind, slot.database or "-"
    retained, safe = size(slot.retained_bytes), size(slot.safe_bytes)
    return "*" if slot.own else "", slot.name, plugin, database, slot.confirmed or "-", retained, safe, state


def made_text(created: base.SlotMade) -> str:
    """The result of `create`."""
    if not created.created:
        return f"slot `{created.slot}` already exists, and the stream can continue after {created.position}"
    copied = f", with a snapshot of {pluralize(created.rows, 'row')} as of then" if created.rows else ""
    return f"slot `{created.slot}` keeps changes after {created.position}{copied}: `cdc-lake run` receives them"


def advanced_text(result: base.SlotAdvanced) -> str:
    """The WAL released by `advance`."""
    if not result.bytes:
        return f"slot `{result.slot}` is already at {result.position}"
    return (
        f"slot `{result.slot}` advanced from {result.before} to {result.position}: "
        f"{size(result.bytes)} of WAL can be discarded"
    )


def dropped_text(result: base.SlotDropped) -> str:
    """What a drop loses, and whether it was done."""
    freed = f"; {size(result.freed_bytes)} of WAL can be discarded" if result.freed_bytes is not None else ""
    if result.done:
        return f"slot `{result.slot}` is dropped{freed}\nlost: {result.lost}"
    return f"slot `{result.slot}` would be dropped{freed}\nlost: {result.lost}\n\nnothing was done: add --yes to do it"
