"""The verbs of `inspect`: a span, a transaction, a row, the chain, what is parked. They read the lake only, a row in
silver too, unless asked to set bronze beside its source. And the failpoints, which are the program's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc_lake.cli.verb import Call, verb

if TYPE_CHECKING:
    from cdc_lake.bronze.reader import BronzeReader
    from cdc_lake.config.project import Project
    from cdc_lake.model.relation import TableName

inspect_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look into bronze: a span, a transaction, a row, the chain, what is parked; or at what may kill a pipeline.",
)

From = Annotated[
    str | None, typer.Option("--from", metavar="POSITION", help="Behind this position, by default from the start.")
]
To = Annotated[
    str | None, typer.Option("--to", metavar="POSITION", help="Up to this position and with it, by default to the end.")
]
Epoch = Annotated[int | None, typer.Option("--epoch", min=1, help="Of which stream; by default of the newest.")]


@verb(inspect_app, "span")
def inspect_span(
    call: Call,
    after: From = None,
    upto: To = None,
    epoch: Epoch = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Transactions to list; totals are of all.")] = 100,
) -> None:
    """The transactions of a range of positions, one a line, and their totals by table."""
    from cdc_lake.cli.render_inspect import span_text
    from cdc_lake.pipeline.inspect.span import asked_span
    from cdc_lake.pipeline.inspect.span import inspect_span as look_up

    bronze = _bronze(call)
    found = look_up(bronze, asked_span(bronze, after, upto, epoch), limit)
    call.view.result(found, span_text(found))


@verb(inspect_app, "tx")
def inspect_tx(
    call: Call,
    position: Annotated[str, typer.Argument(help="As printed: 0/16B3748, or a number.")],
    epoch: Epoch = None,
) -> None:
    """The transaction that was committed at a position: its boundaries and its changes in order."""
    from cdc_lake.cli.render_inspect import transaction_text
    from cdc_lake.model.position import parse_position
    from cdc_lake.pipeline.inspect.bronze import inspect_transaction

    found = inspect_transaction(_bronze(call), parse_position(position), epoch)
    call.view.result(found, transaction_text(found))


@verb(inspect_app, "row")
def inspect_row(
    call: Call,
    table: Annotated[str, typer.Argument(help="Source table, schema.table.")],
    key: Annotated[list[str], typer.Argument(help="The key: values in key order, or column=value.")],
) -> None:
    """The row of one key: everything that happened to it, what that comes to, what is held of it, what silver has."""
    from cdc_lake.bronze.open import bronze_reader
    from cdc_lake.cli.render_row import row_text
    from cdc_lake.pipeline.inspect.row import row_everywhere
    from cdc_lake.pipeline.state.source_table import source_table

    project, name = call.project(), source_table(table)
    bronze = bronze_reader(project)
    found = row_everywhere(project, bronze, name, _key(key, name, bronze))
    call.view.result(found, row_text(found))


@verb(inspect_app, "chain")
def inspect_chain(
    call: Call,
    after: From = None,
    upto: To = None,
    epoch: Epoch = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="source", help="Set bronze beside the source's rows and slot."),
    ] = None,
) -> None:
    """Verify that no transaction of bronze is missing, repeated or changed: all of them, or those of a range."""
    from cdc_lake.bronze.open import bronze_reader
    from cdc_lake.cli.render_inspect import chain_text
    from cdc_lake.lake.control import control_tables
    from cdc_lake.pipeline.inspect.bronze import inspect_chain as verify
    from cdc_lake.pipeline.inspect.bronze import plain
    from cdc_lake.pipeline.inspect.span import asked_span
    from cdc_lake.pipeline.state.proof import known_beside

    project = call.project()
    if against is not None:
        _against(call, project, against, whole=(after, upto, epoch) == (None, None, None))
        return
    bronze = bronze_reader(project)
    span = None if (after, upto, epoch) == (None, None, None) else asked_span(bronze, after, upto, epoch)
    control = control_tables(project)
    found = verify(bronze, span, lambda: known_beside(project, bronze, control), call.view.tell)
    call.view.result(plain(found), chain_text(found))
    if not found.holds:
        raise typer.Exit(1)


@verb(inspect_app, "parked")
def inspect_parked(call: Call) -> None:
    """Prepared transactions that are kept until their COMMIT PREPARED, the oldest first."""
    from cdc_lake.cli.render_parked import parked_text
    from cdc_lake.pipeline.inspect.parked import inspect_parked as look_up

    found = look_up(call.project())
    call.view.result(found, parked_text(found))


@verb(inspect_app, "failpoints", pipeline=False)
def inspect_failpoints(call: Call) -> None:
    """The places where a pipeline can be killed on purpose, and how: the crash points and their failpoints."""
    from cdc_lake.cli.render_failpoints import failpoints_text
    from cdc_lake.observe.crash_points import listed

    found = listed()
    call.view.result(found, failpoints_text(found))


def _against(call: Call, project: Project, what: str, *, whole: bool) -> None:
    from cdc_lake.cli.render_inspect import proof_text
    from cdc_lake.pipeline.compare.against_source import against_source

    if what != "source" or not whole:
        raise typer.BadParameter("expected `source`, without a range", param_hint="--against")
    found = against_source(project, call.view.tell)
    call.view.result({"holds": found.holds, **_fields(found)}, proof_text(found))
    if not found.holds:
        raise typer.Exit(1)


def _fields(value: object) -> dict[str, Any]:
    from cdc_lake.cli.document import plain

    body = plain(value)
    return body if isinstance(body, dict) else {"value": body}


def _bronze(call: Call) -> BronzeReader:
    from cdc_lake.bronze.open import bronze_reader

    return bronze_reader(call.project())


def _key(given: list[str], table: TableName, bronze: BronzeReader) -> dict[str, str]:
    """A key as `column=value` for each column, or as bare values in the order of the primary key."""
    from cdc_lake.pipeline.inspect.bronze import row_key

    if all("=" in part for part in given):
        return dict(part.split("=", 1) for part in given)
    return row_key(bronze, table, given)
