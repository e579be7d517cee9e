"""Plans spans and rebuilds: how many transactions go together, and from which parts of bronze a table is rebuilt.

A rebuild begins with the rows of a copy, or with nothing if the pipeline takes none, and continues with every
transaction that touched the table. A kind that remembers begins with the first copy, and treats later ones as an end
of all rows, followed by rows. Any other kind begins with the newest copy.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

import pyarrow.compute as pc

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.data_files import Files
from cdc_lake.bronze.reader import BronzeReader, CommitRow, span_filter
from cdc_lake.bronze.span_index import SpanSummary, outline
from cdc_lake.config.model import Apply
from cdc_lake.config.project import Project, Target
from cdc_lake.control import snapshots
from cdc_lake.control.cuts import TableState, content_before
from cdc_lake.control.quarantine import quarantine_log
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
    """A table was copied again: when the last transaction in the copy was committed, None if unknown."""

    commit_ts: datetime | None


@dataclass(frozen=True)
class TableTask:
    """What to prepare: a table's changes in `span`, or the rows of its snapshot at the span's end.

    `quarantine`: before the span; `stood`: the table's marker when the span was chosen; `size`: upper bound of the
    changes' bytes as received, None if unknown; `follows`: the layout of silver's rows, None if unknown; `allowed`:
    approved destructive operations; `all_relations`: all layouts of the table;
    `summary`: the summary of the span, if read; `rereads`, `decided`: repaired rows and decisions that take effect in
    the span; `quarantined_units`: transactions held as a whole; `copied`: the snapshot's rows end all rows of silver,
    None if there are none; `adopts`: the table belongs to somebody else, and is replaced on purpose; `form`: the
    table's last layout, if it is built from the beginning (`table_schema.looking_ahead`).
    """

    project: Project
    target: Target
    stream: str
    span: Span
    files: Files
    layouts: Mapping[int, Relation]
    quarantine: QuarantineState
    stood: Marker
    layout: int | None = None
    size: int | None = None
    follows: Relation | None = None
    allowed: Container[str] = frozenset()
    all_relations: Callable[[], Iterable[Relation]] = tuple
    summary: SpanSummary | None = None
    rereads: tuple[RefetchedRows, ...] = ()
    decided: Decided = NOTHING_DECIDED
    quarantined_units: frozenset[Unit] = frozenset()
    report: ProgressReporter = silent
    copied: Copied | None = None
    adopts: bool = False
    form: Relation | None = None

    @property
    def snapshot(self) -> bool:
        """Whether this loads the rows of a copy."""
        return self.layout is not None

    @property
    def first(self) -> bool:
        """Whether this is the table's first content."""
        return self.snapshot and self.copied is None

    @property
    def next_layout(self) -> int | None:
        """The position of the span's first transaction that needs another layout of the silver table."""
        try:
            return None if self.summary is None else next_layout(self.summary, self.layouts, self.target)
        except CdcLakeError:  # an unavailable layout: `prepare` reports it, and only this table waits
            return None

    def end_before(self, position: int) -> TableTask:
        """The task, ending before a position."""
        span = Span(self.span.epoch, self.span.after, position - 1)
        rereads, decided = rereads_in(self.rereads, span), self.decided.select_span(span)
        return replace(self, span=span, summary=None, rereads=rereads, decided=decided).with_summary()

    def with_summary(self) -> TableTask:
        """The task with its summary read."""
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
    """The effect of a span on its tables.

    Attributes:
        tables: Source table → its state before the tasks, for the next cut.
        tasks: What to prepare, at most one task per table.
    """

    tables: dict[str, TableState]
    tasks: list[TableTask]

    @property
    def next_layout(self) -> int | None:
        """The position of the first transaction that needs another layout of a silver table."""
        return min((task.next_layout for task in self.tasks if task.next_layout is not None), default=None)


