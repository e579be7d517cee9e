"""What rules say of a cut before it is promised.

Silver is judged at the versions of the cut. A rule objects where it has reached the level of `quality.promise_below`,
and where it could not be judged: what nobody looked at is not promised. `expression` and `type_castable` are judged at
the gate alone and object to nothing here. Nothing is kept of a verdict but rows of `quality` and, where it kept a
promise from being made, one of `withheld`: who dies between the two asks again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime

from cdc_lake.config.project import Project, Target
from cdc_lake.config.rules import rule_name
from cdc_lake.errors import CdcLakeError
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.control_rows import WithheldRow
from cdc_lake.lake.extent import silver_rows
from cdc_lake.model.relation import TableName
from cdc_lake.observe.failpoint import CUT_JUDGED, failpoint
from cdc_lake.pipeline.judging.silver_judge import NO_TABLE, Found, SilverJudge
from cdc_lake.pipeline.state.cuts import WrittenCut, placed
from cdc_lake.pipeline.state.promises import Promise, promises
from cdc_lake.quality.level import LEVELS, level
from cdc_lake.source.stream import shown


@dataclass(frozen=True, slots=True)
class Objection:
    """A rule that keeps a cut from being promised. `why`: it could not be judged, empty where it was."""

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
    """A promise of a cut that was not made, and the rules that kept it back."""

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


def judge_cut(project: Project, control: ControlTables, cut: WrittenCut, at: datetime) -> tuple[Objection, ...]:
    """Judge silver at a cut and keep what was found in `quality`; the rules that object to its promise.

    `at`: the time that it is judged for, to which ages are reckoned. Raises ControlNotWritten.
    """
    judge = SilverJudge(project, cut, at, beside=False)
    found = tuple(one for target in _targets(project, cut) for one in _objections(judge, target))
    failpoint(CUT_JUDGED)
    control.append("quality", [asdict(row) for row in judge.rows])
    control.compact("quality")
    return found


def objections(project: Project, control: ControlTables, cut: WrittenCut) -> tuple[Objection, ...]:
    """The rules that object to the promise of a cut; nothing is judged where none may. Raises ControlNotWritten."""
    if project.pipeline.quality.promise_below is None:
        return ()
    return judge_cut(project, control, cut, cut.written_at)


def withhold(control: ControlTables, promise: Promise, given: Iterable[Objection], at: datetime) -> Withheld:
    """Write that a promise was not made."""
    cut = promise.cut
    said = json.dumps([asdict(one) for one in given])
    row = WithheldRow(promise.name, promise.scheduled, cut.epoch, cut.stream, cut.position, cut.written_at, said, at)
    control.record(row)
    control.compact("withheld")
    return _withheld(row)


def withheld(control: ControlTables) -> tuple[Withheld, ...]:
    """Every promise that was not made, oldest first."""
    rows = control.read("withheld").sort_by("recorded_at").to_pylist()
    return tuple(_withheld(WithheldRow(**row)) for row in rows)


def still_withheld(project: Project, control: ControlTables) -> Withheld | None:
    """The newest promise that was not made, where none has been made of that cut or a later one since."""
    if project.pipeline.quality.promise_below is None:
        return None
    newest = max(withheld(control), key=lambda one: one.at, default=None)
    if newest is None or any(one.cut.written_at >= newest.cut_at for one in promises(control)):
        return None
    return newest


def _withheld(row: WithheldRow) -> Withheld:
    given = tuple(Objection(**one) for one in json.loads(row.objections))
    position = shown(row.stream, row.position)
    return Withheld(row.name, row.scheduled, row.epoch, position, row.cut_at, given, row.recorded_at)


def _targets(project: Project, cut: WrittenCut) -> Iterator[Target]:
    """The tables of the cut that have rules, where it has them."""
    for relation, state in sorted(cut.tables.items()):
        target = project.target(TableName.parse(relation))
        if target.rules:
            yield placed(target, state.table, state.format)


def _objections(judge: SilverJudge, target: Target) -> Iterator[Objection]:
    said = len(judge.notes)
    try:
        found = judge.judge(target, silver_rows(judge.project, target), {})
    except CdcLakeError as problem:
        found = Found({}, f"{target.label} could not be read: {problem.message}")
    below = judge.project.pipeline.quality.promise_below
    if below is None or found.note == NO_TABLE:
        return
    why = " ".join(judge.notes[said:]) or found.note
    for rule in target.rules:
        one = found.results.get(rule_name(rule))
        if one is None:
            if why:
                yield Objection(target.label, rule_name(rule), "none", 0, 0, why)
        elif one.broken:
            yield Objection(target.label, one.rule, "none", 0, 0, one.broken)
        elif LEVELS.index(reached := level(rule.thresholds, one.evaluated, one.failed)) >= LEVELS.index(below):
            yield Objection(target.label, one.rule, reached, one.failed, one.evaluated)
