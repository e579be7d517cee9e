"""Writes a prepared span of a table in one commit that contains its position.

The result is the same whichever strategy is used; only the cost differs. Strategies are chosen from facts: an append
if the bounds of the table's files prove that no net change meets an existing row, and a broadcast of the net change if
counts show that it is small. `ApplyTotals` counts what a run of apply has done so far.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final, Literal, TypeAlias

from cdc_lake.bronze.span_index import SpanSummary
from cdc_lake.config.project import Project, Target
from cdc_lake.control.quarantine import WAITING
from cdc_lake.errors import CdcLakeError, GroupWaits
from cdc_lake.runtime.apply.rule_gate import SpanProfile
from cdc_lake.runtime.apply.schema_changes import held_as
from cdc_lake.runtime.apply.table_span import MergePlan
from cdc_lake.silver.kind import RowIdentity, TablePart
from cdc_lake.silver.transforms import Projection
from cdc_lake.tables.control_schema import RunRow
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import CommitMetrics, Marker
from cdc_lake.tables.spark_session import temp_view
from cdc_lake.tables.types import SilverColumn, quote_identifier

WriteMode: TypeAlias = Literal["overwrite", "append", "merge"]
"""A first content replaces the table; new rows alone are appended; everything else is merged by key."""

_HEAP_SHARE: Final = 8
"""A broadcast net change may use an eighth of the driver's heap, where it is present as it is read, as a hash table and
as the blocks that are sent. The span's size limits all its tables together."""

_CELL: Final = 16  # bytes of a value in a row in addition to its text
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class WriteStrategy:
    """`sent`: the net change is broadcast if the join allows it, so that the table is not shuffled; `within`:
    conditions by which files of the table are skipped.
    """

    mode: WriteMode
    sent: bool
    within: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, object]:
        """As fields of a progress event."""
        return {"mode": self.mode, "broadcast": self.sent, "bounded": bool(self.within)}


def choose(
    project: Project,
    target: Target,
    base: Marker,
    part: TablePart,
    summary: SpanSummary,
    profile: SpanProfile,
    size: int | None,
) -> WriteStrategy:
    """The strategy for changes of a table with keys at marker `base`. `size`: upper bound of the changes' bytes as
    received, None if unknown.
    """
    if is_append_only(project, target, base, part, summary, profile):
        return WriteStrategy("append", sent=False)
    heap = project.pipeline.apply.driver_memory
    within = list(profile.parts)
    if profile.bounds is not None:
        low, high = round_bounds(*profile.bounds)
        within.insert(0, f"t.{quote_identifier(part.shape.key_columns[0].name)} BETWEEN {low} AND {high}")
    return WriteStrategy("merge", sent=fits(part, summary, size, heap), within=tuple(within))


