"""Prepares a span of bronze for apply: properties of its changes, and files by table.

* The summary of a table's changes determines how the span is applied: layouts, truncates, unchanged columns, moved
  keys. It reads six narrow columns of the files whose statistics overlap the span, in milliseconds.
* Data files contain the changes of all tables. A large span that touches several tables is partitioned by table into
  scratch files of about 64 MiB, so that the cost grows with the changes and not with tables times changes.
* Changes that touched given keys are found file by file, without a whole history in memory.

Scratch files are deleted after the span or the run; the next run deletes those of a killed one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from cdc_lake.bronze.contract import DELETE, INSERT, SCHEMA, SNAPSHOT, TRUNCATE, UPDATE
from cdc_lake.bronze.data_files import Files
from cdc_lake.bronze.reader import BronzeReader, span_filter
from cdc_lake.config.model import ObjectAddress
from cdc_lake.config.project import Project
from cdc_lake.errors import LakeError
from cdc_lake.model.change import Truncated
from cdc_lake.model.position import Span
from cdc_lake.model.quarantine import RefetchedRows
from cdc_lake.model.relation import TableName
from cdc_lake.tables.files import grouped
from cdc_lake.tables.object_store import ObjectStore, object_store
from cdc_lake.tables.spark_session import on_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class RelationVersionRun:
    """Consecutive changes with one layout: its number, and the place of the first change."""

    layout: int
    position: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class SpanSummary:
    """One table's changes in a span.

    `runs`: its layouts in the order of its changes, possibly repeated. `truncated`: its truncates in order.
    `unchanged`: layout → positions in the new tuple that some change did not send. `olds`: updates with an old tuple.
    `nameless`: the position of the first delete without an old tuple, None without one. `inserts`: number of inserts.
    `by_key`: layouts in which a change identifies its old row by key; `bare`: the position of the first update or
    delete without a complete key. `rereads`: repaired rows among the changes. `by_whole`: layouts in which a change
    contains its whole old row; `whole_deletes`: number of such deletes. `older`: layouts of released changes.
    """

    rows: int
    runs: tuple[RelationVersionRun, ...]
    truncated: tuple[Truncated, ...]
    unchanged: dict[int, frozenset[int]]
    olds: int
    nameless: int | None = None
    inserts: int = 0
    by_key: frozenset[int] = frozenset()
    bare: int | None = None
    rereads: tuple[RefetchedRows, ...] = ()
    whole_deletes: int = 0
    older: tuple[int, ...] = ()
    by_whole: frozenset[int] = frozenset()

    @property
    def layouts(self) -> tuple[int, ...]:
        """Distinct layout numbers in order of last use: the newest one is the last."""
        used = [*self.older, *(run.layout for run in self.runs)]
        return tuple(reversed(dict.fromkeys(reversed(used))))

    @property
    def truncates(self) -> tuple[tuple[int, int], ...]:
        """`(position, ordinal)` of each truncate, ascending."""
        return tuple((truncate.position, truncate.ordinal) for truncate in self.truncated)


_ORDER = [("position", "ascending"), ("ordinal", "ascending")]
_SUMMARY_COLUMNS = ["position", "ordinal", "op", "layout", "unchanged", "old_kind"]


def span_files(files: Files, table: TableName, span: Span, *, snapshot: bool) -> list[str]:
    """The data files that may contain changes of `table` in `span`, or its snapshot rows at `span.upto`."""
    after = span.upto - 1 if snapshot else span.after
    return files.select(epoch=span.epoch, after=after, upto=span.upto, relations=[str(table)])


def outline(
    files: Files,
    table: TableName,
    span: Span,
    *,
    snapshot: bool,
    rereads: Sequence[RefetchedRows] = (),
    released: pa.Table | None = None,
    follows: int | None = None,
) -> SpanSummary:
    """Summarize `table` in `span`, including `rereads`; with `snapshot` its snapshot rows at `span.upto` instead.
    `released`: quarantined changes released in it (`model.quarantine`); `follows`: the table's layout, used without
    changes.
    """
    op, ordinal, position = pc.field("op"), pc.field("ordinal"), pc.field("position")
    wanted = op.isin([SNAPSHOT] if snapshot else [INSERT, UPDATE, DELETE, TRUNCATE])
    for reread in rereads:
        wanted |= (op == SNAPSHOT) & (ordinal >= reread.first) & (ordinal <= reread.last)
    wanted &= (pc.field("epoch") == span.epoch) & (pc.field("relation") == str(table))
    wanted &= (position <= span.upto) & (position > (span.upto - 1 if snapshot else span.after))
    paths = span_files(files, table, span, snapshot=snapshot)
    parts: list[SpanSummary] = []
    truncates = 0
    for group in grouped(files.scan(paths, _SUMMARY_COLUMNS, wanted), lambda part: part.nbytes, _READ_AT_ONCE_BYTES):
        rows = pa.concat_tables(group)
        truncates += _count(pc.equal(rows["op"], TRUNCATE))
        parts.append(_summarize(rows))
    runs = tuple(run for part in parts for run in part.runs)
    if len({run.layout for run in runs}) == 1:
        runs = (min(runs, key=attrgetter("position", "ordinal")),)
    elif runs and len(parts) > 1:  # whose rows may alternate
        runs = _runs(files.read(paths, ["layout", "position", "ordinal"], wanted).sort_by(_ORDER))
    older: tuple[int, ...] = ()
    if released is not None:
        parts.append(_summarize(released.select(_SUMMARY_COLUMNS)))
        older = tuple(sorted(set(released["layout"].to_pylist())))
        first = released.slice(0, 1).to_pylist()[0]
        layout = older[-1] if follows is None else follows
        runs = runs or (RelationVersionRun(layout, first["position"], first["ordinal"]),)
    truncated: tuple[Truncated, ...] = ()
    if truncates:
        truncate_rows = files.read(paths, [f.name for f in fields(Truncated)], wanted & (pc.field("op") == TRUNCATE))
        truncated = tuple(Truncated(**row) for row in truncate_rows.sort_by(_ORDER).to_pylist())
    return replace(_combine(parts), runs=runs, truncated=truncated, rereads=tuple(rereads), older=older)


def _summarize(rows: pa.Table) -> SpanSummary:
    """The summary of changes in any order, without truncates."""
    nameless = rows.filter(pc.and_(pc.equal(rows["op"], DELETE), pc.is_null(rows["old_kind"])))
    named = pc.and_(pc.equal(rows["old_kind"], "key"), pc.not_equal(rows["op"], SNAPSHOT))
    has_full_old = pc.fill_null(pc.equal(rows["old_kind"], "full"), False)
    old = rows.filter(pc.and_(pc.is_in(rows["op"], pa.array([UPDATE, DELETE])), pc.invert(has_full_old)))
    return SpanSummary(
        rows=rows.num_rows,
        runs=_runs(rows.sort_by(_ORDER)),
        truncated=(),
        unchanged=_unchanged_columns(rows),
        olds=_count(pc.and_(pc.equal(rows["op"], UPDATE), pc.is_valid(rows["old_kind"]))),
        nameless=pc.min(nameless["position"]).as_py(),
        inserts=_count(pc.equal(rows["op"], INSERT)),
        by_key=frozenset(rows.filter(pc.fill_null(named, False))["layout"].to_pylist()),
        bare=pc.min(old["position"]).as_py(),
        whole_deletes=_count(pc.and_(has_full_old, pc.equal(rows["op"], DELETE))),
        by_whole=frozenset(rows.filter(has_full_old)["layout"].to_pylist()),
    )


def _count(where: pa.ChunkedArray) -> int:
    return int(pc.sum(where, min_count=0).as_py())


def _combine(parts: Sequence[SpanSummary]) -> SpanSummary:
    """The summary of all parts, without what depends on the order of their rows."""
    unchanged: dict[int, frozenset[int]] = {}
    for part in parts:
        for layout, columns in part.unchanged.items():
            unchanged[layout] = unchanged.get(layout, frozenset()) | columns
    return SpanSummary(
        rows=sum(part.rows for part in parts),
        runs=(),
        truncated=(),
        unchanged=unchanged,
        olds=sum(part.olds for part in parts),
        nameless=min((part.nameless for part in parts if part.nameless is not None), default=None),
        inserts=sum(part.inserts for part in parts),
        by_key=frozenset().union(*(part.by_key for part in parts)),
        bare=min((part.bare for part in parts if part.bare is not None), default=None),
        whole_deletes=sum(part.whole_deletes for part in parts),
        by_whole=frozenset().union(*(part.by_whole for part in parts)),
    )


def cleared_before(files: Files, table: TableName, span: Span, run: RelationVersionRun) -> Truncated:
    """A truncate that represents the end of all rows directly before the first change of a run."""
    place = (pc.field("position") == run.position) & (pc.field("ordinal") == run.ordinal)
    wanted = (pc.field("epoch") == span.epoch) & (pc.field("relation") == str(table)) & place
    paths = span_files(files, table, Span(span.epoch, run.position - 1, run.position), snapshot=False)
    rows = files.read(paths, [f.name for f in fields(Truncated)], wanted)
    return Truncated(**(rows.to_pylist()[0] | {"ordinal": run.ordinal - 1}))


def _runs(rows: pa.Table) -> tuple[RelationVersionRun, ...]:
    described_rows = rows.filter(pc.is_valid(rows["layout"]))
    if described_rows.num_rows == 0:
        return ()
    layouts = described_rows["layout"].combine_chunks()
    differs = pc.not_equal(layouts.slice(1), layouts.slice(0, len(layouts) - 1))
    first = described_rows.filter(pa.concat_arrays([pa.array([True]), differs]))
    columns = (first[name].to_pylist() for name in ("layout", "position", "ordinal"))
    return tuple(RelationVersionRun(*place) for place in zip(*columns, strict=True))


def _unchanged_columns(rows: pa.Table) -> dict[int, frozenset[int]]:
    partial_rows = rows.filter(pc.is_valid(rows["unchanged"]))
    columns: dict[int, frozenset[int]] = {}
    for layout in partial_rows["layout"].unique().to_pylist():
        of_layout = partial_rows.filter(pc.equal(partial_rows["layout"], layout))
        columns[layout] = frozenset(pc.list_flatten(of_layout["unchanged"]).unique().to_pylist())
    return columns


SPLIT_FROM = 50_000
"""Number of superfluous rows that the tables of a span together would read, from which on it is partitioned. Splitting
100,000 rows takes half a second of processor time (measured); the threshold is an estimate."""

_SPAN_COLUMNS = [name for name in SCHEMA.names if name not in {"stream", "raw", "info", "ingest_ts"}]
_PART = "_cdc_table"
_READ_AT_ONCE_BYTES = 64 << 20  # bytes of rows in memory


class SpanPartitioner:
    """Partitions spans, one at a time, into `folder`, which it owns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def split(self, files: Files, span: Span) -> dict[str, Files]:
        """The changes of a span by table, as bronze writes its name, in separate files; tables without changes are
        missing.

        Deletes those of the previous span. Raises LakeError if the folder cannot be written.
        """
        self.close()
        self._number += 1
        folder = self._folder / str(self._number)
        written: dict[str, list[str]] = {}
        numbers: dict[str, int] = {}
        groups = grouped(_rows(files, span), lambda part: part.nbytes, _READ_AT_ONCE_BYTES)
        for n, part in enumerate(map(pa.concat_tables, groups)):
            for relation, rows in _by_table(part):
                number = numbers.setdefault(relation, len(numbers))
                written.setdefault(relation, []).append(_write(rows, folder / f"{number}-{n}.parquet"))
        return {relation: Files(pa.table({"path": paths})) for relation, paths in written.items()}

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


