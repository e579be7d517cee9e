"""What a resync did, as text."""

from __future__ import annotations

from cdc_lake.model.counting import counted
from cdc_lake.pipeline.resync import Resynced, ResyncedTable


def resynced_text(done: Resynced) -> str:
    """A line for each table, then what comes next."""
    lines = [_table(done, table) for table in done.tables]
    then = "nothing was changed" if done.position is None else "silver takes the copy with the next `cdc-lake run`"
    return "\n".join([*lines, then])


def _table(done: Resynced, table: ResyncedTable) -> str:
    if table.rows is None:
        what = f"{table.source} would be copied again"
    else:
        what = f"{table.source} copied again at {done.position}: {counted(table.rows, 'row')}"
    if table.remembers:
        return f"{what}; {table.table} ({table.kind}) ends what it has there, and keeps what it was before"
    return f"{what}; {table.table} begins again with the copy"
