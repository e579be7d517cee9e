"""The verbs of `inspect`: a transaction, a row, the chain."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc_lake.cli.verb import Call, verb

inspect_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look into bronze and silver: a transaction, a row, the chain."
)


@verb(inspect_app, "tx")
def inspect_tx(
    call: Call, position: Annotated[str, typer.Argument(help="As printed: 0/16B3748, or a number.")]
) -> None:
    """The transaction at a position."""
    from cdc_lake.cli.render import value_text
    from cdc_lake.model.position import parse_position
    from cdc_lake.pipeline.inspect import transaction

    found = transaction(call.project(), parse_position(position))
    call.view.result(found, value_text(found, call.view.width))


@verb(inspect_app, "row")
def inspect_row(
    call: Call,
    table: Annotated[str, typer.Argument(help="Source table, schema.table.")],
    key: Annotated[list[str], typer.Argument(help="Values of the key columns, in order.")],
) -> None:
    """The history of one key: bronze, silver, held rows."""
    from cdc_lake.cli.render import value_text
    from cdc_lake.pipeline.inspect import row

    found = row(call.project(), table, tuple(key))
    call.view.result(found, value_text(found, call.view.width))


@verb(inspect_app, "chain")
def inspect_chain(call: Call) -> None:
    """Verify that no transaction of bronze is missing, repeated or changed."""
    from cdc_lake.cli.render import value_text
    from cdc_lake.pipeline.inspect import chain

    found = chain(call.project())
    call.view.result(found, value_text(found, call.view.width))
