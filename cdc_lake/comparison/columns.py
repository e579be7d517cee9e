"""Determines which columns of a source table and its silver table are compared, their form, and how rows are matched.

Both sides become tables of canonical text with the same columns in the same order, as large_string. Keys are joined to
row numbers and each other column is compared as a whole; nothing is sorted. A sample uses random buckets.

The table's transforms are first applied to the source's rows. Omitting and renaming columns needs no Spark; Spark
evaluates expressions on the texts that the source printed, with silver's types.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.config.project import Project, Target
from cdc_lake.connectors.base import ComparisonSource
from cdc_lake.control.cuts import ACTIVE, FAILED, TableState, WrittenCut, last_cut
from cdc_lake.control.table_pauses import stopped_tables
from cdc_lake.errors import NoKey, TransformUnfit
from cdc_lake.model.position import Span
from cdc_lake.model.relation import Relation
from cdc_lake.runtime.apply.schema_changes import projection_of
from cdc_lake.runtime.apply.snapshot_alignment import Gap
from cdc_lake.silver.kind import RowIdentity
from cdc_lake.silver.kinds import kind_of, source_rows
from cdc_lake.silver.layout_mapping import RelationMapping, default_keys, make_shape
from cdc_lake.silver.transforms import Projection, taken_columns
from cdc_lake.source.base import PublishedTable
from cdc_lake.source.row_hash_sql import is_numbered
from cdc_lake.tables.canonical_values import companion_decimals, from_silver, from_source, with_zero
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake.tables.row_hash import BUCKETS, HashStrategy, RowForm
from cdc_lake.tables.silver_table import Marker
from cdc_lake.tables.spark_session import derive, start
from cdc_lake.tables.types import is_numeric, typed_columns

Key: TypeAlias = tuple[str | None, ...]

# NULL key parts are equal here; a join would not match them, and no text of a server contains this character.
_NULL = "\0"


@dataclass(frozen=True, slots=True)
class Differences:
    """Keys of differing rows. `missing`: only in the source; `extra`: only in silver; `changed`: a column differs;
    `repeated`: several rows on either side; `shared`: several rows of the source. `columns`: number of differing rows
    by column.
    """

    missing: tuple[Key, ...] = ()
    extra: tuple[Key, ...] = ()
    changed: tuple[Key, ...] = ()
    repeated: tuple[Key, ...] = ()
    columns: tuple[tuple[str, int], ...] = ()
    shared: tuple[Key, ...] = ()

    @property
    def keys(self) -> frozenset[Key]:
        """All differing keys."""
        return frozenset((*self.missing, *self.extra, *self.changed, *self.repeated))


def match(source: pa.Table, silver: pa.Table, keys: Sequence[str]) -> Differences:
    """Compare both sides; `keys` are names of columns that identify a row of the source."""
    if source.column_names != silver.column_names:
        msg = f"columns {source.column_names} cannot be matched with {silver.column_names}"
        raise ValueError(msg)
    source, silver = source.combine_chunks(), silver.combine_chunks()
    pairs = _number_rows(source, keys, "at_source").join(
        _number_rows(silver, keys, "at_silver"), [_key_name(k) for k in keys], join_type="full outer"
    )
    left, right = pairs["at_source"].combine_chunks(), pairs["at_silver"].combine_chunks()
    both = pc.and_(pc.is_valid(left), pc.is_valid(right))
    at_source, at_silver = left.filter(both), right.filter(both)
    differs, columns = _differing(source, silver, keys, at_source, at_silver)
    missing = Counter(keys_of(source, keys, left.filter(pc.is_null(right))))
    changed = dict.fromkeys(keys_of(source, keys, at_source.filter(pa.array(differs))))
    in_silver, in_source = (
        keys_of(source, keys, _find_repeats(indexes, at_source)) for indexes in (at_source, at_silver)
    )
    repeated = dict.fromkeys((*in_silver, *in_source))
    return Differences(
        missing=tuple(missing),
        extra=tuple(dict.fromkeys(keys_of(silver, keys, right.filter(pc.is_null(left))))),
        changed=tuple(key for key in changed if key not in repeated),
        repeated=tuple(repeated),
        shared=tuple({*in_source, *(key for key, times in missing.items() if times > 1)}),
        columns=columns,
    )


COPIES = "number of copies"
"""The column of `count_copies` with the number of equal rows; no server has a column type with this name."""


def count_copies(table: pa.Table) -> pa.Table:
    """Each distinct row of a table, and in `COPIES` its number as text: for rows that only values identify."""
    names = table.column_names
    rows = table.group_by(names).aggregate([([], "count_all")])
    return pa.table({**{name: rows[name] for name in names}, COPIES: rows["count_all"].cast(pa.large_string())})


def keys_of(table: pa.Table, keys: Sequence[str], indexes: Any) -> tuple[Key, ...]:
    """The keys of the rows at the given indexes."""
    if len(indexes) == 0:
        return ()
    return tuple(zip(*(table[name].take(indexes).to_pylist() for name in keys), strict=True))


def rows_among(table: pa.Table, keys: Sequence[str], wanted: frozenset[Key]) -> list[dict[str, str | None]]:
    """The rows with one of the wanted keys, by column name, with duplicates."""
    if not wanted or table.num_rows == 0:
        return []
    first = pa.array(list({key[0] for key in wanted}), pa.large_string())
    candidates = table.filter(pc.is_in(table[keys[0]], value_set=first)).to_pylist()
    return [row for row in candidates if tuple(row[name] for name in keys) in wanted]


def merge_differences(parts: Sequence[Differences]) -> Differences:
    """Combine the differences of the parts of a table."""
    columns: Counter[str] = Counter()
    for part in parts:
        columns.update(dict(part.columns))
    return Differences(
        missing=tuple(key for part in parts for key in part.missing),
        extra=tuple(key for part in parts for key in part.extra),
        changed=tuple(key for part in parts for key in part.changed),
        repeated=tuple(key for part in parts for key in part.repeated),
        shared=tuple(key for part in parts for key in part.shared),
        columns=tuple(columns.items()),
    )


def _number_rows(table: pa.Table, keys: Sequence[str], number: str) -> pa.Table:
    columns = {_key_name(name): pc.fill_null(table[name], _NULL) for name in keys}
    return pa.table({**columns, number: np.arange(table.num_rows, dtype=np.int64)})


def _find_repeats(numbers: Any, at_source: Any) -> Any:
    """The source rows that occur in more than one pair."""
    _, where, times = np.unique(np.asarray(numbers), return_inverse=True, return_counts=True)
    return pa.array(np.asarray(at_source)[times[where] > 1], pa.int64())


def _key_name(name: str) -> str:
    return f"key {name}"


def _differing(
    source: pa.Table, silver: pa.Table, keys: Sequence[str], at_source: Any, at_silver: Any
) -> tuple[Any, tuple[tuple[str, int], ...]]:
    """Whether each pair of rows differs, and the number of differing pairs by column."""
    differs = np.zeros(len(at_source), bool)
    columns = []
    for name in source.column_names:
        if name in keys:
            continue
        source_values, silver_values = source[name].take(at_source), silver[name].take(at_silver)
        unequal = pc.fill_null(
            pc.not_equal(source_values, silver_values), pc.xor(pc.is_null(source_values), pc.is_null(silver_values))
        )
        differing = np.asarray(unequal)
        if differing.any():
            columns.append((name, int(differing.sum())))
            differs |= differing
    return differs, tuple(columns)


@dataclass(frozen=True, slots=True)
class Sample:
    """How much of a table is compared: a share of its rows, or an approximate number."""

    share: float | None = None
    rows: int | None = None

    @classmethod
    def parse(cls, text: str) -> Sample:
        """Parse `5%`, `0.5 %` or `10000`. Raises ValueError."""
        parsed = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?%|([0-9]+)", text.strip())
        if parsed is None or not 0 < float(parsed[1] or parsed[2]) <= (100 if parsed[1] else float("inf")):
            msg = f"`{text}` is neither a percentage, such as 5%, nor a number of rows"
            raise ValueError(msg)
        return cls(share=float(parsed[1]) / 100) if parsed[1] else cls(rows=int(parsed[2]))

    def buckets(self, rows: int) -> Any:
        """The random buckets of a sample of a table with about so many rows, a bool each."""
        share = self.share if self.share is not None else (self.rows or 0) / max(rows, 1)
        number = min(BUCKETS, max(1, round(share * BUCKETS)))
        among = np.zeros(BUCKETS, bool)
        among[random.sample(range(BUCKETS), number)] = True
        return among


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table to be compared: its published part, and its silver table at one version.

    `readable`: false if a cut was requested that lacks the table, or whose version of it is gone. `waits`: why the
    silver table does not follow its source now, and the next command; None if it does.
    """

    published: PublishedTable
    target: Target
    marker: Marker
    watermark: int
    readable: bool = True
    waits: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Options of a comparison. `repairs`: plan a repair; `lands`: carry it out; `values`: report differing rows with
    their values; `full`: match all rows without hashing; `sample`: compare a part; `now`: compare the current silver,
    not a cut.
    """

    repairs: bool = False
    lands: bool = False
    values: bool = False
    full: bool = False
    sample: Sample | None = None
    now: bool = True


@dataclass(frozen=True)
class CompareTask:
    """What is needed to compare one table."""

    project: Project
    bronze: BronzeReader
    control: ControlTables
    state: StreamCheckpoint
    source: ComparisonSource
    pinned: ComparedTable
    asked: CompareOptions


def next_step(job: CompareTask) -> str:
    """How a silver table gets the source's layout: what it waits for, if known."""
    pinned, table = job.pinned, str(job.pinned.target.source)
    if pinned.waits is not None:
        return "; ".join(pinned.waits)
    ahead = Span(job.state.epoch, pinned.watermark, max(pinned.watermark, job.state.upto))
    if any(table in commit.counts for commit in job.bronze.commits(ahead)):
        return "its change is not applied yet: `cdc-lake run --once`, then compare again"
    return "run `cdc-lake run --once`; if that changes nothing, change a row of the table and run it again"


