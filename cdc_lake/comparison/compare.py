"""Compare: proves that silver equals the source, row by row, by key.

All tables use one read-only snapshot of the source. What it shows and silver lacks is applied to silver in memory
(`comparison.pending_changes`), transaction by transaction (`runtime.apply.snapshot_alignment`); if bronze lacks it, the
verdict is inconclusive, with a hint. Silver's values are printed as the server does by code that the projection does
not use (`tables.canonical_values`), and the source is read by other code than the initial copy's
(`source.postgres.snapshot_visibility`), so that an error in either becomes visible. Keys that a rule or a cast holds
are accounted for one by one (`comparison.pending_changes`).

Both sides of a table are first summed up by bucket (`tables.row_hash`). Differing buckets, and those with quarantined
keys, are read again from both sides and matched row by row: hashes only show where to look, and every reported
difference is one of values.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.comparison import columns, row_sets
from cdc_lake.comparison.pending_changes import Held, Overlay, PendingChanges, forward
from cdc_lake.comparison.repair import DifferingKeys, repair, repair_run
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import ComparisonSource
from cdc_lake.connectors.factory import compare_source
from cdc_lake.connectors.redaction import RedactedComparison, redaction_of
from cdc_lake.control.cut_lookup import find_cut
from cdc_lake.control.streams import source_table
from cdc_lake.control.verdicts import SAMPLE, Comparison, DifferingKey, Judged, Repair, TableComparison, Verdict, record
from cdc_lake.errors import NoStream, NoTableMatches, SlotInvalidated, SlotMissing, WalGone
from cdc_lake.model.position import AsOf
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.runtime.apply.snapshot_alignment import CATCH_UP, AlignmentPoint, Gap, SnapshotTransaction, point
from cdc_lake.source.base import (
    PendingTransaction,
    PublishedTable,
    SnapshotVisibility,
    format_stream_position,
    takes_table_copies,
)
from cdc_lake.tables.control_tables import control_tables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.row_hash import BUCKETS

SHARED = "name columns in `keys` of the table that identify its rows, then `cdc-lake rebuild TABLE`"


@dataclass(frozen=True)
class _Found:
    """The result of comparing the rows of a table. `apart`: keys with discarded changes; `rows`: of the source and of
    silver; `uneven`: numbers of rows with one key differ; `streamed`: why the source's rows were hashed here;
    `matched`: number of rows read to be matched; `forward`: number of transactions applied to silver in memory;
    `sampled`: share of compared buckets, None: all; `rows_of_keys`: rows of some differing keys.
    """

    differences: columns.Differences
    accounted: frozenset[columns.Key]
    unaccounted: frozenset[columns.Key]
    rows: tuple[int, int]
    layout: columns.Layout | None = None
    apart: frozenset[columns.Key] = frozenset()
    astray: frozenset[str] = frozenset()
    uneven: bool = False
    streamed: str = ""
    matched: int = 0
    sampled: float | None = None
    rows_of_keys: row_sets.KeyRows | None = None
    forward: int = 0

    @property
    def by_content(self) -> bool:
        """Whether rows have no key."""
        return self.layout is not None and self.layout.by_content


def table_compared(job: columns.CompareTask, where: AlignmentPoint) -> TableComparison:
    """The verdict of one table. Raises SourceError, LakeError."""
    began = time.monotonic()
    pinned = job.pinned
    table, watermark = pinned.target.source, pinned.watermark
    if pinned.target.kind == "append":
        reason = "silver keeps every change of it, the source only the resulting rows"
        label = pinned.target.label
        return TableComparison(str(table), label, Verdict.NOT_COMPARED, reason=reason, seconds=_elapsed_seconds(began))
    outcome = (
        where.unknown(table)
        or where.gap_ahead(table, watermark)
        or _compare_sides(job, where.find_unapplied(table, watermark))
    )
    if isinstance(outcome, _Found):
        return _judge_findings(job, where, outcome, began)
    why, remedy = outcome.reason, outcome.hint
    if pinned.waits is not None and pinned.waits[0] not in remedy:
        why, remedy = f"{why}; {pinned.waits[0]}", pinned.waits[1]
    return TableComparison(
        str(pinned.target.source),
        pinned.target.label,
        Verdict.INCONCLUSIVE,
        reason=why,
        hint=remedy,
        seconds=_elapsed_seconds(began),
    )


def _compare_sides(job: columns.CompareTask, unapplied: Sequence[SnapshotTransaction]) -> _Found | Gap:
    """The differences, or why both sides cannot be compared."""
    pinned = job.pinned
    if not pinned.readable:
        return Gap("the cut does not contain it, or its version no longer exists", "`cdc-lake cuts list`")
    if not table_log(job.project, pinned.target).exists():
        return _without_silver(job)
    schema, _ = table_log(job.project, pinned.target).read_blocks(pinned.marker.version)
    layout = columns.layout_of(job, schema)
    if isinstance(layout, Gap):
        return layout
    try:
        later = forward(job, layout, [touch.position for touch in unapplied], sum(touch.changes for touch in unapplied))
        return later if isinstance(later, Gap) else _both_sides(job, layout, later)
    except columns.TypesApart as odd:
        return columns.type_gap(str(odd))


def _without_silver(job: columns.CompareTask) -> _Found | Gap:
    relation = job.source.relation_of(job.pinned.published)
    if sum(block.num_rows for block in job.source.parts(relation, job.pinned.published)):
        return Gap("the silver table has not been created yet", "run `cdc-lake run --once`")
    return _Found(columns.Differences(), frozenset(), frozenset(), (0, 0))


def _both_sides(job: columns.CompareTask, layout: columns.Layout, later: PendingChanges) -> _Found | Gap:
    quarantined = Held(job, layout, later.changes, closed=later.emptied)
    overlay = Overlay(layout, quarantined.others, emptied=later.emptied)
    source, silver = row_sets.SourceRowSet(job, layout), row_sets.SilverRowSet(job, layout, overlay)
    among, rows_of_keys = _among(job), row_sets.KeyRows(layout, quarantined.keys)
    differences, uneven, read = columns.Differences(), False, (0, 0)
    if job.asked.full:
        wanted = np.ones(BUCKETS, bool) if among is None else among
    else:
        source_sums, silver_sums = row_sets.both_sums(source, silver, among)
        wanted = source_sums.unlike(silver_sums)
    wanted = wanted | layout.buckets_of(quarantined.keys)
    if wanted.any():
        sides = (source, silver)
        differences, uneven, read = _match_rows(job.project, layout, sides, quarantined, wanted, rows_of_keys)
    if silver.shared:
        backlog = f"{later.transactions} landed transactions are not applied yet"
        return Gap(f"{backlog}, and they assign one key to several rows", CATCH_UP)
    accounted, unaccounted = quarantined.explain_keys()
    return _Found(
        differences,
        accounted,
        unaccounted,
        rows=read if job.asked.full else (source_sums.rows, silver_sums.rows),
        layout=layout,
        apart=quarantined.apart,
        astray=silver.astray,
        uneven=uneven and not quarantined.keys and not differences.keys,
        streamed="" if job.asked.full else source.streamed,
        matched=read[0],
        sampled=None if among is None else float(among.mean()),
        rows_of_keys=rows_of_keys,
        forward=later.transactions,
    )


def _among(job: columns.CompareTask) -> Any:
    """The buckets to compare, a bool each; None: all."""
    if job.asked.sample is None:
        return None
    pinned = job.pinned
    return job.asked.sample.buckets(table_log(job.project, pinned.target).count_rows(pinned.marker.version))


def _match_rows(
    project: Project,
    layout: columns.Layout,
    sides: tuple[row_sets.SourceRowSet, row_sets.SilverRowSet],
    quarantined: Held,
    wanted: Any,
    rows_of_keys: row_sets.KeyRows,
) -> tuple[columns.Differences, bool, tuple[int, int]]:
    """The differences in some buckets, whether the number of rows differs in a part, and the number on each side."""
    source, silver = sides
    buckets = None if wanted.all() else wanted
    parts, uneven, here_read, there_read = [], False, 0, 0
    project.scratch.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f"{project.name}.compare.", dir=project.scratch.parent) as folder:
        source_shelf, silver_shelf = (row_sets.BucketStore(Path(folder), side) for side in ("source", "silver"))
        for rows, all_rows in source.blocks(buckets):
            here_read += rows.num_rows
            quarantined.at_source(all_rows)
            source_shelf.add(rows, layout.form.buckets(rows))
        for rows in silver.blocks(buckets):
            there_read += rows.num_rows
            quarantined.in_silver(rows)
            silver_shelf.add(rows, layout.form.buckets(rows))
        for source_part, silver_part in row_sets.pair_shelves(source_shelf, silver_shelf):
            rows_in_source, rows_in_silver = _rows(source_part, layout), _rows(silver_part, layout)
            parts.append(columns.match(rows_in_source, rows_in_silver, layout.keys))
            rows_of_keys.add(parts[-1], rows_in_source, rows_in_silver)
            uneven |= rows_in_source.num_rows != rows_in_silver.num_rows
    return columns.merge_differences(parts), uneven, (here_read, there_read)


def _rows(rows: pa.Table | None, layout: columns.Layout) -> pa.Table:
    """Rows as they are matched: without a key each distinct row with its number."""
    if rows is None:
        rows = pa.schema([pa.field(name, pa.large_string()) for name in layout.form.columns]).empty_table()
    return columns.count_copies(rows) if layout.by_content else rows


def _judge_findings(job: columns.CompareTask, where: AlignmentPoint, findings: _Found, began: float) -> TableComparison:
    pinned, differences = job.pinned, findings.differences
    quarantined = findings.accounted | findings.unaccounted
    kinds = {
        "missing": _without_quarantined(differences.missing, quarantined),
        "extra": _without_quarantined(differences.extra, quarantined),
        "changed": _without_quarantined(differences.changed, quarantined),
        "repeated": _without_quarantined(differences.repeated, quarantined),
        "unaccounted": _without_quarantined(tuple(findings.unaccounted), frozenset()),
    }
    counts = {kind: len(keys) for kind, keys in kinds.items()}
    # Without a key a sample would be a whole row, and values are not reported.
    samples = () if findings.by_content else tuple((kind, keys[:SAMPLE]) for kind, keys in kinds.items() if keys)
    shared = frozenset(differences.shared) - findings.accounted
    differs = any(kinds.values()) or findings.uneven or bool(findings.astray)
    verdict = _verdict(differs, findings.accounted, findings.apart)
    why = _reason(findings, shared)
    remedy = SHARED if shared else _remedy_text(job) if verdict is Verdict.DIFFERENT else ""
    if not why and pinned.waits is not None:
        why, remedy = pinned.waits
    differing: tuple[DifferingKey, ...] = ()
    if findings.layout is not None and findings.rows_of_keys is not None:
        differing = row_sets.differing_keys(job, findings.layout, samples, findings.rows_of_keys)
    return TableComparison(
        table=str(pinned.target.source),
        silver=pinned.target.label,
        verdict=verdict,
        source_rows=findings.rows[0],
        silver_rows=findings.rows[1],
        quarantined_keys=len(findings.accounted - findings.apart),
        discarded_keys=len(findings.accounted & findings.apart),
        missing=counts["missing"],
        extra=counts["extra"],
        changed=counts["changed"],
        repeated=counts["repeated"],
        unaccounted=counts["unaccounted"],
        columns=() if findings.by_content else _columns(differences, quarantined),
        samples=samples,
        watermark=format_stream_position(job.state.stream, pinned.watermark) if pinned.watermark >= 0 else "",
        reason=why,
        hint=remedy,
        repair=_repair_keys(job, where, findings, kinds),
        hashed_by="" if findings.layout is None or job.asked.full else "client" if findings.streamed else "server",
        streamed=findings.streamed,
        rows_matched=findings.matched,
        differing=differing,
        rolled_forward=findings.forward,
        sampled=findings.sampled,
        seconds=_elapsed_seconds(began),
    )


def _repair_keys(
    job: columns.CompareTask, where: AlignmentPoint, findings: _Found, kinds: Mapping[str, Sequence[columns.Key]]
) -> Repair | None:
    """The repair of differing keys; None if none was requested or none differs."""
    keys_by_kind = {kind: frozenset(keys) for kind, keys in kinds.items()}
    names = () if findings.layout is None or findings.by_content else findings.layout.keys
    types = findings.layout.types if findings.layout is not None else {}
    differing = DifferingKeys(
        names, types, keys_by_kind["missing"] | keys_by_kind["changed"], keys_by_kind["extra"], keys_by_kind["repeated"]
    )
    return repair(job, where, differing) if job.asked.repairs and differing.keys else None


def _remedy_text(job: columns.CompareTask) -> str:
    """The hint how silver becomes equal again; none for an older version or with a repair, which reports its
    outcome.
    """
    if job.asked.repairs or not job.asked.now:
        return ""
    table = shlex.quote(str(job.pinned.target.source))
    if not takes_table_copies(job.state.stream):
        return f"`cdc-lake compare {table} --repair` copies the rows of single keys again"
    return f"`cdc-lake resync {table}` copies the table again, `cdc-lake compare {table} --repair` single keys"


def _verdict(different: bool, accounted: frozenset[columns.Key], apart: frozenset[columns.Key]) -> Verdict:
    if different:
        return Verdict.DIFFERENT
    if accounted & apart:
        return Verdict.EQUAL_BUT_DISCARDED
    return Verdict.EQUAL_BUT_QUARANTINED if accounted else Verdict.EQUAL


def _reason(findings: _Found, shared: frozenset[columns.Key]) -> str:
    if findings.astray:
        return f"numbers that do not match the text in the other column: {', '.join(sorted(findings.astray))}"
    if shared and findings.layout is not None:
        keys = ", ".join(findings.layout.keys)
        return f"the source has several rows with the same key: {keys} does not identify a row"
    return "the numbers of rows with the same key differ" if findings.uneven else ""


def _columns(differences: columns.Differences, quarantined: frozenset[columns.Key]) -> tuple[tuple[str, int], ...]:
    """Differing rows by column; omitted if some belong to quarantined keys, which are explained differently."""
    return () if quarantined.intersection(differences.changed) else differences.columns


def _without_quarantined(keys: Sequence[columns.Key], quarantined: frozenset[columns.Key]) -> tuple[columns.Key, ...]:
    return tuple(sorted((key for key in keys if key not in quarantined), key=repr))


def _elapsed_seconds(began: float) -> float:
    return round(time.monotonic() - began, 3)


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
    sample: columns.Sample | None = None,
    exclude: Sequence[str] = (),
) -> Comparison:
    """Compare the named source tables (`schema.table`, or a table of `public`), by default all published ones, without
    those of `exclude`.

    Writes `compare.json` to the project's reports. `repair`: plan to land differing rows in bronze, for the next run to
    merge; `yes`: do it (`comparison.repair`). `values`: also report the rows of the listed keys. `as_of`: compare
    silver at this cut, rolled forward to the source's snapshot, instead of the current one. `full`: match all rows
    without hashing. `sample`: compare some rows only.

    Raises SourceError, LakeError, StateError; TableNotKnown and NoTableMatches for a table that is not published;
    AnotherApply if a run would interfere with a repair; CutUnknown, BeforeFirstCut, CutNotReached; ValueError for
    a repair of a cut.
    """
    if repair and as_of is not None:
        msg = "differences in an older version of silver are not repaired"
        raise ValueError(msg)
    asked = columns.CompareOptions(
        repair, lands=repair and yes, values=values, full=full, sample=sample, now=as_of is None
    )
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
    asked: columns.CompareOptions,
    as_of: AsOf | None,
) -> Comparison:
    began = time.monotonic()
    bronze, control = bronze_reader(project), control_tables(project)
    state = bronze.state()
    if state is None:
        raise NoStream("bronze contains no stream yet: there is nothing to compare")

    with compare_source(project, state) as opened:
        source = RedactedComparison(opened, redaction_of(project))
        captured = source.captured_tables()
        excluded = {table.table for table in _chosen(captured, exclude)} if exclude else set()
        chosen = [table for table in _chosen(captured, tables) if table.table not in excluded]
        cut = None if as_of is None else find_cut(project, as_of, state.epoch)
        pinned = columns.pin(project, control, state, chosen) if cut is None else columns.pin_at(project, cut, chosen)
        report(ProgressEvent("compare", "taking a snapshot of the source"))
        with _snapshot(bronze, state, source, pinned, report) as where:
            jobs = [columns.CompareTask(project, bronze, control, state, source, table, asked) for table in pinned]
            results = [_report_verdict(table_compared(job, where), report) for job in jobs]
    position, seconds = format_stream_position(state.stream, where.shown.position), _elapsed_seconds(began)
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
    pinned: Sequence[columns.ComparedTable],
    report: ProgressReporter,
) -> Iterator[AlignmentPoint]:
    """A snapshot of the source; a later one if silver has something that it does not show yet."""

    def ahead(snapshot: SnapshotVisibility, after: int) -> Sequence[PendingTransaction] | None:
        try:
            return source.ahead(snapshot, after)
        except (SlotMissing, SlotInvalidated, WalGone) as gone:
            # bronze gets nothing more: what it lacks was lost, and appears as differences
            text = f"{gone.message}: changes that bronze does not contain are shown as differences"
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
    text = f"{result.table}: {result.text}" + (f" ({result.reason})" if result.reason else "")
    facts = {"table": result.table, "verdict": result.verdict.value}
    report(ProgressEvent("compare", text, result.source_rows, unit="rows", facts=facts))
    return result


def _chosen(captured: Sequence[PublishedTable], wanted: Sequence[str]) -> list[PublishedTable]:
    by_name = {published.table: published for published in captured}
    if not wanted:
        return list(captured)
    chosen = []
    for text in wanted:
        name = source_table(text)
        if name not in by_name:
            raise NoTableMatches(f"the stream does not contain table {name}", hint="`cdc-lake plan` lists the tables")
        chosen.append(by_name[name])
    return chosen
