"""Whole transactions of a group of tables: what is held in one table of it is held in all of them.

Every table was prepared as if it stood alone. Where nothing of them is held, that was all; otherwise the keys of their
changes are brought to the driver, `silver.whole` says which transactions are held, and the tables that have changes of
these are prepared again.

A table of the group that is ahead, after a crash between two merges or where another one is built again, is not judged:
the control table `held` says what it held. That is deterministic, so it agrees; where it does not, nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow.compute as pc

from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project, Target
from cdc_lake.errors import GroupDisagrees, GroupWaits, NoKey, TruncateHeld
from cdc_lake.lake.marker import read_marker
from cdc_lake.model.decision import CEILING, RELEASE
from cdc_lake.model.span import Span
from cdc_lake.pipeline.cuts import Cut
from cdc_lake.pipeline.follow import check_few
from cdc_lake.pipeline.holds import CLOSED, HoldLog
from cdc_lake.pipeline.rebuild_plan import RebuildPlan
from cdc_lake.pipeline.table_job import TableJob
from cdc_lake.pipeline.table_span import Prepared
from cdc_lake.pipeline.tracing import events
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


def passed_by(
    project: Project, log: HoldLog, state: BronzeState, cut: Cut | None, target: Target, plan: RebuildPlan
) -> list[Ahead]:
    """What the other tables of a group held of what one of them is built from again. Raises GroupWaits."""
    group, out = project.group(target.source), []
    for name in () if group is None else group.tables:
        other, listed = project.target(name), None if cut is None else cut.tables.get(str(name))
        if name == target.source or (cut is not None and listed is None):  # bronze has nothing of it up to the cut
            continue
        marker = read_marker(project, other, state.stream)
        known = -1 if listed is None else listed.position
        position = known if marker.position is None else max(known, marker.position)
        if position < plan.upto:
            hint = f"`cdc-lake run` brings them to one position, or says what keeps {other.label}"
            raise GroupWaits(f"{other.label}, of the same group as {target.label}, is behind it", hint=hint)
        out.append(ahead(log, str(name), marker.generation, Span(state.epoch, plan.begins, plan.upto)))
    return out


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