def pin(
    project: Project, control: ControlTables, state: StreamCheckpoint, tables: Iterable[PublishedTable]
) -> list[ComparedTable]:
    """Silver's current versions, read before the snapshot is taken, so that silver cannot be ahead of it.

    A table is at the later of its own marker and the last cut, which advances without merges.
    """
    cut, paused = last_cut(control, state.stream), stopped_tables(project, control)
    result = []
    for published in tables:
        name, target = str(published.table), project.target(published.table)
        marker = table_log(project, target).marker(state.stream)  # after the cut, so it is at least as new
        listed = None if cut is None else cut.tables.get(name)
        reached = [-1] if marker.position is None else [marker.position]
        if listed is not None and listed.state == ACTIVE and listed.generation == marker.generation:
            reached.append(listed.position)
        waits = _waits(listed, target, paused.get(name))
        result.append(ComparedTable(published, target, marker, max(reached), waits=waits))
    return result


def pin_at(project: Project, cut: WrittenCut, tables: Iterable[PublishedTable]) -> list[ComparedTable]:
    """Silver's versions in a cut; a table that the cut lacks has no version."""
    result = []
    for published in tables:
        table, target = cut.tables.get(str(published.table)), project.target(published.table)
        if table is None or table.version is None or not table_log(project, target).is_readable(table.version):
            result.append(ComparedTable(published, target, Marker(None, None), -1, readable=False))
        else:
            marker = Marker(table.position, table.version, table.generation)
            result.append(ComparedTable(published, target, marker, table.position))
    return result