@dataclass(frozen=True, slots=True)
class Part:
    """A span, and an upper bound of the table's bytes in it as received. `copy`: the rows of this copy, at the span's
    end, replace all others; `commit_ts`: commit time of its last transaction.
    """

    span: Span
    size: int
    copy: snapshots.CopiedTable | None = None
    commit_ts: datetime | None = None


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """`layout`: that of the copied rows, None without a copy; `form`: the table's last layout; `parts`: what follows
    the copy; `copied`: position of the newest copy in it, None for the initial one.
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
    """Plan the rebuild of a table up to a position. Raises StateError if it is impossible."""
    control = control_tables(project)
    check_own_past(project.target(table), control, state, reader)
    rows = control.snapshots()
    course = snapshots.courses(rows, state.stream).get(str(table), snapshots.TableTimeline())
    stretches = [
        _as_landed(reader, state.epoch, interval) for interval in _stretches(project.target(table), course, upto)
    ]
    first = stretches[0].copy
    begins = _beginning(project, control, state) if first is None else first.position
    if (left := reader.last_trimmed().get(state.epoch)) is not None and begins < left[0]:
        raise PastTrimmed(f"bronze begins after {format_stream_position(state.stream, left[0])}", where=reader.place)
    _check_captured(state, table, stretches[-1], begins, upto)
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
        if decided or snapshots.refetched_rows(rows, state.stream, str(table), rest):
            own_parts.append(Part(rest, 0))
        parts += own_parts
    last = stretches[-1]
    number = _last_layout(reader, table, Span(state.epoch, max(begins, last.begins), upto))
    number = number if number is not None or last.copy is None else last.copy.layout
    layouts = reader.layouts([table])
    if number is None:
        if not layouts:
            raise NothingToRebuild(f"bronze contains nothing of {table}", where=reader.place)
        number = next(iter(layouts))  # of its first change, after `upto`: there were no rows yet
    layout = None if first is None else first.layout
    copied = None if last.copy is None or not last.later else last.copy.position
    return RebuildPlan(begins, upto, layout, layouts[number], tuple(parts), copied)


def check_own_past(target: Target, control: ControlTables, state: StreamCheckpoint, reader: BronzeReader) -> None:
    """Raise PastTrimmed if a table keeps history from an earlier stream, which cannot be rebuilt."""
    if target.keeps_past and content_before(control, state, str(target.source)) is not None:
        words = f"{target.label} keeps a past from before epoch {state.epoch} of the stream"
        hint = "`cdc-lake restart` copies every table again and keeps their pasts"
        hint += f"; if another program damaged that past, first give {target.source} another silver table (`to`)"
        raise PastTrimmed(words, where=reader.place, hint=hint)


def _stretches(target: Target, course: snapshots.TableTimeline, upto: int) -> list[snapshots.CaptureInterval]:
    """The intervals of a table's timeline up to a position that a rebuild reads."""
    begun = [stretch for stretch in course.stretches if stretch.begins <= upto] or [course.stretches[0]]
    return begun if target.keeps_past else begun[-1:]


def _as_landed(reader: BronzeReader, epoch: int, stretch: snapshots.CaptureInterval) -> snapshots.CaptureInterval:
    """The interval with the layout of its copied rows, which up to 0.3.0 was recorded as before redaction."""
    copy = stretch.copy
    if copy is None or copy.layout in (layouts := reader.layouts([copy.relation])) or not layouts:
        return stretch
    rows = outline(reader.files(), copy.relation, Span(epoch, copy.position - 1, copy.position), snapshot=True)
    return replace(stretch, copy=replace(copy, layout=rows.runs[-1].layout if rows.runs else next(iter(layouts))))


def _check_captured(
    state: StreamCheckpoint, table: TableName, last: snapshots.CaptureInterval, begins: int, upto: int
) -> None:
    format_position = partial(format_stream_position, state.stream)
    reason = None
    if not begins <= upto <= state.upto:
        reason = f"from {format_position(begins)} to {format_position(state.upto)}"
    elif last.left is not None and last.left < upto:
        reason = f"it was removed from the stream at {format_position(last.left)}, and has not been copied since"
    if reason is not None:
        raise PositionUnavailable(f"bronze has no state of {table} at {format_position(upto)}: {reason}")


def _ends(stretch: snapshots.CaptureInterval, following: snapshots.CaptureInterval | None, upto: int) -> int:
    """Where an interval ends: before the next copy, which contains the transaction that ends at its position."""
    before = upto if following is None else following.begins - 1
    return before if stretch.left is None else min(before, stretch.left)


def _copy_part(copy: snapshots.CopiedTable, epoch: int, commits: Sequence[CommitRow]) -> Part:
    before = [
        commit.commit_ts for commit in commits if commit.commit_ts is not None and commit.position <= copy.position
    ]
    return Part(Span(epoch, copy.position - 1, copy.position), 0, copy, max(before, default=None))


def _beginning(project: Project, control: ControlTables, state: StreamCheckpoint) -> int:
    """The position at which a table without a copy begins."""
    if project.pipeline.snapshot.mode == "none":
        rows = [row for row in control.streams() if row.stream == state.stream]
        return rows[-1].start if rows else 0
    if snapshots.initial_copies(control.snapshots(), state.stream) is None:
        raise SnapshotIncomplete("the initial copy is not complete yet: there is nothing to build a table from")
    return snapshots.beginning(control, state)


def _last_layout(reader: BronzeReader, table: TableName, span: Span) -> int | None:
    """The layout of a table's last change in a span, None without one."""
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
    """Divide the transactions that touch a table into parts, each within the limits of a span unless it is a single
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


_LARGEST: Final = 8  # times the default, so that the summary of a span's changes fits the driver


def span_limits(settings: Apply, cores: int | None) -> Apply:
    """The settings, with limits of a span that suit a cluster of so many cores if the pipeline file has none."""
    if cores is None:
        return settings
    factor = min(_LARGEST, max(1, cores // 2))
    defaults = {"span_rows", "span_bytes"} - settings.model_fields_set
    return settings.model_copy(update={name: getattr(settings, name) * factor for name in defaults})


def next_span(ahead: Iterable[CommitRow], bounds: Apply) -> tuple[list[CommitRow], CommitRow | None]:
    """The transactions of the next span, in order: as many as the limits allow, at least one; empty if there are none.

    An undecoded transaction ends the span before it; if it is the first, it is returned as the second value.
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
