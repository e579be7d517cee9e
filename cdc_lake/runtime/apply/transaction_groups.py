"""Holds whole transactions in groups of tables: what is held in one table of a group is held in all of them.

Every table is first prepared as if it were alone. If nothing is held, that is all; otherwise the keys of their changes
are collected on the driver, `silver.row_tracing` determines the transactions to hold, and the tables with changes of
these are prepared again. A group stops as a whole: if one table cannot continue, the others wait.

A table of the group that is ahead, after a crash between two merges or during a rebuild of another one, is not
evaluated: the control table `quarantine` contains what it held. The result is deterministic, so both agree; if not,
nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow.compute as pc

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Group, Project, Target
from cdc_lake.control.cuts import FAILED, PAUSED, Cut, TableState
from cdc_lake.control.quarantine import CLOSED, QuarantineLog, quarantine_log
from cdc_lake.control.snapshots import CopiedTable, TableTimeline, courses
from cdc_lake.errors import CdcLakeError, GroupDisagrees, GroupWaits, NoKey, QuarantineLost, TruncateQuarantined
from cdc_lake.model.position import Span
from cdc_lake.model.quarantine import CEILING, RELEASE
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.apply.key_following import check_few, events
from cdc_lake.runtime.apply.merge import ApplyTotals
from cdc_lake.runtime.apply.span_planning import RebuildPlan, TableTask
from cdc_lake.runtime.apply.spark_sessions import Sessions, capture_errors
from cdc_lake.runtime.apply.table_integrity import missing_quarantine_rows
from cdc_lake.runtime.apply.table_span import MergePlan, prepare
from cdc_lake.silver.kind import RowIdentity
from cdc_lake.silver.row_tracing import TRUNCATE, TableEvents, Unit, quarantined_as_whole, unit_of
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_tables import ControlTables, control_tables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.silver_table import Marker


@dataclass(frozen=True, slots=True)
class AheadTable:
    """A table of a group at `position`, ahead of others; `quarantined`: what it quarantined in `(after, position]`,
    `decided`: positions before which decisions took effect in it.
    """

    relation: str
    after: int
    position: int
    quarantined: frozenset[Unit]
    decided: frozenset[int]


def ahead(log: QuarantineLog, relation: str, generation: int, span: Span) -> AheadTable:
    """What a generation of a table recorded in a span that it has passed."""
    here = (pc.field("relation") == relation) & (pc.field("epoch") == span.epoch)
    here &= (pc.field("position") > span.after) & (pc.field("position") <= span.upto)
    columns = ["position", "ordinal", "op", "reason"]
    rows = log.quarantined.filter(here & (pc.field("generation") == generation)).select(columns).to_pylist()
    quarantined_changes = [(row["position"], row["ordinal"], row["op"]) for row in rows if row["reason"] != CLOSED]
    truncates = [(row["position"], row["ordinal"]) for row in rows if row["reason"] == CLOSED and row["op"] == TRUNCATE]
    decided = log.decisions.filter(here & (pc.field("verb") == RELEASE))["position"].to_pylist()
    return AheadTable(relation, span.after, span.upto, units_of(quarantined_changes, truncates), frozenset(decided))


def since_copy(table: TableState, after: int) -> int:
    """From which position on the holds of a table count: nothing before its copy was evaluated."""
    return after if table.copied is None else max(after, table.copied)


def together_at(project: Project, stream: str, cut: Cut, name: TableName) -> int:
    """Up to which position a table is rebuilt if its group is behind the cut, so that no table of it waits for another
    that it is rebuilt from. A table that the cut does not list is rebuilt at least up to its copy.
    """
    listed = cut.tables.get(str(name))
    others = [position for _, _, _, position in _other_tables(project, stream, cut, name)]
    course = courses(control_tables(project).snapshots(), stream).get(str(name), TableTimeline())
    own = course.stretch_at(cut.position).begins if listed is None else listed.position
    return min(cut.position, max(own, min(others, default=cut.position)))


def renewed_to(
    project: Project, stream: str, cut: Cut, table_courses: Mapping[str, TableTimeline], copy: CopiedTable
) -> int:
    """Up to which position a table that begins again with `copy` is rebuilt: the cut, but not beyond the others of its
    group or their own new copies; otherwise tables of a group that were all copied again would wait for each other. It
    is rebuilt at least up to its copy; the group catches up with the rest together.
    """
    places = []
    for other, listed, _, position in _other_tables(project, stream, cut, copy.relation):
        its = _renewal(table_courses, other, listed, cut.position)
        places.append(position if its is None else max(position, its.position))
    return min(cut.position, max(copy.position, min(places, default=cut.position)))


def _renewal(
    table_courses: Mapping[str, TableTimeline], target: Target, listed: TableState | None, position: int
) -> CopiedTable | None:
    """The copy that a table will begin again with, if silver is at a position; None without one, or if the table is new
    there.
    """
    course = table_courses.get(str(target.source), TableTimeline())
    return None if listed is None else course.renewal(position, listed.copied)


def _other_tables(
    project: Project, stream: str, cut: Cut | None, name: TableName
) -> Iterator[tuple[Target, TableState | None, Marker, int]]:
    """The other tables of a group that bronze has changes of up to the cut, and their positions."""
    group = project.group(name)
    for other in () if group is None else group.tables:
        listed = None if cut is None else cut.tables.get(str(other))
        if other != name and (cut is None or listed is not None):
            marker = table_log(project, target := project.target(other)).marker(stream)
            position = -1 if listed is None else listed.position
            yield target, listed, marker, position if marker.position is None else max(position, marker.position)


def passed_by(
    project: Project, log: QuarantineLog, state: StreamCheckpoint, cut: Cut | None, target: Target, plan: RebuildPlan
) -> list[AheadTable]:
    """What the other tables of a group held of the changes that a rebuild of one of them evaluates; rows of a copy are
    the source's, regardless of holds. Raises GroupWaits; QuarantineLost if the records no longer exist.

    A table with a new copy with which it has not begun yet counts only with what is recorded. One that has begun again
    does not count if everything evaluated precedes the rebuilt table's own copy, which ends holds: the other may wait
    for it.
    """
    result = []
    judged = max((part.span.upto for part in plan.parts if part.copy is None), default=-1)  # -1: nothing to evaluate
    table_courses = courses(control_tables(project).snapshots(), state.stream)
    for other, listed, marker, position in _other_tables(project, state.stream, cut, target.source):
        copy = _renewal(table_courses, other, listed, plan.upto if cut is None else max(plan.upto, cut.position))
        renewed = copy is not None and copy.position >= judged
        begun = listed is not None and listed.copied is not None and plan.copied is not None and judged < plan.copied
        if position < judged and not renewed and not begun:
            first = f"if that is {target.label}, run `cdc-lake rebuild {other.source}` first"
            hint = f"`cdc-lake run` brings both to one position, or reports why {other.label} cannot continue; {first}"
            raise GroupWaits(f"{other.label}, of the same group as {target.label}, is behind it", hint=hint)
        begins = plan.begins if listed is None else since_copy(listed, plan.begins)
        if begins >= min(judged, position):
            continue
        if listed is not None and marker.generation <= listed.generation:
            lost = missing_quarantine_rows(log, other, state.epoch, listed)
            if lost is not None and renewed:
                continue
            _check_recorded(project, lost, target)
        span = Span(state.epoch, begins, min(position, plan.upto))
        result.append(ahead(log, str(other.source), marker.generation, span))
    return result


def _check_recorded(project: Project, lost: QuarantineLost | None, target: Target) -> None:
    """Raise the loss of another table's records in the group of `target`: it could not hold the same transactions."""
    if lost is not None:
        group = project.group(target.source)
        tables = " ".join(() if group is None else map(str, group.tables))
        hint = f"restore the control table `quarantine`, or copy the whole group again: cdc-lake resync {tables}"
        raise QuarantineLost(
            f"{target.label} holds whole transactions of its group, and {lost.message}", where=lost.where, hint=hint
        )


