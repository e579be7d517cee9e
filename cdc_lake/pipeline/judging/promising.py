"""Promising a cut by name, and ending such a promise."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from cdc_lake.config.project import Project
from cdc_lake.errors import CutWithheld, NotPromised, VersionGone
from cdc_lake.lake.control import control_tables
from cdc_lake.lake.versions import is_readable
from cdc_lake.model.as_of import PROMISE_NAME, AsOf
from cdc_lake.model.relation import TableName
from cdc_lake.observe.progress import Tell, silent
from cdc_lake.pipeline.judging.cut_verdict import objections, withhold
from cdc_lake.pipeline.judging.keeping import Keeper
from cdc_lake.pipeline.state.cuts import placed
from cdc_lake.pipeline.state.find_cut import find_cut
from cdc_lake.pipeline.state.promises import Promise, promises, record

_RESERVED = re.compile(r"latest|at_[0-9].*")


@dataclass(frozen=True, slots=True)
class Promised:
    """What stands now of a promise; `until` in the past or now: it is ended."""

    name: str
    epoch: int
    position: str
    commit_ts: datetime | None
    until: datetime | None
    ended: bool = False


def promise_cut(
    project: Project, name: str, asked: AsOf, epoch: int | None, keep: timedelta | None, tell: Tell = silent
) -> Promised:
    """Promise the cut that is asked for, for a time from now on, or until the promise is ended.

    It stands from now on; Iceberg tables are tagged at once, retention on Delta is set by the next apply. Raises
    NotPromised, VersionGone, BeforeFirstCut, CutNotReached, CutUnknown; CutWithheld where a rule objects.
    """
    if not PROMISE_NAME.fullmatch(name) or _RESERVED.fullmatch(name):
        raise NotPromised(f"`{name}` is no name for a promise")
    control, now = control_tables(project), datetime.now(UTC)
    if any(one.name == name and one.stands(now) for one in promises(control)):
        raise NotPromised(f"there is a promise `{name}` already")
    cut = find_cut(project, asked, epoch)
    for relation, state in cut.tables.items():
        target = placed(project.target(TableName.parse(relation)), state.table, state.format)
        if state.version is not None and not is_readable(project, target, state.version):
            raise VersionGone(target.label, state.version, cut.shown)
    promise = Promise(name, scheduled=False, cut=cut, until=None if keep is None else now + keep)
    if found := objections(project, control, cut):
        why = withhold(control, promise, found, now).reason
        raise CutWithheld(f"the cut at {cut.shown} is not promised as `{name}`: {why}")
    record(control, promise, now)
    Keeper(project, control, None, tell).keep()
    return Promised(name, cut.epoch, cut.shown, cut.commit_ts, promise.until)


def end_promise(project: Project, name: str, tell: Tell = silent) -> Promised:
    """End a promise now, also one of the schedule. Raises NotPromised where it does not stand."""
    control, now = control_tables(project), datetime.now(UTC)
    stands = [one for one in promises(control) if one.name == name and one.stands(now)]
    if not stands:
        raise NotPromised(f"no promise `{name}` stands")
    ended = replace(stands[0], until=now)
    record(control, ended, now)
    Keeper(project, control, None, tell).keep()
    return Promised(name, ended.cut.epoch, ended.cut.shown, ended.cut.commit_ts, now, ended=True)