def round_bounds(low: int, high: int) -> tuple[int, int]:
    """Round bounds outwards by at most an eighth, so that spans over similar keys share them: the bounds are part of
    the code that Spark compiles and caches by its text.
    """
    step = 1 << max(0, (high - low).bit_length() - 4)
    return max(low // step * step, _LEAST), min(-(-high // step) * step, _MOST)


def is_append_only(
    project: Project, target: Target, base: Marker, part: TablePart, summary: SpanSummary, profile: SpanProfile
) -> bool:
    """Whether no change concerns a row that the table has at `base`: every key is above every key of its files.

    Only checked if there are inserts: rows that are only updated or deleted exist.
    """
    if profile.bounds is None or part.truncated or not summary.inserts:
        return False
    return table_log(project, target).all_below(base.version, part.shape.key_columns[0].name, profile.bounds[0])


def fits(part: TablePart, summary: SpanSummary, size: int | None, heap: int) -> bool:
    """Whether the net change, at most one row per change, may be broadcast."""
    if size is None:
        return False
    columns = len(part.shape.columns) + len(part.shape.carried)
    return (summary.rows * _CELL * columns + size) * _HEAP_SHARE <= heap


_VIEW = "cdc_lake_net"
_OVERWRITE = WriteStrategy("overwrite", sent=False)
_APPEND = WriteStrategy("append", sent=False)


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The table's new version, how it was written, its metrics and duration."""

    version: int
    strategy: WriteStrategy
    written: CommitMetrics
    seconds: float


def merge(plan: MergePlan) -> MergeResult:
    """Write a prepared span in one commit that contains its position; its session does nothing else meanwhile.

    Raises:
        ConcurrentModification: Another commit came first.
        OtherWriter: Another writer changed rows of the table at the same time.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the receiver shares this package and has no Spark

    began, task, net = time.monotonic(), plan.task, plan.folded.net
    strategy = strategy_of(plan)
    with temp_view(F.broadcast(net) if strategy.sent else net, _VIEW):
        if strategy is _OVERWRITE and (columns := _other_columns(plan)):
            base, query = plan.base, plan.kind.first(_VIEW, plan.shape)
            version = plan.silver.replace(task.stream, base, base.generation, task.span.upto, columns, query)
        else:
            statement = partial(statement_of, plan, strategy)
            version = plan.silver.commit(task.stream, plan.base, task.span.upto, statement)
    return MergeResult(
        version, strategy, table_log(task.project, task.target).commit_metrics(version), time.monotonic() - began
    )


def strategy_of(plan: MergePlan) -> WriteStrategy:
    """Choose how a prepared span is written."""
    task, folded = plan.task, plan.folded
    if task.first:
        return _OVERWRITE
    if plan.kind.identity is RowIdentity.PLACE:
        return _APPEND
    return choose(task.project, task.target, plan.base, folded.part, plan.summary, folded.profile, task.size)


def statement_of(plan: MergePlan, strategy: WriteStrategy, table: str) -> str:
    """The SQL that writes a prepared span to a table or a branch of it."""
    match strategy.mode:
        case "overwrite":
            return f"INSERT OVERWRITE {table} BY NAME {plan.kind.first(_VIEW, plan.shape)}"
        case "append":
            return plan.kind.append_sql(table, _VIEW, plan.folded.part)
        case "merge":
            return plan.kind.statement(table, _VIEW, plan.folded.part, strategy.within)


def _other_columns(plan: MergePlan) -> tuple[SilverColumn, ...]:
    """The columns of a table's first content, if the existing table, of an earlier stream, has others."""
    have, wanted = set(plan.silver.columns() or ()), plan.kind.columns(plan.shape)
    fits = {SilverColumn(column.name, held_as(column.type)) for column in wanted} | set(wanted)
    return () if have <= fits and len(have) == len(wanted) else tuple(wanted)


_SHOWN: Final = 20
"""Tables that an error lists besides the first one that waits, so that it fits on a screen."""


@dataclass(frozen=True, slots=True)
class TableApplied:
    """What was done to one table: the position and layout of its rows, its columns, and counts over the run."""

    target: Target
    projection: Projection
    columns: tuple[SilverColumn, ...]
    changes: int
    files: int
    size: int


@dataclass
class ApplyTotals:
    """What run `run` has done so far; `top`: goal of the last pass, `upto`: how far it got; `write_modes`: how often
    each strategy was used; `written`: files and bytes (`tables.silver_table`); `quarantined_by`: quarantined changes by
    silver table and rule; `failed`: silver table → why it waits; `tables`: those that were written; `paused`: paused
    silver tables.
    """

    run: str = ""
    stream: str | None = None
    upto: int | None = None
    top: int | None = None
    spans: int = 0
    transactions: int = 0
    changes: int = 0
    merges: int = 0
    quarantined: int = 0
    quarantined_by: Counter[tuple[str, str]] = field(default_factory=Counter)
    write_modes: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    rules: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    failed: dict[str, CdcLakeError] = field(default_factory=dict)
    tables: dict[str, TableApplied] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()

    def error(self) -> CdcLakeError | None:
        """The error of the first table that waits, with a hint that names the others; None if no table waits.

        A table's own error comes before those of tables of its group that wait for it.
        """
        waiting = sorted(self.failed.items(), key=lambda item: isinstance(item[1], GroupWaits))
        if not waiting:
            return None
        (_, first), *others = waiting
        if others:
            shown = ", ".join(f"{label} ({error.code})" for label, error in others[:_SHOWN])
            more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
            first.remedy += f"; {shown}{more} also wait: `cdc-lake status` shows the reason of each, and what to do"
        return first

    def count(self, plan: MergePlan) -> None:
        """Add the rule counts of a table."""
        for rule_count in plan.counts:
            total = self.rules.setdefault((rule_count.table, rule_count.rule, rule_count.on_fail), [0, 0])
            total[0] += rule_count.evaluated
            total[1] += rule_count.failed

    def count_quarantined(self, plan: MergePlan) -> None:
        """Add the quarantined changes of a table; a change that violates several rules counts once for each."""
        quarantined, table = plan.folded.quarantined, plan.task.target.label
        if quarantined is None:
            return
        self.quarantined += quarantined.num_rows
        for rules in quarantined["rules"].to_pylist():
            self.quarantined_by.update((table, rule) for rule in rules or [WAITING])

    def count_merge(self, plan: MergePlan, merged: MergeResult) -> None:
        """Add a merge."""
        task, before = plan.task, self.tables.get(plan.task.target.label)
        self.tables[task.target.label] = TableApplied(
            task.target,
            plan.projection,
            plan.kind.columns(plan.shape),
            plan.summary.rows + (before.changes if before else 0),
            merged.written.files + (before.files if before else 0),
            merged.written.size + (before.size if before else 0),
        )
        self.merges += 1
        self.write_modes[merged.strategy.mode] = self.write_modes.get(merged.strategy.mode, 0) + 1
        for name, value in merged.written.facts.items():
            self.written[name] = self.written.get(name, 0) + value

    def rule_facts(self) -> list[dict[str, object]]:
        """The rules, as the control table `runs` stores them."""
        return [
            {"table": table, "rule": rule, "on_fail": on_fail, "evaluated": judged, "failed": failed}
            for (table, rule, on_fail), (judged, failed) in sorted(self.rules.items())
        ]

    def run_row(self, began: datetime, ended: datetime, outcome: str, seconds: float) -> RunRow:
        """The row of this run in the control table `runs`."""
        facts = {
            "rules": self.rule_facts(),
            "transactions": self.transactions,
            "changes": self.changes,
            "merges": self.merges,
            "write_modes": self.write_modes,
            **self.written,
            "spans": self.spans,
            "quarantined": self.quarantined,
            "upto": self.upto,
            "seconds": round(seconds, 3),
            "failed": {label: error.code for label, error in self.failed.items()},
        }
        return RunRow(self.run, "apply", began, ended, outcome, json.dumps(facts))
