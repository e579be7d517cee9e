"""The doctor's look at tables that came to `source.tables` or went since the last start: what the next one does."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.config.project import Project
from cdc_lake.errors import CopyUnplaced
from cdc_lake.pipeline.check.line import CheckLine, listed
from cdc_lake.pipeline.stream.table_changes import TableChanges


def table_change_lines(
    project: Project, found: TableChanges, *, publishes: bool, placed: bool = True
) -> Iterator[CheckLine]:
    """A line for each kind of change. `publishes`: a start publishes what is lacking; `placed`: a copy has a place in
    the stream.
    """
    initial = project.pipeline.snapshot.copies
    if publishes and found.lacking:
        copied = " and copies it, while the others flow" if initial else "; `snapshot.mode` asks for no copy"
        text = f"{listed(found.lacking)} came: the next start publishes what came{copied}"
        yield CheckLine(ok=True, subject="tables", text=text)
    if moved := sorted(found.moved):
        text = (
            f"{listed(moved)}: the publication was altered, and the next start copies again what is published otherwise"
        )
        yield CheckLine(ok=True, subject="tables", text=text)
    came = [table for table in found.waiting if table not in found.moved]
    if came and placed:
        text = f"{listed(came)} came: the next start copies what came, while the others flow"
        yield CheckLine(ok=True, subject="tables", text=text)
    elif came:
        stay = [table for table in came if table in found.left]
        begin = [table for table in came if table not in found.left]
        for tables, words in (
            (stay, "stays as it was left"),
            (begin, "begins with its changes from the next start on"),
        ):
            if tables:
                text = (
                    f"{listed(tables)} came to a stream that is ordered by LSN: no copy has a place there, it {words}"
                )
                fix = f"cdc-lake explain {CopyUnplaced.code}"
                yield CheckLine(ok=None, subject="tables", text=text, fix=fix, code=CopyUnplaced.code)
    if found.gone:
        text = f"{listed(found.gone)} went: not followed from the next start on, and silver keeps what it has"
        yield CheckLine(ok=True, subject="tables", text=text)
