"""A finding of `check`, and the checks shared by all kinds of sources.

The WAL budget (current use, and whether the server's own limit is lower), the captured tables with their layout in
silver, and the tables added to `source.tables` or removed since the last start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cdc_lake.config.project import Project, Target
from cdc_lake.connectors.base import TableFacts
from cdc_lake.connectors.factory import source_view
from cdc_lake.connectors.table_sync import TableChanges
from cdc_lake.errors import CdcLakeError, CopyUnplaced, SourceError, WalBudgetExceeded
from cdc_lake.model.diagnostic import pluralize, size
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.silver.layout_mapping import RelationMapping, make_shape


@dataclass(frozen=True, slots=True)
class CheckLine:
    """`ok`: right, wrong, or None for a note; `fix`: the remedy, SQL or a command."""

    ok: bool | None
    subject: str
    text: str
    fix: str = ""
    code: str = ""


def failure_line(subject: str, error: CdcLakeError) -> CheckLine:
    """An error as a finding."""
    return CheckLine(ok=False, subject=subject, text=error.message, fix=error.remedy, code=error.code)


def unchecked_text(project: Project, encoding: str) -> Iterator[CheckLine]:
    """A note about a database that does not guarantee the encoding of its text."""
    source = project.pipeline.source
    if encoding == "SQL_ASCII" and source.encoding_errors == "stop":
        exemption = f" outside of {', '.join(source.hex_columns)}" if source.hex_columns else ""
        text = f"SQL_ASCII does not check encodings: text that is not UTF-8{exemption} stops the copy and the stream"
        fix = "name columns that contain such text in `source.hex_columns`: they are stored as hexadecimal digits"
        yield CheckLine(ok=None, subject="encoding", text=text, fix=fix, code="DEC311")


def list_names(names: Sequence[TableName]) -> str:
    """The first few names, and the number of the others."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(str, names[:5])) + more


def count_rows(facts: Sequence[TableFacts]) -> str:
    """The number of rows of tables in words, if the server has counted all of them."""
    row_counts = [f.rows for f in facts if f.rows is not None]
    if len(row_counts) < len(facts):
        return "rows not counted yet by the server"
    return f"about {pluralize(sum(row_counts), 'row')}"


def room(subject: str, used: int, most: int, needed: int, setting: str, code: str) -> CheckLine:
    """Whether enough is left of a resource that the server limits by a setting."""
    ok = most - used >= needed
    fix = "" if ok else f"ALTER SYSTEM SET {setting} = {max(most, used) + 5};  then restart the server"
    return CheckLine(ok=ok, subject=subject, text=f"{used} of {most} in use, {needed} needed", fix=fix, code=code)


def budget_lines(project: Project, retained: int | None, safe: int | None = None) -> Iterator[CheckLine]:
    """If the pipeline has a budget in bytes. `retained`: by its slot, None if unknown; `safe`: what may still be
    written before the server invalidates the slot, None if unlimited.
    """
    budget = project.pipeline.source.wal_budget
    most = None if budget is None else budget.max_bytes
    if most is None or retained is None:
        return
    text = f"{size(retained)} of {size(most)} are retained for {project.slot}"
    fix = "" if retained < most else WalBudgetExceeded.hint
    yield CheckLine(ok=retained < most, subject="WAL budget", text=text, fix=fix, code=WalBudgetExceeded.code)
    if safe is not None and (limit := retained + safe) < most:
        text = f"the server invalidates slots at about {size(limit)}, before the budget of {size(most)} is used"
        fix = "raise max_slot_wal_keep_size, or lower `source.wal_budget.max_bytes`"
        yield CheckLine(ok=None, subject="WAL budget", text=text, fix=fix)


def captured_tables(project: Project, concerns: Callable[[Target], bool]) -> Iterator[tuple[Target, Relation]]:
    """Tables for which `concerns` is true, with layouts. Empty if the source does not answer, which others report."""
    if not any(concerns(project.target(TableName.parse(table.from_))) for table in project.pipeline.silver.tables):
        return
    try:
        with source_view(project) as source:
            pairs = [(project.target(name), source.layout(name)) for name in source.tables()]
    except SourceError:
        return
    for target, layout in pairs:
        if layout is not None and concerns(target):
            yield target, layout


def shape_of(target: Target, layout: Relation) -> RelationMapping:
    """The mapping of a table with this layout. Raises CdcLakeError, for example if it has no key."""
    return make_shape(
        [layout.layout], {layout.layout: layout}, target.keys, keyed=target.kind != "append", types=target.types
    )


def table_change_lines(
    project: Project, changes: TableChanges, *, publishes: bool, placed: bool = True
) -> Iterator[CheckLine]:
    """A line per kind of change. `publishes`: a start publishes missing tables; `placed`: a copy has a position."""
    initial = project.pipeline.snapshot.copies
    if publishes and changes.lacking:
        copied = " and copies it, while the other tables continue" if initial else "; `snapshot.mode` disables the copy"
        text = f"{list_names(changes.lacking)} added: the next start publishes what was added{copied}"
        yield CheckLine(ok=True, subject="tables", text=text)
    if moved := sorted(changes.moved):
        text = (
            f"{list_names(moved)}: the publication was altered, and the next start copies again the tables that are "
            "published differently"
        )
        yield CheckLine(ok=True, subject="tables", text=text)
    came = [table for table in changes.waiting if table not in changes.moved]
    if came and placed:
        text = f"{list_names(came)} added: the next start copies what was added, while the other tables continue"
        yield CheckLine(ok=True, subject="tables", text=text)
    elif came:
        stay = [table for table in came if table in changes.left]
        begin = [table for table in came if table not in changes.left]
        for tables, words in ((stay, "stays as it is"), (begin, "starts with its changes from the next start on")):
            if tables:
                text = (
                    f"{list_names(tables)} added to a stream that is ordered by LSN: a copy would have no position "
                    f"in it, it {words}"
                )
                fix = f"cdc-lake explain {CopyUnplaced.code}"
                yield CheckLine(ok=None, subject="tables", text=text, fix=fix, code=CopyUnplaced.code)
    if changes.gone:
        text = f"{list_names(changes.gone)} removed: not captured from the next start on, and silver keeps its rows"
        yield CheckLine(ok=True, subject="tables", text=text)