def _waits(listed: TableState | None, target: Target, paused_at: datetime | None) -> tuple[str, str] | None:
    """Why a table does not follow its source, and the next command."""
    if paused_at is not None:
        since = paused_at.isoformat(timespec="seconds")
        return f"the table is paused since {since}", f"`cdc-lake resume {target.source}`"
    if listed is None or listed.state != FAILED or listed.error is None:
        return None
    code, why, remedy = listed.error
    return f"the table waits: {why} [{code}]", remedy


_NUMBER = "_cdc_number"


@dataclass(frozen=True)
class SourceRows:
    """Rows of a source table as silver sees them. `rows`: texts by source column of matching rows; `all_rows`: of all;
    `computed`: typed values of `rows`.
    """

    rows: pa.Table
    all_rows: pa.Table
    computed: pa.Table


class SilverView:
    """Silver's view of the rows of a source table. Raises TransformUnfit.

    `names`: source column → silver's name; `companions`: decimal column in silver → the text column from which it is
    computed; `computed`: columns that only silver has.
    """

    def __init__(self, project: Project, target: Target, relation: Relation) -> None:
        columns = typed_columns(relation, target.types)
        names = taken_columns(columns, target.transforms)
        self._project, self._target, self._relation = project, target, relation
        self.names = {columns[index].source.name: name for index, name in names.items() if not columns[index].companion}
        self.companions = {
            name: self.names[columns[index].source.name] for index, name in names.items() if columns[index].companion
        }
        self.computed = tuple(name for name, _ in target.transforms.compute)

    def __getstate__(self) -> dict[str, Any]:
        """What executors need: no project, which has secrets."""
        return {name: value for name, value in vars(self).items() if name not in {"_project", "_plan"}}

    @property
    def evaluates(self) -> bool:
        """Whether Spark has to evaluate expressions on the rows."""
        return self._target.transforms.expressions

    def project_rows(self, source: pa.Table) -> SourceRows:
        """The expected silver rows, from texts by column. Raises JavaMissing, SparkMissing, SparkNotStarted."""
        selected = source.select(list(self.names))
        if not self.evaluates:
            return SourceRows(selected, selected, pa.table({}))
        matching = self._evaluate(source)
        return SourceRows(selected.take(matching[_NUMBER]), selected, matching.drop_columns([_NUMBER]))

    @cached_property
    def _plan(self) -> tuple[Any, RelationMapping, Projection]:
        spark = derive(start(self._project, log=self._project.lake / "logs" / "compare.log"))
        layout = self._relation.layout
        shape = make_shape([layout], {layout: self._relation}, self._target.keys, types=self._target.types)
        return spark, shape, projection_of(spark, self._project, self._target, shape)

    def _evaluate(self, source: pa.Table) -> pa.Table:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - most comparisons need no Spark

        spark, shape, projection = self._plan
        names = self._relation.names
        texts = {f"c{index}": source[name] for index, name in enumerate(names)}
        frame = spark.createDataFrame(pa.table({_NUMBER: pa.array(range(source.num_rows), pa.int64()), **texts}))
        typed = frame.select(
            F.col(_NUMBER),
            *(
                F.expr(shape.typed_sql(index, f"`c{names.index(column.source.name)}`")).alias(column.name)
                for index, column in enumerate(shape.typed_columns)
            ),
        )
        if projection.where is not None:
            typed = typed.where(F.expr(projection.where.sql))
        computed = [F.expr(sql).alias(name) for name, sql in self._target.transforms.compute]
        return typed.select(_NUMBER, *computed).toArrow().select([_NUMBER, *self.computed])


