"""Whole transactions of a group of tables: what is held in one table of it is held in all of them.

Every table was prepared as if it stood alone. Where nothing of them is held, that was all; otherwise the keys of their
changes are brought to the driver, `silver.whole` says which transactions are held, and the tables that have changes of
these are prepared again.

A table of the group that is ahead, after a crash between two merges or where another one is built again, is not judged:
the control table `held` says what it held. That is deterministic, so it agrees; where it does not, nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow.compute as pc

from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project, Target
from cdc_lake.errors import GroupDisagrees, GroupWaits, HeldLost, NoKey, TruncateHeld
from cdc_lake.lake.control import control_tables
from cdc_lake.lake.marker import Marker, read_marker
from cdc_lake.model.decision import CEILING, RELEASE
from cdc_lake.model.relation import TableName
from cdc_lake.model.span import Span
from cdc_lake.pipeline.applying.follow import check_few
from cdc_lake.pipeline.applying.intact import forgotten
from cdc_lake.pipeline.applying.rebuild_plan import RebuildPlan
from cdc_lake.pipeline.applying.table_job import TableJob
from cdc_lake.pipeline.applying.table_span import Prepared
from cdc_lake.pipeline.applying.tracing import events
from cdc_lake.pipeline.state.copies import CopiedTable, Course, courses
from cdc_lake.pipeline.state.cuts import Cut, TableState
from cdc_lake.pipeline.state.holds import CLOSED, HoldLog
from cdc_lake.silver.kind import RowIdentity
from cdc_lake.silver.row_events import TRUNCATE, Unit, unit_of
from cdc_lake.silver.whole import TableEvents, held_whole
from cdc_lake.source.stream import shown


@dataclass(frozen=True, slots=True)
class Ahead:
    """A table of a group at `position`, beyond where others of it are; `held`: what it held of `(after, position]`,
    `decided`: positions that something came into force before, in it.
    """

    relation: str
    after: int
    position: int
    held: frozenset[Unit]
    decided: frozenset[int]


def ahead(log: HoldLog, relation: str, generation: int, span: Span) -> Ahead:
    """What is recorded of a generation of a table in a span, which it has passed."""
    here = (pc.field("relation") == relation) & (pc.field("epoch") == span.epoch)
    here &= (pc.field("position") > span.after) & (pc.field("position") <= span.upto)
    columns = ["position", "ordinal", "op", "reason"]
    rows = log.held.filter(here & (pc.field("generation") == generation)).select(columns).to_pylist()
    kept = [(row["position"], row["ordinal"], row["op"]) for row in rows if row["reason"] != CLOSED]
    truncates = [(row["position"], row["ordinal"]) for row in rows if row["reason"] == CLOSED and row["op"] == TRUNCATE]
    decided = log.decisions.filter(here & (pc.field("verb") == RELEASE))["position"].to_pylist()
    return Ahead(relation, span.after, span.upto, units_of(kept, truncates), frozenset(decided))


def since_copy(table: TableState, after: int) -> int:
    """From where on what a table held behind a position counts: before its copy nothing of it was judged."""
    return after if table.copied is None else max(after, table.copied)


def together_at(project: Project, stream: str, cut: Cut, name: TableName) -> int:
    """Where a table is built again to that its group may be behind the cut with: no table of it may wait for another
    that it is to be built from first. One that the cut does not list is built up to its copy at least.
    """
    listed = cut.tables.get(str(name))
    others = [position for _, _, _, position in _others(project, stream, cut, name)]
    course = courses(control_tables(project).snapshots(), stream).get(str(name), Course())
    own = course.at(cut.position).begins if listed is None else listed.position
    return min(cut.position, max(own, min(others, default=cut.position)))


def renewed_to(project: Project, stream: str, cut: Cut, known: Mapping[str, Course], copy: CopiedTable) -> int:
    """Where a table that begins again with `copy` is built to: the cut, but no further than where the others of its
    group are, or begin again with a copy of theirs. Tables of a group that are behind, and were all copied again, would
    else wait for each other. It goes as far as its copy in any case: what is behind that they catch up with together.
    """
    places = []
    for other, listed, _, position in _others(project, stream, cut, copy.relation):
        its = _renewal(known, other, listed, cut.position)
        places.append(position if its is None else max(position, its.position))
    return min(cut.position, max(copy.position, min(places, default=cut.position)))


def _renewal(
    known: Mapping[str, Course], target: Target, listed: TableState | None, position: int
) -> CopiedTable | None:
    """The copy that a table will begin again with, where silver is at a position; None where that is none, or the
    table is new there.
    """
    course = known.get(str(target.source), Course())
    return None if listed is None else course.renewal(position, listed.copied)


def _others(
    project: Project, stream: str, cut: Cut | None, name: TableName
) -> Iterator[tuple[Target, TableState | None, Marker, int]]:
    """The other tables of a group that bronze has something of up to the cut, and where they are."""
    group = project.group(name)
    for other in () if group is None else group.tables:
        listed = None if cut is None else cut.tables.get(str(other))
        if other != name and (cut is None or listed is not None):
            marker = read_marker(project, target := project.target(other), stream)
            known = -1 if listed is None else listed.position
            yield target, listed, marker, known if marker.position is None else max(known, marker.position)


def passed_by(
    project: Project, log: HoldLog, state: BronzeState, cut: Cut | None, target: Target, plan: RebuildPlan
) -> list[Ahead]:
    """What the other tables of a group held of what one of them is built from again, and has to be judged: rows of a
    copy are what the source had, whatever was held then. Raises GroupWaits; HeldLost where that is recorded no more.
    Neither of a table that a copy is in force of and has not begun again with it: before the copy nothing of it counts
    any more but what is known. Nor of one that has begun again, for a table all of which that is judged lies before a
    copy of its own: that ends what was held, and the other may wait for it.
    """
    out = []
    judged = max((part.span.upto for part in plan.parts if part.copy is None), default=-1)  # -1: nothing is
    known = courses(control_tables(project).snapshots(), state.stream)
    for other, listed, marker, position in _others(project, state.stream, cut, target.source):
        copy = _renewal(known, other, listed, plan.upto if cut is None else max(plan.upto, cut.position))
        renewed = copy is not None and copy.position >= judged
        begun = listed is not None and listed.copied is not None and plan.copied is not None and judged < plan.copied
        if position < judged and not renewed and not begun:
            first = f"where that is {target.label}, `cdc-lake rebuild {other.source}` comes first"
            hint = f"`cdc-lake run` brings them to one position, or says what keeps {other.label}; {first}"
            raise GroupWaits(f"{other.label}, of the same group as {target.label}, is behind it", hint=hint)
        begins = plan.begins if listed is None else since_copy(listed, plan.begins)
        if begins >= min(judged, position):
            continue
        if listed is not None and marker.generation <= listed.generation:
            lost = forgotten(log, other, state.epoch, listed)
            if lost is not None and renewed:
                continue
            _check_recorded(project, lost, target)
        span = Span(state.epoch, begins, min(position, plan.upto))
        out.append(ahead(log, str(other.source), marker.generation, span))
    return out


def _check_recorded(project: Project, lost: HeldLost | None, target: Target) -> None:
    """Raise what is missing of what another table of the group of `target` held: it could not hold the same."""
    if lost is not None:
        group = project.group(target.source)
        tables = " ".join(() if group is None else map(str, group.tables))
        hint = f"put the control table `held` back as it was, or copy the whole group again: cdc-lake resync {tables}"
        raise HeldLost(f"{target.label} holds what its group holds, and {lost.message}", where=lost.where, hint=hint)


def settled_whole(
    prepared: Sequence[Prepared],
    others: Sequence[Ahead],
    reader: BronzeReader,
    prepare: Callable[[TableJob], Prepared | None],
) -> list[Prepared]:
    """The tables of a group, prepared so that each transaction that is held is held whole; `others`: those ahead.

    Raises NoKey, TruncateHeld, GroupDisagrees, TooManyFollowed.
    """
    for one in prepared:
        if one.kind.identity is not RowIdentity.KEY:
            raise NoKey(f"{one.job.target.source} has no key, and its group holds whole transactions by their keys")
    mine, known = list(prepared), frozenset[Unit]()
    fixed = frozenset(unit for other in others for unit in other.held)
    while (reasons := fixed.union(*map(_reasons, mine))) - known:
        check_few(sum(one.seen.rows for one in mine), mine[0].job.target)
        tables = {str(one.job.target.source): _events(one) for one in mine}
        known = held_whole(tables, reasons | known)
        _check_truncates(mine, known)
        _check_agreed(mine[0].job, known - fixed, others, reader)
        again = []
        for one in mine:
            its = known & {event.unit for event in tables[str(one.job.target.source)].events}
            made = prepare(replace(one.job, whole=its)) if its else one
            assert made is not None, "the span is the same"
            again.append(made)
        mine = again
    return mine


def _reasons(one: Prepared) -> frozenset[Unit]:
    """What is held for a change of this table."""
    held = one.folded.held
    if held is None:
        return frozenset()
    rows = zip(*(held[name].to_pylist() for name in ("position", "ordinal", "op")), strict=True)
    return units_of(rows, one.seen.truncates)


def units_of(rows: Iterable[tuple[int, int, str]], truncates: Iterable[tuple[int, int]]) -> frozenset[Unit]:
    """What held changes are held with, but for those that their transaction truncated later."""
    last: Mapping[int, int] = dict(sorted(truncates))
    units = (unit_of(*row) for row in rows if row[1] < CEILING or row[1] > last.get(row[0], -1))
    return frozenset(unit for unit in units if unit is not None)


def _events(one: Prepared) -> TableEvents:
    held = one.folded.held
    alone = set()
    if held is not None:
        again = held.filter(pc.field("op") == "S")
        alone = set(zip(again["position"].to_pylist(), again["ordinal"].to_pylist(), strict=True))
    found = events(one.folded.changes, None, one.seen, one.job.decided)
    return TableEvents(
        [replace(e, failed=True) if e.again and (e.position, e.ordinal) in alone else e for e in found], one.job.held
    )


def _check_truncates(prepared: Sequence[Prepared], units: frozenset[Unit]) -> None:
    for one in prepared:
        for position, _ in one.seen.truncates:
            if (position, False) in units:
                at, table = shown(one.job.stream, position), one.job.target.source
                raise TruncateHeld(f"the transaction at {at} truncates {table}, and is held in its group")


def _check_agreed(job: TableJob, units: frozenset[Unit], others: Sequence[Ahead], reader: BronzeReader) -> None:
    """Raise GroupDisagrees where a table has passed one of `units` without holding it."""
    late = [position for position, _ in units if any(one.after < position <= one.position for one in others)]
    if not late:
        return
    commits = reader.commits(Span(job.span.epoch, min(late) - 1, max(late)))
    touched = {commit.position: commit.counts for commit in commits}
    for position, decided in sorted(units):
        for one in others:
            passed = position in one.decided if decided else one.relation in touched.get(position, ())
            if passed and one.after < position <= one.position and (position, decided) not in one.held:
                at = shown(job.stream, position)
                raise GroupDisagrees(f"the transaction at {at} is to be held, and {one.relation} has passed it")
