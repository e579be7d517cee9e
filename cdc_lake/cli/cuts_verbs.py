"""The verbs of `cuts`: which positions all silver tables can be read at, and which of them stay."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from cdc_lake.cli.verb import Call, verb

cuts_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Cuts: the positions at which all silver tables can be read."
)

Epoch = Annotated[int | None, typer.Option("--epoch", min=1, help="Of which stream; by default of the newest.")]
_LONGEST = timedelta(days=36_500)
_AS_OF = "`latest`, a position as printed, a time with its zone, or the name of a promise."


@verb(cuts_app, "list", document="cuts-list")
def cuts_list(
    call: Call,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many to list, from the newest on.")] = 20,
    promised: Annotated[bool, typer.Option("--promised", help="Only those that stay readable.")] = False,
) -> None:
    """The cuts, the newest first: position, time, tables that are behind, and which stay readable until when."""
    from cdc_lake.cli.render_cuts import list_text
    from cdc_lake.pipeline.judging.cut_list import list_cuts

    found = list_cuts(call.project(), limit, promised=promised)
    call.view.result(found, list_text(found))


@verb(cuts_app, "show", document="cuts-show")
def cuts_show(
    call: Call, as_of: Annotated[str, typer.Argument(metavar="[AS_OF]", help=_AS_OF)] = "latest", epoch: Epoch = None
) -> None:
    """One cut: the version, position and state of each table, and whether the version is there."""
    from cdc_lake.cli.render_cuts import cut_text
    from cdc_lake.model.as_of import as_of as parse
    from cdc_lake.pipeline.judging.cut_list import show_cut

    found = show_cut(call.project(), parse(as_of), epoch)
    call.view.result(found, cut_text(found))


@verb(cuts_app, "promise", document="cuts-promise")
def cuts_promise(
    call: Call,
    name: Annotated[str, typer.Argument(help="Name to read it by: letters, digits, underscores.")],
    at: Annotated[str, typer.Option("--at", metavar="AS_OF", help=_AS_OF)] = "latest",
    epoch: Epoch = None,
    keep: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long, as 90d or 12h; by default until it is ended.")
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="End the promise of that name.")] = False,
) -> None:
    """Keep a cut readable under a name, whatever upkeep removes; or end that."""
    from cdc_lake.cli.render_cuts import promised_text
    from cdc_lake.model.as_of import as_of as parse
    from cdc_lake.pipeline.judging.promising import end_promise, promise_cut

    project = call.project()
    if end:
        done = end_promise(project, name, call.view.tell)
    else:
        done = promise_cut(project, name, parse(at), epoch, _time(keep), call.view.tell)
    call.view.result(done, promised_text(done))


def _time(text: str | None) -> timedelta | None:
    from cdc_lake.config.quantity import parse_milliseconds

    if text is None:
        return None
    try:
        milliseconds = parse_milliseconds(text)
    except ValueError as bad:
        raise typer.BadParameter("expected a time with a unit, as 90d or 12h", param_hint="--for") from bad
    if milliseconds > _LONGEST.total_seconds() * 1000:
        raise typer.BadParameter("that is longer than a hundred years: leave it out", param_hint="--for")
    return timedelta(milliseconds=milliseconds)
