"""The verbs of `held`: what waits and why, decisions on it, and transactions that could not be decoded tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cdc_lake.cli.verb import Call, verb

if TYPE_CHECKING:
    from cdc_lake.model.decision import Verb

held_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="What waits: held changes, and what could not be decoded."
)


Table = Annotated[str, typer.Argument(help="The source table: schema.table, or a table of `public`.")]
KeyParts = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="VALUE", help="Changes that keep this key: once a part, in key order."),
]
All = Annotated[bool, typer.Option("--all", help="All held changes of the table.")]
RuleName = Annotated[
    str | None, typer.Option("--rule", metavar="NAME", help="With --all: only what this rule alone holds.")
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the decision.")]
Yes = Annotated[bool, typer.Option("--yes", help="Decide; without it the changes are only listed.")]


@verb(held_app, "list")
def held_list(call: Call) -> None:
    """Changes that rules hold, by key, and transactions that are in bronze as bytes, with the reason."""
    from cdc_lake.cli.render_held import list_text
    from cdc_lake.pipeline.held.listing import held_list as look_up

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
    from cdc_lake.pipeline.held.redecode import retry

    done = retry(call.project(), None if position is None else parse_position(position), call.view.tell)
    call.view.result(done, retry_text(done))
    if done.failed:
        raise typer.Exit(1)


@verb(held_app, "release", document="held-release")
def held_release(
    call: Call,
    table: Table,
    reason: Reason,
    key: KeyParts = None,
    every: All = False,
    rule: RuleName = None,
    yes: Yes = False,
) -> None:
    """Let held changes through as they are, in their order: the next run makes them, whatever rule they break."""
    _decide(call, "release", table, key, rule, reason, every=every, yes=yes)


@verb(held_app, "discard", document="held-discard")
def held_discard(
    call: Call,
    table: Table,
    reason: Reason,
    key: KeyParts = None,
    every: All = False,
    rule: RuleName = None,
    yes: Yes = False,
) -> None:
    """Give held changes up for good: silver keeps the rows as it has them, and the keys flow again."""
    _decide(call, "discard", table, key, rule, reason, every=every, yes=yes)


def _decide(
    call: Call, verb: Verb, table: str, key: list[str] | None, rule: str | None, reason: str, *, every: bool, yes: bool
) -> None:
    from cdc_lake.cli.render_held import decided_text
    from cdc_lake.pipeline.held.decide import Choice, decide

    if every == bool(key):
        raise typer.BadParameter("name one key, or say --all", param_hint="--key")
    if rule is not None and not every:
        raise typer.BadParameter("it chooses among --all", param_hint="--rule")
    done = decide(call.project(), verb, table, Choice(tuple(key) if key else None, rule), reason, yes=yes)
    call.view.result(done, decided_text(done))
