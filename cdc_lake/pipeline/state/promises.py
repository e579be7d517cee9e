"""Promises: the cuts that stay readable, by a name that was given or by the schedule of `silver.cuts`.

A promise is a row of the control table `promises`, with the versions it needs, so it stands from the moment it is
written: upkeep asks `kept_versions` before it removes anything. What the table formats' own cleaning must be told is
told by `pipeline.judging.keeping`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.control_rows import PromiseRow
from cdc_lake.pipeline.state.cuts import WrittenCut, table_facts, table_states, written

_SCHEDULED = "at_%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True)
class Promise:
    """A cut that stays readable `until` a time, None: until the promise is ended."""

    name: str
    scheduled: bool
    cut: WrittenCut
    until: datetime | None

    def stands(self, at: datetime) -> bool:
        """Whether it holds at a time."""
        return self.until is None or self.until > at


def promises(control: ControlTables) -> tuple[Promise, ...]:
    """Every promise ever made, as it stands now, in the order of the cuts."""
    rows = [PromiseRow(**row) for row in control.read("promises").sort_by("recorded_at").to_pylist()]
    newest = {row.name: row for row in rows}.values()
    found = [
        Promise(
            row.name,
            row.scheduled,
            WrittenCut(row.epoch, row.stream, row.position, row.commit_ts, row.cut_at, table_states(row.tables)),
            row.until,
        )
        for row in newest
    ]
    return tuple(sorted(found, key=lambda one: (one.cut.epoch, one.cut.position, one.cut.written_at, one.name)))


def standing(made: Iterable[Promise], at: datetime) -> tuple[Promise, ...]:
    """Those that hold at a time."""
    return tuple(one for one in made if one.stands(at))


def kept_versions(control: ControlTables, at: datetime) -> Mapping[str, frozenset[int]]:
    """The versions of each silver table, by source table, that nothing may remove: those of promised cuts and of the
    newest cut of each stream.
    """
    cuts = [one.cut for one in standing(promises(control), at)]
    places = control.cut_places()
    newest = {stream: at for at, stream in enumerate(places["stream"].to_pylist())}  # places are in order
    cuts += [written(row) for row in control.cuts(places.take(pa.array(sorted(newest.values()), pa.int64())))]
    kept: dict[str, set[int]] = {}
    for cut in cuts:
        for relation, table in cut.tables.items():
            if table.version is not None:
                kept.setdefault(relation, set()).add(table.version)
    return {relation: frozenset(versions) for relation, versions in kept.items()}


def record(control: ControlTables, promise: Promise, at: datetime) -> None:
    """Write a promise, or how it stands from now on."""
    cut = promise.cut
    control.record(
        PromiseRow(
            name=promise.name,
            scheduled=promise.scheduled,
            epoch=cut.epoch,
            stream=cut.stream,
            position=cut.position,
            commit_ts=cut.commit_ts,
            tables=table_facts(cut.tables),
            cut_at=cut.written_at,
            until=promise.until,
            recorded_at=at,
        )
    )


def due(
    made: Iterable[Promise], cut: WrittenCut, every: timedelta, keep: timedelta, tried: datetime | None = None
) -> Promise | None:
    """The promise that the schedule makes of a new cut; None where the last one is younger than `every`.

    `tried`: when the last cut was written whose promise was withheld, which is due again as late as one that was made.
    """
    times = [one.cut.written_at for one in made if one.scheduled]
    last = max(times if tried is None else [*times, tried], default=None)
    if last is not None and cut.written_at - last < every:
        return None
    name = cut.written_at.astimezone(UTC).strftime(_SCHEDULED)
    return Promise(name, scheduled=True, cut=cut, until=cut.written_at + keep)
