"""The two sides of a compared table, read block by block: sums by bucket, or the rows of some buckets.

The source computes the sums itself if it can (`source.row_hash_sql`); otherwise its rows are streamed and hashed here,
as silver's are. Rows of differing buckets are kept in memory while they are few, then on disk, so only a part of them
is matched at a time; a whole table is never in memory.

For the first differing keys of each kind, both rows, the differing columns and the changes in bronze that touched them
are looked up. Values leave this module only if they were requested; keys, columns and transactions always do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.span_index import KeyTouch, TextsOf, touching
from cdc_lake.comparison.columns import CompareTask, Differences, Key, Layout, SilverRows, rows_among
from cdc_lake.comparison.pending_changes import Overlay
from cdc_lake.control.snapshots import in_whole_copy, refetch_note, whole_copies
from cdc_lake.control.verdicts import SAMPLE, DifferingKey, KeyChange
from cdc_lake.source.base import format_stream_position
from cdc_lake.source.row_hash_sql import HashSql, hash_sql
from cdc_lake.tables.canonical_values import from_source, readable
from cdc_lake.tables.control_schema import SnapshotRow
from cdc_lake.tables.open_silver_table import silver_frame, table_log
from cdc_lake.tables.row_hash import BUCKETS, BucketSums, HashStrategy, bucket_of
from cdc_lake.tables.spark_session import derive, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LARGE = 256 << 20
"""Bytes of a silver table from which executors sum it up, if they can."""

_SUMS = pa.schema([("bucket", pa.int32()), ("rows", pa.int64()), ("total", pa.int64()), ("astray", pa.string())])

_NAMED = BUCKETS // 4
"""Maximum number of buckets that a statement names; for more, all rows are read and filtered."""


class SourceRowSet:
    """The rows of a source table in the open snapshot. Raises SourceError, TypesApart."""

    def __init__(self, job: CompareTask, layout: Layout) -> None:
        self._source = job.source
        self._published = job.pinned.published
        self._layout = layout
        self._sql, self.streamed = self._choose_hash()

    def _choose_hash(self) -> tuple[HashSql | None, str]:
        """How the server sums up, or why it does not."""
        layout = self._layout
        if layout.view.evaluates:
            return None, "expressions compute silver's rows from those of the source"
        if because := self._source.unsummable_reason(layout.relation):
            return None, because
        expression = hash_sql(layout.relation, layout.form, layout.types)
        if isinstance(expression, HashSql):
            return expression, ""
        return None, f"no expression of the server returns column {expression} in the form in which it is compared"

    @property
    def ways(self) -> Mapping[str, HashStrategy]:
        """How its columns are hashed; columns that are not listed are hashed by their texts."""
        return {} if self._sql is None else self._sql.ways

    def sums(self, buckets: Any = None) -> BucketSums:
        """The sums of each bucket; `buckets`: only these, a bool each."""
        sums = BucketSums()
        if self._sql is None:
            for rows, _ in self.blocks(buckets):
                sums.add(*self._layout.form.numbers(rows, self.ways, self._layout.types))
            return sums
        summed = list(self._source.sums(self._among(buckets), self._sql))
        if summed:
            sums.put(*zip(*summed, strict=True))
        return sums if buckets is None else sums.select(buckets)

    def blocks(self, buckets: Any = None) -> Iterator[tuple[pa.Table, pa.Table]]:
        """The rows that silver should have, and all, in canonical text; see `Layout.source`."""
        relation = self._layout.relation
        for block in self._source.parts(relation, self._among(buckets)):
            yield self._layout.source(block, buckets)

    def _among(self, buckets: Any) -> Any:
        """The published rows, without those of other buckets if the server can filter them."""
        if buckets is None or self._sql is None or (wanted := np.flatnonzero(buckets)).size > _NAMED:
            return self._published
        row_filter = self._published.row_filter
        condition = self._sql.among(wanted.tolist()) if wanted.size else "false"
        return replace(self._published, row_filter=f"({row_filter}) AND {condition}" if row_filter else condition)


class SilverRowSet:
    """The rows of a silver table at a version, rolled forward by an overlay. Raises LakeError."""

    def __init__(self, job: CompareTask, layout: Layout, overlay: Overlay) -> None:
        self._job = job
        self._overlay = overlay
        self._layout = layout
        self.astray: frozenset[str] = frozenset()
        self.shared: frozenset[Key] = frozenset()

    def sums(self, ways: Mapping[str, HashStrategy], buckets: Any = None) -> BucketSums:
        """The sums of each bucket, with these hash strategies; `buckets`: only these, a bool each."""
        if self._overlay.is_empty and self._is_for_executors():
            return self._sums_of_executors(ways, buckets)
        sums, form = BucketSums(), self._layout.form
        for rows in self._rows(buckets):
            if isinstance(rows, pa.Table):
                sums.add(*form.numbers(rows, ways, self._layout.types))
                continue
            hashes = rows.hashes(ways)
            sums.add(bucket_of(hashes) if form.is_key_only else rows.buckets, hashes)
        return sums

    def blocks(self, buckets: Any = None) -> Iterator[pa.Table]:
        """The rows in canonical text."""
        return (rows if isinstance(rows, pa.Table) else rows.texts() for rows in self._rows(buckets))

    def _rows(self, buckets: Any) -> Iterator[SilverRows | pa.Table]:
        """The rows as of the snapshot; records wrong companion columns, and keys that several rows would have."""
        overlay = self._overlay.among(buckets)
        yield from overlay.overlay_blocks(self._read_blocks(overlay.needed_buckets(buckets)), buckets)
        self.shared |= overlay.shared

    def _is_for_executors(self) -> bool:
        project = self._job.project
        if not project.pipeline.spark.python_on_executors or project.lake_address is None:
            return False
        return table_log(project, self._job.pinned.target).statistics().size >= LARGE

    def _sums_of_executors(self, ways: Mapping[str, HashStrategy], buckets: Any) -> BucketSums:
        """The same, computed by the tasks of a cluster."""
        project, pinned = self._job.project, self._job.pinned
        spark = derive(start(project, log=project.lake / "logs" / "compare.log"))
        schema, _ = table_log(project, pinned.target).read_blocks(pinned.marker.version)
        frame = silver_frame(spark, project, pinned.target, pinned.marker.version)
        summed = sums_by_tasks(frame, schema, self._layout, ways, buckets)
        self.astray |= frozenset(summed["astray"].drop_null().to_pylist())
        sums, totals = BucketSums(), summed.filter(pc.is_valid(summed["bucket"]))
        sums.put(*(list(map(int, totals[name].to_pylist())) for name in ("bucket", "rows", "total")))
        return sums

    def _read_blocks(self, buckets: Any) -> Iterator[SilverRows]:
        pinned = self._job.pinned
        _, blocks = table_log(self._job.project, pinned.target).read_blocks(pinned.marker.version)
        for block in blocks:
            rows = self._layout.silver(block, buckets)
            self.astray |= rows.astray
            yield rows


def sums_by_tasks(
    frame: DataFrame, schema: pa.Schema, layout: Layout, ways: Mapping[str, HashStrategy], buckets: Any
) -> pa.Table:
    """The rows of a silver table summed up by Spark's tasks, which need Python with cdc-lake.

    Args:
        frame: The rows.
        schema: Their types as the log of the table reads them.
        layout: How the table is compared.
        ways: How columns are hashed.
        buckets: Which (bools); None: all.

    Returns:
        `bucket`, `rows`, and `total`, the exact sum of signed hashes; and rows without a bucket for each companion
        column that is `astray`.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - most comparisons need no Spark

    def sum_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sums, astray = BucketSums(), set[str]()
        for batch in batches:
            table = pa.Table.from_batches([batch]).select(schema.names).cast(schema)
            rows = layout.silver(table, buckets)
            hashes = rows.hashes(ways)
            sums.add(bucket_of(hashes) if layout.form.is_key_only else rows.buckets, hashes)
            astray |= rows.astray
        found = np.flatnonzero(sums.counts)
        columns = {
            "bucket": [*found.tolist(), *[None] * len(astray)],
            "rows": [*sums.counts[found].tolist(), *[None] * len(astray)],
            "total": [*sums.hashes[found].view(np.int64).tolist(), *[None] * len(astray)],
            "astray": [*[None] * found.size, *sorted(astray)],
        }
        yield pa.RecordBatch.from_pydict(columns, schema=_SUMS)

    parts = frame.mapInArrow(sum_up, "bucket int, rows bigint, total bigint, astray string")
    exact = F.sum(F.col("total").cast("decimal(20,0)")).alias("total")  # a sum of bigints overflows
    return parts.groupBy("bucket", "astray").agg(F.sum("rows").alias("rows"), exact).toArrow()


