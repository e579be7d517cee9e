"""Explains what silver lacks: changes after its watermark, and quarantined keys.

What the source's snapshot shows beyond silver's watermark is in bronze. Exactly the changes of the transactions that
the snapshot shows are applied in memory to the rows of their keys. Omitting a transaction in between is safe: a
transaction that changed the same row later saw it committed, and so does every snapshot that shows the later one.

Silver shows a quarantined key as it was before its first quarantined change. If only the hold separates it from the
source, its held changes, applied in order to that row, give the source's row.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import DELETE, INSERT, SNAPSHOT, TRUNCATE
from cdc_lake.comparison.columns import CompareTask, Layout, SilverRows, rows_among
from cdc_lake.comparison.columns import Key as RowKey
from cdc_lake.control.quarantine import open_quarantine, quarantine_log
from cdc_lake.control.snapshots import refetched_rows
from cdc_lake.model.position import END, Span
from cdc_lake.model.quarantine import Key, RowsByKey
from cdc_lake.model.relation import Relation, predecessors
from cdc_lake.runtime.apply.snapshot_alignment import CATCH_UP, Gap

Row: TypeAlias = Mapping[str, str | None]
Form: TypeAlias = Callable[[str, str | None], str | None]
"""Converts a text of a column to its canonical form, by the column's name."""


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A held or pending change: its place, its tuples by column name in canonical form, and its unchanged columns.
    `keys_resent`: whether the key it leaves, and its new key, became known since: the change no longer determines that
    key.
    """

    place: tuple[int, int, int]  # epoch, position, ordinal
    op: str
    new: Row | None
    old: Row | None
    unchanged: frozenset[str]
    keys_resent: tuple[bool, bool] = (False, False)
    has_whole_old: bool = True
    """Whether `old` is the whole row, and not only its key."""

    def keys(self, names: Sequence[str]) -> tuple[Key | None, Key | None]:
        """The key it leaves and its new key, None without one, or if it became known since."""
        before = self.old if self.old is not None else self.new
        arrives = self.op == INSERT or (self.op == SNAPSHOT and self.new is not None)
        leaves = None if arrives or before is None else _key(before, names)
        gives = None
        if self.op != DELETE and self.new is not None:
            values = {**(self.old or {}), **{n: v for n, v in self.new.items() if n not in self.unchanged}}
            gives = tuple(values.get(name) for name in names)
        return None if self.keys_resent[0] else leaves, None if self.keys_resent[1] else gives


def quarantined_changes(
    rows: Iterable[Mapping[str, Any]], layouts: Mapping[int, Relation], now: Relation, form: Form
) -> list[PendingChange]:
    """The quarantined changes of one table in order, from their rows in the control table `quarantine`, with current
    names.
    """
    result: list[PendingChange] = []
    for row in sorted(rows, key=_place):
        names, later = _names_of_now(layouts[row["layout"]], now)
        unchanged = frozenset(names[index] for index in row["unchanged"] or ())
        new, old = (_name_values(row[tuple_], names, form) for tuple_ in ("new", "old"))
        if new is not None:
            new = {**{name: form(name, text) for name, text in later.items()}, **new}
        keys_resent = (bool(row.get("from_key_told")), bool(row.get("key_told")))
        whole = row["old_kind"] == "full"
        result.append(PendingChange(_place(row), row["op"], new, old, unchanged, keys_resent, has_whole_old=whole))
    return result


def _names_of_now(layout: Relation, now: Relation) -> tuple[list[str], dict[str, str | None]]:
    """The current names of a layout's columns, and the values of its rows in later columns.

    A dropped column keeps its name, unless another one has it.
    """
    names = [name if name not in now.names else f"{name} (gone)" for name in layout.names]
    later: dict[str, str | None] = {}
    for place, column in zip(predecessors(layout, now), now.columns, strict=True):
        if place is not None:
            names[place] = column.name
        elif column.missing is not None and column.missing.text is not None:
            later[column.name] = column.missing.text
    return names, later


@dataclass(frozen=True, slots=True)
class Folded:
    """`rows`: those of each changed key after the changes; `odd`: keys whose change does not apply to the existing row;
    `shared`: keys that several rows had at the end of a transaction.
    """

    rows: Mapping[Key, tuple[Row, ...]]
    odd: frozenset[Key]
    shared: frozenset[Key]


def fold_changes(
    changes: Sequence[PendingChange],
    keys: Sequence[str],
    columns: Sequence[str],
    silver: Mapping[Key, Sequence[Row]],
    *,
    partial: bool = False,
) -> Folded:
    """Apply ordered changes to the rows of their keys; a change concerns the row that its old tuple identifies.

    `partial`: silver may lack rows of the source; values that no quarantined change contains are missing in the result.
    """
    rows: RowsByKey[dict[str, str | None]] = RowsByKey()
    touched: set[Key] = set()
    odd: set[Key] = set()
    shared: set[Key] = set()
    for _, transaction in itertools.groupby(changes, key=lambda change: change.place[:2]):
        transaction_keys: set[Key] = set()
        for change in transaction:
            leaves, gives = change.keys(keys)
            own = {key for key in (leaves, gives) if key is not None}
            for key in own - touched:
                rows.put(key, map(dict, silver.get(key, ())))
            touched |= own
            transaction_keys |= own
            if change.op == SNAPSHOT:  # it was read again and replaces whatever was before
                odd -= own
                for key in own:
                    rows.put(key, () if gives is None else (_apply_change(change, None, columns),))
                continue
            whole = change.old if change.has_whole_old else None
            old = None if whole is None else {name: whole.get(name) for name in columns}
            before = None if leaves is None else rows.row_of(leaves, old)
            if leaves is not None and before is None and not partial:
                odd |= own
            rows.move(leaves, gives, None if gives is None else _apply_change(change, before, columns), old)
        shared |= {key for key in transaction_keys if len(rows.rows(key)) > 1}
    return Folded({key: rows.rows(key) for key in touched}, frozenset(odd), frozenset(shared))


def folded_copies(
    changes: Sequence[PendingChange], columns: Sequence[str], silver: Mapping[Key, int]
) -> tuple[dict[Key, int], frozenset[Key]]:
    """The number of copies of each row after quarantined changes (no key), and removed rows that did not exist."""
    state: dict[Key, int] = {}
    odd: set[Key] = set()
    for change in changes:
        leaves, gives = change.keys(columns)
        if leaves is not None:
            state[leaves] = state.get(leaves, silver.get(leaves, 0)) - 1
            if state[leaves] < 0:
                odd.add(leaves)
        if gives is not None:
            state[gives] = state.get(gives, silver.get(gives, 0)) + 1
    return state, frozenset(odd)


def is_explained(after: Sequence[Row], wanted: Sequence[Row]) -> bool:
    """Whether the rows after quarantined changes are the source's rows of a key, in number and known values."""
    left = list(wanted)
    for names in sorted({tuple(row) for row in after}, key=len, reverse=True):  # the most complete rows choose first
        counts = Counter(_key(row, names) for row in after if tuple(row) == names)
        others = []
        for row in left:
            counts[_key(row, names)] -= 1
            if counts[_key(row, names)] < 0:
                others.append(row)
        if any(times > 0 for times in counts.values()):
            return False
        left = others
    return not left


