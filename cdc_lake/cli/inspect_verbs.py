"""The verbs of `inspect`: a transaction, a row, the chain. They read bronze only, so they work without the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cdc_lake.cli.verb import Call, verb

if TYPE_CHECKING:
    from cdc_lake.bronze.reader import BronzeReader
    from cdc_lake.model.relation import TableName

inspect_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look into bronze: a transaction, a row, the chain."
)


@verb(inspect_app, "tx")
def inspect_tx(
    call: Call, position: Annotated[str, typer.Argument(help="As printed: 0/16B3748, or a number.")]
) -> None:
    """The transaction that was committed at a position: its boundaries and its changes in order."""
    from cdc_lake.cli.render_inspect import transaction_text
    from cdc_lake.model.position import parse_position
    from cdc_lake.pipeline.inspect import inspect_transaction

    found = inspect_transaction(_bronze(call), parse_position(position))
    call.view.result(found, transaction_text(found))


@verb(inspect_app, "row")
def inspect_row(
    call: Call,
    table: Annotated[str, typer.Argument(help="Source table, schema.table.")],
    key: Annotated[list[str], typer.Argument(help="The key: values in key order, or column=value.")],
) -> None:
    """Everything that happened to the row of one key, in order."""
    from cdc_lake.cli.render_inspect import row_text
    from cdc_lake.pipeline.inspect import inspect_row as look_up

    bronze, name = _bronze(call), _table(table)
    found = look_up(bronze, name, _key(key, name, bronze))
    call.view.result(found, row_text(found))


@verb(inspect_app, "chain")
def inspect_chain(call: Call) -> None:
    """Verify that no transaction of bronze is missing, repeated or changed."""
    from cdc_lake.cli.render_inspect import chain_text
    from cdc_lake.pipeline.inspect import inspect_chain as verify
    from cdc_lake.pipeline.inspect import plain

    found = verify(_bronze(call))
    call.view.result(plain(found), chain_text(found))
    if not found.holds:
        raise typer.Exit(1)


def _bronze(call: Call) -> BronzeReader:
    from cdc_lake.bronze.open import bronze_reader

    return bronze_reader(call.project())


def _table(text: str) -> TableName:
    from cdc_lake.model.relation import TableName

    try:
        return TableName.parse(text if "." in text else f"public.{text}")
    except ValueError as bad:
        raise typer.BadParameter(str(bad), param_hint="TABLE") from bad


def _key(given: list[str], table: TableName, bronze: BronzeReader) -> dict[str, str]:
    """A key as `column=value` for each column, or as bare values in the order of the primary key."""
    from cdc_lake.pipeline.inspect import primary_key

    columns = primary_key(bronze, table) if not all("=" in part for part in given) else ()
    if not columns:
        return dict(part.split("=", 1) for part in given)
    if len(columns) != len(given):
        names = ", ".join(columns)
        raise typer.BadParameter(f"the key of {table} is ({names}): give {len(columns)} values", param_hint="KEY")
    return dict(zip(columns, given, strict=True))
