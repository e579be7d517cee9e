"""Metrics of apply: a file for Prometheus' textfile collector, replaced after cuts and idle rounds and at the end.

A file suits a loop that may end after a minute. A failed write never stops apply: it is reported once until writing
works again. Without `observe.textfile` nothing is written. Results of rules, and whether they prevent a pin, are
read from the control tables.
"""

from __future__ import annotations

import time
from collections.abc import Container
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.config.rules import rule_name
from cdc_lake.control.cuts import ACTIVE, FAILED, TableState, WrittenCut, parse_cut
from cdc_lake.control.snapshots import courses
from cdc_lake.control.table_pauses import stopped_tables
from cdc_lake.control.verdicts import verified_state
from cdc_lake.errors import CdcLakeError, MetricsNotWritten
from cdc_lake.model.position import Span
from cdc_lake.model.relation import TableName
from cdc_lake.observability import metrics
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.observability.exposition import ErrorCounts, Exposition, Sample, Tally
from cdc_lake.runtime.apply.merge import ApplyTotals
from cdc_lake.runtime.cut_gate import still_withheld
from cdc_lake.tables.control_schema import ControlName
from cdc_lake.tables.control_tables import ControlTables, control_tables


class RuleSamples:
    """Reads the control tables again only if they have changed: reports and other commands write to them too."""

    def __init__(self, project: Project, control: ControlTables) -> None:
        self._project = project
        self._control = control
        targets = [project.target(TableName.parse(table.from_)) for table in project.pipeline.silver.tables]
        self._rules = {(target.label, rule_name(rule)) for target in targets for rule in target.rules}
        self._files: list[str] | None = None
        self._samples: list[Sample] = []

    def samples(self) -> list[Sample]:
        """The newest result of each rule of the pipeline file. Raises LakeError."""
        is_gated = self._project.pipeline.quality.pin_below is not None
        if not self._rules:
            return []
        names: list[ControlName] = ["quality", "withheld", "pins"] if is_gated else ["quality"]
        files = [path for name in names for path in sorted(self._control.files(name)["path"].to_pylist())]
        if files != self._files:
            self._samples = self._read_samples()
            if is_gated:
                kept_back = still_withheld(self._project, self._control) is not None
                self._samples.append(Sample(metrics.CUT_WITHHELD, kept_back))
            self._files = files
        return self._samples

    def _read_samples(self) -> list[Sample]:
        rows = self._control.read("quality").sort_by("judged_at").to_pylist()
        newest = {(row["table"], row["rule"]): row for row in rows}
        return [
            Sample(metrics.RULE_FAILED_ROWS, row["failed"], (*key, "broken" if row["error"] else row["level"]))
            for key, row in sorted(newest.items())
            if key in self._rules
        ]


WRITE_EVERY: Final = 5.0
"""Minimum seconds between two writes: collectors read less often."""


