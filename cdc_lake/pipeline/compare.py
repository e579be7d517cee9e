"""Compare: prove silver equal to the source, row by row, by key.

One read-only snapshot of the source for all tables. A table is compared only where silver holds exactly the
transactions that the snapshot shows (`pipeline.point`); otherwise the verdict is inconclusive and says what to do.
Silver's values are written as the server prints them by code that the projection does not use (`lake.canonical`), the
source is read by another reader than the initial copy's (`source.rows`), so that a mistake in either path shows. Keys
that a rule or a cast holds are accounted for one by one (`pipeline.accounting`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project, Target
from cdc_lake.errors import NoKey, NoStream, NoTableMatches, TransformUnfit
from cdc_lake.lake.canonical import beside, from_silver, from_source
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.marker import Marker, read_marker
from cdc_lake.lake.read import read_silver, silver_exists
from cdc_lake.model.relation import TableName
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.accounting import explained, folded, folded_copies, held_changes
from cdc_lake.pipeline.compare_source import CompareSource, compare_source
from cdc_lake.pipeline.compare_transforms import Seen, seen
from cdc_lake.pipeline.comparison import SAMPLE, Comparison, TableComparison, Verdict
from cdc_lake.pipeline.holds import open_holds
from cdc_lake.pipeline.match import COPIES, Differences, Key, copies_of, counted, match, rows_of
from cdc_lake.pipeline.point import Gap, Point, point
from cdc_lake.pipeline.redaction import RedactedSource, redaction_of
from cdc_lake.silver.kind import RowIdentity
from cdc_lake.silver.kinds import kind_of, source_rows
from cdc_lake.silver.shape import default_keys
from cdc_lake.source.captured import Published
from cdc_lake.source.stream import shown


@dataclass(frozen=True, slots=True)
class _Pinned:
    """A table as the comparison takes it: what is published of it, and its silver table at one version."""

    published: Published
    target: Target
    marker: Marker
    watermark: int


@dataclass(frozen=True)
class _Job:
    """What comparing one table needs."""

    project: Project
    bronze: BronzeReader
    control: ControlTables
    state: BronzeState
    source: CompareSource
    pinned: _Pinned


@dataclass(frozen=True)
class _Sides:
    """Both sides in canonical text, columns named as in the source, and the keys in it. `whole`: all rows of the
    source, also those that a filter keeps out of silver, without computed columns.

    `astray`: decimals beside a column of text that are not what that text says.
    """

    source: pa.Table
    silver: pa.Table
    whole: pa.Table
    keys: tuple[str, ...]
    types: dict[str, pa.DataType]
    astray: tuple[str, ...] = ()

    @property
    def by_content(self) -> bool:
        """Whether rows have no key: each stands once on a side, with how often it is there."""
        return COPIES in self.source.column_names

    @property
    def rows(self) -> tuple[int, int]:
        """How many rows the source has, and silver."""
        if not self.by_content:
            return self.source.num_rows, self.silver.num_rows
        return sum(copies_of(self.source).values()), sum(copies_of(self.silver).values())


def compare(project: Project, tables: Sequence[str], tell: Tell) -> Comparison:
    """Compare the named source tables (`schema.table`, or a table of `public`), all published ones by default.

    Writes `compare.json` into the project's reports. Raises SourceError, LakeError, StateError; NoTableMatches for a
    table that is not published.
    """
    began = time.monotonic()
    bronze, control = bronze_reader(project), ControlTables(project.control)
    state = bronze.state()
    if state is None:
        raise NoStream("bronze holds no stream yet: there is nothing to compare")

    with compare_source(project, state) as opened:
        source = RedactedSource(opened, redaction_of(project))
        chosen = _chosen(source.captured(), tables)
        pinned = [_pin(project, state, one) for one in chosen]
        tell(Progress("compare", "taking a snapshot of the source"))
        with source.snapshot([one.table for one in chosen]) as seen:
            lowest = min((p.watermark for p in pinned), default=state.upto)
            where = point(bronze, seen, lowest, partial(source.ahead, seen))
            found = [_told(_table(_Job(project, bronze, control, state, source, one), where), tell) for one in pinned]
    position, seconds = shown(state.stream, seen.position), round(time.monotonic() - began, 3)
    comparison = Comparison(project.name, datetime.now(UTC), position, tuple(found), seconds)
    comparison.write(project.reports)
    return comparison


def _told(result: TableComparison, tell: Tell) -> TableComparison:
    because = f" ({result.reason})" if result.reason else ""
    facts = {"table": result.table, "verdict": result.verdict.value}
    tell(Progress("compare", f"{result.table}: {result.text}{because}", result.source_rows, unit="rows", facts=facts))
    return result


def _chosen(captured: Sequence[Published], wanted: Sequence[str]) -> list[Published]:
    by_name = {one.table: one for one in captured}
    if not wanted:
        return list(captured)
    chosen = []
    for text in wanted:
        try:
            name = TableName.parse(text) if "." in text else TableName("public", text)
        except ValueError as wrong:
            raise NoTableMatches(f"`{text}` is no table: {wrong}") from wrong
        if name not in by_name:
            raise NoTableMatches(f"the stream carries no table {name}", hint="`cdc-lake plan` lists the tables")
        chosen.append(by_name[name])
    return chosen


def _pin(project: Project, state: BronzeState, one: Published) -> _Pinned:
    """Silver as it is now, before the snapshot is taken: so it cannot run ahead of it."""
    target = project.target(one.table)
    marker = read_marker(project, target, state.stream)
    return _Pinned(one, target, marker, -1 if marker.position is None else marker.position)


def _table(job: _Job, where: Point) -> TableComparison:
    began = time.monotonic()
    pinned = job.pinned
    found = _apart(pinned.target) or where.gap(pinned.target.source, pinned.watermark) or _sides(job)
    if isinstance(found, _Sides):
        return _judged(job, found, began)
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


def _sides(job: _Job) -> _Sides | Gap:
    """Both sides, or why they cannot be set side by side."""
    pinned = job.pinned
    relation = job.source.relation_of(pinned.published)
    by_content = kind_of(pinned.target, relation).identity is RowIdentity.CONTENT
    try:
        keys = relation.names if by_content else pinned.target.keys or default_keys(relation)
        found = seen(job.project, pinned.target, relation, job.source.rows(relation, pinned.published))
    except (NoKey, TransformUnfit) as unfit:
        return Gap(unfit.message, unfit.remedy)
    if not silver_exists(job.project, pinned.target):
        if found.rows.num_rows:
            return Gap("the silver table has not been made yet", "run `cdc-lake run --once`")
        return _Sides(found.rows, found.rows, found.rows, keys, {})
    silver = source_rows(read_silver(job.project, pinned.target, pinned.marker.version), pinned.target, relation)
    names = {**found.names, **{f"compute.{name}": name for name in found.computed.column_names}}
    expected = {*names.values(), *found.companions}
    given = {name for name in silver.column_names if pinned.target.on_drop == "drop" or name in expected}
    if (gap := _uneven(expected, given)) is not None:
        return gap
    return _beside(found, silver, names, keys, by_content=by_content)


def _beside(
    found: Seen, silver: pa.Table, names: Mapping[str, str], keys: tuple[str, ...], *, by_content: bool
) -> _Sides | Gap:
    """`names`: column of the source, or computed one → silver's name of it."""
    types = {column: silver.schema.field(name).type for column, name in found.names.items()}
    try:
        one = pa.table({**_canonical(found.rows, types), **_computed(found.computed, silver)})
        other = pa.table({column: from_silver(silver[name]) for column, name in names.items()})
        whole = pa.table(_canonical(found.whole, types))
        if by_content:
            one, other = counted(one), counted(other)
        astray = (name for name, text in found.companions.items() if _astray(silver, text, name))
        return _Sides(one, other, whole, keys, types, tuple(astray))
    except (TypeError, pa.ArrowInvalid):
        odd = ", ".join(f"{c} {k}" for c, k in types.items() if not _comparable(found.rows[c], k))
        return Gap(f"silver's types are not those of the source's columns: {odd}", "`cdc-lake explain LAK410`")


