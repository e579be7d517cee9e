"""Repair: lands differing keys in bronze as rows read again, for the next run to merge.

Silver is never written here. The rows of these keys in the compared snapshot of the source land outside the stream,
directly after silver's watermark (`land_refetched`), so that any batching and every rebuild gives the same result. A
key is repaired only if the snapshot and silver include the same transactions of it; the caller holds apply's lease, so
silver does not advance. Quarantined keys do not count as differing: their hold explains them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from cdc_lake.bronze.contract import TRUNCATE, StreamCheckpoint
from cdc_lake.bronze.open import bronze_writer
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.span_index import KeysOf
from cdc_lake.comparison.columns import CompareTask, next_step
from cdc_lake.comparison.row_sets import canonical_texts
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import ComparisonSource, all_rows
from cdc_lake.connectors.redaction import rules_of
from cdc_lake.control.coordination import apply_lease
from cdc_lake.control.cuts import ACTIVE, TableState, last_cut
from cdc_lake.control.snapshots import REFETCHED, refetched_rows
from cdc_lake.control.verdicts import Comparison, Repair
from cdc_lake.errors import AnotherReceiver
from cdc_lake.model.position import END, Span
from cdc_lake.model.relation import Relation
from cdc_lake.observability.failpoints import REREAD_LANDED, failpoint
from cdc_lake.runtime.apply.snapshot_alignment import AlignmentPoint, SnapshotTransaction
from cdc_lake.silver.row_tracing import Key
from cdc_lake.source.base import PublishedTable, format_stream_position
from cdc_lake.source.sql_text import identifier, literal
from cdc_lake.tables.control_schema import RunRow, SnapshotRow, new_run
from cdc_lake.tables.control_tables import ControlTables, control_tables

KEYS_AT_MOST: Final = 5_000
"""Keys of a table that one statement reads."""
REPAIR: Final = "compare --repair"
"""Name of a repair in the control tables."""
_TRIES: Final = 10
REPAIRED_AT_MOST = 100_000
"""Maximum number of keys of a table: their rows are in memory, and the span follows moving keys one by one."""


@dataclass(frozen=True, slots=True)
class DifferingKeys:
    """Differing keys of a table, as texts in canonical form (`tables.canonical_values`). `names`: the key's columns,
    empty without a key; `types`: Arrow types of silver's columns, by source name. `source_keys`: the source has a row;
    `gone`: it has none; `repeated`: silver has several.
    """

    names: tuple[str, ...]
    types: Mapping[str, pa.DataType]
    source_keys: frozenset[Key]
    gone: frozenset[Key]
    repeated: frozenset[Key] = frozenset()

    @property
    def keys(self) -> frozenset[Key]:
        """All differing keys."""
        return self.source_keys | self.gone | self.repeated


@dataclass(frozen=True, slots=True)
class _Here:
    """The state of a silver table: its entry in the last cut, and the layout of its rows."""

    table: TableState
    layout: Relation


@contextmanager
def repair_run(project: Project) -> Iterator[list[Comparison]]:
    """Hold apply's lease, and write rows of `runs`: one before anything lands, one at the end with the comparison that
    the caller adds to the list. Raises AnotherApply.
    """
    comparisons: list[Comparison] = []
    with apply_lease(project):
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
    """Determine which rows of the source's snapshot can be landed for differing keys, and land them if requested.

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
        reason = "the source has transactions that bronze does not contain: `cdc-lake run --once`, then again"
        return Repair(left=len(differing.keys), reason=reason)
    keys = (differing.source_keys | differing.gone) - differing.repeated
    landed = [touch for touch in apart if touch.landed]
    moving = changed_keys(job.bronze, job.state.epoch, landed, here.layout, names, keys, keys_of)
    rows: dict[Key, list[str | None]] = {}
    ordered = sorted(keys - moving, key=repr)
    for start in range(0, len(ordered), KEYS_AT_MOST):
        chunk = frozenset(ordered[start : start + KEYS_AT_MOST])
        rows |= rows_of_keys(job.source, job.pinned.published, here.layout, names, chunk, keys_of)
    # The comparison and the query by key use one snapshot: a key that is not found again proves nothing.
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
    if lands and not land_refetched(job.project, job.control, job.state, here.layout, differing.names, rows, position):
        return Repair(left=every, reason="bronze is busy: retry")
    because = ""
    if moving:
        because = "later transactions change them: `cdc-lake run --once`, then again"
    elif differing.repeated:
        because = "several rows have the same key: `cdc-lake rebuild`"
    elif len(rows) < every:
        because = "the source cannot find them by key: `cdc-lake rebuild`"
    return Repair(
        len(rows),
        format_stream_position(job.state.stream, position) if lands else "",
        every - len(rows),
        because,
        lands,
    )


