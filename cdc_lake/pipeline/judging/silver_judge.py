"""Silver judged by its rules as it stood at a cut, without a JVM.

Rules of rows are judged by Great Expectations over all rows; rules of tables by an aggregate each, over the rows that
hold: not deleted ones, not former versions. All is read at the cut, so that a `foreign_key` sees both of its tables as
of one position. Silver is judged whole or, above `quality.max_rows`, not at all: a part would not be the truth.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.config.project import Project, Target
from cdc_lake.config.rules import Expectation, Expression, ForeignKey, RowRule, TableRule, rule_name
from cdc_lake.errors import CdcLakeError
from cdc_lake.lake.control_rows import QualityRow
from cdc_lake.lake.extent import silver_columns
from cdc_lake.lake.read import read_silver
from cdc_lake.model.relation import TableName
from cdc_lake.model.rows_by_key import Key
from cdc_lake.page.wording import count
from cdc_lake.pipeline.judging.named_rows import key_columns, keys_of_rows
from cdc_lake.pipeline.state.cuts import IN, TableState, WrittenCut
from cdc_lake.quality.level import level
from cdc_lake.quality.suite import RuleResult, SuiteResult, run_suite
from cdc_lake.quality.table_suite import TableView, judge_table
from cdc_lake.quality.tally import Referenced, read_by
from cdc_lake.silver.kinds import kind_by_columns

NO_TABLE = "no table yet"


@dataclass(frozen=True, slots=True)
class Found:
    """What rules found of a table, by name; `note`: why those that are not there were not judged; `keys`: of some rows
    that break them, where these were asked for.
    """

    results: Mapping[str, RuleResult]
    note: str = ""
    keys: Mapping[str, tuple[Key, ...]] = field(default_factory=dict)


@dataclass
class SilverJudge:
    """Judges table by table. `cut`: None reads the newest versions; `at`: what ages are reckoned to; `beside`: whether
    Great Expectations judges too what an aggregate does; `examples`: how many rows are named of each rule that fails.

    `notes`, `suites` (Great Expectations' own results) and `rows` (of the control table `quality`) grow.
    """

    project: Project
    cut: WrittenCut | None
    at: dt.datetime
    beside: bool = True
    examples: int = 0
    notes: list[str] = field(default_factory=list)
    suites: dict[str, SuiteResult] = field(default_factory=dict)
    rows: list[QualityRow] = field(default_factory=list)

    def judge(self, target: Target, number: int | None, written: Mapping[str, str]) -> Found:
        """Judge a table that has `number` rows. `written`: where each rule stands."""
        note = self._left_out(target, number)
        if note or not target.rules:
            return Found({}, note)
        by = self._key_columns(target)
        rows = self._rows_judged(target, written, by)
        whole = self._table_judged(target, by)
        found = Found({**rows.results, **whole.results}, rows.note or whole.note, {**rows.keys, **whole.keys})
        for rule in target.rules:
            result = found.results.get(rule_name(rule))
            if result is not None and not result.elsewhere:
                self.rows.append(_row(self.at, target, rule, result))
        return found

    def _left_out(self, target: Target, number: int | None) -> str:
        """Why silver is not judged, empty where it is."""
        if not target.rules:
            return ""
        if number is None:
            return NO_TABLE
        most = self.project.pipeline.quality.max_rows
        if number > most:
            self.notes.append(f"{target.label} has {count(number)} rows; tables of up to {count(most)} are judged.")
            return "too large"
        return ""

    def _key_columns(self, target: Target) -> tuple[str, ...]:
        """The columns that name rows, none where nobody asks for them or there are none."""
        if not self.examples:
            return ()
        try:
            return key_columns(self.project, target, self._state(target))
        except CdcLakeError as problem:
            self.notes.append(f"Rows of {target.label} that break a rule are not named: {problem.message}.")
            return ()

    def _rows_judged(self, target: Target, written: Mapping[str, str], by: Sequence[str]) -> Found:
        """The suite's run over the rows, or why there is none."""
        if not target.row_rules:
            return Found({})
        try:
            present = set(silver_columns(self.project, target) or ())
            # Rules name the source's columns: silver may call one otherwise, or leave it out.
            rules = [rule for rule in target.row_rules if _kept(target, rule)]
            columns = {rule.column for rule in rules if not isinstance(rule, Expression)}
            named = {column: target.transforms.silver_name(column, column) for column in columns}
            wanted = sorted(column for column in columns if named[column] in present)
            read = [named[column] for column in wanted] or sorted(present)[:1]
            rows = read_silver(self.project, target, self._version(target), list(dict.fromkeys([*read, *by])))
            judged = rows.select(read).rename_columns(wanted or read)
            result = run_suite(judged, rules, target.label, written=written, examples=self.examples if by else 0)
        except CdcLakeError as problem:
            return Found({}, self._not_judged(target, problem))
        self.suites[target.label] = result
        return _found(result, rows, by)

    def _table_judged(self, target: Target, by: Sequence[str]) -> Found:
        """The rules of the table over its rows that hold, or why they are not judged."""
        rules = target.table_rules
        if not rules:
            return Found({})
        try:
            everything = any(isinstance(rule, Expectation) for rule in rules)
            rows = self._holding(target, None if everything else {*by, *(c for rule in rules for c in read_by(rule))})
            view, examples = TableView(rows, self.at, self._referenced), self.examples if by else 0
            result = judge_table(view, rules, target.label, beside=self.beside, examples=examples)
        except CdcLakeError as problem:
            return Found({}, self._not_judged(target, problem))
        self.suites[f"{target.label}.table"] = result
        return _found(result, rows, by)

    def _referenced(self, rule: ForeignKey) -> Referenced:
        """The rows that a foreign key refers to, as of the cut that the table itself is read at."""
        other = self.project.target(TableName.parse(rule.references))
        if self.cut is not None and ((state := self._state(other)) is None or state.state != IN):
            return Referenced(None, f"{other.label} is not in the last cut")
        try:
            return Referenced(self._holding(other, set(rule.referenced)))
        except CdcLakeError as problem:
            return Referenced(None, f"{other.label} could not be read: {problem.message}")

    def _holding(self, target: Target, columns: set[str] | None) -> pa.Table:
        """The rows that hold at the cut, in silver's columns of these names that are there; None: in all."""
        present = silver_columns(self.project, target) or ()
        flag = kind_by_columns(present).flag
        wanted = [name for name in present if columns is None or name in columns or (flag and name == flag.column.name)]
        rows = read_silver(self.project, target, self._version(target), wanted or list(present[:1]))
        return rows if flag is None else rows.filter(pc.field(flag.column.name) == flag.value)

    def _state(self, target: Target) -> TableState | None:
        """What the cut says of a table."""
        return None if self.cut is None else self.cut.tables.get(str(target.source))

    def _version(self, target: Target) -> int | None:
        state = self._state(target)
        return None if state is None else state.version

    def _not_judged(self, target: Target, problem: CdcLakeError) -> str:
        self.notes.append(f"{target.label} was not judged: {problem.message}. {problem.remedy}".strip())
        return "not judged"


def _found(result: SuiteResult, rows: pa.Table, by: Sequence[str]) -> Found:
    """What a run over `rows` found, with the keys of the rows that it tells."""
    keys = {one.rule: keys_of_rows(rows, by, one.examples) for one in result.rules if one.examples}
    return Found({one.rule: one for one in result.rules}, keys=keys)


def _kept(target: Target, rule: RowRule) -> bool:
    """Whether silver has what a rule judges; of an expression the gate alone knows."""
    return isinstance(rule, Expression) or target.transforms.keeps(rule.column)


def _row(at: dt.datetime, target: Target, rule: RowRule | TableRule, found: RuleResult) -> QualityRow:
    judged = (0, 0) if found.broken else (found.evaluated, found.failed)
    return QualityRow(
        judged_at=at,
        table=target.label,
        rule=found.rule,
        kind=found.kind,
        columns=found.column,
        evaluated=judged[0],
        failed=judged[1],
        level=level(rule.thresholds, *judged),
        observed=found.observed,
        broken=found.broken,
    )