def both_sums(source: SourceRowSet, silver: SilverRowSet, buckets: Any = None) -> tuple[BucketSums, BucketSums]:
    """The sums of both sides, computed in parallel."""
    with ThreadPoolExecutor(1, thread_name_prefix="compare") as other:
        waiting = other.submit(source.sums, buckets)
        silver_sums = silver.sums(source.ways, buckets)
        return waiting.result(), silver_sums


ROWS_IN_MEMORY = 500_000
PARTS = 64


class BucketStore:
    """Rows of one schema in `PARTS` parts; rows of one bucket are in one part."""

    def __init__(self, folder: Path, name: str, at_most: int = ROWS_IN_MEMORY) -> None:
        """`folder` is created with the first file."""
        self._folder = folder
        self._name = name
        self._at_most = at_most
        self._open: list[tuple[pa.Table, Any]] = []
        self._rows = 0
        self._files: list[Path] = []

    @property
    def is_spilled(self) -> bool:
        """Whether some rows are on disk."""
        return bool(self._files)

    def add(self, rows: pa.Table, buckets: Any) -> None:
        """Add rows; `buckets`: the bucket of each."""
        self._open.append((rows, buckets % PARTS))
        self._rows += rows.num_rows
        if self._rows >= self._at_most:
            self._spill()

    def all_rows(self) -> pa.Table | None:
        """All rows, if none is on disk; None without rows."""
        return pa.concat_tables([rows for rows, _ in self._open]) if self._open else None

    def part(self, number: int) -> pa.Table | None:
        """The rows of one part; None without rows."""
        tables = [rows.filter(pa.array(parts == number)) for rows, parts in self._open]
        tables += [table for file in self._files for table in _read(file, number)]
        return pa.concat_tables(tables) if tables else None

    def _spill(self) -> None:
        rows = pa.concat_tables([rows for rows, _ in self._open]).combine_chunks()
        parts = np.concatenate([parts for _, parts in self._open])
        ordered = rows.take(pa.array(np.argsort(parts, kind="stable")))
        ends = np.cumsum(np.bincount(parts, minlength=PARTS))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._folder / f"{self._name}.{len(self._files)}.arrow"
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            for first, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
                batches = ordered.slice(first, end - first).combine_chunks().to_batches()
                (batch,) = batches or [pa.RecordBatch.from_pylist([], schema=rows.schema)]
                writer.write_batch(batch)
        self._files.append(file)
        self._open, self._rows = [], 0


