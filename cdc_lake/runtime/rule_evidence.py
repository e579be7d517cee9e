"""What a report says of rules: what the gate counted run by run, and what silver comes to now and came to before."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.config.project import Target
from cdc_lake.config.rules import (
    RowRule,
    TableRule,
    named_columns,
    rule_name,
)
from cdc_lake.quality.report import Judged, RuleState, TableState
from cdc_lake.runtime.cut_gate import GateFindings, SilverJudge
from cdc_lake.silver.transforms import NOT_SENT
from cdc_lake.tables.control_schema import RunRow

RUNS = 20
"""Runs shown, and points of a trend."""


@dataclass
class RuleEvidence:
    """Rules, table by table. `past`: the control table `quality` before this report."""

    judge: SilverJudge
    runs: Sequence[RunRow]
    past: pa.Table

    def states(self, target: Target, table: TableState) -> list[RuleState]:
        """The rules of the file in their order, then what else the gate counted failures of."""
        history = _history(target.label, self.runs)
        written = {rule_name(rule): self._rule_location(target, index) for index, rule in enumerate(target.rules)}
        findings = self.judge.judge(target, table.rows, written)
        states = []
        for rule in target.rules:
            name = rule_name(rule)
            gate = tuple(judged for judged, _ in history.pop(name, []))
            state = _state(target, rule, gate, findings, written[name])
            states.append(state if state.suite is None else _with_past(state, self.past))
        return states + _unwritten(target, history)

    def _rule_location(self, target: Target, index: int) -> str:
        """Where a rule stands: `pipelines/shop.yaml:14`."""
        key = f"rules[{index}]"
        project = self.judge.project
        origin = project.origin(target, key) or project.origin(target, f"{key}.rule")
        return f"{origin.file}:{origin.line}" if origin else ""


def _state(
    target: Target,
    rule: RowRule | TableRule,
    gate: tuple[Judged, ...],
    silver: GateFindings,
    written: str,
) -> RuleState:
    result = silver.results.get(rule_name(rule))
    judged = result is not None and not result.broken and not result.elsewhere
    return RuleState(
        table=target.label,
        rule=rule_name(rule),
        kind=rule.rule,
        column=", ".join(named_columns(rule)),
        on_fail=rule.on_fail,
        history=gate,
        suite=Judged(result.evaluated, result.failed) if result is not None and judged else None,
        suite_note=(result.elsewhere if result is not None else "") or silver.note,
        broken=result.broken if result is not None else "",
        written=written,
        thresholds=rule.thresholds,
        observed=result.observed if result is not None else "",
        keys=silver.keys.get(rule_name(rule), ()),
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
        if any(counts.failed for counts, _ in judged):
            kind, column = ("type", name.removeprefix("type_")) if name.startswith("type_") else ("former rule", "")
            kind = "not sent" if name == NOT_SENT else kind
            history_counts = tuple(counts for counts, _ in judged)
            states.append(RuleState(target.label, name, kind, column or kind, judged[-1][1], history_counts))
    return states
