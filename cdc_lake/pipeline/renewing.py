"""Renewing: silver's content of a table that was copied again is made anew, from that copy on.

A copy comes into force where silver has reached its position: then the table is rebuilt (`pipeline.rebuild`), and takes
the content's place in one commit that begins a new generation. A process that dies on the way leaves the table as it
was, or a cut that does not say which copy the content began with: then the same is done once more.

A table that was left is in no cut behind the position it was left at, until a copy of it is in force.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError, RuleStopped
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.session import derive
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.copies import CopiedTable, Course, courses
from cdc_lake.pipeline.cuts import PAUSED, TableState, last_cut
from cdc_lake.pipeline.rebuild import Rebuilding
from cdc_lake.pipeline.sessions import guarded
from cdc_lake.source.stream import shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Renewing:
    """Which tables of a stream are followed where, and the renewal of those that were copied again."""

    def __init__(self, project: Project, control: ControlTables, spark: SparkSession, tell: Tell) -> None:
        """`errors`, by table in silver: why a renewal failed. It is tried again by the next process."""
        self._project = project
        self._control = control
        self._spark = spark
        self._tell = tell
        self._courses: Mapping[str, Course] = {}
        self._failed: dict[str, int] = {}
        self.errors: dict[str, CdcLakeError] = {}
        self._told: set[str] = set()

    def look(self, state: BronzeState) -> None:
        """Read what was copied and left, after `state` was read: what bronze holds of a table that was left follows the
        row that says so.
        """
        self._courses = courses(self._control.snapshots(), state.stream)

    def next(self, position: int, top: int) -> int | None:
        """The first position in `(position, top]` that a table is left or copied at: a span ends there, also one
        without transactions.
        """
        every = [one for course in self._courses.values() for one in course.stretches]
        marks = {one.left for one in every if one.left is not None} | {one.begins for one in every if one.later}
        return min((at for at in marks if position < at <= top), default=None)

    def unfollowed(self, tables: Collection[str], position: int) -> frozenset[str]:
        """Those whose changes right behind a position are no part of silver; `tables`: those that the cut there lists.
        One that waits for its content to begin is of them.
        """
        return frozenset(
            name
            for name, course in self._courses.items()
            if not course.follows(position) or (name not in tables and course.stretches[-1].later)
        )

    def step(self, state: BronzeState, tables: dict[str, TableState], position: int) -> dict[str, TableState]:
        """The tables of the cut at `position`: without those that are not followed there, and with what was copied
        again. Raises RuleStopped.
        """
        gone = [name for name in tables if name in self._courses and not self._courses[name].follows(position)]
        for name in sorted(gone):
            at = shown(state.stream, tables[name].position)
            self._say(name, tables[name].table, at)
        out = {name: table for name, table in tables.items() if name not in gone}
        for name, course in sorted(self._courses.items()):
            listed = out.get(name)
            copy = course.renewal(position, None if listed is None else listed.copied)
            paused = listed is not None and listed.state == PAUSED
            if copy is not None and not paused and self._failed.get(name) != copy.position:
                out = self._renewed(state, out, position, copy)
        return out

    def _renewed(
        self, state: BronzeState, tables: dict[str, TableState], position: int, copy: CopiedTable
    ) -> dict[str, TableState]:
        """The same with a table's new content; as they were where it could not be made, which is told."""
        cut = last_cut(self._control, state.stream)
        if cut is None or cut.position != position:
            return tables  # cuts were lost: the next one is where all tables are again
        relation, target = str(copy.relation), self._project.target(copy.relation)
        begins = shown(state.stream, copy.position)
        self._tell(
            Progress(
                "renew",
                f"{target.label} begins again with the copy at {begins}",
                facts={"table": target.label, "position": begins},
            )
        )

        def build() -> int:
            return Rebuilding(self._project, copy.relation, tell=self._tell).renew(derive(self._spark))

        version = guarded(build, target)
        if isinstance(version, RuleStopped):
            raise version
        if isinstance(version, CdcLakeError):
            self._failed[relation] = copy.position
            self.errors[target.label] = version
            facts = {"table": target.label, "code": version.code}
            self._tell(Progress("broken", f"{target.label} keeps what it has: {version.message}", facts=facts))
            return tables
        self.errors.pop(target.label, None)
        made = last_cut(self._control, state.stream)
        assert made is not None, "a renewal writes one"
        return {**tables, relation: made.tables[relation]}

    def _say(self, name: str, table: str, position: str) -> None:
        if name not in self._told:
            self._told.add(name)
            text = f"{table} stays at {position}: {name} is not followed any more"
            self._tell(Progress("left", text, facts={"table": table, "position": position}))
