"""The verbs of `slot`: what the server keeps log for, and the pipeline's own slot made, advanced and dropped."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc_lake.cli.verb import Call, verb

slot_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Replication slots of the source.")


@verb(slot_app, "list", document="slot-list")
def slot_list(call: Call) -> None:
    """Every slot of the server: who reads it, how far it is, how much WAL is kept for it."""
    from cdc_lake.cli.render_slots import list_text
    from cdc_lake.pipeline.slots import list_slots

    found = list_slots(call.project())
    call.view.result(found, list_text(found))


@verb(slot_app, "inspect", document="slot-inspect")
def slot_inspect(
    call: Call,
    name: Annotated[str | None, typer.Argument(help="The slot; by default the pipeline's own.")] = None,
) -> None:
    """Everything of one slot: who reads it, where it is, what is kept for it, and what that threatens."""
    from cdc_lake.cli.render_slot import details_text
    from cdc_lake.pipeline.slots import inspect_slot

    found = inspect_slot(call.project(), name)
    call.view.result(found, details_text(found, call.view.width))


@verb(slot_app, "create", document="slot-create")
def slot_create(call: Call) -> None:
    """Begin the stream as a first run does: publication, slot, initial copy as of its point; receive nothing more."""
    from cdc_lake.cli.render_slots import made_text
    from cdc_lake.pipeline.slots import create_slot

    made = create_slot(call.project(), tell=call.view.tell)
    call.view.result(made, made_text(made))


@verb(slot_app, "advance", document="slot-advance")
def slot_advance(
    call: Call,
    position: Annotated[
        str | None, typer.Argument(help="As printed: 0/16B3748, or a number; by default as far as bronze holds it.")
    ] = None,
) -> None:
    """Let the server forget what bronze holds already; never more than that."""
    from cdc_lake.cli.render_slots import advanced_text
    from cdc_lake.model.position import parse_position
    from cdc_lake.pipeline.slots import advance_slot

    done = advance_slot(call.project(), None if position is None else parse_position(position))
    call.view.result(done, advanced_text(done))


@verb(slot_app, "drop", document="slot-drop")
def slot_drop(
    call: Call,
    name: Annotated[str | None, typer.Argument(help="The slot; by default the pipeline's own.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Drop it; without it only what would be lost is said.")] = False,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="How long who reads it is waited for.")
    ] = 0.0,
) -> None:
    """Drop a slot, so that the server keeps no more WAL for it. What it had not sent yet is lost."""
    from cdc_lake.cli.render_slots import dropped_text
    from cdc_lake.pipeline.slots import drop_slot

    done = drop_slot(call.project(), name, yes=yes, wait=wait)
    call.view.result(done, dropped_text(done))
