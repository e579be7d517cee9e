"""A large transaction as rows of bronze, a part at a time: one commit of several files, memory for one part.

The rows are those of any other transaction (`bronze.rows`): layouts first, B, its changes, C. Ordinals go on from part
to part, a layout is described once, and the last part has C, which speaks of them all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from cdc_lake.bronze.contract import SCHEMA
from cdc_lake.bronze.rows import commit_info
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.digest import Content, chain_of
from cdc_lake.decode.raw import Raw
from cdc_lake.model.undecoded import Undecoded

Build: TypeAlias = Callable[..., tuple[pa.Table, bytes]]
"""`bronze.rows.build` with what is the same for all rows of a commit."""


class LargeRows:
    """The rows of one transaction, used once. `head`: its hash, once it had its last part."""

    def __init__(self, raw: Raw, build: Build, previous: bytes) -> None:
        """`raw`: all of it; `previous`: the hash of the transaction before."""
        self._raw = raw
        self._build = build
        self.head = previous
        self._content = Content()
        self._counts: dict[str, dict[str, int]] = {}
        self._layouts: set[int] = set()
        self._undecoded: Undecoded | None = None
        self._frames = self._changes = 0

    def part(self, raw: Raw, changes: ChangeColumns) -> pa.Table:
        """The rows of the next part."""
        rows, _ = self._build([raw], changes, previous=self.head)
        layouts, first = len(changes.relations), self._frames == 0
        ordinals = np.arange(self._changes + 1, self._changes + len(changes) + 1, dtype=np.int64)
        body = _with(rows.slice(layouts + 1, len(changes)), "ordinal", pa.array(ordinals))
        pieces = [self._new_layouts(rows.slice(0, layouts)), rows.slice(layouts, int(first)), body]
        commit = rows.slice(rows.num_rows - 1)
        self._frames += raw.count
        self._changes += len(changes)
        self._content.add_all(changes.digests)
        self._count(json.loads(commit["info"][0].as_py())["counts"])
        if (why := changes.undecoded.get(0)) is not None:
            self._undecoded = why if self._undecoded is None else _both(self._undecoded, why)
        if self._frames == self._raw.count:
            pieces.append(self._end(commit, changes.configuration))
        return pa.concat_tables(pieces)

    def _end(self, commit: pa.Table, configuration: int) -> pa.Table:
        content = self._content.root()
        self.head = chain_of(self.head, self._raw.bounds.position, content)
        ordered = sorted(self._counts.items(), key=lambda one: json.dumps(one[0], ensure_ascii=False))
        counts = json.dumps(
            {table: dict(sorted(kinds.items())) for table, kinds in ordered}, ensure_ascii=False, separators=(",", ":")
        )
        info = commit_info(self._raw, counts[1:-1], content, self.head, configuration, self._undecoded)
        return _with(_with(commit, "ordinal", pa.array([self._changes + 1])), "info", pa.array([info]))

    def _count(self, counts: dict[str, dict[str, int]]) -> None:
        for table, kinds in counts.items():
            known = self._counts.setdefault(table, {})
            for op, number in kinds.items():
                known[op] = known.get(op, 0) + number

    def _new_layouts(self, rows: pa.Table) -> pa.Table:
        """Layout rows that no part before had."""
        numbers = rows["layout"].to_pylist()
        fresh = pa.array([number not in self._layouts for number in numbers], pa.bool_())
        self._layouts.update(numbers)
        return rows.filter(fresh)


def _with(rows: pa.Table, name: str, values: Any) -> pa.Table:
    at = SCHEMA.get_field_index(name)
    return rows.set_column(at, SCHEMA.field(at), values.cast(SCHEMA.field(at).type))


def _both(one: Undecoded, other: Undecoded) -> Undecoded:
    tables = tuple(dict.fromkeys([*one.tables, *other.tables]))
    return replace(one, frames=one.frames + other.frames, tables=tables)
