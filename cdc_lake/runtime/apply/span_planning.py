"""Plans: what a span does to its tables, what a rebuild is made of, and how many transactions go together.

What a rebuild is made of: where the table begins in bronze, up to where it goes, and in which parts.

It begins with the rows of a copy, or with nothing where the pipeline takes none, and goes on with every transaction
that touched the table. A kind that remembers what was begins with the first copy, and takes later ones for what they
are: an end of all rows, and rows. Any other begins with the newest copy.

The next span: how many of the transactions ahead go together. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow.compute as pc

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.data_files import Files
from cdc_lake.bronze.reader import BronzeReader, CommitRow, span_filter
from cdc_lake.bronze.span_index import SpanSummary, as_they_are, outline
from cdc_lake.config.model import Apply
from cdc_lake.config.project import Project, Target
from cdc_lake.control.cuts import TableState, content_before
from cdc_lake.control.quarantine import quarantine_log
from cdc_lake.control.snapshots import (
    CaptureInterval,
    CopiedTable,
    TableTimeline,
    beginning,
    courses,
    initial_copies,
    refetched_rows,
)
from cdc_lake.control.streams import undecoded_error
from cdc_lake.errors import CdcLakeError, NothingToRebuild, PastTrimmed, PositionUnavailable, SnapshotIncomplete
from cdc_lake.model.position import Span
from cdc_lake.model.quarantine import NOTHING_DECIDED, Decided, RefetchedRows, rereads_in
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import ProgressReporter, silent
from cdc_lake.runtime.apply.schema_changes import next_layout
from cdc_lake.silver.row_tracing import QuarantineState, Unit
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_tables import ControlTables, control_tables
from cdc_lake.tables.silver_table import Marker


@dataclass(frozen=True, slots=True)
class Copied:
    """Of a table that was copied again: when the last transaction that the copy has was committed, None: not known."""

    commit_ts: datetime | None


@dataclass(frozen=True)
class TableTask:
    """What to prepare: a table's changes in `span`, or the rows of its snapshot at the span's end, then with the layout
    they follow. `held`: what waits; `stood`: the table's marker when the span was chosen. `size`: bytes that
    the changes took as they were received, at most; None where nobody knows. `near`: where Spark reads data files.
    `follows`: the layout that silver's rows have, None: nobody knows; `allowed`: destructive operations in words;
    `all_relations`: all layouts of the table. `summary`: the outline, where it was read. `rereads`: what of the table
    was read again and comes into force in the span, `decided` what was decided of it. `held_units`: transactions that
    are held whole. `copied`: the snapshot's rows end all that silver has, None where nothing is there. `adopts`: the
    table is somebody else's, and its content is replaced on purpose. `form`: the table's last layout, where it is built
    from the beginning (`table_schema.looking_ahead`).
    """

    project: Project
    target: Target
    stream: str
    span: Span
    files: Files
    layouts: Mapping[int, Relation]
    held: QuarantineState
    stood: Marker
    layout: int | None = None
    size: int | None = None
    near: Callable[[Files, Sequence[str]], list[str]] = as_they_are
    follows: Relation | None = None
    allowed: Container[str] = frozenset()
    all_relations: Callable[[], Iterable[Relation]] = tuple
    summary: SpanSummary | None = None
    rereads: tuple[RefetchedRows, ...] = ()
    decided: Decided = NOTHING_DECIDED
    held_units: frozenset[Unit] = frozenset()
    report: ProgressReporter = silent
    copied: Copied | None = None
    adopts: bool = False
    form: Relation | None = None

    @property
    def snapshot(self) -> bool:
        """Whether this is rows of a copy."""
        return self.layout is not None

    @property
    def first(self) -> bool:
        """Whether this is the table's first content."""
        return self.snapshot and self.copied is None

    @property
    def next_layout(self) -> int | None:
        """The position of the first transaction of the span that needs another silver table than those before it."""
        try:
            return None if self.summary is None else next_layout(self.summary, self.layouts, self.target)
        except CdcLakeError:  # a layout that cannot be had: `prepare` says why, and only this table waits
            return None

    def end_before(self, position: int) -> TableTask:
        """The same up to before a position."""
        span = Span(self.span.epoch, self.span.after, position - 1)
        rereads, decided = rereads_in(self.rereads, span), self.decided.select_span(span)
        return replace(self, span=span, summary=None, rereads=rereads, decided=decided).with_summary()

    def with_summary(self) -> TableTask:
        """The same, with the outline read."""
        summary = outline(
            self.files,
            self.target.source,
            self.span,
            snapshot=self.snapshot,
            rereads=self.rereads,
            released=self.decided.released_rows,
            follows=None if self.follows is None else self.follows.layout,
        )
        return replace(self, summary=summary)


