"""The two sides of a table, read block by block: summed up by bucket, or the rows of some buckets.

The source sums up its rows itself where it can (`source.hash_sql`); otherwise they are streamed and hashed here, as
silver's are. Never is a whole table in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_lake.lake.read import silver_blocks
from cdc_lake.lake.row_hash import BUCKETS, Sums, bucket_of
from cdc_lake.lake.ways import Way
from cdc_lake.pipeline.compare.forward import Overlay
from cdc_lake.pipeline.compare.job import Job
from cdc_lake.pipeline.compare.layout import Layout, SilverRows
from cdc_lake.pipeline.compare.match import Key
from cdc_lake.source.hash_sql import HashSql, hash_sql

_NAMED = BUCKETS // 4
"""A statement names buckets up to so many; of more, all rows are read and some taken."""


class SourceSide:
    """The rows of a source table in the snapshot that is open. Raises SourceError, TypesApart."""

    def __init__(self, job: Job, layout: Layout) -> None:
        self._source = job.source
        self._published = job.pinned.published
        self._layout = layout
        self._sql, self.streamed = self._hashed()

    def _hashed(self) -> tuple[HashSql | None, str]:
        """How the server sums up, and why it does not."""
        layout = self._layout
        if layout.view.evaluates:
            return None, "expressions make silver's rows of the source's"
        if because := self._source.unsummed(layout.relation):
            return None, because
        found = hash_sql(layout.relation, layout.form, layout.types)
        if isinstance(found, HashSql):
            return found, ""
        return None, f"no expression of the server gives column {found} as it is compared"

    @property
    def ways(self) -> Mapping[str, Way]:
        """How its columns are hashed; where it is not here, all are by their texts."""
        return {} if self._sql is None else self._sql.ways

    def sums(self, buckets: Any = None) -> Sums:
        """What is in each bucket; `buckets`: only of these, a bool each."""
        sums = Sums()
        if self._sql is None:
            for rows, _ in self.blocks(buckets):
                sums.add(*self._layout.form.numbers(rows, self.ways, self._layout.types))
            return sums
        given = list(self._source.sums(self._among(buckets), self._sql))
        if given:
            sums.put(*zip(*given, strict=True))
        return sums if buckets is None else sums.of(buckets)

    def blocks(self, buckets: Any = None) -> Iterator[tuple[pa.Table, pa.Table]]:
        """The rows that silver should have, and all, in canonical text; see `Layout.source`."""
        relation = self._layout.relation
        for block in self._source.parts(relation, self._among(buckets)):
            yield self._layout.source(block, buckets)

    def _among(self, buckets: Any) -> Any:
        """What is published, less the rows of other buckets where the server can tell."""
        if buckets is None or self._sql is None or (wanted := np.flatnonzero(buckets)).size > _NAMED:
            return self._published
        mine = self._published.row_filter
        condition = self._sql.among(wanted.tolist()) if wanted.size else "false"
        return replace(self._published, row_filter=f"({mine}) AND {condition}" if mine else condition)


class SilverSide:
    """The rows of a silver table at a version, rolled forward by an overlay. Raises LakeError."""

    def __init__(self, job: Job, layout: Layout, overlay: Overlay) -> None:
        self._job = job
        self._overlay = overlay
        self._layout = layout
        self.astray: frozenset[str] = frozenset()
        self.shared: frozenset[Key] = frozenset()

    def sums(self, ways: Mapping[str, Way], buckets: Any = None) -> Sums:
        """What is in each bucket, hashed in these ways; `buckets`: only of these, a bool each."""
        sums, form = Sums(), self._layout.form
        for rows in self._rows(buckets):
            if isinstance(rows, pa.Table):
                sums.add(*form.numbers(rows, ways, self._layout.types))
                continue
            hashes = rows.hashes(ways)
            sums.add(bucket_of(hashes) if form.whole else rows.buckets, hashes)
        return sums

    def blocks(self, buckets: Any = None) -> Iterator[pa.Table]:
        """The rows in canonical text."""
        return (rows if isinstance(rows, pa.Table) else rows.texts() for rows in self._rows(buckets))

    def _rows(self, buckets: Any) -> Iterator[SilverRows | pa.Table]:
        """The rows as of the snapshot; notes which companions are astray, and which keys several rows would have."""
        overlay = self._overlay.among(buckets)
        yield from overlay.over(self._there(overlay.needed(buckets)), buckets)
        self.shared |= overlay.shared

    def _there(self, buckets: Any) -> Iterator[SilverRows]:
        pinned = self._job.pinned
        _, blocks = silver_blocks(self._job.project, pinned.target, pinned.marker.version)
        for block in blocks:
            rows = self._layout.silver(block, buckets)
            self.astray |= rows.astray
            yield rows


def both_sums(source: SourceSide, silver: SilverSide, buckets: Any = None) -> tuple[Sums, Sums]:
    """The sums of both sides, worked out side by side."""
    with ThreadPoolExecutor(1, thread_name_prefix="compare") as other:
        waiting = other.submit(source.sums, buckets)
        mine = silver.sums(source.ways, buckets)
        return waiting.result(), mine
