"""Groups of tables in the steps of a run: they hold whole transactions, and where one cannot go on the others wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Group, Project, Target
from cdc_lake.errors import CdcLakeError, GroupWaits
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.span import Span
from cdc_lake.pipeline.applying.applied import Applied
from cdc_lake.pipeline.applying.sessions import Sessions, guarded
from cdc_lake.pipeline.applying.table_job import TableJob
from cdc_lake.pipeline.applying.table_span import Prepared, prepare
from cdc_lake.pipeline.applying.whole_groups import Ahead, ahead, settled_whole, since_copy
from cdc_lake.pipeline.state.cuts import BROKEN, PAUSED, TableState
from cdc_lake.pipeline.state.holds import hold_log


class GroupSteps:
    """`wait`: notes that a table waits at a position, and why."""

    def __init__(
        self,
        project: Project,
        control: ControlTables,
        reader: BronzeReader,
        sessions: Sessions,
        done: Applied,
        wait: Callable[[Target, int, CdcLakeError, dict[str, TableState]], None],
    ) -> None:
        self._project = project
        self._control = control
        self._reader = reader
        self._sessions = sessions
        self._done = done
        self._wait = wait

    def together(self, prepared: Sequence[Prepared], tables: dict[str, TableState]) -> list[Prepared]:
        """What was prepared, with whole transactions held in groups, and without those of groups that wait."""
        out = {str(one.job.target.source): one for one in prepared}
        for group in self._project.groups:
            mine = [out.pop(str(name)) for name in group.tables if str(name) in out]
            if mine and self._cause(group) is None:
                settled = self._settled(group, mine, tables)
                out |= {str(one.job.target.source): one for one in settled}
                mine = [] if settled else mine
            if (cause := self._cause(group)) is not None:
                for one in mine:
                    if not self._failed(one.job.target):
                        self._wait(one.job.target, one.job.span.after, _waits(one.job.target, cause), tables)
        self.bind(tables)
        return [out[relation] for one in prepared if (relation := str(one.job.target.source)) in out]

    def bind(self, tables: dict[str, TableState]) -> None:
        """Where a table of a group cannot go on, the others wait where they are."""
        for group in self._project.groups:
            cause = self._cause(group)
            for name in group.tables if cause is not None else ():
                listed, target = tables.get(str(name)), self._project.target(name)
                if cause is not None and listed is not None and target != cause and listed.state != PAUSED:
                    tables[str(name)] = replace(listed, state=BROKEN)
                    self._done.broken.setdefault(target.label, _waits(target, cause))

    def waits(self, target: Target) -> bool:
        """Whether a table of the group of `target` cannot go on."""
        group = self._project.group(target.source)
        return group is not None and self._cause(group) is not None

    def aligned(self, jobs: Sequence[TableJob]) -> list[TableJob]:
        """Jobs of tables that catch up: those of a group end at one position, and a first content comes before the
        changes of the others.
        """
        out = list(jobs)
        for group in self._project.groups:
            mine = [job for job in out if job.target.source in group.tables]
            out = [job for job in out if job.target.source not in group.tables]
            if any(job.snapshot for job in mine):
                out += [job for job in mine if job.snapshot]
            elif mine:
                end = min(job.span.upto for job in mine)
                out += [job if job.span.upto == end else job.until(end + 1) for job in mine if job.span.after < end]
        return out

    def _settled(self, group: Group, mine: Sequence[Prepared], tables: dict[str, TableState]) -> list[Prepared]:
        """The tables of a group with whole transactions held; none where that cannot be, which is noted."""
        streamed = [one for one in mine if not one.job.snapshot]
        if not streamed:
            return list(mine)

        def settle(others: Sequence[Ahead]) -> list[Prepared] | CdcLakeError:
            again = partial(_again, self._sessions)
            return guarded(lambda: settled_whole(streamed, others, self._reader, again), streamed[0].job.target)

        (done,) = self._sessions.each(settle, [self._ahead(group, streamed, tables)], lambda _: group.name)
        if isinstance(done, CdcLakeError):
            for one in mine:
                self._wait(one.job.target, one.job.span.after, done, tables)
            return []
        return [one for one in mine if one.job.snapshot] + done

    def _ahead(self, group: Group, mine: Sequence[Prepared], tables: Mapping[str, TableState]) -> list[Ahead]:
        """The tables of a group that have passed a part of what is judged now."""
        after, epoch = min(one.job.span.after for one in mine), mine[0].job.span.epoch
        states = {str(name): tables[str(name)] for name in group.tables if str(name) in tables}
        passed = {name: table for name, table in states.items() if table.position > since_copy(table, after)}
        if not passed:
            return []
        log = hold_log(self._control)
        return [
            ahead(log, relation, table.generation, Span(epoch, since_copy(table, after), table.position))
            for relation, table in passed.items()
        ]

    def _failed(self, target: Target) -> bool:
        return not isinstance(self._done.broken.get(target.label), GroupWaits | None)

    def _cause(self, group: Group) -> Target | None:
        """The first table of a group that cannot go on by itself."""
        targets = [self._project.target(name) for name in group.tables]
        return next((target for target in targets if self._failed(target)), None)


def _again(sessions: Sessions, job: TableJob) -> Prepared | None:
    return prepare(sessions.of(job.target), job)


def _waits(target: Target, cause: Target) -> GroupWaits:
    return GroupWaits(f"{target.label} is in a group with {cause.label}, which cannot go on")