@dataclass(frozen=True, slots=True)
class SpanPlan:
    """What a span does to its tables.

    Attributes:
        tables: Source table → its state before the tasks, for the next cut.
        tasks: What is to be prepared, a task a table.
    """

    tables: dict[str, TableState]
    tasks: list[TableTask]

    @property
    def next_layout(self) -> int | None:
        """The position of the first transaction that needs another silver table than those before it."""
        return min((task.next_layout for task in self.tasks if task.next_layout is not None), default=None)


@dataclass(frozen=True, slots=True)
class Part:
    """A span, and the bytes that the table's changes in it took as they were received, at most. `copy`: the rows of
    this copy, at the span's end, are all that the table has then; `commit_ts`: when its last transaction was committed.
    """

    span: Span
    size: int
    copy: CopiedTable | None = None
    commit_ts: datetime | None = None


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """`layout`: that of the copied rows, None where there was no copy of the table; `form`: the table's last layout;
    `parts`: what comes behind the copy; `copied`: the position of the newest copy in it, None for the initial one.
    """

    begins: int
    upto: int
    layout: int | None
    form: Relation
    parts: tuple[Part, ...]
    copied: int | None = None


def rebuild_plan(
    project: Project, reader: BronzeReader, state: StreamCheckpoint, table: TableName, upto: int
) -> RebuildPlan:
    """Work out how a table is built up to a position. Raises StateError where it cannot be."""
    control = control_tables(project)
    check_own_past(project.target(table), control, state, reader)
    rows = control.snapshots()
    course = courses(rows, state.stream).get(str(table), TableTimeline())
    stretches = [
        _as_landed(reader, state.epoch, interval) for interval in _stretches(project.target(table), course, upto)
    ]
    first = stretches[0].copy
    begins = _beginning(project, control, state) if first is None else first.position
    if (left := reader.last_trimmed().get(state.epoch)) is not None and begins < left[0]:
        raise PastTrimmed(f"bronze begins after {format_stream_position(state.stream, left[0])}", where=reader.place)
    _check_held(state, table, stretches[-1], begins, upto)
    ahead = Span(state.epoch, begins, upto)
    commits = reader.commits(ahead)
    for commit in commits:
        if commit.undecoded is not None:
            raise undecoded_error(state.stream, commit)
    parts: list[Part] = []
    for index, (stretch, following) in enumerate(zip(stretches, [*stretches[1:], None], strict=True)):
        if index and stretch.copy is not None:
            parts.append(_copy_part(stretch.copy, state.epoch, commits))
        after = max(begins, stretch.begins)
        span = Span(state.epoch, after, max(after, _ends(stretch, following, upto)))
        touched = [commit for commit in commits if commit.position in span and str(table) in commit.counts]
        own_parts = list(parts_of(touched, str(table), span, project.pipeline.apply))
        rest = Span(span.epoch, own_parts[-1].span.upto if own_parts else span.after, span.upto)
        decided = quarantine_log(control, for_new_content=True).decisions_on(str(table), rest)
        if decided or refetched_rows(rows, state.stream, str(table), rest):
            own_parts.append(Part(rest, 0))
        parts += own_parts
    last = stretches[-1]
    number = _last_layout(reader, table, Span(state.epoch, max(begins, last.begins), upto))
    number = number if number is not None or last.copy is None else last.copy.layout
    layouts = reader.layouts([table])
    if number is None:
        if not layouts:
            raise NothingToRebuild(f"bronze contains nothing of {table}", where=reader.place)
        number = next(iter(layouts))  # of its first change, which is behind `upto`: there were no rows yet
    layout = None if first is None else first.layout
    copied = None if last.copy is None or not last.later else last.copy.position
    return RebuildPlan(begins, upto, layout, layouts[number], tuple(parts), copied)


