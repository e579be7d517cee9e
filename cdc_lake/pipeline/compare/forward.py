"""Forward: silver as of a snapshot of the source that shows more than silver holds.

What the snapshot shows above silver's watermark is in bronze. Its changes are folded in memory onto the rows of the
keys they touch, exactly those of the transactions that the snapshot shows. Leaving out one in between is safe: a
transaction that changed a row after another saw that one committed, and so does every snapshot that shows it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import TRUNCATE
from cdc_lake.model.span import Span
from cdc_lake.pipeline.applying.point import CATCH_UP, Gap
from cdc_lake.pipeline.applying.reread import FAR, rereads_of
from cdc_lake.pipeline.compare.held import grown, touched
from cdc_lake.pipeline.compare.job import Job
from cdc_lake.pipeline.compare.layout import Layout, SilverRows
from cdc_lake.pipeline.compare.match import Key
from cdc_lake.pipeline.held.accounting import HeldChange, Row, folded, folded_copies, held_changes

CHANGES_AT_MOST = 200_000
"""Changes of all tables in the transactions that are folded: they are in memory."""


@dataclass(frozen=True)
class Forward:
    """What is to be folded onto a table. `emptied`: by a TRUNCATE, before its changes; `transactions`: how many."""

    changes: tuple[HeldChange, ...] = ()
    emptied: bool = False
    transactions: int = 0


def forward(job: Job, layout: Layout, positions: Sequence[int], changes: int) -> Forward | Gap:
    """What the transactions at these positions change of a table, or why it cannot be folded; `changes`: how many they
    have over all tables.
    """
    if not positions:
        return Forward()
    table, state, after = layout.relation.table, job.state, job.pinned.watermark
    behind = f"{len(positions)} landed transactions are not applied yet"
    if layout.view.evaluates:
        return Gap(f"{behind}, and expressions make silver's rows of the source's", CATCH_UP)
    if changes > CHANGES_AT_MOST:
        return Gap(f"{behind}, with {changes:,} changes", CATCH_UP)
    if rereads_of(job.control.snapshots(), state.stream, str(table), Span(state.epoch, after, FAR)):
        return Gap(f"{behind}, and rows that were read again", CATCH_UP)
    gone = job.bronze.trimmed().get(state.epoch)
    if gone is not None and gone[0] > after:
        return Gap(f"{behind}, and bronze no longer has all of them", CATCH_UP)
    rows = job.bronze.changes(table, Span(state.epoch, min(positions) - 1, max(positions)))
    rows = rows.filter(pc.is_in(rows["position"], value_set=pa.array(positions, rows.schema.field("position").type)))
    truncates = np.flatnonzero(np.asarray(pc.equal(rows["op"], TRUNCATE)))
    first = int(truncates[-1]) + 1 if truncates.size else 0
    told = _in_form(job, layout, rows.slice(first).to_pylist())
    return Forward(tuple(told), bool(truncates.size), len(positions))


def _in_form(job: Job, layout: Layout, rows: Sequence[dict[str, Any]]) -> list[HeldChange]:
    """Changes in canonical form; all texts of a column are brought to it at once."""
    layouts = job.bronze.layouts([layout.relation.table])
    texts: dict[str, dict[str | None, str | None]] = {}

    def note(column: str, text: str | None) -> str | None:
        texts.setdefault(column, {})[text] = text
        return text

    held_changes(rows, layouts, layout.relation, note)
    for column, given in texts.items():
        given.update(zip(given, layout.text(column, list(given)), strict=True))
    return held_changes(rows, layouts, layout.relation, lambda column, text: texts[column][text])


class Overlay:
    """Rows of silver with changes folded onto them: what passes `over` comes out as of the snapshot. `shared`: keys
    that the changes gave to several rows; which of them silver will have, only a run says.
    """

    def __init__(self, layout: Layout, changes: Sequence[HeldChange], *, emptied: bool) -> None:
        self._layout = layout
        self._changes = changes
        self._emptied = emptied
        self._keys = touched(changes, layout.keys)
        self._texts = layout.form.text(layout.key_table(self._keys))
        self._buckets = layout.buckets_of(self._keys)
        self.shared: frozenset[Key] = frozenset()

    def among(self, buckets: Any) -> Overlay:
        """What is needed of it for the rows of some buckets, a bool each: their keys, and those that changes connect
        with them.
        """
        if buckets is None or not self._keys:
            return self
        layout, keys = self._layout, list(self._keys)
        inside = buckets[layout.form.buckets(layout.key_table(keys))]
        wanted = frozenset(key for key, is_inside in zip(keys, inside, strict=True) if is_inside)
        _, mine = grown(wanted, self._changes, layout.keys)
        changes = [change for change, is_mine in zip(self._changes, mine, strict=True) if is_mine]
        return Overlay(layout, changes, emptied=self._emptied)

    def needed(self, buckets: Any) -> Any:
        """The buckets of which silver's rows must pass, so that those of `buckets` come out; None: all."""
        return None if buckets is None else buckets | self._buckets

    def over(self, blocks: Iterable[SilverRows], buckets: Any) -> Iterator[SilverRows | pa.Table]:
        """Blocks of silver's rows, which `needed` asks for, as of the snapshot: those that no change touched as they
        are, the others in canonical text.
        """
        have = []
        for rows in () if self._emptied else blocks:
            if self._keys:
                is_touched = self._is_touched(rows)
                have += rows.only(is_touched).texts().to_pylist()
                rows = rows.only(~is_touched)  # noqa: PLW2901 - the others pass
                if buckets is not None:
                    rows = rows.only(buckets[rows.buckets])  # noqa: PLW2901 - likewise
            yield rows
        if self._keys:
            after = self._after(have)
            yield after if buckets is None else after.filter(pa.array(buckets[self._layout.form.buckets(after)]))

    def _is_touched(self, rows: SilverRows) -> Any:
        """Whether changes touch a row, an ndarray of bool; asked only where the bucket may have such."""
        found = self._buckets[rows.buckets]
        texts = self._layout.form.text(rows.keys(found))
        found[found] = np.asarray(pc.is_in(texts, value_set=self._texts))
        return found

    def _after(self, have: Sequence[dict[str, str | None]]) -> pa.Table:
        """The rows of the keys that changes touch, after them."""
        keys, columns = self._layout.keys, self._layout.form.columns
        before: dict[Key, list[Row]] = defaultdict(list)
        for row in have:
            before[tuple(row[name] for name in keys)].append(row)
        if self._layout.by_content:
            copies, _ = folded_copies(self._changes, keys, {key: len(some) for key, some in before.items()})
            rows: list[Row] = [dict(zip(keys, key, strict=True)) for key, n in copies.items() for _ in range(n)]
        else:
            found = folded(self._changes, keys, columns, {k: some[-1:] for k, some in before.items()}, partial=True)
            self.shared = found.shared
            known = {key: row for key, some in found.rows.items() for row in some if len(row) == len(columns)}
            # a key that silver has several times is changed in all its rows
            rows = [row for key, row in known.items() for _ in range(max(1, len(before[key])))]
        texts = {name: pa.array([row[name] for row in rows], pa.large_string()) for name in columns}
        return pa.table(texts)
