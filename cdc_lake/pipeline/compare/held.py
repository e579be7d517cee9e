"""Held keys in a comparison, and those of which changes were given up: what both sides have of them is gathered while
rows pass, and then explained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pyarrow as pa

from cdc_lake.pipeline.compare.job import Job
from cdc_lake.pipeline.compare.layout import Layout
from cdc_lake.pipeline.compare.match import Key, rows_among
from cdc_lake.pipeline.held.accounting import HeldChange, explained, folded, folded_copies, held_changes
from cdc_lake.pipeline.state.holds import hold_log, open_holds

_Rows = defaultdict[Key, list[dict[str, str | None]]]


class Held:
    """The open holds of one table at its watermark, and what was given up since its keys were told. `keys`: those they
    touch; `apart`: those of what was given up; `others`: later changes of other keys.
    """

    def __init__(self, job: Job, layout: Layout, later: Sequence[HeldChange], *, closed: bool) -> None:
        """`later`: changes above the watermark that are folded too, where they touch held keys; `closed`: a TRUNCATE
        above it ended all holds.
        """
        pinned = job.pinned
        relation, generation = str(pinned.target.source), pinned.marker.generation
        found = open_holds(hold_log(job.control), relation, job.state.epoch, generation, pinned.watermark)
        self.apart = found.waiting.apart
        self._layout = layout
        held: list[HeldChange] = []
        if (rows := found.kept_back) and not closed:
            layouts = job.bronze.layouts([pinned.target.source])
            held = held_changes(rows, layouts, layout.relation, self._form)
        self.keys, mine = grown(touched(held, layout.keys), later, layout.keys)
        self._changes = [*held, *(change for change, is_mine in zip(later, mine, strict=True) if is_mine)]
        self.others = [change for change, is_mine in zip(later, mine, strict=True) if not is_mine]
        self._wanted: _Rows = defaultdict(list)
        self._have: _Rows = defaultdict(list)

    def _form(self, column: str, text: str | None) -> str | None:
        return self._layout.text(column, [text])[0]

    def at_source(self, whole: pa.Table) -> None:
        """Take note of rows of the source, also of such as silver should not have."""
        self._note(whole, self._wanted)

    def in_silver(self, rows: pa.Table) -> None:
        """Take note of rows of silver."""
        self._note(rows, self._have)

    def _note(self, rows: pa.Table, found: _Rows) -> None:
        keys = self._layout.keys
        for row in rows_among(rows, keys, self.keys):
            found[tuple(row[name] for name in keys)].append(row)

    def explained(self) -> tuple[frozenset[Key], frozenset[Key]]:
        """The held keys whose held changes, folded onto silver's rows, give the source's, and the others."""
        keys = self._layout.keys
        if self._layout.by_content:
            left, odd = folded_copies(self._changes, keys, {key: len(rows) for key, rows in self._have.items()})
            accounted = frozenset(k for k in self.keys if k not in odd and left[k] == len(self._wanted.get(k, ())))
            return accounted, self.keys - accounted
        columns = list(self._layout.view.names)
        have = {key: [{name: row[name] for name in columns} for row in rows] for key, rows in self._have.items()}
        partial = self._layout.target.transforms.any
        found = folded(self._changes, keys, columns, have, partial=partial)
        sure = self.keys - found.odd
        accounted = frozenset(key for key in sure if explained(found.rows[key], self._wanted.get(key, ())))
        return accounted, self.keys - accounted


def grown(held: frozenset[Key], later: Sequence[HeldChange], names: Sequence[str]) -> tuple[frozenset[Key], list[bool]]:
    """Held keys with those that later changes connect with them, and of each change whether it touches one of them."""
    keys = [touched([change], names) for change in later]
    while more := held.union(*(some for some in keys if some & held)) - held:
        held |= more
    return held, [bool(some & held) for some in keys]


def touched(changes: Sequence[HeldChange], names: Sequence[str]) -> frozenset[Key]:
    """The keys that changes leave or give."""
    return frozenset(key for change in changes for key in change.keys(names) if key is not None)
