"""The verb `rebuild`: a silver table again from bronze."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc_lake.cli.verb import Call, verb


def register(app: typer.Typer) -> None:
    """Add the verb."""
    verb(app, "rebuild")(rebuild)


def rebuild(
    call: Call,
    table: Annotated[str, typer.Argument(help="The source table: schema.table, or a table of `public`.")],
    into: Annotated[
        str | None, typer.Option("--into", metavar="NAME", help="Into a new table; the one there is left as it is.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="POSITION", help="As it was there: 0/16B3748, or a number. Only with --into."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build it, say what would change, and change nothing.")
    ] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Also where the table belongs to another pipeline, or to nobody.")
    ] = False,
    keys: Annotated[
        int, typer.Option("--keys", metavar="N", min=0, help="Show the keys of so many rows that differ.")
    ] = 0,
) -> None:
    """Make a silver table again from bronze, by the settings and rules of now, in one commit; old cuts stay."""
    from cdc_lake.cli.render_rebuild import rebuilt_text
    from cdc_lake.model.position import parse_position
    from cdc_lake.pipeline.applying.rebuild import rebuild as build

    position = None if to is None else parse_position(to)
    done = build(
        call.project(), table, to=position, into=into, dry_run=dry_run, keys=keys, adopt=adopt, tell=call.view.tell
    )
    call.view.result(done, rebuilt_text(done))