class ClusterSpanPartitioner:
    """The same by the tasks of a cluster, into a folder of the lake's object store."""

    def __init__(self, spark: SparkSession, store: ObjectStore, folder: ObjectAddress) -> None:
        self._spark = spark
        self._store = store
        self._folder = folder
        self._number = 0

    def split(self, files: Files, span: Span) -> dict[str, Files]:
        """See `SpanPartitioner.split`. Raises LakeError."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - an extra: a receiver has no Spark

        self.close()
        self._number += 1
        folder = self._folder / str(self._number)
        rows = self._spark.read.parquet(*files.for_spark(files.select_span(span)))
        again = (F.col("op") == SNAPSHOT) & (F.col("ordinal") < 0)
        wanted = (F.col("epoch") == span.epoch) & (F.col("position") > span.after) & (F.col("position") <= span.upto)
        changes = rows.where(wanted & (F.col("op").isin(INSERT, UPDATE, DELETE, TRUNCATE) | again))
        # names of tables in hexadecimal: nothing in them has a meaning in a path
        parts = changes.select(*_SPAN_COLUMNS, F.hex("relation").alias(_PART)).hint("rebalance", _PART)
        parts.write.partitionBy(_PART).parquet(str(folder))
        paths: dict[str, list[str]] = {}
        everything = pafs.FileSelector(folder.path, recursive=True)
        for info in self._store.persist(lambda: self._store.filesystem.get_file_info(everything), str(folder)):
            if info.extension == "parquet":
                part = info.path.rsplit("/", 2)[1].removeprefix(f"{_PART}=")
                paths.setdefault(bytes.fromhex(part).decode(), []).append(info.path)
        return {name: Files(pa.table({"path": found}), self._store.filesystem) for name, found in paths.items()}

    def close(self) -> None:
        """Remove the folder."""
        path, filesystem = self._folder.path, self._store.filesystem
        self._store.persist(lambda: filesystem.delete_dir_contents(path, missing_dir_ok=True), str(self._folder))


def span_partitioner(project: Project, spark: SparkSession) -> SpanPartitioner | ClusterSpanPartitioner:
    """What partitions the spans of a run."""
    if (address := project.scratch_address) is not None and on_cluster(spark):
        return ClusterSpanPartitioner(spark, object_store(project), address / "spans")
    return SpanPartitioner(project.scratch.with_name(f"{project.name}.spans"))


def _rows(files: Files, span: Span) -> Iterator[pa.Table]:
    """The changes of a span, in parts."""
    again = (pc.field("op") == SNAPSHOT) & (pc.field("ordinal") < 0)  # rows that were read again
    wanted = span_filter(span) & (pc.field("op").isin([INSERT, UPDATE, DELETE, TRUNCATE]) | again)
    return files.batches(files.select_span(span), _SPAN_COLUMNS, wanted)


def _by_table(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each table, in order."""
    ordered = rows.sort_by([(name, "ascending") for name in ("relation", "position", "ordinal")])
    counts = ordered.group_by("relation", use_threads=False).aggregate([([], "count_all")])
    offset = 0
    for relation, count in zip(counts["relation"].to_pylist(), counts["count_all"].to_pylist(), strict=True):
        yield relation, ordered.slice(offset, count)
        offset += count


