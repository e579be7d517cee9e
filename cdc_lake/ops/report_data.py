"""Collects the content of a report from control tables, silver, the last comparison and suite runs.

For rules: the counts of each run, and the current and past results on silver. Nothing is changed and no JVM is started;
what could not be read is listed in the report's notes.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.config.project import Project, Target
from cdc_lake.config.rules import RowRule, TableRule, named_columns, rule_name
from cdc_lake.control.cuts import WrittenCut, parse_cut
from cdc_lake.control.quarantine import FAILED, open_quarantine, quarantine_log
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.position import OrderDomain, format_position, parse_position
from cdc_lake.model.relation import TableName
from cdc_lake.ops.status import Status, TableStatus
from cdc_lake.quality import report
from cdc_lake.quality.great_expectations import SuiteResult
from cdc_lake.quality.rules import reason
from cdc_lake.runtime.cut_gate import GateFindings, SilverJudge
from cdc_lake.silver.kinds import kind_by_columns
from cdc_lake.silver.transforms import NOT_SENT
from cdc_lake.tables.control_schema import QualityRow, RunRow
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import column_names


@dataclass
class Evidence:
    """The data so far; `notes`, `suites`, `results` (rows of `quality`) are filled while tables are read."""

    project: Project
    control: ControlTables
    status: Status
    notes: list[str] = field(default_factory=list)
    suites: dict[str, SuiteResult] = field(default_factory=dict)
    results: list[QualityRow] = field(default_factory=list)

    def collect(self) -> report.ReportData:
        """Everything, as the value to render."""
        if not self.status.reachable:
            self.notes.append(
                f"The source could not be queried ({self.status.unreachable_because}); lags are the last known ones."
            )
        if (withheld := self.status.withheld) is not None:
            self.notes.append(f"The cut at {withheld.position} is not pinned as {withheld.name}: {withheld.reason}.")
        row = self.control.last_cut(self.status.stream)
        cut = None if row is None else parse_cut(row)
        runs = self._runs()
        status_by_table = {table.table: table for table in self.status.tables}
        targets = self._targets(cut)
        quarantined = [
            group
            for target in targets
            for group in self._quarantined_groups(target, cut, status_by_table.get(target.label))
        ]
        tables = tuple(self._table(target, cut, status_by_table.get(target.label), quarantined) for target in targets)
        examples = self.project.pipeline.quality.sample_keys
        judge = SilverJudge(self.project, cut, self.status.at, examples=examples, notes=self.notes)
        judged = RuleEvidence(judge, runs, self.control.read("quality"))
        rules = tuple(
            state for target, table in zip(targets, tables, strict=True) for state in judged.states(target, table)
        )
        self.suites, self.results = judge.suites, judge.rows
        return report.ReportData(
            pipeline=self.project.name,
            generated=self.status.at,
            source=f"{self.project.pipeline.source.type} · {self.status.source}",
            verdict=self._verdict(),
            lags=tuple(
                report.Lag(stage, lag.seconds, lag.bytes, lag.transactions)
                for stage, lag in (
                    ("received", self.status.received),
                    ("landed", self.status.landed),
                    ("applied", self.status.applied),
                )
            ),
            tables=tables,
            rules=rules,
            quarantined=tuple(quarantined),
            runs=tuple(self._run(run) for run in reversed(runs)),
            suites={name: f"gx/{name}.json" for name, result in self.suites.items() if result.raw},
            notes=tuple(self.notes),
        )

    def _targets(self, cut: WrittenCut | None) -> list[Target]:
        """Tables that are captured, in the last cut, or in the pipeline file; by silver name."""
        relations = {table.source for table in self.status.tables} | set(cut.tables if cut else ())
        relations |= {str(TableName.parse(table.from_)) for table in self.project.pipeline.silver.tables}
        return sorted((self.project.target(TableName.parse(r)) for r in relations), key=lambda t: t.label)

    def _table(
        self,
        target: Target,
        cut: WrittenCut | None,
        table_status: TableStatus | None,
        quarantined: Iterable[report.QuarantineSummary],
    ) -> report.TableState:
        position = _silver_position(target, cut, table_status)
        return report.TableState(
            name=target.label,
            source=str(target.source),
            format=target.format,
            state=table_status.state if table_status else "pending",
            **self._rows(target),
            watermark=self._position(position),
            watermark_at=cut.commit_ts if cut is not None and position == cut.position else None,
            quarantined=sum(group.changes for group in quarantined if group.table == target.label),
            reason="" if table_status is None or table_status.state == "live" else table_status.reason,
            remedy="" if table_status is None else table_status.remedy,
            verified_through=(table_status.verified_through if table_status else None) or "",
            verified_at=table_status.verified_at if table_status else None,
            different_at=table_status.different_at if table_status else None,
        )

    def _rows(self, target: Target) -> dict[str, int | None]:
        """Current rows of the source's table and, if silver keeps others too, all stored rows."""
        log = table_log(self.project, target)
        try:
            if not log.exists():
                return {"rows": None, "stored": None}
            flag = kind_by_columns(column_names(log)).flag
            rows = log.count_rows(where=None if flag is None else (flag.column.name, flag.value))
            return {"rows": rows, "stored": None if flag is None else log.count_rows()}
        except CdcLakeError as problem:
            self.notes.append(f"{target.label} could not be read: {problem.message}")
            return {"rows": None, "stored": None}

    def _quarantined_groups(
        self, target: Target, cut: WrittenCut | None, table_status: TableStatus | None
    ) -> list[report.QuarantineSummary]:
        """Open holds by the rule that began them: a queued change counts under the rule its key failed."""
        position = _silver_position(target, cut, table_status)
        if cut is None or position is None:
            return []
        quarantined = quarantine_log(self.control)
        generation = table_log(self.project, target).marker(cut.stream).generation
        rows = open_quarantine(quarantined, str(target.source), cut.epoch, generation, position).rows.to_pylist()
        begun: dict[tuple[str, ...], str] = {}
        changes: dict[str, list[dt.datetime]] = defaultdict(list)
        keys: dict[str, set[tuple[str, ...]]] = defaultdict(set)
        for row in rows:
            own = [tuple(key) for key in (row["from_key"], row["key"]) if key is not None]
            earlier = next((begun[key] for key in own if key in begun), "")
            name = earlier or (", ".join(row["rules"] or ()) if row["reason"] == FAILED else "") or "unknown"
            begun |= dict.fromkeys(own, name)
            keys[name].update(own)
            changes[name].append(row["recorded_at"])
        reasons = {rule_name(rule): reason(rule) for rule in target.row_rules}
        return [
            report.QuarantineSummary(
                target.label, name, _because(name, reasons), len(times), len(keys[name]), min(times)
            )
            for name, times in sorted(changes.items())
        ]

    def _runs(self) -> list[RunRow]:
        """The last runs that applied something, oldest first; of a run's rows the final one."""
        rows = self.control.read("runs").sort_by([("ended_at", "ascending")]).to_pylist()
        last = {row["run"]: RunRow(**row) for row in sorted(rows, key=lambda row: row["ended_at"] is not None)}
        runs = sorted(last.values(), key=lambda run: run.started_at)
        return [run for run in runs if {"rules", "changes", "upto"} & _facts(run).keys()][-RUNS:]

    def _run(self, run: RunRow) -> report.RunState:
        facts = _facts(run)
        return report.RunState(
            started=run.started_at,
            seconds=(run.ended_at - run.started_at).total_seconds() if run.ended_at else None,
            transactions=int(facts.get("transactions") or 0),
            changes=int(facts.get("changes") or 0),
            upto=self._position(facts.get("upto")),
            outcome=run.outcome,
        )

    def _position(self, value: object) -> str:
        """A stored position as commands accept it."""
        if not isinstance(value, int):
            return "" if value is None else str(value)
        streams = self.control.streams()
        return format_position(value, OrderDomain(streams[-1].domain) if streams else OrderDomain.LSN)

    def _verdict(self) -> report.Verdict | None:
        """The last result of `compare`, which is stored beside the reports."""
        file = self.project.reports / "compare.json"
        if not file.exists():
            return None
        try:
            return verdict(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as problem:
            self.notes.append(f"the latest comparison could not be read ({type(problem).__name__}): run it again")
            return None


def verdict(document: Mapping[str, Any]) -> report.Verdict:
    """The verdict over all tables from a comparison's document (`cdc-lake/compare/1`).

    Raises KeyError, TypeError or ValueError for anything else.
    """
    as_of, values = document.get("at"), bool(document.get("values"))  # missing in documents of 0.2
    return report.Verdict(
        verdict=str(document["verdict"]),
        at=dt.datetime.fromisoformat(as_of) if as_of else None,
        position=str(document["position"]),
        tables=len(document["tables"]),
        quarantined_keys=int(document["quarantined_keys"] if "quarantined_keys" in document else document["held_keys"]),
        discarded_keys=int(document.get("discarded_keys", 0)),
        different=tuple(str(t["silver"]) for t in document["tables"] if t["verdict"] == "different"),
        open=tuple(f"{t['silver']}: {t['reason']}" for t in document["tables"] if t["verdict"] == "inconclusive"),
        differing=tuple(
            _differing(t["silver"], key, values) for t in document["tables"] for key in t.get("differing", ())
        ),
        values=values,
    )


def _differing(table: str, entry: Mapping[str, Any], values: bool) -> report.DifferingKey:
    """A key of a comparison's document, without values unless requested."""
    rows = [entry["source"] or {}, entry["silver"] or {}]
    names = entry["columns"] or sorted({*rows[0], *rows[1]}, key=lambda name: (name not in rows[0], name))
    return report.DifferingKey(
        table=table,
        kind=str(entry["kind"]),
        key=", ".join("NULL" if part is None else str(part) for part in entry["key"]) if values else "",
        columns=tuple((str(name), _value_text(rows[0], name), _value_text(rows[1], name)) for name in names),
        changes=tuple((c["position"], c["op"], c["note"] or c["committed"] or "copied") for c in entry["changes"]),
        touched=int(entry["touched"]),
    )


def _value_text(row: Mapping[str, str | None], name: str) -> str:
    if name not in row:
        return ""
    value = row[name]
    return "NULL" if value is None else value


def _silver_position(target: Target, cut: WrittenCut | None, table_status: TableStatus | None) -> int | None:
    """Silver's position: from its own marker if status read it, otherwise from the last cut."""
    if table_status is not None and table_status.position is not None:
        return parse_position(table_status.position)
    entry = cut.tables.get(str(target.source)) if cut else None
    return None if entry is None else entry.position


def _facts(run: RunRow) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(run.facts or "{}")
    return facts


def _because(names: str, reasons: Mapping[str, str]) -> str:
    """Why changes are quarantined, from the names of the failed rules."""
    parts = []
    for name in names.split(", "):
        column = name.removeprefix("type_") if name.startswith("type_") else ""
        parts.append(
            reasons.get(name) or (f"{column} has a text without a silver value" if column else "a former rule")
        )
    return "; ".join(parts)


RUNS = 20
"""Runs shown, and points of a trend."""


@dataclass
class RuleEvidence:
    """Rule results by table. `past`: the control table `quality` before this report."""

    judge: SilverJudge
    runs: Sequence[RunRow]
    past: pa.Table

    def states(self, target: Target, table: report.TableState) -> list[report.RuleState]:
        """The rules of the file in order, then others with counted failures."""
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
        """The location of a rule: `pipelines/shop.yaml:14`."""
        key = f"rules[{index}]"
        project = self.judge.project
        origin = project.origin(target, key) or project.origin(target, f"{key}.rule")
        return f"{origin.file}:{origin.line}" if origin else ""


def _state(
    target: Target, rule: RowRule | TableRule, gate: tuple[report.Judged, ...], silver: GateFindings, written: str
) -> report.RuleState:
    result = silver.results.get(rule_name(rule))
    judged = result is not None and not result.broken and not result.elsewhere
    return report.RuleState(
        table=target.label,
        rule=rule_name(rule),
        kind=rule.rule,
        column=", ".join(named_columns(rule)),
        on_fail=rule.on_fail,
        history=gate,
        suite=report.Judged(result.evaluated, result.failed) if result is not None and judged else None,
        suite_note=(result.elsewhere if result is not None else "") or silver.note,
        broken=result.broken if result is not None else "",
        written=written,
        thresholds=rule.thresholds,
        observed=result.observed if result is not None else "",
        keys=silver.keys.get(rule_name(rule), ()),
    )


def _with_past(state: report.RuleState, past: pa.Table) -> report.RuleState:
    """The rule with the results of earlier reports, oldest first, then the current one."""
    same = past.filter((pc.field("table") == state.table) & (pc.field("rule") == state.rule))
    same = same.filter(pc.field("error") == "").sort_by("judged_at")
    earlier = [report.Judged(row["evaluated"], row["failed"]) for row in same.to_pylist()]
    assert state.suite is not None
    return replace(state, past=(*earlier, state.suite)[-RUNS:])


def _history(table: str, runs: Sequence[RunRow]) -> dict[str, list[tuple[report.Judged, str]]]:
    """By rule: how many changes each run evaluated and failed, oldest run first, and the rule's `on_fail` then."""
    history: dict[str, list[tuple[report.Judged, str]]] = defaultdict(list)
    for run in runs:
        for counted in _facts(run).get("rules", ()):
            if counted["table"] == table:
                judged = report.Judged(int(counted["evaluated"]), int(counted["failed"]))
                history[counted["rule"]].append((judged, str(counted["on_fail"])))
    return history


def _unwritten(target: Target, history: Mapping[str, list[tuple[report.Judged, str]]]) -> list[report.RuleState]:
    """Counted failures of rules that are not in the file."""
    states = []
    for name, judged in sorted(history.items()):
        if any(counts.failed for counts, _ in judged):
            kind, column = ("type", name.removeprefix("type_")) if name.startswith("type_") else ("former rule", "")
            kind = "not sent" if name == NOT_SENT else kind
            history_counts = tuple(counts for counts, _ in judged)
            states.append(report.RuleState(target.label, name, kind, column or kind, judged[-1][1], history_counts))
    return states