class TypesApart(Exception):
    """Silver's types do not match the source's columns; the message names them."""


@dataclass(frozen=True)
class Layout:
    """What is compared of a table. `types`: silver's type by source column; `names`: silver's name by source or
    computed column; `computed`: type of each computed column.
    """

    target: Target
    relation: Relation
    view: SilverView
    by_content: bool
    keys: tuple[str, ...]
    names: dict[str, str]
    types: dict[str, pa.DataType]
    computed: dict[str, pa.DataType]
    form: RowForm

    def source(self, rows: pa.Table, buckets: Any = None) -> tuple[pa.Table, pa.Table]:
        """Rows of the source in canonical text: those that silver should have, and all; `buckets`: see `silver`."""
        if buckets is not None:
            keys = self._canonical(rows.select(list(self.keys)))
            rows = rows.filter(pa.array(buckets[self.form.buckets(keys)]))
        projected = self.view.project_rows(rows)
        all_rows = self._canonical(projected.all_rows)
        if not self.view.evaluates:
            return all_rows, all_rows
        computed = {f"compute.{n}": from_silver(projected.computed[n].cast(kind)) for n, kind in self.computed.items()}
        expected = self._canonical(projected.rows)
        return pa.table({**dict(zip(expected.column_names, expected.columns, strict=True)), **computed}), all_rows

    def silver(self, rows: pa.Table, buckets: Any = None) -> SilverRows:
        """Silver's rows that represent the source table now. `buckets`: which (bools); None: all."""
        rows = source_rows(rows, self.target, self.relation)
        result = SilverRows(self, rows)
        return result if buckets is None else result.filter_rows(buckets[result.buckets])

    def key_table(self, keys: Collection[Key]) -> pa.Table:
        """A table of keys in canonical text."""
        columns = zip(*keys, strict=True) if keys else [()] * len(self.keys)
        return pa.table({n: pa.array(texts, pa.large_string()) for n, texts in zip(self.keys, columns, strict=True)})

    def buckets_of(self, keys: Collection[Key]) -> Any:
        """For each bucket whether it contains one of these keys: an ndarray of bool."""
        among = np.zeros(BUCKETS, bool)
        among[self.form.buckets(self.key_table(keys))] = True
        return among

    def text(self, column: str, values: Sequence[str | None]) -> list[str | None]:
        """Texts of a source column in canonical form; unchanged if silver does not have the column."""
        kind = self.types.get(column)
        if kind is None:
            return list(values)
        texts = from_source(pa.array(values, pa.large_string()), kind)
        result: list[str | None] = self.form_of(column, texts).to_pylist()
        return result

    def _canonical(self, rows: pa.Table) -> pa.Table:
        try:
            return pa.table(
                {name: self.form_of(name, from_source(rows[name], self.types[name])) for name in rows.column_names}
            )
        except (TypeError, pa.ArrowInvalid) as apart:
            odd = (f"{n} {self.types[n]}" for n in rows.column_names if not _comparable(rows[n], self.types[n]))
            raise TypesApart(", ".join(odd)) from apart

    def form_of(self, column: str, texts: Any) -> Any:
        """Normalize canonical texts of a column, because some numbers can be printed in two ways."""
        return with_zero(texts) if column in self._printed_twice else texts

    @cached_property
    def _printed_twice(self) -> frozenset[str]:
        columns = self.relation.columns if self.target.types.bare_points else ()
        return frozenset(column.name for column in columns if is_numeric(column) and column.name in self.types)


