"""What a report says of rules: what the gate counted run by run, and what silver comes to now.

Rules of rows are judged by Great Expectations over all rows of silver; rules of tables by an aggregate each, over the
rows that hold: not deleted ones, not former versions. These are read at the last cut, so that a `foreign_key` sees both
of its tables as of one position. What is judged is added to `results`, the rows of the control table `quality`.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.config.project import Project, Target
from cdc_lake.config.rules import (
    TABLE_RULES,
    Expectation,
    Expression,
    ForeignKey,
    RowRule,
    TableRule,
    named_columns,
    rule_name,
)
from cdc_lake.errors import CdcLakeError
from cdc_lake.lake.control_rows import CutRow, QualityRow, RunRow
from cdc_lake.lake.extent import silver_columns
from cdc_lake.lake.read import read_silver
from cdc_lake.model.relation import TableName
from cdc_lake.page.wording import count
from cdc_lake.pipeline.cuts import IN
from cdc_lake.quality.report import Judged, RuleState, TableState
from cdc_lake.quality.suite import RuleResult, SuiteResult, run_suite
from cdc_lake.quality.table_suite import TableView, judge_table
from cdc_lake.quality.tally import Referenced, read_by
from cdc_lake.silver.kinds import kind_by_columns
from cdc_lake.silver.projection import NOT_SENT

JUDGED_ROWS = 500_000
"""Rows up to which a table is read into memory and judged by Great Expectations: some 100 MB for a few rule columns."""
RUNS = 20
"""Runs shown, and points of a trend."""


@dataclass
class RuleEvidence:
    """Rules, table by table. `past`: the control table `quality` before this report; `at`: what ages are reckoned to.

    `notes`, `suites` and `results` grow.
    """

    project: Project
    cut: CutRow | None
    runs: Sequence[RunRow]
    past: pa.Table
    at: dt.datetime
    notes: list[str]
    suites: dict[str, SuiteResult] = field(default_factory=dict)
    results: list[QualityRow] = field(default_factory=list)

    def states(self, target: Target, table: TableState) -> list[RuleState]:
        """The rules of the file in their order, then what else the gate counted failures of."""
        history = _history(target.label, self.runs)
        written = {rule_name(rule): self._written(target, at) for at, rule in enumerate(target.rules)}
        note = self._left_out(target, table)
        found: dict[str, RuleResult] = {}
        if not note:
            rows, rows_note = self._rows_judged(target, written)
            whole, whole_note = self._table_judged(target)
            found, note = rows | whole, rows_note or whole_note
        states = []
        for rule in target.rules:
            name = rule_name(rule)
            gate = tuple(one for one, _ in history.pop(name, []))
            state = _state(target, rule, gate, found.get(name), note, written[name])
            if isinstance(rule, TABLE_RULES) and state.suite is not None:
                state = _with_past(state, self.past)
            self._record(state)
            states.append(state)
        return states + _unwritten(target, history)

    def _left_out(self, target: Target, table: TableState) -> str:
        """Why silver is not judged, empty where it is."""
        if not target.rules:
            return ""
        if table.rows is None:
            return "no table yet"
        if table.rows > JUDGED_ROWS:
            self.notes.append(
                f"{target.label} has {count(table.rows)} rows; this report judges tables of up to {count(JUDGED_ROWS)}."
            )
            return "too large"
        return ""

    def _rows_judged(self, target: Target, written: Mapping[str, str]) -> tuple[dict[str, RuleResult], str]:
        """The suite's run over the rows of silver as they are now, or why there is none."""
        if not target.row_rules:
            return {}, ""
        try:
            present = set(silver_columns(self.project, target) or ())
            # Rules name the source's columns: silver may call one otherwise, or leave it out.
            rules = [rule for rule in target.row_rules if _kept(target, rule)]
            columns = {rule.column for rule in rules if not isinstance(rule, Expression)}
            named = {column: target.transforms.silver_name(column, column) for column in columns}
            wanted = sorted(column for column in columns if named[column] in present)
            rows = read_silver(self.project, target, columns=[named[c] for c in wanted] or sorted(present)[:1])
            rows = rows.rename_columns(wanted) if wanted else rows
            result = run_suite(rows, rules, target.label, written=written)
        except CdcLakeError as problem:
            return {}, self._not_judged(target, problem)
        self.suites[target.label] = result
        return {one.rule: one for one in result.rules}, ""

    def _table_judged(self, target: Target) -> tuple[dict[str, RuleResult], str]:
        """The rules of the table over its rows that hold, or why they are not judged."""
        rules = target.table_rules
        if not rules:
            return {}, ""
        try:
            everything = any(isinstance(rule, Expectation) for rule in rules)
            rows = self._holding(target, None if everything else {c for rule in rules for c in read_by(rule)})
            result = judge_table(TableView(rows, self.at, self._referenced), rules, target.label)
        except CdcLakeError as problem:
            return {}, self._not_judged(target, problem)
        self.suites[f"{target.label}.table"] = result
        return {one.rule: one for one in result.rules}, ""

    def _referenced(self, rule: ForeignKey) -> Referenced:
        """The rows that a foreign key refers to, as of the cut that the table itself is read at."""
        other = self.project.target(TableName.parse(rule.references))
        if self.cut is not None and self._entry(other).get("state") != IN:
            return Referenced(None, f"{other.label} is not in the last cut")
        try:
            return Referenced(self._holding(other, set(rule.referenced)))
        except CdcLakeError as problem:
            return Referenced(None, f"{other.label} could not be read: {problem.message}")

    def _holding(self, target: Target, columns: set[str] | None) -> pa.Table:
        """The rows that hold at the last cut, in silver's columns of these names that are there; None: in all."""
        version = self._entry(target).get("version")
        present = silver_columns(self.project, target) or ()
        flag = kind_by_columns(present).flag
        wanted = [name for name in present if columns is None or name in columns or (flag and name == flag.column.name)]
        rows = read_silver(self.project, target, version, wanted or list(present[:1]))
        return rows if flag is None else rows.filter(pc.field(flag.column.name) == flag.value)

    def _entry(self, target: Target) -> dict[str, Any]:
        """What the last cut says of a table."""
        entry: dict[str, Any] = json.loads(self.cut.tables).get(str(target.source), {}) if self.cut else {}
        return entry

    def _not_judged(self, target: Target, problem: CdcLakeError) -> str:
        self.notes.append(f"{target.label} was not judged: {problem.message}. {problem.remedy}".strip())
        return "not judged"

    def _record(self, state: RuleState) -> None:
        if state.suite is None and not state.broken:
            return
        judged = state.suite or Judged(0, 0)
        self.results.append(
            QualityRow(
                judged_at=self.at,
                table=state.table,
                rule=state.rule,
                kind=state.kind,
                columns=state.column,
                evaluated=judged.evaluated,
                failed=judged.failed,
                level=state.silver_level,
                observed=state.observed,
                broken=state.broken,
            )
        )

    def _written(self, target: Target, at: int) -> str:
        """Where a rule stands: `pipelines/shop.yaml:14`."""
        key = f"rules[{at}]"
        origin = self.project.origin(target, key) or self.project.origin(target, f"{key}.rule")
        return f"{origin.file}:{origin.line}" if origin else ""