def _apply_change(change: PendingChange, before: Row | None, columns: Sequence[str]) -> dict[str, str | None]:
    """The row after a change; unchanged values come from a whole old tuple or the row before, if any."""
    new, old = change.new or {}, change.old or {}
    result: dict[str, str | None] = {}
    for name in columns:
        if name in new and name not in change.unchanged:
            result[name] = new[name]
        elif before is not None or old.get(name) is not None or change.op in (INSERT, SNAPSHOT):
            result[name] = old[name] if old.get(name) is not None else (before or {}).get(name)
    return result


def _place(row: Mapping[str, Any]) -> tuple[int, int, int]:
    return row["epoch"], row["position"], row["ordinal"]


def _key(row: Row, names: Sequence[str]) -> Key:
    return tuple(row.get(name) for name in names)


def _name_values(values: Sequence[str | None] | None, names: Sequence[str], form: Form) -> Row | None:
    if values is None:
        return None
    return {name: form(name, value) for name, value in zip(names, values, strict=True)}


_Rows = defaultdict[RowKey, list[dict[str, str | None]]]


class Held:
    """The holds of one table at its watermark, and changes discarded since their keys were known. `keys`: those they
    touch; `apart`: those of discarded changes; `others`: later changes of other keys.
    """

    def __init__(self, job: CompareTask, layout: Layout, later: Sequence[PendingChange], *, closed: bool) -> None:
        """`later`: changes of quarantined keys after the watermark; `closed`: a TRUNCATE after it ended all holds."""
        pinned = job.pinned
        relation, generation = str(pinned.target.source), pinned.marker.generation
        holds = open_quarantine(quarantine_log(job.control), relation, job.state.epoch, generation, pinned.watermark)
        self.apart = holds.waiting.apart
        self._layout = layout
        quarantined: list[PendingChange] = []
        if (rows := holds.kept_back) and not closed:
            layouts = job.bronze.layouts([pinned.target.source])
            quarantined = quarantined_changes(
                rows, layouts, layout.relation, lambda column, text: layout.text(column, [text])[0]
            )
        self.keys, own_flags = connect_keys(touched_keys(quarantined, layout.keys), later, layout.keys)
        self._changes = [*quarantined, *(change for change, is_mine in zip(later, own_flags, strict=True) if is_mine)]
        self.others = [change for change, is_mine in zip(later, own_flags, strict=True) if not is_mine]
        self._wanted: _Rows = defaultdict(list)
        self._have: _Rows = defaultdict(list)

    def at_source(self, rows: pa.Table) -> None:
        """Record rows of the source, including those that silver should not have."""
        self._note(rows, self._wanted)

    def in_silver(self, rows: pa.Table) -> None:
        """Record rows of silver."""
        self._note(rows, self._have)

    def _note(self, rows: pa.Table, rows_by_key: _Rows) -> None:
        keys = self._layout.keys
        for row in rows_among(rows, keys, self.keys):
            rows_by_key[tuple(row[name] for name in keys)].append(row)

    def explain_keys(self) -> tuple[frozenset[RowKey], frozenset[RowKey]]:
        """The quarantined keys whose changes, applied to silver's rows, give the source's, and the others."""
        keys = self._layout.keys
        if self._layout.by_content:
            left, odd = folded_copies(self._changes, keys, {key: len(rows) for key, rows in self._have.items()})
            accounted = frozenset(k for k in self.keys if k not in odd and left[k] == len(self._wanted.get(k, ())))
            return accounted, self.keys - accounted
        columns = list(self._layout.view.names)
        have = {key: [{name: row[name] for name in columns} for row in rows] for key, rows in self._have.items()}
        partial = self._layout.target.transforms.any
        result = fold_changes(self._changes, keys, columns, have, partial=partial)
        sure = self.keys - result.odd
        accounted = frozenset(key for key in sure if is_explained(result.rows[key], self._wanted.get(key, ())))
        return accounted, self.keys - accounted


