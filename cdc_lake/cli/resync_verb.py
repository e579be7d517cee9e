"""The verb `resync`: tables copied again from the source."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc_lake.cli.verb import Call, verb


def register(app: typer.Typer) -> None:
    """Add the verb."""
    verb(app, "resync")(resync)


def resync(
    call: Call,
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="schema.table, or a table of `public`.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be copied, and change nothing.")] = False,
) -> None:
    """Copy tables again from the source while everything flows; silver takes the copy with the next run."""
    from cdc_lake.cli.interrupt import StopOnSignal
    from cdc_lake.cli.render_resync import resynced_text
    from cdc_lake.cli.verb import Interrupted
    from cdc_lake.pipeline.resync import resync as copy
    from cdc_lake.pipeline.stream.copying import Stopped

    project = call.project()
    with StopOnSignal(call.view.note) as stop:
        try:
            done = copy(project, tables, dry_run=dry_run, stop=stop.event, tell=call.view.tell)
        except Stopped as stopped:
            raise Interrupted from stopped
    call.view.result(done, resynced_text(done))