def _refusal(job: CompareTask, differing: DifferingKeys) -> str | None:
    """Why rows of a table cannot be read again at all."""
    target, rules = job.pinned.target, rules_of(job.project)
    if not differing.names:
        return "rows without a key cannot be told apart: `cdc-lake rebuild`"
    if target.transforms.where is not None:
        return "a filter decides which of its rows are in silver: `cdc-lake rebuild`"
    if any(rules(target.source, name) is not None for name in differing.names):
        return "its key is redacted, so the source cannot be queried by it: `cdc-lake rebuild`"
    if any(not _is_printable(differing.types[name]) for name in differing.names):
        return "the source cannot be queried by a key of its type: `cdc-lake rebuild`"
    if len(differing.keys) > REPAIRED_AT_MOST:
        return f"a repair takes up to {REPAIRED_AT_MOST:,} keys: `cdc-lake rebuild`"
    return None


def _is_printable(kind: pa.DataType) -> bool:
    """Whether the server can parse the canonical text of values."""
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return not (pa.types.is_floating(kind) or binary or listed)


def _standing(job: CompareTask) -> _Here | str:
    """The state of the table, or why nothing can be landed after it."""
    target, marker, stream = job.pinned.target, job.pinned.marker, job.state.stream
    cut = last_cut(job.control, stream)
    table = None if cut is None else cut.tables.get(str(target.source))
    if table is None or table.state != ACTIVE or table.layout is None or marker.generation != table.generation:
        return "no cut records its position: `cdc-lake run --once`"
    if marker.position is not None and marker.position > table.position:
        return "the last run was interrupted: `cdc-lake run --once`"
    ahead = Span(job.state.epoch, table.position, END)
    if refetched_rows(job.control.snapshots(), stream, str(target.source), ahead):
        return "rows that were read again are not merged yet: `cdc-lake run --once`"
    layout = job.bronze.layouts([target.source])[table.layout]
    if not same_columns(layout, job.source.relation_of(job.pinned.published)):
        return f"silver has another layout than the source: {next_step(job)}"
    return _Here(table, layout)


def canonical(names: Sequence[str], types: Mapping[str, pa.DataType]) -> KeysOf:
    """Converts keys to canonical form (`tables.canonical_values`), for silver's columns of these types."""
    texts_of = canonical_texts(names, types)
    return lambda columns: list(zip(*(column.to_pylist() for column in texts_of(columns).columns), strict=True))


def same_columns(relation: Relation, other: Relation) -> bool:
    """Whether rows of one layout may be landed under another."""
    return [(c.name, c.type_oid) for c in relation.columns] == [(c.name, c.type_oid) for c in other.columns]


def rows_of_keys(
    source: ComparisonSource,
    published: PublishedTable,
    layout: Relation,
    names: Sequence[str],
    keys: frozenset[Key],
    keys_of: KeysOf,
) -> dict[Key, list[str | None]]:
    """The rows of keys in the source's snapshot, by position in the layout; keys without a row are omitted."""
    wanted = replace(published, row_filter=key_filter(published, names, keys))
    rows = all_rows(source, source.relation_of(published), wanted)
    values = rows.select(list(layout.names)).to_pylist()
    pairs = zip(keys_of(rows.select(list(names))), values, strict=True)
    return {key: list(row.values()) for key, row in pairs if key in keys}