class ApplyMetrics:
    """Writes `file` (`runtime.apply.applier.RunListener`)."""

    def __init__(self, project: Project, file: Path, report: ProgressReporter) -> None:
        self._project = project
        self._file = file
        self._totals = ApplyTotals()
        self._report = report
        self._tally = Tally()
        self._errors = ErrorCounts(self._tally, metrics.Loop.APPLY)
        self._control = control_tables(project)
        self._rules = RuleSamples(project, self._control)
        self._reader = bronze_reader(project)
        self._cut: WrittenCut | None = None
        self._written = -WRITE_EVERY
        self._succeeded: float | None = None
        self._failing = False

    def __enter__(self) -> Self:
        self._succeeded = self._last_success()
        self._write()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, *_: object) -> None:
        if isinstance(error, CdcLakeError) and error not in self._totals.failed.values():  # those were reported
            self._errors.add(error.code)
        self._write()

    def follow(self, totals: ApplyTotals) -> None:
        """Take the counters of the run, at its start."""
        self._totals = totals

    def on_progress(self, progress: ProgressEvent) -> None:
        """Handle a progress event."""
        self._report(progress)
        self._errors.on_progress(progress)
        match progress.stage:
            case "merge":
                self._tally.observe(
                    metrics.MERGE_DURATION_SECONDS, float(str(progress.facts["seconds"])), progress.text
                )
            case "layout":
                self._tally.add(metrics.SCHEMA_CHANGES_TOTAL, str(progress.facts["kind"]))
            case "cut":
                self._cut = None
                self._write_when_due()
            case _:
                pass

    def on_pass_end(self) -> None:
        """Record a success if the pass reached its goal, even if bronze has grown since."""
        totals = self._totals
        if totals.upto is not None and totals.top is not None and totals.upto >= totals.top:
            self._succeeded = time.time()
        self._write_when_due()

    def _write_when_due(self) -> None:
        if time.monotonic() - self._written >= WRITE_EVERY:
            self._write()

    def _write(self) -> None:
        from prometheus_client.exposition import write_to_textfile  # noqa: PLC0415  # only where it is asked for

        self._written = time.monotonic()
        try:
            write_to_textfile(str(self._file), Exposition(self._project.name, self.samples))
            self._failing = False
        except OSError as failure:
            self._report_failure(f"`{self._file}` cannot be written: {failure.strerror}")

    def _report_failure(self, text: str) -> None:
        if not self._failing:
            error = MetricsNotWritten(text)
            self._report(ProgressEvent("warning", f"{error.message}; {error.remedy}", facts={"code": error.code}))
        self._failing = True

    def samples(self) -> list[Sample]:
        """All metrics that have a value now; those from the lake are omitted if it cannot be read."""
        totals, result = self._totals, self._tally.samples()
        result.append(Sample(metrics.APPLIED_TRANSACTIONS_TOTAL, totals.transactions))
        result.append(Sample(metrics.APPLIED_CHANGES_TOTAL, totals.changes))
        for (table, rule, _), (_, failed) in totals.rules.items():
            result.append(Sample(metrics.RULE_FAILURES_TOTAL, failed, (table, rule)))
        result += [
            Sample(metrics.QUARANTINED_ROWS_TOTAL, number, labels) for labels, number in totals.quarantined_by.items()
        ]
        with suppress(CdcLakeError):
            result += self._of_the_lake()
        if self._succeeded is not None:
            result.append(Sample(metrics.LAST_SUCCESS_TIMESTAMP_SECONDS, self._succeeded, (metrics.Loop.APPLY,)))
        return result

    def _last_success(self) -> float | None:
        """The time from the previous run's file, so that a failing run shows since when."""
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  # only where asked for

        try:
            families = list(text_string_to_metric_families(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None  # no file yet, or not written by cdc_lake
        values = [s.value for f in families for s in f.samples if s.name == metrics.LAST_SUCCESS_TIMESTAMP_SECONDS.name]
        return max(values, default=None)

    def _of_the_lake(self) -> list[Sample]:
        cut, lag = self._last_cut(), self._lag()
        result = [] if lag is None else [Sample(metrics.APPLIED_LAG_SECONDS, lag)]
        result += self._rules.samples()
        if cut is None:
            return result
        compared = self._control.read("verified")
        paused = stopped_tables(self._project, self._control)
        left = {name for name, course in courses(self._control.snapshots(), cut.stream).items() if course.waits}
        for relation in left.difference(cut.tables):
            label = self._project.target(TableName.parse(relation)).label
            result.append(Sample(metrics.TABLE_STATE, 1, (label, "left")))
        for relation, state in cut.tables.items():
            table = (state.table,)
            result.append(Sample(metrics.QUARANTINED_KEYS, state.quarantined_keys, table))
            result.append(Sample(metrics.TABLE_FAILED, state.state == FAILED, table))
            result.append(Sample(metrics.TABLE_STATE, 1, (state.table, _state(relation, state, paused, left))))
            proven = verified_state(compared, relation, cut.stream, state.generation)
            result.append(Sample(metrics.TABLE_DIFFERENT, proven.different_at is not None, table))
            if proven.verified_at is not None:
                result.append(Sample(metrics.VERIFIED_TIMESTAMP_SECONDS, proven.verified_at.timestamp(), table))
        return result

    def _last_cut(self) -> WrittenCut | None:
        """The newest cut, which another run may have written."""
        if self._cut is None and self._totals.stream is not None:
            row = self._control.last_cut(self._totals.stream)
            self._cut = None if row is None else parse_cut(row)
        return self._cut

    def _lag(self) -> float | None:
        """As in `status`: seconds since the commit of the oldest waiting transaction, 0 if none waits."""
        state, cut = self._reader.state(), self._last_cut()
        if state is None or cut is None or cut.stream != state.stream:
            return None
        if state.upto <= cut.position:
            return 0.0
        oldest = next(self._reader.commits_in_turn(Span(state.epoch, cut.position, state.upto)), None)
        if oldest is None:
            return 0.0
        return None if oldest.commit_ts is None else max(0.0, (datetime.now(UTC) - oldest.commit_ts).total_seconds())


def _state(relation: str, listed: TableState, paused: Container[str], left: Container[str]) -> str:
    """A table's state in the last cut, in the words of `status` (`runtime.receive.lag.TableStatus`)."""
    if relation in paused:
        return "paused"
    if relation in left:
        return "left"
    if listed.state != ACTIVE:
        return "failed" if listed.state == FAILED else "catching-up"
    return "quarantined" if listed.quarantined_keys else "live"
