"""Keeping promises: what the table formats are told, so that their own cleaning leaves promised cuts readable.

An Iceberg table has a tag a promise, `cut_<name>`, which every expiry of snapshots respects; a Delta table's retention
is as long as its promises need. Both follow from the control table `promises` and are made true again whenever that
changes or a promise ends, by who applies, the one writer of silver. What fails of it is told and tried again: the
promise itself stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import CdcLakeError, CutWithheld
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.delta_retention import retention_changes
from cdc_lake.lake.versions import TAG_PREFIX, set_tags
from cdc_lake.model.relation import TableName
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.judging.cut_verdict import Withheld, objections, withheld, withhold
from cdc_lake.pipeline.state.cuts import TableState, WrittenCut, placed
from cdc_lake.pipeline.state.promises import Promise, due, promises, record, standing

Sql = Callable[[Target, str], None]
"""Runs a statement in the session of a table. Raises LakeError."""


class Keeper:
    """Keeps the promises of a pipeline, and makes those of its schedule.

    `sql`: None where there is no Spark; retention on Delta is then left to who applies.
    """

    def __init__(self, project: Project, control: ControlTables, sql: Sql | None, tell: Tell) -> None:
        self._project = project
        self._control = control
        self._sql = sql
        self._tell = tell
        self._files: list[str] | None = None
        self._made: tuple[Promise, ...] = ()
        self._kept: tuple[Promise, ...] | None = None
        self._withheld: Withheld | None = None
        self._tried = False

    def cut(self, cut: WrittenCut) -> None:
        """A cut was written: it may be one that the schedule promises."""
        settings = self._project.pipeline.silver.cuts
        if settings.promise_every is not None:
            every, keep = timedelta(milliseconds=settings.promise_every), timedelta(milliseconds=settings.keep)
            if (promise := due(self._look(), cut, every, keep, self._last_withheld())) is not None:
                self._promise(promise)
        self.keep()

    def _promise(self, promise: Promise) -> None:
        """Make a promise of the schedule, unless a rule objects."""
        if found := objections(self._project, self._control, promise.cut):
            self._withheld = withhold(self._control, promise, found, datetime.now(UTC))
            text = f"the cut is not promised as `{promise.name}`: {self._withheld.reason}"
            self._tell(Progress("promise", text, facts={"code": CutWithheld.code}))
            return
        record(self._control, promise, promise.cut.written_at)
        self._control.compact("promises")
        self._tell(Progress("promise", f"the cut stays readable as `{promise.name}`"))

    def _last_withheld(self) -> datetime | None:
        """When the last cut was written that the schedule did not promise; read once, as nobody else makes any."""
        if not self._tried:
            scheduled = [one for one in withheld(self._control) if one.scheduled]
            self._withheld, self._tried = (scheduled[-1] if scheduled else None), True
        return None if self._withheld is None else self._withheld.cut_at

    def keep(self) -> None:
        """Make tags and retention what the standing promises need; next to nothing where that did not change."""
        now = datetime.now(UTC)
        stand = standing(self._look(), now)
        if stand == self._kept:
            return
        failed = False
        for (relation, label, format_), needs in sorted(self._needs(stand).items()):
            target = placed(self._project.target(TableName.parse(relation)), label, format_)
            try:
                self._keep(target, needs)
            except CdcLakeError as error:
                failed = True
                what = f"{target.label} is not told yet which versions are promised: {error.message}"
                self._tell(Progress("promise", what, facts={"code": error.code, "table": target.label}))
        self._kept = None if failed else stand

    def _keep(self, target: Target, needs: Sequence[tuple[Promise, int]]) -> None:
        if target.format == "iceberg":
            self._tag(target, needs)
        elif self._sql is not None:
            for statement in retention_changes(self._project, target, _longest(needs)):
                self._sql(target, statement)

    def _needs(self, stand: Sequence[Promise]) -> dict[tuple[str, str, str], list[tuple[Promise, int]]]:
        """Table → the promises that need a version of it, and which; also of tables whose promises have all ended."""
        needs: dict[tuple[str, str, str], list[tuple[Promise, int]]] = {}
        for promise in self._made:
            for relation, table in promise.cut.tables.items():
                mine = needs.setdefault(_place(relation, table), [])
                if table.version is not None and promise in stand:
                    mine.append((promise, table.version))
        return needs

    def _tag(self, target: Target, needs: Sequence[tuple[Promise, int]]) -> None:
        wanted = {f"{TAG_PREFIX}{promise.name}": version for promise, version in needs}
        for tag in set_tags(self._project, target, wanted):
            what = f"the version of {target.label} that `{tag.removeprefix(TAG_PREFIX)}` promises is not there any more"
            self._tell(Progress("promise", what, facts={"code": "LAK462", "table": target.label}))

    def _look(self) -> tuple[Promise, ...]:
        """The promises as they are; read again only where the table has changed."""
        files = sorted(self._control.files("promises")["path"].to_pylist())
        if files != self._files:
            self._made, self._files = promises(self._control), files
        return self._made


def _place(relation: str, table: TableState) -> tuple[str, str, str]:
    return relation, table.table, table.format


def _longest(needs: Sequence[tuple[Promise, int]]) -> timedelta | None:
    """The longest time from a cut until its promise ends."""
    if not needs:
        return None
    return max(
        timedelta.max if promise.until is None else promise.until - promise.cut.written_at for promise, _ in needs
    )