def changed_keys(
    bronze: BronzeReader,
    epoch: int,
    touches: Iterable[SnapshotTransaction],
    layout: Relation,
    names: Sequence[str],
    keys: frozenset[Key],
    keys_of: KeysOf,
) -> frozenset[Key]:
    """The keys that some of the landed transactions change; all of them if unknown."""
    changed: set[Key] = set()
    for touch in touches:
        if touch.undecoded:
            return keys
        if layout.table in touch.tables:
            touched = _touched_keys(bronze, Span(epoch, touch.position - 1, touch.position), layout, names, keys_of)
            if touched is None:
                return keys
            changed |= touched
    return keys & changed


def _touched_keys(
    bronze: BronzeReader, span: Span, layout: Relation, names: Sequence[str], keys_of: KeysOf
) -> set[Key] | None:
    """The keys before and after each change of a transaction, if known; None: all of the table."""
    layouts, key_rows = bronze.layouts([layout.table]), []
    for row in bronze.changes(layout.table, span).to_pylist():
        if row["op"] == TRUNCATE:
            return None
        for values in (row["new"], row["old"]):
            if values is not None:
                by_name = dict(zip(layouts[row["layout"]].names, values, strict=True))
                key_rows.append([by_name.get(name) for name in names])
    parts = list(zip(*key_rows, strict=True)) or [()] * len(names)
    columns = {name: pa.array(part, pa.large_string()) for name, part in zip(names, parts, strict=True)}
    return set(keys_of(pa.table(columns)))


def key_filter(published: PublishedTable, names: Sequence[str], keys: frozenset[Key]) -> str:
    """The condition for rows of these keys, combined with the table's row filter."""
    complete_keys = sorted((key for key in keys if None not in key), key=repr)
    columns = ", ".join(identifier(name) for name in names)
    terms = [f"({columns}) IN ({', '.join(_row(key) for key in complete_keys)})"] if complete_keys else []
    for key in sorted(keys - {*complete_keys}, key=repr):
        pairs = zip((identifier(name) for name in names), key, strict=True)
        terms.append("(" + " AND ".join(f"{c} IS NULL" if v is None else f"{c} = {literal(v)}" for c, v in pairs) + ")")
    others = "" if published.row_filter is None else f"({published.row_filter}) AND "
    return f"{others}({' OR '.join(terms)})"


def _row(key: Key) -> str:
    return f"({', '.join(literal(text) for text in key if text is not None)})"


def land_refetched(
    project: Project,
    control: ControlTables,
    state: StreamCheckpoint,
    layout: Relation,
    names: Sequence[str],
    rows: Mapping[Key, Sequence[str | None] | None],
    position: int,
) -> bool:
    """Land the rows of keys directly before a position; values of the columns `names`, None for no row.

    False if the receiver always came first.
    """
    kind = pa.list_(pa.string())
    keys = sorted(rows, key=repr)
    present = pa.array([row for key in keys if (row := rows[key]) is not None], kind)
    gone = [dict(zip(names, key, strict=True)) for key in keys if rows[key] is None]
    absent = pa.array([[key.get(name) for name in layout.names] for key in gone], kind)
    for _ in range(_TRIES):
        try:
            landed = bronze_writer(project).append_reread(layout, present, absent, position)
            break
        except AnotherReceiver:  # its commit came first: the rows to write are unchanged
            continue
    else:
        return False
    failpoint(REREAD_LANDED)
    document = {"relation": str(layout.table), "first": landed.first, "rows": landed.rows, "by": REPAIR}
    name, now = f"{REFETCHED}-{landed.first}", datetime.now(UTC)
    control.record(SnapshotRow(name, state.stream, state.epoch, position, json.dumps(document), REFETCHED, now))
    return True