def _kept(target: Target, rule: RowRule) -> bool:
    """Whether silver has what a rule judges; of an expression the gate alone knows."""
    return isinstance(rule, Expression) or target.transforms.keeps(rule.column)


def _state(
    target: Target,
    rule: RowRule | TableRule,
    gate: tuple[Judged, ...],
    found: RuleResult | None,
    note: str,
    written: str,
) -> RuleState:
    judged = found is not None and not found.broken and not found.elsewhere
    return RuleState(
        table=target.label,
        rule=rule_name(rule),
        kind=rule.rule,
        column=", ".join(named_columns(rule)),
        on_fail=rule.on_fail,
        history=gate,
        suite=Judged(found.evaluated, found.failed) if found is not None and judged else None,
        suite_note=(found.elsewhere if found is not None else "") or note,
        broken=found.broken if found is not None else "",
        written=written,
        thresholds=rule.thresholds,
        observed=found.observed if found is not None else "",
    )


def _with_past(state: RuleState, past: pa.Table) -> RuleState:
    """The rule with what earlier reports found of it, oldest first, then what this one found."""
    same = past.filter((pc.field("table") == state.table) & (pc.field("rule") == state.rule))
    same = same.filter(pc.field("broken") == "").sort_by("judged_at")
    earlier = [Judged(row["evaluated"], row["failed"]) for row in same.to_pylist()]
    assert state.suite is not None
    return replace(state, past=(*earlier, state.suite)[-RUNS:])


def _history(table: str, runs: Sequence[RunRow]) -> dict[str, list[tuple[Judged, str]]]:
    """By rule: how many changes each run judged and failed, oldest run first, and the rule's `on_fail` then."""
    history: dict[str, list[tuple[Judged, str]]] = defaultdict(list)
    for run in runs:
        facts: dict[str, Any] = json.loads(run.facts or "{}")
        for counted in facts.get("rules", ()):
            if counted["table"] == table:
                judged = Judged(int(counted["evaluated"]), int(counted["failed"]))
                history[counted["rule"]].append((judged, str(counted["on_fail"])))
    return history


def _unwritten(target: Target, history: Mapping[str, list[tuple[Judged, str]]]) -> list[RuleState]:
    """What the gate counted failures of that is no rule of the file."""
    states = []
    for name, judged in sorted(history.items()):
        if any(one.failed for one, _ in judged):
            kind, column = ("type", name.removeprefix("type_")) if name.startswith("type_") else ("former rule", "")
            kind = "not sent" if name == NOT_SENT else kind
            seen = tuple(one for one, _ in judged)
            states.append(RuleState(target.label, name, kind, column or kind, judged[-1][1], seen))
    return states
