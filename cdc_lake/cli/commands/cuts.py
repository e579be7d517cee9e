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
    from cdc_lake.runtime.cut_retention import CutLine, CutList, CutTable, CutView, Promised, PromiseLine

cuts_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Cuts: positions at which all silver tables can be read together."
)

_LONGEST = timedelta(days=36_500)
_AS_OF = "`latest`, a position as printed, a time with its time zone, or the name of a promise."


@verb(cuts_app, "list", document="cuts-list")
def cuts_list(
    call: Call,
    limit: Annotated[int, Option("--limit", min=1, help="Maximum number of cuts to list, newest first.")] = 20,
    promised: Annotated[bool, Option("--promised", help="List only cuts that are promised to stay readable.")] = False,
) -> None:
    """List cuts, newest first: position, time, tables that lag behind, and how long each stays readable."""
    from cdc_lake.runtime.cut_retention import list_cuts

    cuts = list_cuts(call.project(), limit, promised=promised)
    call.view.result(cuts, list_text(cuts))


@verb(cuts_app, "show", document="cuts-show")
def cuts_show(
    call: Call, as_of: Annotated[str, Argument(metavar="[AS_OF]", help=_AS_OF)] = "latest", epoch: Epoch = None
) -> None:
    """Show one cut: the version, position and state of each table, and whether that version still exists."""
    from cdc_lake.model.position import as_of as parse
    from cdc_lake.runtime.cut_retention import show_cut

    cut = show_cut(call.project(), parse(as_of), epoch)
    call.view.result(cut, cut_text(cut))


@verb(cuts_app, "pin", document="cuts-promise", former="promise")
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
    from cdc_lake.runtime.cut_retention import end_promise, promise_cut

    project = call.project()
    if end:
        promised = end_promise(project, name, call.view.report)
    else:
        promised = promise_cut(project, name, parse(at), epoch, _duration(keep), call.view.report)
    call.view.result(promised, promised_text(promised))


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
    """One cut a line, the newest first."""
    if not cuts.cuts:
        return "no cuts yet: `cdc-lake run --once` creates one" if not cuts.total else "no cut is promised"
    rows: list[tuple[str, ...]] = [("epoch", "position", "committed", "tables", "stays readable")]
    rows += [_line(cut) for cut in cuts.cuts]
    more = cuts.total - len(cuts.cuts)
    return "\n".join([*table(rows, indent=""), *([f"… and {pluralize(more, 'older cut')}"] if more > 0 else [])])


def _line(cut: CutLine) -> tuple[str, ...]:
    tables = str(cut.tables)
    if cut.behind:
        tables += f", {len(cut.behind)} behind"
    if cut.held:
        tables += f", {pluralize(cut.held, 'key')} held"
    promises = _promises_text(cut.promises) or ", ".join(
        f"not as {withheld.name}: {withheld.reason}" for withheld in cut.withheld
    )
    return str(cut.epoch), cut.position, _timestamp(cut.commit_ts), tables, promises


def cut_text(cut: CutView) -> str:
    """The cut, then its tables."""
    head = f"{cut.position} of epoch {cut.epoch}, committed {_timestamp(cut.commit_ts)}"
    rows: list[tuple[str, ...]] = [("table", "silver", "format", "version", "position", "state")]
    rows += [_table(entry) for entry in cut.tables]
    promised = [f"stays readable as {_promises_text(cut.promises)}"] if cut.promises else []
    back = [f"not promised as {entry.name}: {entry.reason}" for entry in cut.withheld]
    return "\n".join([head, *promised, *back, *table(rows, indent="")])


def _table(cut_table: CutTable) -> tuple[str, ...]:
    version = "none yet" if cut_table.version is None else str(cut_table.version)
    state = cut_table.state if not cut_table.held else f"{cut_table.state}, {pluralize(cut_table.held, 'key')} held"
    if cut_table.version is not None and not cut_table.readable:
        state += ", its version is gone"
    return cut_table.source, cut_table.table, cut_table.format, version, cut_table.position, state


def promised_text(promised: Promised) -> str:
    """What stands now."""
    if promised.ended:
        return (
            f"the promise `{promised.name}` has ended; the next maintenance may remove the cut at {promised.position}"
        )
    until = "until the promise is ended" if promised.until is None else _until_text(promised.until)
    return f"the cut at {promised.position} stays readable as `{promised.name}` {until}"


def _promises_text(promises: Sequence[PromiseLine]) -> str:
    return ", ".join(f"{promise.name} ({_until_text(promise.until)})" for promise in promises)


def _until_text(time: datetime | None) -> str:
    return "no end" if time is None else f"until {_timestamp(time)}"


def _timestamp(time: datetime | None) -> str:
    return "before the stream" if time is None else time.astimezone(UTC).isoformat(timespec="seconds")