def _astray(silver: pa.Table, text: str, decimal: str) -> bool:
    """Whether a companion is not what the text beside it says; that one is compared with the source."""
    values = silver[decimal]
    return not from_silver(values).equals(beside(silver[text], values.type))


def _canonical(rows: pa.Table, types: dict[str, pa.DataType]) -> dict[str, pa.ChunkedArray]:
    return {column: from_source(rows[column], kind) for column, kind in types.items()}


def _computed(rows: pa.Table, silver: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Computed values, of the type that silver has them in."""
    types = {name: silver.schema.field(name).type for name in rows.column_names}
    return {f"compute.{name}": from_silver(rows[name].cast(kind)) for name, kind in types.items()}


def _uneven(expected: set[str], given: set[str]) -> Gap | None:
    """Columns that only one side has."""
    if missing := sorted(expected - given):
        reason = f"silver has no column {', '.join(missing)} yet: it comes with the table's next change"
        return Gap(reason, "change a row of the table, `cdc-lake run --once`, then compare again")
    if gone := sorted(given - expected):
        return Gap(f"the source no longer has column {', '.join(gone)}", "`cdc-lake explain LAK410`")
    return None


def _comparable(text: pa.ChunkedArray, kind: pa.DataType) -> bool:
    try:
        from_silver(pa.nulls(0, kind))
        from_source(text, kind)
    except (TypeError, pa.ArrowInvalid):
        return False
    return True


def _judged(job: _Job, sides: _Sides, began: float) -> TableComparison:
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
        seconds=_since(began),
    )


def _verdict(different: bool, accounted: frozenset[Key]) -> Verdict:
    if different:
        return Verdict.DIFFERENT
    return Verdict.EQUAL_BUT_HELD if accounted else Verdict.EQUAL


def _reason(sides: _Sides, *, uneven: bool) -> str:
    if sides.astray:
        return f"not the numbers of the text beside them: {', '.join(sides.astray)}"
    return "rows of one key differ in number" if uneven else ""


def _columns(differences: Differences, held: frozenset[Key]) -> tuple[tuple[str, int], ...]:
    """Rows that differ by column; not said where some of them are held keys, which are explained otherwise."""
    return () if held.intersection(differences.changed) else differences.columns


def _held(job: _Job, sides: _Sides) -> tuple[frozenset[Key], frozenset[Key]]:
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