def _read(file: Path, number: int) -> Iterator[pa.Table]:
    with pa.OSFile(str(file), "rb") as source, pa.ipc.open_file(source) as reader:
        yield pa.Table.from_batches([reader.get_batch(number)])


def pair_shelves(left: BucketStore, right: BucketStore) -> Iterator[tuple[pa.Table | None, pa.Table | None]]:
    """The rows of two stores, with rows of one bucket together: all at once if they are few."""
    if not left.is_spilled and not right.is_spilled:
        yield left.all_rows(), right.all_rows()
        return
    for number in range(PARTS):
        yield left.part(number), right.part(number)


CHANGES = 10
"""Number of last changes that are reported for a key."""

Row = Mapping[str, str | None]


class KeyRows:
    """Rows of differing keys on both sides, gathered part by part, for the first keys of each kind."""

    def __init__(self, layout: Layout, quarantined: frozenset[Key]) -> None:
        """`quarantined`: keys whose rows the quarantine may explain."""
        self._layout = layout
        self._quarantined = quarantined
        self.source: dict[Key, Row] = {}
        self.silver: dict[Key, Row] = {}

    def add(self, differences: Differences, source_rows: pa.Table, silver_rows: pa.Table) -> None:
        """Record the rows of one part's differences."""
        if self._layout.by_content:
            return
        keys = self._layout.keys
        kinds = (differences.missing, differences.extra, differences.changed, differences.repeated)
        wanted = {key for kind in kinds for key in first(kind, self._quarantined)} | {
            *first(self._quarantined, frozenset())
        }
        for rows, rows_by_key in ((source_rows, self.source), (silver_rows, self.silver)):
            for row in rows_among(rows, keys, frozenset(wanted)):
                rows_by_key[tuple(row[name] for name in keys)] = row