@dataclass(frozen=True)
class SilverRows:
    """Some rows of a silver table, with its types."""

    layout: Layout
    rows: pa.Table

    def filter_rows(self, wanted: Any) -> SilverRows:
        """The wanted rows, given as bools."""
        return self if wanted.all() else SilverRows(self.layout, self.rows.filter(pa.array(wanted)))

    @cached_property
    def buckets(self) -> Any:
        """The bucket of each row, an ndarray of int64; for an integer key computed without its text."""
        layout = self.layout
        keys = self.keys() if not layout.form.numbered else self.rows.select([layout.names[layout.keys[0]]])
        return layout.form.buckets(keys.rename_columns(list(layout.keys)))

    @property
    def astray(self) -> frozenset[str]:
        """Companion columns that contradict the text from which they are computed."""
        companions = self.layout.view.companions
        return frozenset(name for name, text in companions.items() if _astray(self.rows, text, name))

    def texts(self) -> pa.Table:
        """The rows in canonical text."""
        form = self.layout.form_of
        return pa.table(
            {column: form(column, from_silver(self.rows[name])) for column, name in self.layout.names.items()}
        )

    def keys(self, wanted: Any = None) -> pa.Table:
        """Their keys in canonical text; `wanted`: only some, given as bools."""
        keys = self.rows.select([self.layout.names[name] for name in self.layout.keys])
        selected = keys if wanted is None else keys.filter(pa.array(wanted))
        columns = zip(self.layout.keys, selected.columns, strict=True)
        return pa.table({key: self.layout.form_of(key, from_silver(column)) for key, column in columns})

    def hashes(self, ways: Mapping[str, HashStrategy]) -> Any:
        """The hash of each row, an ndarray of uint64."""
        columns = {
            column: self.layout.form_of(column, from_silver(self.rows[name]))
            if ways.get(column, HashStrategy.TEXT).by_text
            else self.rows[name]
            for column, name in self.layout.names.items()
        }
        return self.layout.form.hashes(pa.table(columns), ways)


