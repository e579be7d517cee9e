"""What a resync or a restart did, as text."""

from __future__ import annotations

from cdc_lake.model.counting import counted
from cdc_lake.pipeline.restart import Restarted
from cdc_lake.pipeline.resync import Resynced, ResyncedTable


def resynced_text(done: Resynced) -> str:
    """A line for each table, then what comes next."""
    lines = [_table(done, table) for table in done.tables]
    then = "nothing was changed" if done.position is None else "silver takes the copy with the next `cdc-lake run`"
    return "\n".join([*lines, then])


def restarted_text(done: Restarted) -> str:
    """What goes and what stays, then what comes next."""
    would = "" if done.done else "would "
    lines = []
    if done.slot is not None:
        lines.append(f"slot `{done.slot}` {'is' if done.done else 'would be'} dropped")
    if done.left is not None:
        remove = f"if nobody reads it any more, `cdc-lake slot drop {done.left}` removes it"
        lines.append(f"slot `{done.left}` of the old stream stays, and the server keeps log for it: {remove}")
    end = "" if done.position is None else f"; the stream before it ends at {done.position}"
    begins, copied = "begins" if done.done else "begin", counted(len(done.tables), "table")
    lines.append(f"the next `cdc-lake run` {would}{begins} a new stream with copies of {copied}{end}")
    lines.append("silver tables, cuts, promises and decisions stay; each table begins again with its copy")
    if keep := [one.table for one in done.tables if one.keeps]:
        more = f" and {len(keep) - 5} more" if len(keep) > 5 else ""
        lines.append(f"kept, with what they were: {', '.join(keep[:5])}{more}; changes since then are in no stream")
    if done.unapplied:
        count = counted(done.unapplied, "transaction")
        lines.append(f"silver has not applied {count} of bronze: first `cdc-lake run --once --only apply`")
    lines.append("" if done.done else "nothing was changed: add --yes")
    return "\n".join(filter(None, lines))


def _table(done: Resynced, table: ResyncedTable) -> str:
    if table.rows is None:
        what = f"{table.source} would be copied again"
    else:
        what = f"{table.source} copied again at {done.position}: {counted(table.rows, 'row')}"
    if table.remembers:
        return f"{what}; {table.table} ({table.kind}) ends what it has there, and keeps what it was before"
    return f"{what}; {table.table} begins again with the copy"