def connect_keys(
    quarantined: frozenset[RowKey], later: Sequence[PendingChange], names: Sequence[str]
) -> tuple[frozenset[RowKey], list[bool]]:
    """Quarantined keys with those connected to them by later changes, and whether each change touches one of them."""
    keys = [touched_keys([change], names) for change in later]
    while more := quarantined.union(*(change_keys for change_keys in keys if change_keys & quarantined)) - quarantined:
        quarantined |= more
    return quarantined, [bool(change_keys & quarantined) for change_keys in keys]


def touched_keys(changes: Sequence[PendingChange], names: Sequence[str]) -> frozenset[RowKey]:
    """The old and new keys of changes."""
    return frozenset(key for change in changes for key in change.keys(names) if key is not None)


CHANGES_AT_MOST = 200_000
"""Maximum number of changes, of all tables, in the transactions that are applied in memory."""


@dataclass(frozen=True)
class PendingChanges:
    """The changes to apply to a table. `emptied`: a TRUNCATE comes first; `transactions`: their number."""

    changes: tuple[PendingChange, ...] = ()
    emptied: bool = False
    transactions: int = 0


def forward(job: CompareTask, layout: Layout, positions: Sequence[int], changes: int) -> PendingChanges | Gap:
    """The changes of a table in the transactions at these positions, or why they cannot be applied; `changes`: of
    all.
    """
    if not positions:
        return PendingChanges()
    table, state, after = layout.relation.table, job.state, job.pinned.watermark
    backlog = f"{len(positions)} landed transactions are not applied yet"
    if layout.view.evaluates:
        return Gap(f"{backlog}, and expressions compute silver's rows from those of the source", CATCH_UP)
    if changes > CHANGES_AT_MOST:
        return Gap(f"{backlog}, with {changes:,} changes", CATCH_UP)
    if refetched_rows(job.control.snapshots(), state.stream, str(table), Span(state.epoch, after, END)):
        return Gap(f"{backlog}, and rows that were read again", CATCH_UP)
    gone = job.bronze.last_trimmed().get(state.epoch)
    if gone is not None and gone[0] > after:
        return Gap(f"{backlog}, and bronze no longer has all of them", CATCH_UP)
    rows = job.bronze.changes(table, Span(state.epoch, min(positions) - 1, max(positions)))
    rows = rows.filter(pc.is_in(rows["position"], value_set=pa.array(positions, rows.schema.field("position").type)))
    truncates = np.flatnonzero(np.asarray(pc.equal(rows["op"], TRUNCATE)))
    first = int(truncates[-1]) + 1 if truncates.size else 0
    pending = _in_form(job, layout, rows.slice(first).to_pylist())
    return PendingChanges(tuple(pending), bool(truncates.size), len(positions))


