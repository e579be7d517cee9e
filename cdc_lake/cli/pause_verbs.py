"""The verbs `pause` and `resume`: one table stopped while the others flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cdc_lake.cli.verb import Call, verb

if TYPE_CHECKING:
    from cdc_lake.pipeline.state.pauses import PauseState

Table = Annotated[str, typer.Argument(help="The source table: schema.table, or a table of `public`.")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    verb(app, "pause")(pause)
    verb(app, "resume")(resume)


def pause(call: Call, table: Table) -> None:
    """Stop one silver table while the others flow: bronze keeps its changes until `resume`."""
    from cdc_lake.pipeline.state.pauses import pause as stop

    done = stop(call.project(), table)
    call.view.result(done, _text(done))


def resume(call: Call, table: Table) -> None:
    """Let a paused table go on from where it stayed."""
    from cdc_lake.pipeline.state.pauses import resume as go_on

    done = go_on(call.project(), table)
    call.view.result(done, _text(done))


def _text(done: PauseState) -> str:
    if done.paused and done.changed:
        return f"{done.table} is paused: a run stops it at its next span; `cdc-lake resume {done.source}` lets it go on"
    if done.paused and done.since is not None:
        return f"{done.table} is paused already, since {done.since.isoformat(timespec='seconds')}"
    return f"{done.table} goes on with the next span of a run" if done.changed else f"{done.table} is not paused"
