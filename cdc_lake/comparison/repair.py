"""Repair: keys that a comparison found to differ, landed in bronze as rows read again, for the next run to merge.

Silver is never written here. What the source has of these keys in the snapshot that was compared lands beside the
stream as it is right behind silver's watermark (`runtime.apply.row_refetch`), so that every batching and every rebuild
gives the same. A key is repaired only where the snapshot and silver know the same transactions of it; the caller holds
apply's lease, so silver stays where it is. Held keys are not among what differs: their hold explains them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import pyarrow as pa

from cdc_lake.comparison.columns import CompareTask, next_step
from cdc_lake.config.project import Project
from cdc_lake.connectors.redaction import rules_of
from cdc_lake.control.cuts import IN, TableState, last_cut
from cdc_lake.control.verdicts import Comparison, Repair
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Relation
from cdc_lake.runtime.apply.row_refetch import (
    FAR,
    KEYS_AT_MOST,
    REPAIR,
    canonical,
    changed_keys,
    land_reread,
    rereads_of,
    rows_of_keys,
    same_columns,
)
from cdc_lake.runtime.apply.snapshot_alignment import AlignmentPoint
from cdc_lake.silver.row_tracing import Key
from cdc_lake.source.base import format_stream_position
from cdc_lake.tables.control_schema import RunRow, new_run
from cdc_lake.tables.control_tables import control_tables, lease

REPAIRED_AT_MOST = 100_000
"""Keys of a table: their rows are in memory, and the span that takes them follows keys one by one where some move."""


@dataclass(frozen=True, slots=True)
class DifferingKeys:
    """Keys of a table that differ, as texts in canonical form (`tables.canonical_values`). `names`: the key's columns,
    none where there is no key; `types`: Arrow types of silver's columns, by the source's names. `source_keys`: the
    source has a row of them; `gone`: it has none; `repeated`: silver has several.
    """

    names: tuple[str, ...]
    types: Mapping[str, pa.DataType]
    source_keys: frozenset[Key]
    gone: frozenset[Key]
    repeated: frozenset[Key] = frozenset()

    @property
    def keys(self) -> frozenset[Key]:
        """All of them."""
        return self.source_keys | self.gone | self.repeated


@dataclass(frozen=True, slots=True)
class _Here:
    """Where silver's table stands: what the last cut says of it, and the layout that its rows follow."""

    table: TableState
    layout: Relation


@contextmanager
def repair_run(project: Project) -> Iterator[list[Comparison]]:
    """Apply's lease, and the rows of `runs` that say who changed what: one before anything lands, one at the end with
    the comparison that the caller puts into the list. Raises AnotherApply.
    """
    comparisons: list[Comparison] = []
    with lease(project.lease):
        control, run, began = control_tables(project), new_run(), datetime.now(UTC)
        control.record(RunRow(run, REPAIR, began, None, "running", "{}"))
        outcome = "failed"
        try:
            yield comparisons
            outcome = "done"
        finally:
            repairs = {
                t.table: asdict(t.repair)
                for comparison in comparisons
                for t in comparison.tables
                if t.repair is not None
            }
            facts = json.dumps({"repairs": repairs})
            control.record(RunRow(run, REPAIR, began, datetime.now(UTC), outcome, facts))


