"""The verbs that copy again from the source: `resync` some tables, `restart` all of them in a new stream."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc_lake.cli.verb import Call, verb


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    verb(app, "resync")(resync)
    verb(app, "restart")(restart)


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


def restart(
    call: Call,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without it only what it does is said.")] = False,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long who reads the slot is waited for.")
    ] = 0.0,
) -> None:
    """Have the next run begin a new stream with new copies, where the old one cannot go on; silver and cuts stay."""
    from cdc_lake.cli.render_resync import restarted_text
    from cdc_lake.pipeline.restart import restart as start_over

    done = start_over(call.project(), yes=yes, wait=wait)
    call.view.result(done, restarted_text(done))