def _write(rows: pa.Table, path: Path) -> str:
    """Write a file for one span: fast to write and read, not small."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, path, compression="snappy", use_dictionary=["op", "relation"], write_statistics=False)
    except OSError as cause:
        raise LakeError("a span could not be split by table", where=str(path.parent)) from cause
    return str(path)


Key: TypeAlias = tuple[str | None, ...]
KeysOf: TypeAlias = Callable[[pa.Table], list[Key]]
"""The key of each row of a table that has the key's columns as texts of the server."""

TextsOf: TypeAlias = Callable[[pa.Table], pa.Table]
"""The same columns in the form of the wanted keys."""

_OPS = (INSERT, UPDATE, DELETE, TRUNCATE, SNAPSHOT)
_OF_OPS = pa.array(_OPS)
_FILES_AT_ONCE = 2
"""Files that are searched in parallel: one core decompresses one file."""


@dataclass(frozen=True, slots=True)
class KeyTouch:
    """One change that touched a key; a truncate touches all. Times and numbers as in its row."""

    epoch: int
    position: int
    ordinal: int
    op: str
    stream: str
    commit_ts: datetime | None
    csn: int | None
    commit_lsn: int | None
    xid: int | None


_KEY_SCAN_COLUMNS = ("relation", "layout", "new", "old", *(field.name for field in fields(KeyTouch)))


