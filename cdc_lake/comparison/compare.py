"""Compare: prove silver equal to the source, row by row, by key.

One read-only snapshot of the source for all tables. What it shows and silver does not hold yet is folded onto silver in
memory (`comparison.pending_changes`), transaction by transaction (`runtime.apply.snapshot_alignment`); where bronze
does not have it, the verdict is inconclusive and says what to do. Silver's values are written as the server prints them
by code that the projection does not use (`tables.canonical_values`), the source is read by another reader than the
initial copy's (`source.postgres.snapshot_visibility`), so that a mistake in either path shows. Keys that a rule or a
cast holds are accounted for one by one (`comparison.pending_changes`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.comparison.columns import ComparedTable, CompareOptions, CompareTask, Sample, pin, pin_at
from cdc_lake.comparison.repair import repair_run
from cdc_lake.comparison.table import table_compared
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import ComparisonSource
from cdc_lake.connectors.factory import compare_source
from cdc_lake.connectors.redaction import RedactedComparison, redaction_of
from cdc_lake.control.cut_lookup import find_cut
from cdc_lake.control.streams import source_table
from cdc_lake.control.verdicts import Comparison, Judged, TableComparison, record
from cdc_lake.errors import NoStream, NoTableMatches, SlotInvalidated, SlotMissing, WalGone
from cdc_lake.model.position import AsOf
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.runtime.apply.snapshot_alignment import AlignmentPoint, point
from cdc_lake.source.base import PendingTransaction, PublishedTable, SnapshotVisibility, format_stream_position
from cdc_lake.tables.control_tables import control_tables


def compare(
    project: Project,
    tables: Sequence[str],
    report: ProgressReporter,
    *,
    repair: bool = False,
    yes: bool = False,
    values: bool = False,
    as_of: AsOf | None = None,
    full: bool = False,
    sample: Sample | None = None,
    exclude: Sequence[str] = (),
) -> Comparison:
    """Compare the named source tables (`schema.table`, or a table of `public`), all published ones by default, without
    those of `exclude`.

    Writes `compare.json` into the project's reports. `repair`: what differs is to be landed in bronze, for the next run
    to merge; `yes`: do it (`comparison.repair`). `values`: the rows of keys that are named are told too. `as_of`:
    silver as the cut that is asked for has it, rolled forward to the source's snapshot, instead of as it is now.
    `full`: all rows are matched, none is hashed first. `sample`: some rows only.

    Raises SourceError, LakeError, StateError; TableNotKnown and NoTableMatches for a table that is not published;
    AnotherApply where a run would be in the way of a repair; CutUnknown, BeforeFirstCut, CutNotReached; ValueError for
    a repair of a cut.
    """
    if repair and as_of is not None:
        msg = "what differs in an older version of silver is not repaired"
        raise ValueError(msg)
    asked = CompareOptions(repair, lands=repair and yes, values=values, full=full, sample=sample, now=as_of is None)
    if not asked.lands:
        return _compare_tables(project, tables, exclude, report, asked, as_of)
    with repair_run(project) as comparisons:
        comparisons.append(_compare_tables(project, tables, exclude, report, asked, as_of))
    return comparisons[0]


def _compare_tables(
    project: Project,
    tables: Sequence[str],
    exclude: Sequence[str],
    report: ProgressReporter,
    asked: CompareOptions,
    as_of: AsOf | None,
) -> Comparison:
    began = time.monotonic()
    bronze, control = bronze_reader(project), control_tables(project)
    state = bronze.state()
    if state is None:
        raise NoStream("bronze holds no stream yet: there is nothing to compare")

    with compare_source(project, state) as opened:
        source = RedactedComparison(opened, redaction_of(project))
        captured = source.captured_tables()
        excluded = {table.table for table in _chosen(captured, exclude)} if exclude else set()
        chosen = [table for table in _chosen(captured, tables) if table.table not in excluded]
        cut = None if as_of is None else find_cut(project, as_of, state.epoch)
        pinned = pin(project, control, state, chosen) if cut is None else pin_at(project, cut, chosen)
        report(ProgressEvent("compare", "taking a snapshot of the source"))
        with _snapshot(bronze, state, source, pinned, report) as where:
            jobs = [CompareTask(project, bronze, control, state, source, table, asked) for table in pinned]
            results = [_report_verdict(table_compared(job, where), report) for job in jobs]
    position, seconds = format_stream_position(state.stream, where.shown.position), round(time.monotonic() - began, 3)
    comparison = Comparison(project.name, datetime.now(UTC), position, tuple(results), seconds, asked.values)
    stands = [Judged(state.stream, state.epoch, table.marker.generation, table.watermark) for table in pinned]
    record(control, comparison, stands)
    comparison.write(project.reports)
    return comparison


@contextmanager
def _snapshot(
    bronze: BronzeReader,
    state: StreamCheckpoint,
    source: ComparisonSource,
    pinned: Sequence[ComparedTable],
    report: ProgressReporter,
) -> Iterator[AlignmentPoint]:
    """A snapshot of the source; another one if silver holds what it does not show yet: it will be seen in a moment."""

    def ahead(snapshot: SnapshotVisibility, after: int) -> Sequence[PendingTransaction] | None:
        try:
            return source.ahead(snapshot, after)
        except (SlotMissing, SlotInvalidated, WalGone) as gone:
            # nothing more comes to bronze: what it lacks is what was lost, and shows as differences
            text = f"{gone.message}: changes that bronze does not have are shown as differences"
            report(ProgressEvent("warning", text, facts={"code": gone.code}))
            return ()

    lowest = min((table.watermark for table in pinned), default=state.upto)
    for last in (False, False, True):
        with source.snapshot([table.target.source for table in pinned]) as snapshot:
            where = point(bronze, snapshot, lowest, partial(ahead, snapshot))
            if last or not any(where.gap_ahead(table.target.source, table.watermark) for table in pinned):
                yield where
                return


def _report_verdict(result: TableComparison, report: ProgressReporter) -> TableComparison:
    because = f" ({result.reason})" if result.reason else ""
    facts = {"table": result.table, "verdict": result.verdict.value}
    report(
        ProgressEvent(
            "compare", f"{result.table}: {result.text}{because}", result.source_rows, unit="rows", facts=facts
        )
    )
    return result


def _chosen(captured: Sequence[PublishedTable], wanted: Sequence[str]) -> list[PublishedTable]:
    by_name = {published.table: published for published in captured}
    if not wanted:
        return list(captured)
    chosen = []
    for text in wanted:
        name = source_table(text)
        if name not in by_name:
            raise NoTableMatches(f"the stream carries no table {name}", hint="`cdc-lake plan` lists the tables")
        chosen.append(by_name[name])
    return chosen
