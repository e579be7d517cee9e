"""The verb `restart`: a new stream in place of one that cannot go on."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc_lake.cli.verb import Call, verb


def register(app: typer.Typer) -> None:
    """Add the verb."""
    verb(app, "restart")(restart)


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