def _in_form(job: CompareTask, layout: Layout, rows: Sequence[dict[str, Any]]) -> list[PendingChange]:
    """Changes in canonical form; all texts of a column are converted at once."""
    layouts = job.bronze.layouts([layout.relation.table])
    texts: dict[str, dict[str | None, str | None]] = {}

    def note(column: str, text: str | None) -> str | None:
        texts.setdefault(column, {})[text] = text
        return text

    quarantined_changes(rows, layouts, layout.relation, note)
    for column, forms in texts.items():
        forms.update(zip(forms, layout.text(column, list(forms)), strict=True))
    return quarantined_changes(rows, layouts, layout.relation, lambda column, text: texts[column][text])


class Overlay:
    """Rows of silver with changes applied: `overlay_blocks` returns them as of the snapshot. `shared`: keys that
    several rows got from the changes; which one silver will have is only known after a run.
    """

    def __init__(self, layout: Layout, changes: Sequence[PendingChange], *, emptied: bool) -> None:
        self._layout = layout
        self._changes = changes
        self._emptied = emptied
        self._keys = touched_keys(changes, layout.keys)
        self._texts = layout.form.text(layout.key_table(self._keys))
        self._buckets = layout.buckets_of(self._keys)
        self.shared: frozenset[RowKey] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether the rows are those of silver."""
        return not self._keys and not self._emptied

    def among(self, buckets: Any) -> Overlay:
        """The part needed for some buckets (bools): their keys, and those connected to them by changes."""
        if buckets is None or not self._keys:
            return self
        layout, keys = self._layout, list(self._keys)
        inside = buckets[layout.form.buckets(layout.key_table(keys))]
        wanted = frozenset(key for key, is_inside in zip(keys, inside, strict=True) if is_inside)
        _, own_flags = connect_keys(wanted, self._changes, layout.keys)
        changes = [change for change, is_mine in zip(self._changes, own_flags, strict=True) if is_mine]
        return Overlay(layout, changes, emptied=self._emptied)

    def needed_buckets(self, buckets: Any) -> Any:
        """The buckets whose silver rows are needed to get those of `buckets`; None: all."""
        return None if buckets is None else buckets | self._buckets

    def overlay_blocks(self, blocks: Iterable[SilverRows], buckets: Any) -> Iterator[SilverRows | pa.Table]:
        """Blocks of silver's rows as of the snapshot: untouched ones unchanged, the others in canonical text."""
        have = []
        for rows in () if self._emptied else blocks:
            if self._keys:
                is_touched = self._is_touched(rows)
                have += rows.filter_rows(is_touched).texts().to_pylist()
                rows = rows.filter_rows(~is_touched)  # noqa: PLW2901 - the others pass
                if buckets is not None:
                    rows = rows.filter_rows(buckets[rows.buckets])  # noqa: PLW2901 - likewise
            yield rows
        if self._keys:
            after = self._changed_rows(have)
            yield after if buckets is None else after.filter(pa.array(buckets[self._layout.form.buckets(after)]))

    def _is_touched(self, rows: SilverRows) -> Any:
        """Whether changes touch a row, an ndarray of bool; computed only for possibly touched buckets."""
        is_touched = self._buckets[rows.buckets]
        texts = self._layout.form.text(rows.keys(is_touched))
        is_touched[is_touched] = np.asarray(pc.is_in(texts, value_set=self._texts))
        return is_touched

    def _changed_rows(self, have: Sequence[dict[str, str | None]]) -> pa.Table:
        """The rows of changed keys, after the changes."""
        keys, columns = self._layout.keys, self._layout.form.columns
        before: dict[RowKey, list[Row]] = defaultdict(list)
        for row in have:
            before[tuple(row[name] for name in keys)].append(row)
        if self._layout.by_content:
            copies, _ = folded_copies(self._changes, keys, {key: len(key_rows) for key, key_rows in before.items()})
            rows: list[Row] = [dict(zip(keys, key, strict=True)) for key, n in copies.items() for _ in range(n)]
        else:
            result = fold_changes(
                self._changes, keys, columns, {k: key_rows[-1:] for k, key_rows in before.items()}, partial=True
            )
            self.shared = result.shared
            complete_rows = {
                key: row for key, key_rows in result.rows.items() for row in key_rows if len(row) == len(columns)
            }
            # all rows of a key that silver has several times are changed
            rows = [row for key, row in complete_rows.items() for _ in range(max(1, len(before[key])))]
        return pa.table({name: pa.array([row[name] for row in rows], pa.large_string()) for name in columns})
