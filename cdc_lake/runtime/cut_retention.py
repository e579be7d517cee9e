"""Pinned cuts: pins, unpins and lists them, and keeps their table versions readable.

An Iceberg table has a tag for each pin, `cut_<name>`, which snapshot expiry respects; a Delta table's retention is as
long as its pins need. Both are derived from the control table `pins`, and updated whenever it changes or a pin
ends, by the apply process, the only writer of silver. Failures are reported and retried; the pin itself remains.

The rules are also evaluated periodically on silver's last cut (`quality.every`): if the newest evaluation in the
control table `quality` (of a report, or before a pin; not of a comparison) is old enough. Failures are reported, and
retried after the same period.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from cdc_lake.config.project import Project, Target
from cdc_lake.control import cuts
from cdc_lake.control.cut_lookup import find_cut
from cdc_lake.control.cut_session import CutSession
from cdc_lake.control.verdicts import RULE
from cdc_lake.errors import CdcLakeError, CutWithheld, LakeError, NotPinned, VersionGone
from cdc_lake.model.position import PIN_NAME, AsOf
from cdc_lake.model.relation import TableName
from cdc_lake.observability.events import ProgressEvent, ProgressReporter, silent
from cdc_lake.runtime.cut_gate import Withheld, judge_cut, objections, withheld, withhold
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_tables import ControlTables, control_tables
from cdc_lake.tables.maintenance import TAG_PREFIX, retention_changes, set_tags
from cdc_lake.tables.open_silver_table import table_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Sql = Callable[[Target, str], None]
"""Runs a statement in the session of a table. Raises LakeError."""


class Keeper:
    """Maintains the pins of a pipeline, and makes those of its schedule.

    `sql`: None without Spark; apply then sets the retention on Delta.
    """

    def __init__(self, project: Project, control: ControlTables, sql: Sql | None, report: ProgressReporter) -> None:
        self._project = project
        self._control = control
        self._sql = sql
        self._report = report
        self._files: list[str] | None = None
        self._pins: tuple[cuts.PinnedCut, ...] = ()
        self._enforced_pins: tuple[cuts.PinnedCut, ...] | None = None
        self._withheld: Withheld | None = None
        self._tried = False

    def cut(self, cut: cuts.WrittenCut) -> None:
        """Handle a new cut, which the schedule may pin."""
        settings = self._project.pipeline.silver.cuts
        if settings.pin_every is not None:
            every, keep = timedelta(milliseconds=settings.pin_every), timedelta(milliseconds=settings.keep)
            if (pin := cuts.due(self._refresh_pins(), cut, every, keep, self._last_withheld())) is not None:
                self._pin(pin)
        self.keep()

    def _pin(self, pin: cuts.PinnedCut) -> None:
        """Make a pin of the schedule, unless a rule prevents it."""
        if objecting := objections(self._project, self._control, pin.cut):
            self._withheld = withhold(self._control, pin, objecting, datetime.now(UTC))
            text = f"the cut is not pinned as `{pin.name}`: {self._withheld.reason}"
            self._report(ProgressEvent("pin", text, facts={"code": CutWithheld.code}))
            return
        cuts.record(self._control, pin, pin.cut.written_at)
        self._control.compact("pins")
        self._report(ProgressEvent("pin", f"the cut is kept readable as `{pin.name}`"))

    def _last_withheld(self) -> datetime | None:
        """When the last cut was written that the schedule did not pin; read once: only this process makes such pins."""
        if not self._tried:
            scheduled = [entry for entry in withheld(self._control) if entry.scheduled]
            self._withheld, self._tried = (scheduled[-1] if scheduled else None), True
        return None if self._withheld is None else self._withheld.cut_at

    def keep(self) -> None:
        """Set tags and retention as the current pins need; almost free if nothing changed."""
        now = datetime.now(UTC)
        stand = cuts.standing(self._refresh_pins(), now)
        if stand == self._enforced_pins:
            return
        failed = False
        for (relation, label, format_), needs in sorted(self._needs(stand).items()):
            target = cuts.relocate_target(self._project.target(TableName.parse(relation)), label, format_)
            try:
                self._keep(target, needs)
            except CdcLakeError as error:
                failed = True
                what = f"{target.label} does not list the pinned versions yet: {error.message}"
                self._report(ProgressEvent("pin", what, facts={"code": error.code, "table": target.label}))
        self._enforced_pins = None if failed else stand

    def _keep(self, target: Target, needs: Sequence[tuple[cuts.PinnedCut, int]]) -> None:
        if target.format == "iceberg":
            wanted = {f"{TAG_PREFIX}{pin.name}": version for pin, version in needs}
            for tag in set_tags(self._project, target, wanted):
                what = f"the version of {target.label} that `{tag.removeprefix(TAG_PREFIX)}` pins no longer exists"
                self._report(ProgressEvent("pin", what, facts={"code": "LAK462", "table": target.label}))
        elif self._sql is not None:
            for statement in retention_changes(self._project, target, _longest(needs)):
                self._sql(target, statement)

    def _needs(self, stand: Sequence[cuts.PinnedCut]) -> dict[tuple[str, str, str], list[tuple[cuts.PinnedCut, int]]]:
        """Table → the pins that need a version of it, with the version; also tables whose pins have all ended."""
        needs: dict[tuple[str, str, str], list[tuple[cuts.PinnedCut, int]]] = {}
        for pin in self._pins:
            for relation, table in pin.cut.tables.items():
                versions = needs.setdefault((relation, table.table, table.format), [])
                if table.version is not None and pin in stand:
                    versions.append((pin, table.version))
        return needs

    def _refresh_pins(self) -> tuple[cuts.PinnedCut, ...]:
        """The current pins; read again only if the table has changed."""
        files = sorted(self._control.files("pins")["path"].to_pylist())
        if files != self._files:
            self._pins, self._files = cuts.pinned_cuts(self._control), files
        return self._pins


def _longest(needs: Sequence[tuple[cuts.PinnedCut, int]]) -> timedelta | None:
    """The longest time from a cut until its pin ends."""
    if not needs:
        return None
    return max(timedelta.max if pin.until is None else pin.until - pin.cut.written_at for pin, _ in needs)


_RESERVED = re.compile(r"latest|at_[0-9].*")


@dataclass(frozen=True, slots=True)
class PinResult:
    """The state of a pin; it is ended if `until` is not in the future."""

    name: str
    epoch: int
    position: str
    commit_ts: datetime | None
    until: datetime | None
    ended: bool = False


def pin_cut(
    project: Project,
    name: str,
    asked: AsOf,
    epoch: int | None,
    keep: timedelta | None,
    report: ProgressReporter = silent,
) -> PinResult:
    """Pin the requested cut, for a time from now on, or until it is unpinned.

    It is valid immediately; Iceberg tables are tagged at once, retention on Delta is set by the next apply. Raises
    NotPinned, VersionGone, BeforeFirstCut, CutNotReached, CutUnknown; CutWithheld if a rule prevents it.
    """
    if not PIN_NAME.fullmatch(name) or _RESERVED.fullmatch(name):
        raise NotPinned(f"`{name}` is not a valid name for a pinned cut")
    control, now = control_tables(project), datetime.now(UTC)
    if any(existing.name == name and existing.stands(now) for existing in cuts.pinned_cuts(control)):
        raise NotPinned(f"a cut is already pinned as `{name}`")
    cut = find_cut(project, asked, epoch)
    for relation, state in cut.tables.items():
        target = cuts.relocate_target(project.target(TableName.parse(relation)), state.table, state.format)
        if state.version is not None and not table_log(project, target).is_readable(state.version):
            raise VersionGone(target.label, state.version, cut.position_text)
    pin = cuts.PinnedCut(name, scheduled=False, cut=cut, until=None if keep is None else now + keep)
    if objecting := objections(project, control, cut):
        why = withhold(control, pin, objecting, now).reason
        raise CutWithheld(f"the cut at {cut.position_text} is not pinned as `{name}`: {why}")
    cuts.record(control, pin, now)
    Keeper(project, control, None, report).keep()
    return PinResult(name, cut.epoch, cut.position_text, cut.commit_ts, pin.until)


def unpin_cut(project: Project, name: str, report: ProgressReporter = silent) -> PinResult:
    """End a pin now, also one of the schedule. Raises NotPinned if there is none."""
    control, now = control_tables(project), datetime.now(UTC)
    stands = [existing for existing in cuts.pinned_cuts(control) if existing.name == name and existing.stands(now)]
    if not stands:
        raise NotPinned(f"no cut is pinned as `{name}`")
    ended = replace(stands[0], until=now)
    cuts.record(control, ended, now)
    Keeper(project, control, None, report).keep()
    return PinResult(name, ended.cut.epoch, ended.cut.position_text, ended.cut.commit_ts, now, ended=True)


@dataclass(frozen=True, slots=True)
class CutViews:
    """Views of a pinned cut in a database of the Hive metastore. `until`: when the pin ends, None if it does not."""

    name: str
    database: str
    epoch: int
    position: str
    until: datetime | None
    views: tuple[str, ...]


def create_views(project: Project, name: str, database: str, spark: SparkSession | None = None) -> CutViews:
    """Create or replace a view of each table as of a pinned cut (`control.cut_session`).

    Raises NotPinned, TableBehind, VersionGone; LakeError if the pipeline has no metastore.
    """
    from cdc_lake.tables.spark_session import start  # noqa: PLC0415 - an extra: pins need no Spark

    if project.pipeline.lake.delta.hive is None:
        hint = "add `lake.delta.metastore`, the address of the Hive metastore of the readers"
        raise LakeError("views need a Hive metastore", where=str(project.file), hint=hint)
    if not PIN_NAME.fullmatch(database):
        raise LakeError(f"`{database}` is not a valid name of a database", hint="use letters, digits and underscores")
    stand = cuts.standing(cuts.pinned_cuts(control_tables(project)), datetime.now(UTC))
    pin = next((pin for pin in stand if pin.name == name), None)
    if pin is None:
        raise NotPinned(f"no cut is pinned as `{name}`", hint=f"pin one first: `cdc-lake cuts pin {name}`")
    views = CutSession(project, pin.cut).create_views(start(project, spark), database)
    return CutViews(name, database, pin.cut.epoch, pin.cut.position_text, pin.until, views)


@dataclass(frozen=True, slots=True)
class PinLine:
    """A pin of a cut. `until`: None if it has no end."""

    name: str
    scheduled: bool
    until: datetime | None


@dataclass(frozen=True, slots=True)
class CutLine:
    """A cut in a list. `behind`: tables at other positions; `quarantined`: such keys; `withheld`: pins prevented by
    rules.
    """

    epoch: int
    position: str
    commit_ts: datetime | None
    written_at: datetime
    tables: int
    behind: tuple[str, ...]
    quarantined: int
    pins: tuple[PinLine, ...]
    withheld: tuple[Withheld, ...] = ()


@dataclass(frozen=True, slots=True)
class CutList:
    """Cuts, newest first, and their total number."""

    total: int
    cuts: tuple[CutLine, ...]


@dataclass(frozen=True, slots=True)
class CutTable:
    """A table in a cut. `readable`: whether its version exists."""

    source: str
    table: str
    format: str
    version: int | None
    generation: int
    position: str
    state: str
    quarantined: int
    readable: bool


@dataclass(frozen=True, slots=True)
class CutView:
    """One cut with its tables."""

    epoch: int
    stream: str
    position: str
    commit_ts: datetime | None
    written_at: datetime
    pins: tuple[PinLine, ...]
    tables: tuple[CutTable, ...]
    withheld: tuple[Withheld, ...] = ()


def list_cuts(project: Project, limit: int, *, pinned: bool = False) -> CutList:
    """The newest cuts, or the newest `pinned` ones."""
    control = control_tables(project)
    places, stand = control.cut_places(), cuts.standing(cuts.pinned_cuts(control), datetime.now(UTC))
    if pinned:
        chosen = list({_key(pin.cut): pin.cut for pin in stand}.values())[::-1]
    else:
        newest = places.slice(max(0, places.num_rows - limit))
        chosen = [cuts.parse_cut(row) for row in control.cuts(newest)][::-1] if newest.num_rows else []
    total = len(chosen) if pinned else int(places.num_rows)
    kept_back = withheld(control)
    return CutList(total, tuple(_line(cut, stand, kept_back) for cut in chosen[:limit]))


def show_cut(project: Project, asked: AsOf, epoch: int | None) -> CutView:
    """The requested cut. Raises BeforeFirstCut, CutNotReached, CutUnknown."""
    cut = find_cut(project, asked, epoch)
    control = control_tables(project)
    stand = cuts.standing(cuts.pinned_cuts(control), datetime.now(UTC))
    tables = tuple(_table(project, cut, relation) for relation in sorted(cut.tables))
    pins, back = _pin_lines(cut, stand), _kept_back(cut, withheld(control))
    return CutView(cut.epoch, cut.stream, cut.position_text, cut.commit_ts, cut.written_at, pins, tables, back)


def _line(cut: cuts.WrittenCut, stand: Iterable[cuts.PinnedCut], kept_back: Iterable[Withheld]) -> CutLine:
    lagging = tuple(table.table for table in cut.tables.values() if table.state != cuts.ACTIVE)
    quarantined = sum(table.quarantined_keys for table in cut.tables.values())
    of, back = _pin_lines(cut, stand), _kept_back(cut, kept_back)
    return CutLine(
        cut.epoch, cut.position_text, cut.commit_ts, cut.written_at, len(cut.tables), lagging, quarantined, of, back
    )


def _kept_back(cut: cuts.WrittenCut, every: Iterable[Withheld]) -> tuple[Withheld, ...]:
    """The pins of a cut that were not made."""
    return tuple(
        entry
        for entry in every
        if (entry.epoch, entry.position, entry.cut_at) == (cut.epoch, cut.position_text, cut.written_at)
    )


def _pin_lines(cut: cuts.WrittenCut, stand: Iterable[cuts.PinnedCut]) -> tuple[PinLine, ...]:
    own_pins = (pin for pin in stand if _key(pin.cut) == _key(cut))
    return tuple(PinLine(pin.name, pin.scheduled, pin.until) for pin in own_pins)


def _key(cut: cuts.WrittenCut) -> tuple[int, int, datetime]:
    return cut.epoch, cut.position, cut.written_at


def _table(project: Project, cut: cuts.WrittenCut, relation: str) -> CutTable:
    state = cut.tables[relation]
    target = cuts.relocate_target(project.target(TableName.parse(relation)), state.table, state.format)
    readable = state.version is not None and table_log(project, target).is_readable(state.version)
    return CutTable(
        source=relation,
        table=state.table,
        format=state.format,
        version=state.version,
        generation=state.generation,
        position=format_stream_position(cut.stream, state.position),
        state=state.state,
        quarantined=state.quarantined_keys,
        readable=readable,
    )


class JudgingClock:
    """Checks the schedule whenever apply has reached the end of bronze."""

    def __init__(self, project: Project, control: ControlTables, report: ProgressReporter) -> None:
        every = project.pipeline.quality.every
        self._every = None if every is None else timedelta(milliseconds=every)
        self._project = project
        self._control = control
        self._report = report
        self._next = datetime.min.replace(tzinfo=UTC)

    def tick(self, stream: str) -> None:
        """Evaluate the rules on the last cut of a stream, if it is time."""
        now = datetime.now(UTC)
        if self._every is None or now < self._next:
            return
        self._next = now + self._every
        try:
            judged = self._control.read("quality", pc.field("rule") != RULE, columns=["judged_at"])
            last = pc.max(judged["judged_at"]).as_py()
            if last is not None and now - last < self._every:
                self._next = last + self._every
                return
            cut = self._control.last_cut(stream)
            if cut is not None:
                judge_cut(self._project, self._control, cuts.parse_cut(cut), now)
                self._report(ProgressEvent("judge", "the rules over silver were evaluated"))
        except CdcLakeError as error:
            text = f"the rules over silver were not evaluated: {error.message}; this is retried later"
            self._report(ProgressEvent("warning", text, facts={"code": error.code}))