def hold_whole(
    prepared: Sequence[MergePlan],
    others: Sequence[AheadTable],
    reader: BronzeReader,
    prepare: Callable[[TableTask], MergePlan | None],
) -> list[MergePlan]:
    """The tables of a group, prepared so that quarantined transactions are held as a whole; `others`: tables ahead.

    Raises NoKey, TruncateQuarantined, GroupDisagrees, TooManyFollowed.
    """
    for plan in prepared:
        if plan.kind.identity is not RowIdentity.KEY:
            raise NoKey(f"{plan.task.target.source} has no key, and its group holds whole transactions by their keys")
    current, quarantined_units = list(prepared), frozenset[Unit]()
    fixed = frozenset(unit for other in others for unit in other.quarantined)
    while (reasons := fixed.union(*map(_reasons, current))) - quarantined_units:
        check_few(sum(plan.summary.rows for plan in current), current[0].task.target)
        tables = {str(plan.task.target.source): _events(plan) for plan in current}
        quarantined_units = quarantined_as_whole(tables, reasons | quarantined_units)
        _check_truncates(current, quarantined_units)
        _check_agreed(current[0].task, quarantined_units - fixed, others, reader)
        again = []
        for plan in current:
            its = quarantined_units & {event.unit for event in tables[str(plan.task.target.source)].events}
            prepared_again = prepare(replace(plan.task, quarantined_units=its)) if its else plan
            assert prepared_again is not None, "the span is the same"
            again.append(prepared_again)
        current = again
    return current


