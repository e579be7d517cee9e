"""What a rebuild is made of: where the table begins in bronze, up to where it goes, and in which parts.

It begins with the rows of the stream's initial copy, or with nothing where the pipeline takes none, and goes on with
every transaction that touched the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow.compute as pc

from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader, CommitRow, within
from cdc_lake.config.model import Apply
from cdc_lake.config.project import Project
from cdc_lake.errors import NothingToRebuild, PastTrimmed, PositionNotHeld, SnapshotIncomplete
from cdc_lake.lake.control import control_tables
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.model.span import Span
from cdc_lake.pipeline.copies import beginning, copies_in_force
from cdc_lake.pipeline.holds import hold_log
from cdc_lake.pipeline.reread import rereads_of
from cdc_lake.pipeline.waiting import undecoded
from cdc_lake.source.stream import shown


@dataclass(frozen=True, slots=True)
class Part:
    """A span, and the bytes that the table's changes in it took as they were received, at most."""

    span: Span
    size: int


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """`layout`: that of the copied rows, None where there was no copy of the table; `form`: the table's last layout;
    `parts`: what comes behind the copy.
    """

    begins: int
    upto: int
    layout: int | None
    form: Relation
    parts: tuple[Part, ...]


def rebuild_plan(
    project: Project, reader: BronzeReader, state: BronzeState, table: TableName, upto: int
) -> RebuildPlan:
    """Work out how a table is built up to a position. Raises StateError where it cannot be."""
    if (left := reader.trimmed().get(state.epoch)) is not None:
        raise PastTrimmed(f"bronze begins behind {shown(state.stream, left[0])}", where=reader.place)
    begins, layout = _beginning(project, state, table)
    if not begins <= upto <= state.upto:
        held = f"from {shown(state.stream, begins)} to {shown(state.stream, state.upto)}"
        raise PositionNotHeld(f"{shown(state.stream, upto)} is not in what bronze has of {table}: {held}")
    ahead = Span(state.epoch, begins, upto)
    commits = reader.commits(ahead)
    for commit in commits:
        if commit.undecoded is not None:
            raise undecoded(state.stream, commit)
    number = _last_layout(reader, table, ahead)
    number = layout if number is None else number
    known = reader.layouts([table])
    if number is None:
        if not known:
            raise NothingToRebuild(f"bronze holds nothing of {table}", where=reader.place)
        number = next(iter(known))  # of its first change, which is behind `upto`: there were no rows yet
    touched = [commit for commit in commits if str(table) in commit.counts]
    parts = list(parts_of(touched, str(table), ahead, project.pipeline.apply))
    rest = Span(ahead.epoch, parts[-1].span.upto if parts else begins, upto)
    control = control_tables(project)
    decided = hold_log(control, anew=True).decided(str(table), rest)
    if decided or rereads_of(control.snapshots(), state.stream, str(table), rest):
        parts.append(Part(rest, 0))
    return RebuildPlan(begins, upto, layout, known[number], tuple(parts))


def _beginning(project: Project, state: BronzeState, table: TableName) -> tuple[int, int | None]:
    """The position a table of a stream begins at, and the layout of its copied rows."""
    control = control_tables(project)
    if project.pipeline.snapshot.mode == "none":
        rows = [row for row in control.streams() if row.stream == state.stream]
        return (rows[-1].start if rows else 0), None
    copies = copies_in_force(control.snapshots(), state.stream)
    if copies is None:
        raise SnapshotIncomplete("the initial snapshot is not complete yet: there is nothing to build a table from")
    copy = copies.get(str(table))
    return (beginning(control, state), None) if copy is None else (copy.position, copy.layout)


def _last_layout(reader: BronzeReader, table: TableName, span: Span) -> int | None:
    """The layout of a table's last change in a span, None where it has none."""
    files = reader.applied()
    paths = files.select(epoch=span.epoch, after=span.after, upto=span.upto, relations=[str(table)])
    wanted = within(span) & (pc.field("relation") == str(table)) & pc.field("op").isin(["I", "U", "D", "T"])
    last: tuple[int, int, int] | None = None
    for part in files.batches(paths, ["position", "ordinal", "layout"], wanted & pc.field("layout").is_valid()):
        row = part.sort_by([("position", "descending"), ("ordinal", "descending")]).slice(0, 1).to_pylist()[0]
        place = (row["position"], row["ordinal"], row["layout"])
        last = place if last is None else max(last, place)
    return None if last is None else last[2]


def parts_of(commits: Iterable[CommitRow], relation: str, ahead: Span, bounds: Apply) -> Iterator[Part]:
    """Parts of the transactions that touch a table: they end at one, each within the bounds of a span but for a single
    transaction.
    """
    after = end = ahead.after
    rows = size = 0
    for commit in commits:
        changes = sum(commit.counts[relation].values())
        if rows and (rows + changes > bounds.span_rows or size + commit.size > bounds.span_bytes):
            yield Part(Span(ahead.epoch, after, end), size)
            after, rows, size = end, 0, 0
        rows, size, end = rows + changes, size + commit.size, commit.position
    if rows:
        yield Part(Span(ahead.epoch, after, end), size)
