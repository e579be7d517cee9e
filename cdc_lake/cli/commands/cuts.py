"""The commands of `cuts`: positions at which all silver tables can be read, and which of them are pinned."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from cdc_lake.cli.command import Call, Epoch, verb
from cdc_lake.cli.text import table
from cdc_lake.model.diagnostic import pluralize

if TYPE_CHECKING:
    from cdc_lake.runtime.cut_retention import CutLine, CutList, CutTable, CutView, CutViews, PinLine, PinResult

cuts_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Cuts: positions at which all silver tables can be read together."
)

_LONGEST = timedelta(days=36_500)
_AS_OF = "`latest`, a position as printed, a time with its time zone, or the name of a pinned cut."


@verb(cuts_app, "list", document="cuts-list")
def cuts_list(
    call: Call,
    limit: Annotated[int, Option("--limit", min=1, help="Maximum number of cuts to list, newest first.")] = 20,
    pinned: Annotated[bool, Option("--pinned", help="List only pinned cuts, which stay readable.")] = False,
) -> None:
    """List cuts, newest first: position, time, tables that lag behind, and how long each stays readable."""
    from cdc_lake.runtime.cut_retention import list_cuts

    call.show(list_cuts(call.project(), limit, pinned=pinned), list_text)


@verb(cuts_app, "show", document="cuts-show")
def cuts_show(
    call: Call, as_of: Annotated[str, Argument(metavar="[AS_OF]", help=_AS_OF)] = "latest", epoch: Epoch = None
) -> None:
    """Show one cut: the version, position and state of each table, and whether that version still exists."""
    from cdc_lake.model.position import as_of as parse
    from cdc_lake.runtime.cut_retention import show_cut

    call.show(show_cut(call.project(), parse(as_of), epoch), cut_text)


@verb(cuts_app, "pin", document="cuts-pin")
def cuts_pin(
    call: Call,
    name: Annotated[str, Argument(help="Name to read the cut by: letters, digits, underscores.")],
    at: Annotated[str, Option("--at", metavar="AS_OF", help=_AS_OF)] = "latest",
    epoch: Epoch = None,
    keep: Annotated[
        str | None,
        Option(
            "--for",
            metavar="TIME",
            help="How long to keep the cut, for example 90d or 12h (default: until it is unpinned).",
        ),
    ] = None,
    end: Annotated[bool, Option("--end", help="Unpin the cut of this name.")] = False,
) -> None:
    """Pin a cut: keep it readable under a name, whatever maintenance removes; or unpin it."""
    from cdc_lake.model.position import as_of as parse
    from cdc_lake.runtime.cut_retention import pin_cut, unpin_cut

    project = call.project()
    if end:
        pinned = unpin_cut(project, name, call.view.report)
    else:
        pinned = pin_cut(project, name, parse(at), epoch, _duration(keep), call.view.report)
    call.show(pinned, pin_text)


@verb(cuts_app, "views", document="cuts-views")
def cuts_views(
    call: Call,
    name: Annotated[str, Argument(metavar="CUT", help="Name of a pinned cut.")],
    database: Annotated[
        str, Option("--database", metavar="NAME", help="Database of the Hive metastore, created if it does not exist.")
    ],
) -> None:
    """Create views of all tables as of a pinned cut, for every reader of the Hive metastore; or replace them."""
    from cdc_lake.runtime.cut_retention import create_views

    call.show(create_views(call.project(), name, database), views_text)


def _duration(text: str | None) -> timedelta | None:
    from cdc_lake.config.fields import parse_milliseconds

    if text is None:
        return None
    try:
        milliseconds = parse_milliseconds(text)
    except ValueError as bad:
        raise typer.BadParameter("expected a time with a unit, as 90d or 12h", param_hint="--for") from bad
    if milliseconds > _LONGEST.total_seconds() * 1000:
        raise typer.BadParameter("longer than a hundred years: leave the option out", param_hint="--for")
    return timedelta(milliseconds=milliseconds)


def list_text(cuts: CutList) -> str:
    """One cut per line, newest first."""
    if not cuts.cuts:
        return "no cuts yet: `cdc-lake run --once` creates one" if not cuts.total else "no cut is pinned"
    rows: list[tuple[str, ...]] = [("epoch", "position", "committed", "tables", "stays readable")]
    rows += [_line(cut) for cut in cuts.cuts]
    more = cuts.total - len(cuts.cuts)
    return "\n".join([*table(rows, indent=""), *([f"… and {pluralize(more, 'older cut')}"] if more > 0 else [])])


def _line(cut: CutLine) -> tuple[str, ...]:
    tables = str(cut.tables)
    if cut.behind:
        tables += f", {len(cut.behind)} behind"
    if cut.quarantined:
        tables += f", {pluralize(cut.quarantined, 'key')} held"
    pins = _pins_text(cut.pins) or ", ".join(f"not as {withheld.name}: {withheld.reason}" for withheld in cut.withheld)
    return str(cut.epoch), cut.position, _timestamp(cut.commit_ts), tables, pins


def cut_text(cut: CutView) -> str:
    """The cut, then its tables."""
    head = f"{cut.position} of epoch {cut.epoch}, committed {_timestamp(cut.commit_ts)}"
    rows: list[tuple[str, ...]] = [("table", "silver", "format", "version", "position", "state")]
    rows += [_table(entry) for entry in cut.tables]
    pinned = [f"stays readable as {_pins_text(cut.pins)}"] if cut.pins else []
    back = [f"not pinned as {entry.name}: {entry.reason}" for entry in cut.withheld]
    return "\n".join([head, *pinned, *back, *table(rows, indent="")])


def _table(cut_table: CutTable) -> tuple[str, ...]:
    version = "none yet" if cut_table.version is None else str(cut_table.version)
    state = cut_table.state
    if cut_table.quarantined:
        state += f", {pluralize(cut_table.quarantined, 'key')} held"
    if cut_table.version is not None and not cut_table.readable:
        state += ", its version is gone"
    return cut_table.source, cut_table.table, cut_table.format, version, cut_table.position, state


def pin_text(pinned: PinResult) -> str:
    """The current state of a pin."""
    if pinned.ended:
        return f"`{pinned.name}` is no longer pinned; the next maintenance may remove the cut at {pinned.position}"
    until = "until it is unpinned" if pinned.until is None else _until_text(pinned.until)
    return f"the cut at {pinned.position} stays readable as `{pinned.name}` {until}"


def views_text(views: CutViews) -> str:
    """What the views show, and until when."""
    until = "" if views.until is None else f" {_until_text(views.until)}"
    return "\n".join([f"views of the cut at {views.position}, which stays readable{until}:", *views.views])


def _pins_text(pins: Sequence[PinLine]) -> str:
    return ", ".join(f"{pin.name} ({_until_text(pin.until)})" for pin in pins)


def _until_text(time: datetime | None) -> str:
    return "no end" if time is None else f"until {_timestamp(time)}"


def _timestamp(time: datetime | None) -> str:
    return "before the stream" if time is None else time.astimezone(UTC).isoformat(timespec="seconds")
