"""One table compared: its verdict, what differs, and what holds explain of it.

Both sides are summed up by bucket first (`lake.row_hash`). The buckets that differ, and those with held keys, are read
again from both and matched row by row, so that hashes only say where to look: every difference that is told is one of
values.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_lake.config.project import Project
from cdc_lake.lake.read import silver_blocks, silver_exists, silver_rows
from cdc_lake.lake.row_hash import BUCKETS
from cdc_lake.pipeline.applying.point import CATCH_UP, Gap, Point, Touch
from cdc_lake.pipeline.compare.differing import KeyRows, differing_keys
from cdc_lake.pipeline.compare.forward import Forward, Overlay, forward
from cdc_lake.pipeline.compare.held import Held
from cdc_lake.pipeline.compare.job import Job
from cdc_lake.pipeline.compare.layout import Layout, TypesApart, apart, layout_of
from cdc_lake.pipeline.compare.match import Differences, Key, counted, match, merged
from cdc_lake.pipeline.compare.repair import Differing, repair
from cdc_lake.pipeline.compare.shelf import Shelf, together
from cdc_lake.pipeline.compare.sides import SilverSide, SourceSide, both_sums
from cdc_lake.pipeline.state.comparison import SAMPLE, DifferingKey, Repair, TableComparison, Verdict
from cdc_lake.source.stream import shown

SHARED = "name columns in `keys` of the table that identify its rows, then `cdc-lake rebuild TABLE`"


@dataclass(frozen=True)
class _Found:
    """What comparing the rows of a table gave. `apart`: keys of which changes were given up; `rows`: of the source, and
    of silver; `uneven`: rows of one key differ in number; `streamed`: why the source's rows were hashed here;
    `matched`: how many were read to be matched; `forward`: by how many transactions silver was rolled forward;
    `sampled`: the part of the buckets that was compared, None: all; `rows_of_keys`: the rows of some keys that differ.
    """

    differences: Differences
    accounted: frozenset[Key]
    unaccounted: frozenset[Key]
    rows: tuple[int, int]
    layout: Layout | None = None
    apart: frozenset[Key] = frozenset()
    astray: frozenset[str] = frozenset()
    uneven: bool = False
    streamed: str = ""
    matched: int = 0
    sampled: float | None = None
    rows_of_keys: KeyRows | None = None
    forward: int = 0

    @property
    def by_content(self) -> bool:
        """Whether rows have no key."""
        return self.layout is not None and self.layout.by_content


def table_compared(job: Job, where: Point) -> TableComparison:
    """The verdict of one table. Raises SourceError, LakeError."""
    began = time.monotonic()
    pinned = job.pinned
    table, watermark = pinned.target.source, pinned.watermark
    if pinned.target.kind == "append":
        reason = "silver keeps every change of it, the source only the rows they led to"
        label = pinned.target.label
        return TableComparison(str(table), label, Verdict.NOT_COMPARED, reason=reason, seconds=_since(began))
    found = where.unknown(table) or where.beyond(table, watermark) or _compared(job, where.behind(table, watermark))
    if isinstance(found, _Found):
        return _judged(job, where, found, began)
    why, remedy = found.reason, found.hint
    if pinned.waits is not None and pinned.waits[0] not in remedy:
        why, remedy = f"{why}; {pinned.waits[0]}", pinned.waits[1]
    return TableComparison(
        str(pinned.target.source),
        pinned.target.label,
        Verdict.INCONCLUSIVE,
        reason=why,
        hint=remedy,
        seconds=_since(began),
    )


def _compared(job: Job, behind: Sequence[Touch]) -> _Found | Gap:
    """What differs, or why the sides cannot be set side by side."""
    pinned = job.pinned
    if not pinned.readable:
        return Gap("the cut does not have it, or its version is no longer there", "`cdc-lake cuts list`")
    if not silver_exists(job.project, pinned.target):
        return _without_silver(job)
    schema, _ = silver_blocks(job.project, pinned.target, pinned.marker.version)
    layout = layout_of(job, schema)
    if isinstance(layout, Gap):
        return layout
    try:
        later = forward(job, layout, [touch.position for touch in behind], sum(touch.changes for touch in behind))
        return later if isinstance(later, Gap) else _both_sides(job, layout, later)
    except TypesApart as odd:
        return apart(str(odd))


def _without_silver(job: Job) -> _Found | Gap:
    relation = job.source.relation_of(job.pinned.published)
    if sum(block.num_rows for block in job.source.parts(relation, job.pinned.published)):
        return Gap("the silver table has not been made yet", "run `cdc-lake run --once`")
    return _Found(Differences(), frozenset(), frozenset(), (0, 0))


def _both_sides(job: Job, layout: Layout, later: Forward) -> _Found | Gap:
    held = Held(job, layout, later.changes, closed=later.emptied)
    overlay = Overlay(layout, held.others, emptied=later.emptied)
    source, silver = SourceSide(job, layout), SilverSide(job, layout, overlay)
    among, rows_of_keys = _among(job), KeyRows(layout, held.keys)
    differences, uneven, read = Differences(), False, (0, 0)
    if job.asked.full:
        wanted = np.ones(BUCKETS, bool) if among is None else among
    else:
        one, other = both_sums(source, silver, among)
        wanted = one.unlike(other)
    wanted = wanted | layout.buckets_of(held.keys)
    if wanted.any():
        sides = (source, silver)
        differences, uneven, read = _matched(job.project, layout, sides, held, wanted, rows_of_keys)
    if silver.shared:
        behind = f"{later.transactions} landed transactions are not applied yet"
        return Gap(f"{behind}, and they give one key to several rows", CATCH_UP)
    accounted, unaccounted = held.explained()
    return _Found(
        differences,
        accounted,
        unaccounted,
        rows=read if job.asked.full else (one.rows, other.rows),
        layout=layout,
        apart=held.apart,
        astray=silver.astray,
        uneven=uneven and not held.keys and not differences.keys,
        streamed="" if job.asked.full else source.streamed,
        matched=read[0],
        sampled=None if among is None else float(among.mean()),
        rows_of_keys=rows_of_keys,
        forward=later.transactions,
    )


def _among(job: Job) -> Any:
    """The buckets that are compared, a bool each; None: all."""
    if job.asked.sample is None:
        return None
    pinned = job.pinned
    return job.asked.sample.buckets(silver_rows(job.project, pinned.target, pinned.marker.version))


def _matched(
    project: Project,
    layout: Layout,
    sides: tuple[SourceSide, SilverSide],
    held: Held,
    wanted: Any,
    rows_of_keys: KeyRows,
) -> tuple[Differences, bool, tuple[int, int]]:
    """The differences among the rows of some buckets, whether their number differs in some part of them, and how many
    each side has.
    """
    source, silver = sides
    buckets = None if wanted.all() else wanted
    found, uneven, here_read, there_read = [], False, 0, 0
    with _shelves(project) as (here, there):
        for rows, whole in source.blocks(buckets):
            here_read += rows.num_rows
            held.at_source(whole)
            here.add(rows, layout.form.buckets(rows))
        for rows in silver.blocks(buckets):
            there_read += rows.num_rows
            held.in_silver(rows)
            there.add(rows, layout.form.buckets(rows))
        for one, other in together(here, there):
            mine, theirs = _rows(one, layout), _rows(other, layout)
            found.append(match(mine, theirs, layout.keys))
            rows_of_keys.add(found[-1], mine, theirs)
            uneven |= mine.num_rows != theirs.num_rows
    return merged(found), uneven, (here_read, there_read)


@contextmanager
def _shelves(project: Project) -> Iterator[tuple[Shelf, Shelf]]:
    project.scratch.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f"{project.name}.compare.", dir=project.scratch.parent) as folder:
        yield Shelf(Path(folder), "source"), Shelf(Path(folder), "silver")


def _rows(rows: pa.Table | None, layout: Layout) -> pa.Table:
    """Rows as they are matched: without a key each once, with how often it is there."""
    if rows is None:
        rows = pa.schema([pa.field(name, pa.large_string()) for name in layout.form.columns]).empty_table()
    return counted(rows) if layout.by_content else rows


def _judged(job: Job, where: Point, found: _Found, began: float) -> TableComparison:
    pinned, differences = job.pinned, found.differences
    held = found.accounted | found.unaccounted
    kinds = {
        "missing": _without(differences.missing, held),
        "extra": _without(differences.extra, held),
        "changed": _without(differences.changed, held),
        "repeated": _without(differences.repeated, held),
        "unaccounted": _without(tuple(found.unaccounted), frozenset()),
    }
    counts = {kind: len(keys) for kind, keys in kinds.items()}
    # Without a key a sample would be a whole row, and values are not told.
    samples = () if found.by_content else tuple((kind, keys[:SAMPLE]) for kind, keys in kinds.items() if keys)
    shared = frozenset(differences.shared) - found.accounted
    verdict = _verdict(any(kinds.values()) or found.uneven or bool(found.astray), found.accounted, found.apart)
    why, remedy = _reason(found, shared), SHARED if shared else _mended(job) if verdict is Verdict.DIFFERENT else ""
    if not why and pinned.waits is not None:
        why, remedy = pinned.waits
    return TableComparison(
        table=str(pinned.target.source),
        silver=pinned.target.label,
        verdict=verdict,
        source_rows=found.rows[0],
        silver_rows=found.rows[1],
        held_keys=len(found.accounted - found.apart),
        discarded_keys=len(found.accounted & found.apart),
        missing=counts["missing"],
        extra=counts["extra"],
        changed=counts["changed"],
        repeated=counts["repeated"],
        unaccounted=counts["unaccounted"],
        columns=() if found.by_content else _columns(differences, held),
        samples=samples,
        watermark=shown(job.state.stream, pinned.watermark) if pinned.watermark >= 0 else "",
        reason=why,
        hint=remedy,
        repair=_repaired(job, where, found, kinds),
        hashed_by="" if found.layout is None or job.asked.full else "client" if found.streamed else "server",
        streamed=found.streamed,
        rows_matched=found.matched,
        differing=_known_of(job, found, samples),
        rolled_forward=found.forward,
        sampled=found.sampled,
        seconds=_since(began),
    )


def _known_of(job: Job, found: _Found, samples: Sequence[tuple[str, Sequence[Key]]]) -> tuple[DifferingKey, ...]:
    if found.layout is None or found.rows_of_keys is None:
        return ()
    return differing_keys(job, found.layout, samples, found.rows_of_keys)


def _repaired(job: Job, where: Point, found: _Found, kinds: Mapping[str, Sequence[Key]]) -> Repair | None:
    """What is done about the keys that differ; None where nothing was asked for or none differs."""
    kept = {kind: frozenset(keys) for kind, keys in kinds.items()}
    names = () if found.layout is None or found.by_content else found.layout.keys
    types = found.layout.types if found.layout is not None else {}
    differing = Differing(names, types, kept["missing"] | kept["changed"], kept["extra"], kept["repeated"])
    return repair(job, where, differing) if job.asked.repairs and differing.keys else None


def _mended(job: Job) -> str:
    """What makes silver equal again; of an older version nothing does, and of a repair its own outcome is told."""
    if job.asked.repairs or not job.asked.now:
        return ""
    table = shlex.quote(str(job.pinned.target.source))
    return f"`cdc-lake resync {table}` copies the table again, `cdc-lake compare {table} --repair` single keys"


def _verdict(different: bool, accounted: frozenset[Key], apart: frozenset[Key]) -> Verdict:
    if different:
        return Verdict.DIFFERENT
    if accounted & apart:
        return Verdict.EQUAL_BUT_DISCARDED
    return Verdict.EQUAL_BUT_HELD if accounted else Verdict.EQUAL


def _reason(found: _Found, shared: frozenset[Key]) -> str:
    if found.astray:
        return f"not the numbers of the text beside them: {', '.join(sorted(found.astray))}"
    if shared and found.layout is not None:
        return f"the source has several rows of one key: {', '.join(found.layout.keys)} identifies none of them"
    return "rows of one key differ in number" if found.uneven else ""


def _columns(differences: Differences, held: frozenset[Key]) -> tuple[tuple[str, int], ...]:
    """Rows that differ by column; not said where some of them are held keys, which are explained otherwise."""
    return () if held.intersection(differences.changed) else differences.columns


def _without(keys: Sequence[Key], held: frozenset[Key]) -> tuple[Key, ...]:
    return tuple(sorted((key for key in keys if key not in held), key=repr))


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)
