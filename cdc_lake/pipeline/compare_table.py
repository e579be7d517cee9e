"""One table compared: its verdict, what differs, and what holds explain of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pyarrow as pa

from cdc_lake.config.project import Target
from cdc_lake.lake.canonical import from_source
from cdc_lake.pipeline.accounting import explained, folded, folded_copies, held_changes
from cdc_lake.pipeline.compare_job import Job
from cdc_lake.pipeline.compare_sides import Sides, sides_of
from cdc_lake.pipeline.comparison import SAMPLE, Repair, TableComparison, Verdict
from cdc_lake.pipeline.holds import open_holds
from cdc_lake.pipeline.match import Differences, Key, copies_of, match, rows_of
from cdc_lake.pipeline.point import Gap, Point
from cdc_lake.pipeline.repair import Differing, repair
from cdc_lake.source.stream import shown


def table_compared(job: Job, where: Point) -> TableComparison:
    """The verdict of one table. Raises SourceError, LakeError."""
    began = time.monotonic()
    pinned = job.pinned
    found = _apart(pinned.target) or where.gap(pinned.target.source, pinned.watermark) or sides_of(job)
    if isinstance(found, Sides):
        return _judged(job, where, found, began)
    return TableComparison(
        str(pinned.target.source),
        pinned.target.label,
        Verdict.INCONCLUSIVE,
        reason=found.reason,
        hint=found.hint,
        seconds=_since(began),
    )


def _apart(target: Target) -> Gap | None:
    """Why a table cannot be set beside the source's rows at all."""
    if target.kind != "append":
        return None
    return Gap("silver keeps every change of it, the source only the rows they led to", "compare tables of other kinds")


def _judged(job: Job, where: Point, sides: Sides, began: float) -> TableComparison:
    pinned = job.pinned
    differences = match(sides.source, sides.silver, sides.keys)
    accounted, unaccounted = _held(job, sides)
    held = accounted | unaccounted
    kinds = {
        "missing": _without(differences.missing, held),
        "extra": _without(differences.extra, held),
        "changed": _without(differences.changed, held),
        "repeated": _without(differences.repeated, frozenset()),
        "unaccounted": _without(tuple(unaccounted), frozenset()),
    }
    counts = {kind: len(keys) for kind, keys in kinds.items()}
    uneven = not held and not differences.keys and sides.source.num_rows != sides.silver.num_rows
    return TableComparison(
        table=str(pinned.target.source),
        silver=pinned.target.label,
        verdict=_verdict(any(kinds.values()) or uneven or bool(sides.astray), accounted),
        source_rows=sides.rows[0],
        silver_rows=sides.rows[1],
        held_keys=len(accounted),
        missing=counts["missing"],
        extra=counts["extra"],
        changed=counts["changed"],
        repeated=counts["repeated"],
        unaccounted=counts["unaccounted"],
        columns=() if sides.by_content else _columns(differences, held),
        # Without a key a sample would be a whole row, and values are not told.
        samples=() if sides.by_content else tuple((kind, keys[:SAMPLE]) for kind, keys in kinds.items() if keys),
        watermark=shown(job.state.stream, pinned.watermark) if pinned.watermark >= 0 else "",
        reason=_reason(sides, uneven=uneven),
        repair=_repaired(job, where, sides, kinds),
        seconds=_since(began),
    )


def _repaired(job: Job, where: Point, sides: Sides, kinds: Mapping[str, Sequence[Key]]) -> Repair | None:
    """What is done about the keys that differ; None where nothing was asked for or none differs."""
    kept = {kind: frozenset(keys) for kind, keys in kinds.items()}
    names = () if sides.by_content else sides.keys
    differing = Differing(names, sides.types, kept["missing"] | kept["changed"], kept["extra"], kept["repeated"])
    return repair(job, where, differing) if job.repairs and differing.keys else None


def _verdict(different: bool, accounted: frozenset[Key]) -> Verdict:
    if different:
        return Verdict.DIFFERENT
    return Verdict.EQUAL_BUT_HELD if accounted else Verdict.EQUAL


def _reason(sides: Sides, *, uneven: bool) -> str:
    if sides.astray:
        return f"not the numbers of the text beside them: {', '.join(sides.astray)}"
    return "rows of one key differ in number" if uneven else ""


def _columns(differences: Differences, held: frozenset[Key]) -> tuple[tuple[str, int], ...]:
    """Rows that differ by column; not said where some of them are held keys, which are explained otherwise."""
    return () if held.intersection(differences.changed) else differences.columns


def _held(job: Job, sides: Sides) -> tuple[frozenset[Key], frozenset[Key]]:
    """Open held keys: those whose held changes explain the source's row, and those they do not."""
    pinned = job.pinned
    relation, generation = str(pinned.target.source), pinned.marker.generation
    rows = open_holds(job.control.read("held"), relation, job.state.epoch, generation, pinned.watermark).rows
    if rows.num_rows == 0:
        return frozenset(), frozenset()

    def form(column: str, text: str | None) -> str | None:
        kind = sides.types.get(column)
        if text is None or kind is None:
            return text
        value: str | None = from_source(pa.array([text], pa.large_string()), kind)[0].as_py()
        return value

    now = job.source.relation_of(pinned.published)
    changes = held_changes(rows.to_pylist(), job.bronze.layouts([pinned.target.source]), now, form)
    keys = frozenset(key for change in changes for key in change.keys(sides.keys) if key is not None)
    if sides.by_content:
        left, odd = folded_copies(changes, sides.keys, copies_of(sides.silver))
        there = copies_of(sides.source)
        accounted = frozenset(key for key in keys if key not in odd and left[key] == there.get(key, 0))
        return accounted, keys - accounted
    have = rows_of(sides.silver.select(sides.whole.column_names), sides.keys, keys)
    partial = pinned.target.transforms.any
    after, odd = folded(changes, sides.keys, sides.whole.column_names, have, partial=partial)
    wanted = rows_of(sides.whole, sides.keys, keys)
    accounted = frozenset(key for key in keys if key not in odd and explained(after[key], wanted.get(key)))
    return accounted, keys - accounted


def _without(keys: Sequence[Key], held: frozenset[Key]) -> tuple[Key, ...]:
    return tuple(sorted((key for key in keys if key not in held), key=repr))


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)