def _reasons(plan: MergePlan) -> frozenset[Unit]:
    """The transactions held because of a change of this table."""
    quarantined = plan.folded.quarantined
    if quarantined is None:
        return frozenset()
    rows = zip(*(quarantined[name].to_pylist() for name in ("position", "ordinal", "op")), strict=True)
    return units_of(rows, plan.summary.truncates)


def units_of(rows: Iterable[tuple[int, int, str]], truncates: Iterable[tuple[int, int]]) -> frozenset[Unit]:
    """The transactions of quarantined changes, except those that truncated the table later."""
    last: Mapping[int, int] = dict(sorted(truncates))
    units = (unit_of(*row) for row in rows if row[1] < CEILING or row[1] > last.get(row[0], -1))
    return frozenset(unit for unit in units if unit is not None)


def _events(plan: MergePlan) -> TableEvents:
    quarantined = plan.folded.quarantined
    alone = set()
    if quarantined is not None:
        again = quarantined.filter(pc.field("op") == "S")
        alone = set(zip(again["position"].to_pylist(), again["ordinal"].to_pylist(), strict=True))
    table_events = events(plan.folded.changes, None, plan.summary, plan.task.decided)
    return TableEvents(
        [replace(e, failed=True) if e.again and (e.position, e.ordinal) in alone else e for e in table_events],
        plan.task.quarantine,
    )


def _check_truncates(prepared: Sequence[MergePlan], units: frozenset[Unit]) -> None:
    for plan in prepared:
        for position, _ in plan.summary.truncates:
            if (position, False) in units:
                place, table = format_stream_position(plan.task.stream, position), plan.task.target.source
                raise TruncateQuarantined(f"the transaction at {place} truncates {table}, and is held in its group")


def _check_agreed(job: TableTask, units: frozenset[Unit], others: Sequence[AheadTable], reader: BronzeReader) -> None:
    """Raise GroupDisagrees if a table has passed one of `units` without holding it."""
    late = [position for position, _ in units if any(other.after < position <= other.position for other in others)]
    if not late:
        return
    commits = reader.commits(Span(job.span.epoch, min(late) - 1, max(late)))
    touched = {commit.position: commit.counts for commit in commits}
    for position, decided in sorted(units):
        for other in others:
            passed = position in other.decided if decided else other.relation in touched.get(position, ())
            if passed and other.after < position <= other.position and (position, decided) not in other.quarantined:
                position_text = format_stream_position(job.stream, position)
                raise GroupDisagrees(
                    f"the transaction at {position_text} is to be held, but {other.relation} has already applied it"
                )


