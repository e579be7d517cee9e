"""The commands `rebuild`, `resync`, `restart`, `pause`, `resume` and `upgrade`, and their output and `maintain`'s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from cdc_lake.cli.command import Call, DryRun, Table, Wait, verb
from cdc_lake.cli.text import format_key, table
from cdc_lake.model.diagnostic import pluralize

if TYPE_CHECKING:
    from cdc_lake.control.table_pauses import PauseState
    from cdc_lake.runtime.apply.rebuild import Rebuilt
    from cdc_lake.runtime.maintain import Maintenance, Upgrade
    from cdc_lake.runtime.restart import Restarted
    from cdc_lake.runtime.resync import Resynced, ResyncedTable
    from cdc_lake.silver.kinds import Difference


maintenance_app = typer.Typer()


@verb(maintenance_app, "rebuild")
def rebuild(
    call: Call,
    table: Table,
    into: Annotated[
        str | None, Option("--into", metavar="NAME", help="Build a new table and leave the existing one unchanged.")
    ] = None,
    to: Annotated[
        str | None,
        Option(
            "--to", metavar="POSITION", help="Rebuild as of this position: 0/16B3748, or a number. Requires --into."
        ),
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Build the table and show what would change, without changing anything.")
    ] = False,
    adopt: Annotated[
        bool, Option("--adopt", help="Rebuild even if the table belongs to another pipeline, or to none.")
    ] = False,
    keys: Annotated[int, Option("--keys", metavar="N", min=0, help="Show the keys of at most N rows that differ.")] = 0,
) -> None:
    """Rebuild a silver table from bronze with the current settings and rules, in one commit; existing cuts stay."""
    from cdc_lake.model.position import parse_position
    from cdc_lake.runtime.apply.rebuild import rebuild as build

    position = None if to is None else parse_position(to)
    result = build(
        call.project(), table, to=position, into=into, dry_run=dry_run, keys=keys, adopt=adopt, report=call.view.report
    )
    call.show(result, rebuilt_text)


@verb(maintenance_app, "resync")
def resync(
    call: Call,
    tables: Annotated[
        list[str], Argument(metavar="TABLE...", help="Source tables: schema.table, or a table of the schema `public`.")
    ],
    dry_run: DryRun = False,
) -> None:
    """Copy tables again from the source while the stream continues; the next run applies the copy to silver."""
    from cdc_lake.cli.command import Interrupted
    from cdc_lake.cli.process import StopOnSignal
    from cdc_lake.connectors.snapshot_copy import Stopped
    from cdc_lake.runtime.resync import resync as copy

    project = call.project()
    with StopOnSignal(call.view.note) as stop:
        try:
            result = copy(project, tables, dry_run=dry_run, stop=stop.event, report=call.view.report)
        except Stopped as stopped:
            raise Interrupted from stopped
    call.show(result, resynced_text)


@verb(maintenance_app, "restart")
def restart(
    call: Call,
    yes: Annotated[bool, Option("--yes", help="Do it; without it, only show what would be done.")] = False,
    wait: Wait = 0.0,
) -> None:
    """Make the next run start a new stream with new copies if the old one cannot continue; silver and cuts stay."""
    from cdc_lake.runtime.restart import restart as start_over

    call.show(start_over(call.project(), yes=yes, wait=wait), restarted_text)


@verb(maintenance_app, "pause")
def pause(call: Call, table: Table) -> None:
    """Pause one silver table while the others continue; bronze keeps its changes until `resume`."""
    from cdc_lake.control.table_pauses import pause as stop

    call.show(stop(call.project(), table), _pause_text)


@verb(maintenance_app, "resume")
def resume(call: Call, table: Table) -> None:
    """Resume a paused table from where it stopped."""
    from cdc_lake.control.table_pauses import resume as go_on

    call.show(go_on(call.project(), table), _pause_text)


def _pause_text(state: PauseState) -> str:
    if state.paused and state.changed:
        return f"{state.table} is paused: a run stops it at its next span; `cdc-lake resume {state.source}` resumes it"
    if state.paused and state.since is not None:
        return f"{state.table} is already paused, since {state.since.isoformat(timespec='seconds')}"
    return f"{state.table} continues with the next span of a run" if state.changed else f"{state.table} is not paused"


@verb(maintenance_app, "upgrade")
def upgrade(
    call: Call, yes: Annotated[bool, Option("--yes", help="Do it; without it, only show what would be done.")] = False
) -> None:
    """Upgrade bronze and the control tables to the format of this version; without --yes, only show what that takes."""
    from cdc_lake.runtime.maintain import upgrade as bring

    call.show(bring(call.project(), yes=yes), _upgrade_text)


def _upgrade_text(result: Upgrade) -> str:
    if not result.pending:
        return f"nothing to upgrade: {result.pipeline} has the format of this version"
    rows = [
        (table_upgrade.table, f"{table_upgrade.version} → {table_upgrade.to}", "; ".join(table_upgrade.steps))
        for table_upgrade in result.pending
    ]
    number = pluralize(len(rows), "table")
    end = f"upgraded {number}" if result.done else f"{number} to upgrade: stop the runs, then `cdc-lake upgrade --yes`"
    return "\n".join([*table(rows, indent=""), "", end])


def rebuilt_text(result: Rebuilt) -> str:
    """A line for the table, then one for each difference."""
    from cdc_lake.tables.silver_table import FIRST

    what = f"{result.table} at {result.position} from {result.source}"
    if result.version is None:
        head = f"{what}: built and compared with the table, which was not changed"
    else:
        head = f"{what}: generation {result.generation}, version {result.version}"
    lines = [head, _rows(result.difference), *_columns(result.difference)]
    lines += [f"{kind}: {', '.join(map(format_key, keys))}" for kind, keys in result.difference.keys.items()]
    lines += [f"also done: {operation}" for operation in result.operations]
    if result.operations and result.version is not None and result.generation > FIRST:
        shows = f"`cdc-lake compare {result.source}` shows it"
        lines.append(f"what the server did to rows with them without sending it is not in bronze: {shows}")
    if result.quarantined:
        lines.append(f"{pluralize(result.quarantined, 'change')} held by rules: `cdc-lake quarantine list`")
    return "\n".join(lines)


def _rows(difference: Difference) -> str:
    rows = pluralize(difference.after, "row")
    if difference.before is None:
        return rows
    rows += f", {difference.before:,} before"
    if difference.added is None:
        return f"{rows}; they cannot be compared one by one"
    return f"{rows}: {difference.added:,} added, {difference.removed:,} removed, {difference.changed:,} changed"


def _columns(difference: Difference) -> Iterator[str]:
    columns = difference.columns
    parts = (("new", columns.added), ("gone", columns.gone), ("of another type", columns.changed))
    yield from (f"columns {word}: {', '.join(names)}" for word, names in parts if names)


def resynced_text(result: Resynced) -> str:
    """A line for each table, then the next step."""
    lines = [_table(result, resynced) for resynced in result.tables]
    then = "nothing was changed" if result.position is None else "the next `cdc-lake run` applies the copy to silver"
    return "\n".join([*lines, then])


def restarted_text(result: Restarted) -> str:
    """What is removed and what stays, then the next step."""
    would = "" if result.done else "would "
    lines = []
    if result.slot is not None:
        lines.append(f"slot `{result.slot}` {'is' if result.done else 'would be'} dropped")
    if result.left is not None:
        remove = f"if it has no other reader, `cdc-lake slot drop {result.left}` removes it"
        lines.append(f"slot `{result.left}` of the old stream stays, and the server keeps WAL for it: {remove}")
    end = "" if result.position is None else f"; the stream before it ends at {result.position}"
    begins, copied = "begins" if result.done else "begin", pluralize(len(result.tables), "table")
    lines.append(f"the next `cdc-lake run` {would}{begins} a new stream with copies of {copied}{end}")
    lines.append("silver tables, cuts, pins and decisions stay; each table starts again from its copy")
    if keep := [restarted_table.table for restarted_table in result.tables if restarted_table.keeps]:
        more = f" and {len(keep) - 5} more" if len(keep) > 5 else ""
        lines.append(f"kept with their history: {', '.join(keep[:5])}{more}; changes since then are in no stream")
    if result.unapplied:
        count = pluralize(result.unapplied, "transaction")
        lines.append(f"silver has not applied {count} of bronze: first `cdc-lake run --once --only apply`")
    lines.append("" if result.done else "nothing was changed: add --yes")
    return "\n".join(filter(None, lines))


def _table(result: Resynced, table: ResyncedTable) -> str:
    if table.rows is None:
        what = f"{table.source} would be copied again"
    else:
        what = f"{table.source} copied again at {result.position}: {pluralize(table.rows, 'row')}"
    if table.remembers:
        return f"{what}; {table.table} ({table.kind}) ends its current rows, and keeps their history"
    return f"{what}; {table.table} starts again from the copy"


def maintenance_text(result: Maintenance) -> str:
    """A line per step, then what limits retention or was given up; silver's tables last."""
    lines = [step.text for step in result.steps] or ["nothing to do"]
    lines.append(f"bronze has {pluralize(result.files, 'data file')}")
    if result.kept and not result.lost:
        lines.append(f"retention: {result.kept}")
    lines += [f"{'lost' if result.done else 'would be lost'}: {lost}" for lost in result.lost]
    for silver in result.silver or ():
        lines += [f"{silver.table}: {step.text}" for step in silver.steps] or [f"{silver.table}: nothing to do"]
    if not result.done:
        lines.append("nothing was changed")
    return "\n".join(lines)