def repair(job: CompareTask, where: AlignmentPoint, differing: DifferingKeys) -> Repair:
    """Work out what can be landed of the source's snapshot for the keys that differ, and land it where the job says so.

    Raises SourceError, LakeError.
    """
    here = _refusal(job, differing) or _standing(job)
    if isinstance(here, str):
        return Repair(left=len(differing.keys), reason=here)
    names, keys_of = differing.names, canonical(differing.names, differing.types)
    applied, shows = here.table.position, where.shown.shows
    apart = [
        touch
        for touch in where.touches
        if shows(touch.number, touch.position) != (touch.landed and touch.position <= applied)
    ]
    if not where.complete or any(not t.landed and here.layout.table in t.tables for t in apart):
        reason = "the source has transactions that bronze does not: `cdc-lake run --once`, then again"
        return Repair(left=len(differing.keys), reason=reason)
    keys = (differing.source_keys | differing.gone) - differing.repeated
    landed = [touch for touch in apart if touch.landed]
    moving = changed_keys(job.bronze, job.state.epoch, landed, here.layout, names, keys, keys_of)
    rows: dict[Key, list[str | None]] = {}
    ordered = sorted(keys - moving, key=repr)
    for start in range(0, len(ordered), KEYS_AT_MOST):
        chunk = frozenset(ordered[start : start + KEYS_AT_MOST])
        rows |= rows_of_keys(job.source, job.pinned.published, here.layout, names, chunk, keys_of)
    # What was compared and what is read by key are one snapshot: a key that is not found as it was says nothing.
    sure = {key: rows.get(key) for key in ordered if (key in rows) == (key in differing.source_keys)}
    return _land_rows(job, here, sure, differing, moving)


def _land_rows(
    job: CompareTask,
    here: _Here,
    rows: Mapping[Key, list[str | None] | None],
    differing: DifferingKeys,
    moving: frozenset[Key],
) -> Repair:
    every, position = len(differing.keys), here.table.position + 1
    lands = job.asked.lands and bool(rows)
    if lands and not land_reread(
        job.project, job.control, job.state, here.layout, differing.names, rows, position, by=REPAIR
    ):
        return Repair(left=every, reason="bronze is busy: try again")
    because = ""
    if moving:
        because = "later transactions change them: `cdc-lake run --once`, then again"
    elif differing.repeated:
        because = "several rows have one key: `cdc-lake rebuild`"
    elif len(rows) < every:
        because = "the source does not find them by key: `cdc-lake rebuild`"
    return Repair(
        len(rows),
        format_stream_position(job.state.stream, position) if lands else "",
        every - len(rows),
        because,
        lands,
    )


def _refusal(job: CompareTask, differing: DifferingKeys) -> str | None:
    """Why rows of a table are not read again at all."""
    target, rules = job.pinned.target, rules_of(job.project)
    if not differing.names:
        return "rows without a key cannot be told apart: `cdc-lake rebuild`"
    if target.transforms.where is not None:
        return "a filter decides which of its rows silver has: `cdc-lake rebuild`"
    if any(rules(target.source, name) is not None for name in differing.names):
        return "its key is redacted, and the source cannot be asked by it: `cdc-lake rebuild`"
    if any(not _is_printable(differing.types[name]) for name in differing.names):
        return "its key has a type that the source cannot be asked by: `cdc-lake rebuild`"
    if len(differing.keys) > REPAIRED_AT_MOST:
        return f"a repair takes up to {REPAIRED_AT_MOST:,} keys: `cdc-lake rebuild`"
    return None


def _is_printable(kind: pa.DataType) -> bool:
    """Whether the canonical text of values is a text that the server reads."""
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return not (pa.types.is_floating(kind) or binary or listed)


def _standing(job: CompareTask) -> _Here | str:
    """Where the table stands, or why nothing can be landed behind it."""
    target, marker, stream = job.pinned.target, job.pinned.marker, job.state.stream
    cut = last_cut(job.control, stream)
    table = None if cut is None else cut.tables.get(str(target.source))
    if table is None or table.state != IN or table.layout is None or marker.generation != table.generation:
        return "no cut says where it stands: `cdc-lake run --once`"
    if marker.position is not None and marker.position > table.position:
        return "the last run was broken off: `cdc-lake run --once`"
    ahead = Span(job.state.epoch, table.position, FAR)
    if rereads_of(job.control.snapshots(), stream, str(target.source), ahead):
        return "rows that were read again are not merged yet: `cdc-lake run --once`"
    layout = job.bronze.layouts([target.source])[table.layout]
    if not same_columns(layout, job.source.relation_of(job.pinned.published)):
        return f"silver has another layout than the source: {next_step(job)}"
    return _Here(table, layout)
