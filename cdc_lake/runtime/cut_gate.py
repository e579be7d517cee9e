"""Evaluates the rules on silver at a cut, without a JVM: for reports, and before a cut is pinned.

Great Expectations evaluates row rules over all rows; table rules are one aggregate each, over valid rows: without
deleted rows and former versions. Everything is read at the cut, so a `foreign_key` sees both tables at one position.
Silver is evaluated completely or, above `quality.max_rows`, not at all: a sample could be wrong.

A rule prevents a pin if it has reached the level of `quality.pin_below`, or could not be evaluated. `expression` and
`type_castable` are evaluated only when changes are applied and never prevent a pin. A verdict is stored only as rows of
`quality` and, if it prevented a pin, one of `withheld`: if the process dies in between, the next one evaluates again.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project, Target
from cdc_lake.config.rules import Expectation, Expression, ForeignKey, RowRule, TableRule, rule_name
from cdc_lake.control.cuts import ACTIVE, PinnedCut, TableState, WrittenCut, pinned_cuts, relocate_target
from cdc_lake.errors import CdcLakeError, NoKey
from cdc_lake.model.quarantine import Key
from cdc_lake.model.relation import TableName
from cdc_lake.observability.failpoints import CUT_JUDGED, failpoint
from cdc_lake.observability.html import count
from cdc_lake.quality.great_expectations import RuleResult, SuiteResult, run_suite
from cdc_lake.quality.table_rules import LEVELS, Referenced, level, read_by
from cdc_lake.quality.table_suite import TableView, judge_table
from cdc_lake.silver.kinds import kind_by_columns
from cdc_lake.silver.layout_mapping import default_keys
from cdc_lake.silver.transforms import silver_names_of
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.canonical_values import from_silver, readable
from cdc_lake.tables.control_schema import QualityRow, WithheldRow
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import column_names


def key_columns(project: Project, target: Target, state: TableState | None) -> tuple[str, ...]:
    """The silver names of a table's key columns as of a cut; empty if it has no key, or not all of its columns.

    Raises LakeError.
    """
    if state is None or state.layout is None:
        return ()
    layout = bronze_reader(project).layouts([target.source])[state.layout]
    names = silver_names_of(layout, target)
    try:
        keys = target.keys or default_keys(layout)
    except NoKey:
        return ()
    return tuple(names[key] for key in keys) if set(keys) <= names.keys() else ()


def keys_of_rows(rows: pa.Table, columns: Sequence[str], numbers: Sequence[int]) -> tuple[Key, ...]:
    """The distinct keys of silver rows, for display."""
    named_rows = rows.take(pa.array(numbers, pa.int64()))
    parts = [
        [readable(t, named_rows[name].type) for t in from_silver(named_rows[name]).to_pylist()] for name in columns
    ]
    return tuple(dict.fromkeys(zip(*parts, strict=True)))


NO_TABLE = "no table yet"


@dataclass(frozen=True, slots=True)
class GateFindings:
    """The results of rules on a table, by name; `note`: why others were not; `keys`: of failing rows, if requested."""

    results: Mapping[str, RuleResult]
    note: str = ""
    keys: Mapping[str, tuple[Key, ...]] = field(default_factory=dict)


@dataclass
class SilverJudge:
    """Evaluates rules table by table. `cut`: None reads the newest versions; `as_of`: the reference time of ages;
    `with_engine`: whether Great Expectations also evaluates what an aggregate does; `examples`: the number of failing
    rows to name for each rule.

    `notes`, `suites` (Great Expectations' own results) and `rows` (of the control table `quality`) accumulate.
    """

    project: Project
    cut: WrittenCut | None
    as_of: dt.datetime
    with_engine: bool = True
    examples: int = 0
    notes: list[str] = field(default_factory=list)
    suites: dict[str, SuiteResult] = field(default_factory=dict)
    rows: list[QualityRow] = field(default_factory=list)

    def judge(self, target: Target, number: int | None, written: Mapping[str, str]) -> GateFindings:
        """Evaluate the rules of a table that has `number` rows. `written`: the location of each rule."""
        if not target.rules:
            return GateFindings({})
        if note := self._left_out(target, number):
            return GateFindings({}, note)
        by = self._key_columns(target)
        rows = self._rows_judged(target, written, by)
        of_table = self._table_judged(target, by)
        findings = GateFindings(
            {**rows.results, **of_table.results}, rows.note or of_table.note, {**rows.keys, **of_table.keys}
        )
        for rule in target.rules:
            result = findings.results.get(rule_name(rule))
            if result is not None and not result.elsewhere:
                self.rows.append(_row(self.as_of, target, rule, result))
        return findings

    def _left_out(self, target: Target, number: int | None) -> str:
        """Why silver is not evaluated; empty if it is."""
        if number is None:
            return NO_TABLE
        most = self.project.pipeline.quality.max_rows
        if number > most:
            self.notes.append(
                f"{target.label} has {count(number)} rows; tables with up to {count(most)} rows are checked."
            )
            return "too large"
        return ""

    def _key_columns(self, target: Target) -> tuple[str, ...]:
        """The columns that identify rows; empty if not requested or if there are none."""
        if not self.examples:
            return ()
        try:
            return key_columns(self.project, target, self._state(target))
        except CdcLakeError as problem:
            self.notes.append(f"Rows of {target.label} that violate a rule are not listed: {problem.message}.")
            return ()

    def _rows_judged(self, target: Target, written: Mapping[str, str], by: Sequence[str]) -> GateFindings:
        """The result of the suite over the rows, or why there is none."""
        if not target.row_rules:
            return GateFindings({})
        try:
            present = set(column_names(table_log(self.project, target)))
            # Rules use the source's column names: silver may have another name or omit the column.
            rules = [rule for rule in target.row_rules if _can_judge(target, rule)]
            columns = {rule.column for rule in rules if not isinstance(rule, Expression)}
            named = {column: target.transforms.silver_name(column, column) for column in columns}
            wanted = sorted(column for column in columns if named[column] in present)
            read = [named[column] for column in wanted] or sorted(present)[:1]
            rows = table_log(self.project, target).read(self._version(target), list(dict.fromkeys([*read, *by])))
            judged = rows.select(read).rename_columns(wanted or read)
            result = run_suite(judged, rules, target.label, written=written, examples=self.examples if by else 0)
        except CdcLakeError as problem:
            return GateFindings({}, self._not_judged(target, problem))
        self.suites[target.label] = result
        return _findings_of(result, rows, by)

    def _table_judged(self, target: Target, by: Sequence[str]) -> GateFindings:
        """The results of table rules over the valid rows, or why they are not evaluated."""
        rules = target.table_rules
        if not rules:
            return GateFindings({})
        try:
            everything = any(isinstance(rule, Expectation) for rule in rules)
            rows = self._holding(target, None if everything else {*by, *(c for rule in rules for c in read_by(rule))})
            view, examples = TableView(rows, self.as_of, self._referenced_rows), self.examples if by else 0
            result = judge_table(view, rules, target.label, with_engine=self.with_engine, examples=examples)
        except CdcLakeError as problem:
            return GateFindings({}, self._not_judged(target, problem))
        self.suites[f"{target.label}.table"] = result
        return _findings_of(result, rows, by)

    def _referenced_rows(self, rule: ForeignKey) -> Referenced:
        """The rows that a foreign key refers to, at the cut of the table itself."""
        other = self.project.target(TableName.parse(rule.references))
        if self.cut is not None and ((state := self._state(other)) is None or state.state != ACTIVE):
            return Referenced(None, f"{other.label} is not in the latest cut")
        try:
            return Referenced(self._holding(other, set(rule.referenced)))
        except CdcLakeError as problem:
            return Referenced(None, f"{other.label} could not be read: {problem.message}")

    def _holding(self, target: Target, columns: set[str] | None) -> pa.Table:
        """The rows valid at the cut, in those of these silver columns that exist; None: in all."""
        present = column_names(table_log(self.project, target))
        flag = kind_by_columns(present).flag
        wanted = [name for name in present if columns is None or name in columns or (flag and name == flag.column.name)]
        rows = table_log(self.project, target).read(self._version(target), wanted or list(present[:1]))
        return rows if flag is None else rows.filter(pc.field(flag.column.name) == flag.value)

    def _state(self, target: Target) -> TableState | None:
        """The table's state in the cut."""
        return None if self.cut is None else self.cut.tables.get(str(target.source))

    def _version(self, target: Target) -> int | None:
        state = self._state(target)
        return None if state is None else state.version

    def _not_judged(self, target: Target, problem: CdcLakeError) -> str:
        self.notes.append(f"{target.label} was not checked: {problem.message}. {problem.remedy}".strip())
        return "not judged"


def _findings_of(result: SuiteResult, rows: pa.Table, by: Sequence[str]) -> GateFindings:
    """The findings of a result over `rows`, with the keys of its failing rows."""
    keys = {
        result_of_rule.rule: keys_of_rows(rows, by, result_of_rule.examples)
        for result_of_rule in result.rules
        if result_of_rule.examples
    }
    return GateFindings({result_of_rule.rule: result_of_rule for result_of_rule in result.rules}, keys=keys)


def _can_judge(target: Target, rule: RowRule) -> bool:
    """Whether silver has what a rule evaluates; expressions are evaluated only when changes are applied."""
    return isinstance(rule, Expression) or target.transforms.keeps(rule.column)


def _row(now: dt.datetime, target: Target, rule: RowRule | TableRule, result: RuleResult) -> QualityRow:
    judged = (0, 0) if result.broken else (result.evaluated, result.failed)
    return QualityRow(
        judged_at=now,
        table=target.label,
        rule=result.rule,
        kind=result.kind,
        columns=result.column,
        evaluated=judged[0],
        failed=judged[1],
        level=level(rule.thresholds, *judged),
        observed=result.observed,
        error=result.broken,
    )


@dataclass(frozen=True, slots=True)
class Objection:
    """A rule that prevents a cut from being pinned. `why`: it could not be evaluated; empty if it was."""

    table: str
    rule: str
    level: str
    failed: int
    evaluated: int
    why: str = ""

    def __str__(self) -> str:
        what = self.why or f"{self.level}, {self.failed:,} of {self.evaluated:,}"
        return f"{self.table} {self.rule}: {what}"


@dataclass(frozen=True, slots=True)
class Withheld:
    """A pin that was not made, and the rules that prevented it."""

    name: str
    scheduled: bool
    epoch: int
    position: str
    cut_at: datetime
    objections: tuple[Objection, ...]
    at: datetime

    @property
    def reason(self) -> str:
        """The rules, in one line."""
        return "; ".join(map(str, self.objections))


def judge_cut(project: Project, control: ControlTables, cut: WrittenCut, now: datetime) -> tuple[Objection, ...]:
    """Evaluate silver at a cut and store the results in `quality`; returns the rules that prevent its pin.

    `now`: the reference time of ages. Raises ControlNotWritten.
    """
    judge = SilverJudge(project, cut, now, with_engine=False)
    reasons = tuple(objection for target in _targets(project, cut) for objection in _objections(judge, target))
    failpoint(CUT_JUDGED)
    control.append("quality", [asdict(row) for row in judge.rows])
    control.compact("quality")
    return reasons


def objections(project: Project, control: ControlTables, cut: WrittenCut) -> tuple[Objection, ...]:
    """The rules that prevent the pin of a cut; skips evaluation if no rule may. Raises ControlNotWritten."""
    if project.pipeline.quality.pin_below is None:
        return ()
    return judge_cut(project, control, cut, cut.written_at)


def withhold(control: ControlTables, pin: PinnedCut, reasons: Iterable[Objection], now: datetime) -> Withheld:
    """Record that a pin was not made."""
    cut = pin.cut
    document = json.dumps([asdict(objection) for objection in reasons])
    row = WithheldRow(pin.name, pin.scheduled, cut.epoch, cut.stream, cut.position, cut.written_at, document, now)
    control.record(row)
    control.compact("withheld")
    return _withheld(row)


def withheld(control: ControlTables) -> tuple[Withheld, ...]:
    """Every pin that was not made, oldest first."""
    rows = control.read("withheld").sort_by("recorded_at").to_pylist()
    return tuple(_withheld(WithheldRow(**row)) for row in rows)


def still_withheld(project: Project, control: ControlTables) -> Withheld | None:
    """The newest pin that was not made, unless that cut or a later one has been pinned since."""
    if project.pipeline.quality.pin_below is None:
        return None
    newest = max(withheld(control), key=lambda entry: entry.at, default=None)
    if newest is None or any(pin.cut.written_at >= newest.cut_at for pin in pinned_cuts(control)):
        return None
    return newest


def _withheld(row: WithheldRow) -> Withheld:
    reasons = tuple(Objection(**fields) for fields in json.loads(row.objections))
    position = format_stream_position(row.stream, row.position)
    return Withheld(row.name, row.scheduled, row.epoch, position, row.cut_at, reasons, row.recorded_at)


def _targets(project: Project, cut: WrittenCut) -> Iterator[Target]:
    """The tables of the cut that have rules, as of the cut."""
    for relation, state in sorted(cut.tables.items()):
        target = project.target(TableName.parse(relation))
        if target.rules:
            yield relocate_target(target, state.table, state.format)


def _objections(judge: SilverJudge, target: Target) -> Iterator[Objection]:
    noted, log = len(judge.notes), table_log(judge.project, target)
    try:
        findings = judge.judge(target, log.count_rows() if log.exists() else None, {})
    except CdcLakeError as problem:
        findings = GateFindings({}, f"{target.label} could not be read: {problem.message}")
    below = judge.project.pipeline.quality.pin_below
    if below is None or findings.note == NO_TABLE:
        return
    why = " ".join(judge.notes[noted:]) or findings.note
    for rule in target.rules:
        result = findings.results.get(rule_name(rule))
        if result is None:
            if why:
                yield Objection(target.label, rule_name(rule), "none", 0, 0, why)
        elif result.broken:
            yield Objection(target.label, result.rule, "none", 0, 0, result.broken)
        elif LEVELS.index(reached := level(rule.thresholds, result.evaluated, result.failed)) >= LEVELS.index(below):
            yield Objection(target.label, result.rule, reached, result.failed, result.evaluated)