def check_own_past(target: Target, control: ControlTables, state: StreamCheckpoint, reader: BronzeReader) -> None:
    """Raise PastTrimmed where a table keeps a past from an earlier stream, which cannot be made again."""
    if target.keeps_past and content_before(control, state, str(target.source)) is not None:
        words = f"{target.label} keeps a past from before epoch {state.epoch} of the stream"
        hint = "`cdc-lake restart` copies every table again and keeps their pasts"
        hint += f"; if another program damaged that past, first give {target.source} another silver table (`to`)"
        raise PastTrimmed(words, where=reader.place, hint=hint)


def _stretches(target: Target, course: TableTimeline, upto: int) -> list[CaptureInterval]:
    """What of a table's course is gone through up to a position."""
    begun = [stretch for stretch in course.stretches if stretch.begins <= upto] or [course.stretches[0]]
    return begun if target.keeps_past else begun[-1:]


def _as_landed(reader: BronzeReader, epoch: int, stretch: CaptureInterval) -> CaptureInterval:
    """The stretch with the layout of its copied rows, noted up to 0.3.0 as it was before redaction."""
    copy = stretch.copy
    if copy is None or copy.layout in (layouts := reader.layouts([copy.relation])) or not layouts:
        return stretch
    rows = outline(reader.files(), copy.relation, Span(epoch, copy.position - 1, copy.position), snapshot=True)
    return replace(stretch, copy=replace(copy, layout=rows.runs[-1].layout if rows.runs else next(iter(layouts))))


def _check_held(state: StreamCheckpoint, table: TableName, last: CaptureInterval, begins: int, upto: int) -> None:
    if not begins <= upto <= state.upto:
        held = (
            f"from {format_stream_position(state.stream, begins)} to {format_stream_position(state.stream, state.upto)}"
        )
        raise PositionUnavailable(
            f"bronze has no state of {table} at {format_stream_position(state.stream, upto)}: {held}"
        )
    if last.left is not None and last.left < upto:
        left = (
            f"it was removed from the stream at {format_stream_position(state.stream, last.left)}, and has not been "
            "copied since"
        )
        raise PositionUnavailable(
            f"bronze has no state of {table} at {format_stream_position(state.stream, upto)}: {left}"
        )


def _ends(stretch: CaptureInterval, following: CaptureInterval | None, upto: int) -> int:
    """Where a stretch ends: before the next copy, which has all of the transaction that ends where it stands."""
    before = upto if following is None else following.begins - 1
    return before if stretch.left is None else min(before, stretch.left)


def _copy_part(copy: CopiedTable, epoch: int, commits: Sequence[CommitRow]) -> Part:
    before = [
        commit.commit_ts for commit in commits if commit.commit_ts is not None and commit.position <= copy.position
    ]
    return Part(Span(epoch, copy.position - 1, copy.position), 0, copy, max(before, default=None))


def _beginning(project: Project, control: ControlTables, state: StreamCheckpoint) -> int:
    """The position that a table begins at which was not copied."""
    if project.pipeline.snapshot.mode == "none":
        rows = [row for row in control.streams() if row.stream == state.stream]
        return rows[-1].start if rows else 0
    if initial_copies(control.snapshots(), state.stream) is None:
        raise SnapshotIncomplete("the initial copy is not complete yet: there is nothing to build a table from")
    return beginning(control, state)


def _last_layout(reader: BronzeReader, table: TableName, span: Span) -> int | None:
    """The layout of a table's last change in a span, None where it has none."""
    files = reader.applied_files()
    paths = files.select(epoch=span.epoch, after=span.after, upto=span.upto, relations=[str(table)])
    wanted = span_filter(span) & (pc.field("relation") == str(table)) & pc.field("op").isin(["I", "U", "D", "T"])
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


def next_span(ahead: Iterable[CommitRow], bounds: Apply) -> tuple[list[CommitRow], CommitRow | None]:
    """The transactions of the next span, in order: as many as the bounds take, at least one; none where there are none.

    One that is there as bytes only ends the span before it; where it is the first, it comes as the second value.
    """
    commits: list[CommitRow] = []
    rows = size = 0
    for commit in ahead:
        if commit.undecoded is not None:
            return commits, None if commits else commit
        if commits and (rows + commit.changes > bounds.span_rows or size + commit.size > bounds.span_bytes):
            break
        commits.append(commit)
        rows += commit.changes
        size += commit.size
    return commits, None
