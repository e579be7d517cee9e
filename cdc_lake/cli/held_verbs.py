"""The verbs of `held`: what waits and why, and transactions that could not be decoded tried again."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc_lake.cli.verb import Call, verb

held_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="What waits: held changes, and what could not be decoded."
)


@verb(held_app, "list")
def held_list(call: Call) -> None:
    """Changes that rules hold, by key, and transactions that are in bronze as bytes, with the reason."""
    from cdc_lake.cli.render_held import list_text
    from cdc_lake.pipeline.held import held_list as look_up

    found = look_up(call.project())
    call.view.result(found, list_text(found))


@verb(held_app, "retry")
def held_retry(
    call: Call,
    position: Annotated[
        str | None, typer.Argument(help="One transaction, as printed: 0/16B3748, or a number; by default all.")
    ] = None,
) -> None:
    """Decode again what is in bronze as bytes, with this version and the settings of now. Bronze stays as it is."""
    from cdc_lake.cli.render_held import retry_text
    from cdc_lake.model.position import parse_position
    from cdc_lake.pipeline.redecode import retry

    done = retry(call.project(), None if position is None else parse_position(position), call.view.tell)
    call.view.result(done, retry_text(done))
    if done.failed:
        raise typer.Exit(1)