def touching(
    reader: BronzeReader, table: TableName, names: Sequence[str], keys: frozenset[Key], texts_of: TextsOf
) -> dict[Key, list[KeyTouch]]:
    """The changes of each key, whose columns are `names`, in order; copied rows and rows read again are among them.

    Layouts without a column of the key are passed over.
    """
    changes_by_key: dict[Key, set[KeyTouch]] = {key: set() for key in keys}
    places = {number: _places(layout.names, names) for number, layout in reader.layouts([table]).items()}
    files = reader.applied_files()

    def read_touches(path: str) -> list[tuple[Key | None, KeyTouch]]:
        hits: list[tuple[Key | None, KeyTouch]] = []
        wanted = (pc.field("relation") == str(table)) & pc.field("op").isin(_OPS)
        for part in files.rough(path, _KEY_SCAN_COLUMNS, wanted):
            of_table = pc.and_(pc.equal(part["relation"], str(table)), pc.is_in(part["op"], value_set=_OF_OPS))
            hits += _hits(_filter_rows(part, of_table), keys, names, places, texts_of)
        return hits

    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="touching") as threads:
        for hits in threads.map(read_touches, files.select(relations=[str(table)])):
            for key, change in hits:
                for touched_key in keys if key is None else (key,):
                    changes_by_key[touched_key].add(change)
    return {
        key: sorted(changes, key=attrgetter("epoch", "position", "ordinal")) for key, changes in changes_by_key.items()
    }