def layout_of(job: CompareTask, schema: pa.Schema) -> Layout | Gap:
    """How a table is compared with its silver table of this schema, or why it cannot be."""
    target = job.pinned.target
    relation = job.source.relation_of(job.pinned.published)
    by_content = kind_of(target, relation).identity is RowIdentity.CONTENT
    try:
        keys = relation.names if by_content else target.keys or default_keys(relation)
        view = SilverView(job.project, target, relation)
    except (NoKey, TransformUnfit) as unfit:
        return Gap(unfit.message, unfit.remedy)
    source_columns = source_rows(schema.empty_table(), target, relation).column_names
    names = {**view.names, **{f"compute.{name}": name for name in view.computed}}
    expected = {*names.values(), *view.companions}
    present = {name for name in source_columns if target.on_drop == "drop" or name in expected}
    if (gap := _uneven(job, expected, present)) is not None:
        return gap
    types = {column: schema.field(name).type for column, name in view.names.items()}
    try:
        for kind in types.values():
            from_silver(pa.nulls(0, kind))
    except TypeError:
        return type_gap(", ".join(f"{c} {k}" for c, k in types.items() if not _comparable(_NO_TEXT, k)))
    columns = {column.name: column for column in relation.columns}
    form = RowForm(
        columns=tuple(names),
        keys=keys,
        numbered=len(keys) == 1 and keys[0] in types and is_numbered(columns[keys[0]], types[keys[0]]),
    )
    computed = {name: schema.field(name).type for name in view.computed}
    return Layout(target, relation, view, by_content, keys, names, types, computed, form)


def type_gap(columns: str) -> Gap:
    """Columns that cannot be compared because of their types."""
    return Gap(f"silver's types do not match those of the source columns: {columns}", "`cdc-lake explain LAK410`")


_NO_TEXT = pa.chunked_array([], pa.large_string())


def _astray(silver: pa.Table, text: str, decimal: str) -> bool:
    """Whether a companion column contradicts its text, which is compared with the source."""
    values = silver[decimal]
    return not from_silver(values).equals(companion_decimals(silver[text], values.type))


def _uneven(job: CompareTask, expected: set[str], present: set[str]) -> Gap | None:
    """The gap if only one side has a column."""
    if missing := sorted(expected - present):
        reason = f"silver has no column {', '.join(missing)} yet: it is added with the table's next change"
        return Gap(reason, next_step(job))
    if gone := sorted(present - expected):
        return Gap(f"the source no longer has column {', '.join(gone)}", next_step(job))
    return None


def _comparable(text: Any, kind: pa.DataType) -> bool:
    try:
        from_silver(pa.nulls(0, kind))
        from_source(text, kind)
    except (TypeError, pa.ArrowInvalid):
        return False
    return True