class GroupSteps:
    """Holds whole transactions of groups, and lets the tables of a group wait for one that cannot continue.

    `set_aside` returns the state of a table that waits, from its target, position, error and state in the last cut.
    """

    def __init__(
        self,
        project: Project,
        control: ControlTables,
        reader: BronzeReader,
        sessions: Sessions,
        totals: ApplyTotals,
        set_aside: Callable[[Target, int, CdcLakeError, TableState | None], TableState],
    ) -> None:
        self._project = project
        self._control = control
        self._reader = reader
        self._sessions = sessions
        self._totals = totals
        self._set_aside = set_aside

    def hold_whole_transactions(
        self, prepared: Sequence[MergePlan], tables: Mapping[str, TableState]
    ) -> tuple[list[MergePlan], dict[str, TableState]]:
        """The prepared tables, with whole transactions held in groups and without groups that wait; and the state of
        all tables then.
        """
        result, states = {str(plan.task.target.source): plan for plan in prepared}, dict(tables)
        for group in self._project.groups:
            members = [result.pop(str(name)) for name in group.tables if str(name) in result]
            if members and self._cause(group) is None:
                outcome = self._hold_group(group, members, tables)
                if isinstance(outcome, CdcLakeError):
                    states |= {str(plan.task.target.source): self._wait(plan, outcome, tables) for plan in members}
                else:
                    result |= {str(plan.task.target.source): plan for plan in outcome}
                members = []
            if (cause := self._cause(group)) is not None:
                for plan in members:
                    if not self._has_failed(plan.task.target):
                        waits = _waits(plan.task.target, cause)
                        states[str(plan.task.target.source)] = self._wait(plan, waits, tables)
        merges = [result[relation] for plan in prepared if (relation := str(plan.task.target.source)) in result]
        return merges, self.bind(states)

    def _wait(self, plan: MergePlan, error: CdcLakeError, tables: Mapping[str, TableState]) -> TableState:
        task = plan.task
        return self._set_aside(task.target, task.span.after, error, tables.get(str(task.target.source)))

    def bind(self, tables: Mapping[str, TableState]) -> dict[str, TableState]:
        """The tables; if one of a group cannot continue, all of them wait at their position."""
        result = dict(tables)
        for group in self._project.groups:
            cause = self._cause(group)
            for name in group.tables if cause is not None else ():
                listed, target = tables.get(str(name)), self._project.target(name)
                if cause is not None and listed is not None and target != cause and listed.state != PAUSED:
                    result[str(name)] = replace(listed, state=FAILED)
                    self._totals.failed.setdefault(target.label, _waits(target, cause))
        return result

    def waits(self, target: Target) -> bool:
        """Whether a table of the group of `target` cannot continue."""
        group = self._project.group(target.source)
        return group is not None and self._cause(group) is not None

    def align_jobs(self, jobs: Sequence[TableTask]) -> list[TableTask]:
        """Align the tasks of tables that catch up: those of a group end at one position, and a first content precedes
        the changes of the others.
        """
        result = list(jobs)
        for group in self._project.groups:
            group_jobs = [job for job in result if job.target.source in group.tables]
            result = [job for job in result if job.target.source not in group.tables]
            if any(job.snapshot for job in group_jobs):
                result += [job for job in group_jobs if job.snapshot]
            elif group_jobs:
                end = min(job.span.upto for job in group_jobs)
                result += [
                    job if job.span.upto == end else job.end_before(end + 1)
                    for job in group_jobs
                    if job.span.after < end
                ]
        return result

    def _hold_group(
        self, group: Group, members: Sequence[MergePlan], tables: Mapping[str, TableState]
    ) -> list[MergePlan] | CdcLakeError:
        """The tables of a group with whole transactions held, or the error if that is impossible."""
        streamed = [member for member in members if not member.task.snapshot]
        if not streamed:
            return list(members)

        def prepare_again(task: TableTask) -> MergePlan | None:
            return prepare(self._sessions.session_for(task.target), task)

        def hold_transactions(others: Sequence[AheadTable]) -> list[MergePlan] | CdcLakeError:
            work = partial(hold_whole, streamed, others, self._reader, prepare_again)
            return capture_errors(work, streamed[0].task.target)

        ahead_tables = [self._ahead(group, streamed, tables)]
        (outcome,) = self._sessions.run_each(hold_transactions, ahead_tables, lambda _: group.name)
        if isinstance(outcome, CdcLakeError):
            return outcome
        return [member for member in members if member.task.snapshot] + outcome

    def _ahead(self, group: Group, members: Sequence[MergePlan], tables: Mapping[str, TableState]) -> list[AheadTable]:
        """The tables of a group that have passed a part of what is evaluated now."""
        after, epoch = min(member.task.span.after for member in members), members[0].task.span.epoch
        states = {str(name): tables[str(name)] for name in group.tables if str(name) in tables}
        passed = {name: table for name, table in states.items() if table.position > since_copy(table, after)}
        if not passed:
            return []
        log = quarantine_log(self._control)
        return [
            ahead(log, relation, table.generation, Span(epoch, since_copy(table, after), table.position))
            for relation, table in passed.items()
        ]

    def _has_failed(self, target: Target) -> bool:
        return not isinstance(self._totals.failed.get(target.label), GroupWaits | None)

    def _cause(self, group: Group) -> Target | None:
        """The first table of a group that cannot continue by itself."""
        targets = [self._project.target(name) for name in group.tables]
        return next((target for target in targets if self._has_failed(target)), None)


def _waits(target: Target, cause: Target) -> GroupWaits:
    return GroupWaits(f"{target.label} is in a group with {cause.label}, which cannot continue")