def _hits(
    rows: pa.Table,
    keys: frozenset[Key],
    names: Sequence[str],
    places: Mapping[int, Sequence[int] | None],
    texts_of: TextsOf,
) -> Iterator[tuple[Key | None, KeyTouch]]:
    """The changes that touch one of the keys, with the key; None: all."""
    truncates = pc.equal(rows["op"], TRUNCATE)
    for row in rows.filter(truncates).to_pylist():
        yield None, _touching(row)
    for number in rows["layout"].drop_null().unique().to_pylist():
        key_columns = places.get(number)
        if key_columns is not None:
            layout_filter = pc.and_(pc.equal(rows["layout"], number), pc.invert(truncates))
            yield from _of_layout(_filter_rows(rows, layout_filter), keys, names, key_columns, texts_of)


def _of_layout(
    rows: pa.Table, wanted: frozenset[Key], names: Sequence[str], key_columns: Sequence[int], texts_of: TextsOf
) -> Iterator[tuple[Key, KeyTouch]]:
    """The same for rows of one layout, by the keys before and after each change."""
    first = pa.array({key[0] for key in wanted}, pa.large_string())
    both = _filter_rows(rows, pc.and_(pc.is_valid(rows["new"]), pc.is_valid(rows["old"])))
    for candidates, tuple_, other in ((rows, "new", "old"), (both, "old", "new")):
        key_values = [
            pc.coalesce(pc.list_element(candidates[tuple_], n), pc.list_element(candidates[other], n))
            for n in key_columns
        ]
        texts = texts_of(pa.table(key_values, names=list(names)))
        near = pc.indices_nonzero(pc.is_in(pc.cast(texts[0], first.type), value_set=first))
        keys = zip(*(column.to_pylist() for column in texts.take(near).columns), strict=True)
        hits = [(n, key) for n, key in zip(near.to_pylist(), keys, strict=True) if key in wanted]
        for (_, key), row in zip(
            hits, candidates.take(pa.array([n for n, _ in hits], pa.int64())).to_pylist(), strict=True
        ):
            yield key, _touching(row)


def _filter_rows(rows: pa.Table, wanted: Any) -> pa.Table:
    """The wanted rows, without a copy if all are wanted: a snapshot has many."""
    return rows if pc.all(wanted, skip_nulls=False).as_py() else rows.filter(wanted)


def _touching(row: Mapping[str, Any]) -> KeyTouch:
    return KeyTouch(**{field.name: row[field.name] for field in fields(KeyTouch)})


def _places(columns: Sequence[str], names: Sequence[str]) -> list[int] | None:
    return [columns.index(name) for name in names] if set(names) <= set(columns) else None
