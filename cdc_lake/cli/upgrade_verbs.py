"""The verb `upgrade`: a lake of an older version in the form of this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cdc_lake.cli.verb import Call, verb

if TYPE_CHECKING:
    from cdc_lake.pipeline.upgrade import Upgrade


def register(app: typer.Typer) -> None:
    """Add the verb."""
    verb(app, "upgrade")(upgrade)


def upgrade(
    call: Call, yes: Annotated[bool, typer.Option("--yes", help="Do it; without, only say what it takes.")] = False
) -> None:
    """Bring bronze and the control tables to this version's form: says what that takes, and does it with --yes."""
    from cdc_lake.pipeline.upgrade import upgrade as bring

    done = bring(call.project(), yes=yes)
    call.view.result(done, _text(done))


def _text(done: Upgrade) -> str:
    from cdc_lake.cli.render import table
    from cdc_lake.model.counting import counted

    if not done.pending:
        return f"nothing to upgrade: {done.pipeline} is as this version writes it"
    rows = [(one.table, f"{one.version} → {one.to}", "; ".join(one.steps)) for one in done.pending]
    number = counted(len(rows), "table")
    end = f"upgraded {number}" if done.done else f"{number} to upgrade: stop the runs, then `cdc-lake upgrade --yes`"
    return "\n".join([*table(rows, indent=""), "", end])
