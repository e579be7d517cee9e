"""Strategies: how a table's part of a span is written, decided from facts before anything is.

What is written is the same whichever way is taken; only its cost differs. Nothing is assumed: an append is chosen where
the bounds of the table's files prove that no net change can meet a row of it, and the net change is sent to every task
where what was counted of it says that it is small.

Merging: a prepared span of a table is written in one commit that carries its position.

What a run of apply did so far, in numbers.
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
from cdc_lake.tables.commit_audit import CommitMetrics, read_commit_metrics
from cdc_lake.tables.control_schema import RunRow
from cdc_lake.tables.silver_reader import temp_view
from cdc_lake.tables.silver_table import Marker
from cdc_lake.tables.table_stats import all_below
from cdc_lake.tables.types import SilverColumn, quote_identifier

WriteMode: TypeAlias = Literal["overwrite", "append", "merge"]
"""A first content replaces what is there; new rows alone are put behind it; anything else is merged by key."""

_HEAP_SHARE: Final = 8
"""A net change may take the eighth part of the driver's heap where it is sent to every task: there it stands as it is
read, as a hash table and as the blocks that are sent. All tables of a span together are bounded by the span's size."""

_CELL: Final = 16  # bytes of a value in a row besides its text
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class WriteStrategy:
    """`sent`: the net change goes to every task where the join allows it, so that the table is not shuffled; `within`:
    conditions by which files of the table are passed over.
    """

    mode: WriteMode
    sent: bool
    within: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, object]:
        """As progress has it."""
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
    """The strategy for changes of a table with keys that stands at `base`. `size`: bytes that the changes took as they
    were received, at most; None where nobody knows.
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
    """Bounds around these, an eighth wider at most on either side, that spans over much of the same keys share: numbers
    stand in the code that Spark compiles, which it knows again only by its text.
    """
    step = 1 << max(0, (high - low).bit_length() - 4)
    return max(low // step * step, _LEAST), min(-(-high // step) * step, _MOST)


def is_append_only(
    project: Project, target: Target, base: Marker, part: TablePart, summary: SpanSummary, profile: SpanProfile
) -> bool:
    """Whether no change can be of a row that the table has at `base`: every key is above every key of its files.

    Only asked where there are inserts at all: what is only updated or deleted is there.
    """
    if profile.bounds is None or part.truncated or not summary.inserts:
        return False
    return all_below(project, target, base.version, part.shape.key_columns[0].name, profile.bounds[0])


def fits(part: TablePart, summary: SpanSummary, size: int | None, heap: int) -> bool:
    """Whether the net change, which has at most one row a change, may be sent to every task."""
    if size is None:
        return False
    columns = len(part.shape.columns) + len(part.shape.carried)
    return (summary.rows * _CELL * columns + size) * _HEAP_SHARE <= heap


_VIEW = "cdc_lake_net"
_OVERWRITE = WriteStrategy("overwrite", sent=False)
_APPEND = WriteStrategy("append", sent=False)


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What became of it: the table's new version, how it was written, what that took, and how long."""

    version: int
    strategy: WriteStrategy
    written: CommitMetrics
    seconds: float


def merge(plan: MergePlan) -> MergeResult:
    """Write a prepared span in one commit that carries its position; its session does nothing else meanwhile.

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
        version, strategy, read_commit_metrics(task.project, task.target, version), time.monotonic() - began
    )


def strategy_of(plan: MergePlan) -> WriteStrategy:
    """How a prepared span is written."""
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
    """The columns of a table's first content where the table that is there, of an earlier stream, has others."""
    have, wanted = set(plan.silver.columns() or ()), plan.kind.columns(plan.shape)
    fits = {SilverColumn(column.name, held_as(column.type)) for column in wanted} | set(wanted)
    return () if have <= fits and len(have) == len(wanted) else tuple(wanted)


_SHOWN: Final = 20
"""Tables that an error names beside the first one that waits: a screen has room for so many."""


@dataclass(frozen=True, slots=True)
class TableApplied:
    """What was done to one table: what its rows were made of last, its columns then, and numbers over the run."""

    target: Target
    projection: Projection
    columns: tuple[SilverColumn, ...]
    changes: int
    files: int
    size: int


@dataclass
class ApplyTotals:
    """What was done so far, by which `run`; `top`: where the last walk was to go to, `upto`: where it got;
    `write_modes`: how often each was used; `written`: files and bytes (`tables.commit_audit`); `held_by`: changes that
    were held, by silver table and rule; `failed`: silver table → why it waits; `tables`: those that were written;
    `paused`: silver tables that somebody paused.
    """

    run: str = ""
    stream: str | None = None
    upto: int | None = None
    top: int | None = None
    spans: int = 0
    transactions: int = 0
    changes: int = 0
    merges: int = 0
    held: int = 0
    held_by: Counter[tuple[str, str]] = field(default_factory=Counter)
    write_modes: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    rules: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    failed: dict[str, CdcLakeError] = field(default_factory=dict)
    tables: dict[str, TableApplied] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()

    def error(self) -> CdcLakeError | None:
        """Why the first table waits, with a remedy that names the others too; None if no table waits.

        What a table waits for comes before the tables of its group that wait for it.
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
        """Add how the rules of a table fared."""
        for rule_count in plan.counts:
            total = self.rules.setdefault((rule_count.table, rule_count.rule, rule_count.on_fail), [0, 0])
            total[0] += rule_count.evaluated
            total[1] += rule_count.failed

    def count_held(self, plan: MergePlan) -> None:
        """Add what of a table is held; a change that breaks several rules once to each."""
        held, table = plan.folded.held, plan.task.target.label
        if held is None:
            return
        self.held += held.num_rows
        for rules in held["rules"].to_pylist():
            self.held_by.update((table, rule) for rule in rules or [WAITING])

    def count_merge(self, plan: MergePlan, merged: MergeResult) -> None:
        """Add a table that was written."""
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
        """The rules as the control table `runs` has them."""
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
            "held": self.held,
            "upto": self.upto,
            "seconds": round(seconds, 3),
            "failed": {label: error.code for label, error in self.failed.items()},
        }
        return RunRow(self.run, "apply", began, ended, outcome, json.dumps(facts))