def first(keys: Sequence[Key] | frozenset[Key], quarantined: frozenset[Key]) -> list[Key]:
    """The first keys of a kind that are reported, without held ones."""
    return sorted((key for key in keys if key not in quarantined), key=repr)[:SAMPLE]


def canonical_texts(names: Sequence[str], types: Mapping[str, pa.DataType]) -> TextsOf:
    """Converts key columns to canonical form (`tables.canonical_values`), for silver's columns of these types."""
    return lambda columns: pa.table({name: from_source(columns[name], types[name]) for name in names})


def differing_keys(
    job: CompareTask, layout: Layout, samples: Sequence[tuple[str, Sequence[Key]]], rows: KeyRows
) -> tuple[DifferingKey, ...]:
    """Details of the sample keys, by kind. Raises LakeError."""
    wanted = frozenset(key for _, keys in samples for key in keys)
    if layout.by_content or not wanted:
        return ()
    changes = touching(
        job.bronze, layout.relation.table, layout.keys, wanted, canonical_texts(layout.keys, layout.types)
    )
    snapshots = job.control.snapshots()
    copies = whole_copies(snapshots, layout.relation.table)
    changes = {
        key: [
            change
            for change in key_changes
            if in_whole_copy(copies, change.epoch, change.position, change.ordinal, change.op)
        ]
        for key, key_changes in changes.items()
    }
    result = []
    for kind, key in ((kind, key) for kind, keys in samples for key in keys):
        source, silver = rows.source.get(key), rows.silver.get(key)
        columns = () if source is None or silver is None else tuple(n for n in source if source[n] != silver[n])
        last = tuple(_change(snapshots, change) for change in changes[key][-CHANGES:])
        sides = (_readable(row, layout) if job.asked.values else None for row in (source, silver))
        result.append(DifferingKey(kind, key, columns, last, len(changes[key]), *sides))
    return tuple(result)


def _change(snapshots: Sequence[SnapshotRow], change: KeyTouch) -> KeyChange:
    return KeyChange(
        position=format_stream_position(change.stream, change.position),
        op=change.op,
        committed=None if change.commit_ts is None else change.commit_ts.isoformat(timespec="milliseconds"),
        csn=change.csn,
        commit_lsn=change.commit_lsn,
        note=refetch_note(snapshots, change.stream, change.position, change.ordinal, change.op),
    )


def _readable(row: Row | None, layout: Layout) -> dict[str, str | None] | None:
    """A row in canonical text, with floats converted from bits to numbers."""
    if row is None:
        return None
    return {name: readable(text, layout.types.get(name)) for name, text in row.items()}
