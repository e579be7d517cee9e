"""The kind `history` (SCD type 2): every version of a row, one per key and transaction, independent of spans.

A version is valid from its transaction until before the next one that touched its key. States inside a transaction
never existed. A delete or a truncate closes a version; a move to another key closes the version at the old key and
opens one at the new key. Unchanged values are taken from the version before, so every version is complete.

Changes are first folded by row and transaction and then converted to events of keys: the key has a row now, or none. In
order, the rows in a key's events are versions that end at the next event. The first event of a key, or the truncate
before it, closes the version that silver has.

If only some columns are tracked, a transaction that leaves the same values in all tracked columns makes no version: it
amends the other columns of the valid one. A TRUNCATE always ends versions. It does not matter how a row came to its
key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from cdc_lake.errors import ColumnNotTracked
from cdc_lake.model.change import Truncated
from cdc_lake.silver.changes import FROM, OP, ORDER, POSITION, TIME, TO, F, Window, segment
from cdc_lake.silver.kind import (
    IS_CURRENT,
    LINEAGE,
    VALID_FROM,
    VALID_TO,
    Kind,
    LivenessColumn,
    TablePart,
    assignments,
    same_key,
    typed_literal,
)
from cdc_lake.silver.layout_mapping import RelationMapping, comparable
from cdc_lake.silver.net_change import MISSING_BASE, ORIGIN, ROW, any_of, base_rows, last_and_known
from cdc_lake.tables.spark_session import materialize
from cdc_lake.tables.types import SilverColumn, quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


SEGMENT: Final = "_cdc_part"
"""The number of truncates before a change."""

HERE: Final = "_cdc_row"
"""The row at the key after the transaction, a struct; NULL if there is none."""

BY: Final = "_cdc_by"
"""For an event without a row: the lineage of the change that ended it, a struct after `there`, which is true."""


def key_names(shape: RelationMapping) -> list[str]:
    """The typed key columns of events."""
    return [f"_cdc_key_{index}" for index in range(len(shape.keys))]


def key_events(changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
    """One event per key and transaction, at `_cdc_position` and `_cdc_ts`: `_cdc_part`, `_cdc_row` and `_cdc_by`.

    `target`: silver's live rows before, None without any; `traced`: see `silver.kind.Kind.net`.
    """
    changes = changes.withColumn(SEGMENT, segment(part.truncated))
    states = _states(changes, part.shape, part.unsent, traced=traced)
    if part.unsent:
        states = _complete_states(states, target, part.shape, part.unsent)
    return _lasting(_events(states, part.shape), part.truncated)


def _states(changes: DataFrame, shape: RelationMapping, unsent: frozenset[int], *, traced: bool) -> DataFrame:
    """The state of each row after each transaction that changed it.

    Besides the columns of changes: `_cdc_group`, its row; `_cdc_before`, the key before the span (NULL if new); and
    `_cdc_kept_<n>`, a struct of the last value sent in the transaction, NULL if none was.
    """
    here = F.coalesce(TO, FROM)
    if traced:
        group = F.struct(F.col(ROW).alias("n"), F.when(F.col(ROW).isNull(), here).alias("key"))
        before = F.when(F.col(ROW).isNull(), here).otherwise(F.col(ORIGIN))
    else:
        group, before = F.struct(F.lit(None).cast("bigint").alias("n"), here.alias("key")), here
    by = [F.col(SEGMENT), group.alias("_cdc_group"), F.col(POSITION)]
    changes = changes.withColumn("_cdc_before", before)
    # The first delete of a group ends the row that was at the key before: what follows it is another row.
    deleted = F.min_by(_change_lineage(shape), F.when(F.col(OP) == "D", F.col(ORDER))).alias("_cdc_deleted")
    states = last_and_known(changes, by, shape, unsent, ("_cdc_before", TIME), (deleted,))
    return states.select("*", "_cdc_last.*").drop("_cdc_last")


def _complete_states(
    states: DataFrame, target: DataFrame | None, shape: RelationMapping, unsent: frozenset[int]
) -> DataFrame:
    """States with every value: the last one sent before, or else that of the version in silver."""
    so_far = Window.partitionBy(SEGMENT, "_cdc_group").orderBy(POSITION).rowsBetween(Window.unboundedPreceding, 0)
    kept_so_far = {f"_cdc_kept_{index}": F.last(f"_cdc_kept_{index}", ignorenulls=True) for index in sorted(unsent)}
    states = states.withColumns({name: value.over(so_far) for name, value in kept_so_far.items()})
    lacks = (F.col(OP) != "D") & any_of([F.col(f"_cdc_kept_{index}").isNull() for index in sorted(unsent)])
    missing = F.raise_error(F.lit(MISSING_BASE))
    if target is not None:
        based = F.when(lacks & (F.col(SEGMENT) == 0), F.col("_cdc_before"))
        states = states.withColumn("_cdc_base", based)
        bases = base_rows(states.select("_cdc_base").distinct(), target, shape, unsent)
        # Cached, not planned again: Spark 4.1 does not find an Iceberg table read by a MERGE's view behind a window
        # ("No plan for TableReference", tested).
        bases = materialize(bases)
        states = states.join(F.broadcast(bases), "_cdc_base", "left")
    values = {}
    for index in sorted(unsent):
        column, last_sent = shape.columns[index], F.col(f"_cdc_kept_{index}")
        stored = F.when(F.col("_cdc_found"), F.col(f"_cdc_base_{index}")).otherwise(missing)
        base = (missing if target is None else stored).cast(column.type)
        values[column.name] = F.when(last_sent.isNotNull() | (F.col(OP) == "D"), last_sent["v"]).otherwise(base)
    return states.withColumns(values)


def _events(states: DataFrame, shape: RelationMapping) -> DataFrame:
    """The events of keys, one per key and transaction."""
    of_row = Window.partitionBy(SEGMENT, "_cdc_group").orderBy(POSITION)
    state_before = F.lag(F.struct(F.col(TO).alias("key"))).over(of_row)
    left = F.when(state_before.isNull(), F.col("_cdc_before")).otherwise(state_before["key"])
    stays = F.col(OP) != "D"
    row = F.struct(*(F.col(quote_identifier(c.name)) for c in (*shape.columns, *shape.carried))).alias(HERE)
    here = F.struct(*_keys(shape, TO), F.lit(1).alias("_cdc_rank"), row)
    gone = F.struct(*_keys(shape, "_cdc_left"), F.lit(0).alias("_cdc_rank"), F.lit(None).alias(HERE))
    leaves = F.col("_cdc_left").isNotNull() & (~stays | (F.col("_cdc_left") != F.col(TO)))
    both = F.array_compact(F.array(F.when(stays, here), F.when(leaves, gone)))
    by = F.coalesce("_cdc_deleted", _change_lineage(shape)).alias(BY)
    events = states.withColumn("_cdc_left", left).select(SEGMENT, POSITION, TIME, by, F.inline(both))
    last = F.max_by(F.struct(SEGMENT, TIME, BY, HERE), F.struct(SEGMENT, "_cdc_rank")).alias("_cdc_event")
    return events.groupBy(*key_names(shape), POSITION).agg(last).select("*", "_cdc_event.*").drop("_cdc_event")


def _change_lineage(shape: RelationMapping) -> Column:
    return F.struct(F.lit(True).alias("there"), *(c.name for c in shape.carried if c in LINEAGE))


def _lasting(events: DataFrame, truncated: Sequence[Truncated]) -> DataFrame:
    """The events that exist at the end of their transactions, without what the same transaction truncated later."""
    if not truncated:
        return events
    next_truncate = F.get(F.array(*(F.lit(truncate.position) for truncate in truncated)), F.col(SEGMENT))
    return events.where(next_truncate.isNull() | (next_truncate > F.col(POSITION)))


def _keys(shape: RelationMapping, texts: str) -> list[Column]:
    return [
        F.expr(shape.typed_sql(column_index, f"{texts}[{index}]")).alias(name)
        for index, (column_index, name) in enumerate(zip(shape.keys, key_names(shape), strict=True))
    ]


AMENDS: Final = "_cdc_amends"
"""Whether an event continues the version that silver has."""


def merged_runs(
    events: DataFrame, target: DataFrame | None, shape: RelationMapping, tracked: Sequence[SilverColumn]
) -> DataFrame:
    """Events of keys, one per run in which no tracked column changes: the place of its first, the row of its last, and
    `_cdc_amends`. `target`: the valid versions in silver, None without any.
    """
    keys = key_names(shape)
    of_key = Window.partitionBy(*keys).orderBy(POSITION)
    values = F.struct(*(F.col(f"{HERE}.{quote_identifier(c.name)}").alias(f"v{n}") for n, c in enumerate(tracked)))
    here = F.when(F.col(HERE).isNotNull(), F.struct(F.col(SEGMENT).alias("part"), values.alias("tracked")))
    before = F.lag(here).over(of_key)
    if target is not None:
        current_rows = _holding(events, target, shape, tracked)
        same_keys = [_equal(events[key], current_rows[f"_cdc_at_{n}"], n, shape) for n, key in enumerate(keys)]
        events = events.join(F.broadcast(current_rows), same_keys, "left")
        holds = F.struct(F.lit(0).alias("part"), F.col("_cdc_holds").alias("tracked"))
        first = F.when(F.col("_cdc_holds").isNotNull(), holds)
        before = F.when(F.row_number().over(of_key) == 1, first).otherwise(before)
    same = (before["part"] == here["part"]) & before["tracked"].eqNullSafe(here["tracked"])
    so_far = of_key.rowsBetween(Window.unboundedPreceding, 0)
    run = F.sum(F.when(F.col("_cdc_same"), 0).otherwise(1)).over(so_far)
    numbered = events.withColumn("_cdc_same", same).withColumn("_cdc_run", run)
    begins = F.min_by(F.struct(POSITION, TIME, SEGMENT), POSITION).alias("_cdc_begins")
    ends = F.max_by(F.struct(HERE), POSITION).alias("_cdc_ends")
    runs = numbered.groupBy(*keys, "_cdc_run").agg(begins, ends)
    return runs.select(*keys, "_cdc_begins.*", "_cdc_ends.*", (F.col("_cdc_run") == 0).alias(AMENDS))


def _holding(
    events: DataFrame, target: DataFrame, shape: RelationMapping, tracked: Sequence[SilverColumn]
) -> DataFrame:
    """The tracked values of valid versions in silver, `_cdc_holds`, by `_cdc_at_<n>`, the key."""
    names = [f"_cdc_at_{n}" for n in range(len(shape.keys))]
    wanted = events.select(*(F.col(key).alias(n) for key, n in zip(key_names(shape), names, strict=True))).distinct()
    same = [
        _equal(target[quote_identifier(c.name)], wanted[names[n]], n, shape) for n, c in enumerate(shape.key_columns)
    ]
    values = F.struct(*(F.col(quote_identifier(c.name)).cast(c.type).alias(f"v{n}") for n, c in enumerate(tracked)))
    # Cached, not planned again: Spark 4.1 does not find an Iceberg table read by a MERGE's view behind a window
    # ("No plan for TableReference", tested).
    return materialize(target.join(F.broadcast(wanted), same).select(*names, values.alias("_cdc_holds")))


def _equal(left: Column, right: Column, n: int, shape: RelationMapping) -> Column:
    return left.eqNullSafe(right) if n in shape.nullable else left == right


_CLOSE, _AMEND, _VERSION = "C", "A", "V"  # the effect of a row in the MERGE


@dataclass(frozen=True, slots=True)
class Scd2Kind(Kind):
    """Every version. `track`: the source's columns that make one; None: all of them."""

    words: ClassVar = "`kind: history`"
    own: ClassVar = (*VALID_FROM, *VALID_TO, IS_CURRENT)
    flag: ClassVar = LivenessColumn(IS_CURRENT, value=True)
    added: ClassVar = _VERSION

    track: tuple[str, ...] | None = None

    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """Rows that end or amend silver's version of a key, and new versions, distinguished by `_cdc_op`."""
        events = key_events(changes, target, part, traced=traced)
        if self.track is not None:
            events = merged_runs(events, target, part.shape, self._tracked_columns(part.shape))
        return _versions(events, part)

    def statement(self, table: str, view: str, part: TablePart, within: Sequence[str]) -> str:
        """A MERGE: valid versions are closed by key, the others are inserted."""
        on = f"{same_key(part, within)} AND t.{quote_identifier(IS_CURRENT.name)} AND s.{OP} <> '{_VERSION}'"
        names, close = self.names(part.shape), assignments((*VALID_TO, IS_CURRENT))
        amend = assignments((*part.shape.columns, *part.shape.carried))
        changed = f"WHEN MATCHED AND s.{OP} = '{_AMEND}' THEN UPDATE SET {', '.join([*amend, *close])} "
        return (
            f"MERGE INTO {table} t USING {view} s ON {on} "
            f"{'' if self.track is None else changed}WHEN MATCHED THEN UPDATE SET {', '.join(close)} "
            f"WHEN NOT MATCHED AND s.{OP} = '{_VERSION}' THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f's.{name}' for name in names)}){_truncate(part)}"
        )

    def _tracked_columns(self, shape: RelationMapping) -> list[SilverColumn]:
        """The silver columns of which a change makes a version. Raises ColumnNotTracked."""
        columns = []
        for name in self.track or ():
            index = shape.position(name)
            if index is None:
                raise ColumnNotTracked(f"there is no column `{name}` in {shape.relation.table}")
            if not comparable(shape.columns[index]):
                raise ColumnNotTracked(f"values of column `{name}` of {shape.relation.table} cannot be compared")
            columns.append(shape.columns[index])
        return columns


def _truncate(part: TablePart) -> str:
    """The effect of the first truncate on keys that no change of the span touches."""
    if not part.truncated:
        return ""
    first = part.truncated[0]
    values = (part.span.epoch, first.position, first.commit_ts, False)
    sets = [
        f"{quote_identifier(c.name)} = {typed_literal(v, c)}"
        for c, v in zip((*VALID_TO, IS_CURRENT), values, strict=True)
    ]
    return f" WHEN NOT MATCHED BY SOURCE AND t.{quote_identifier(IS_CURRENT.name)} THEN UPDATE SET {', '.join(sets)}"


def _versions(events: DataFrame, part: TablePart) -> DataFrame:
    """The rows for the MERGE: the effect of a key's first event on silver, and versions with their ends."""
    shape, truncated = part.shape, part.truncated
    of_key = Window.partitionBy(*key_names(shape)).orderBy(POSITION)
    following = F.lead(F.struct(POSITION, TIME, SEGMENT)).over(of_key)
    ends = F.struct(following[POSITION].alias(POSITION), following[TIME].alias(TIME))
    until = F.when(following.isNotNull(), ends)
    position, time = F.col(POSITION), F.col(TIME)
    if truncated:
        truncates = F.array(*(_place(truncate) for truncate in truncated))
        # A truncate ends what exists, also before a key's first change after it.
        until = F.when(following[SEGMENT] == F.col(SEGMENT), ends).otherwise(F.get(truncates, F.col(SEGMENT)))
        late, first = F.col(SEGMENT) > 0, _place(truncated[0])
        position, time = F.when(late, first[POSITION]).otherwise(position), F.when(late, first[TIME]).otherwise(time)
    epoch = F.lit(part.span.epoch)
    row = [F.col(f"{HERE}.{quote_identifier(c.name)}").alias(c.name) for c in (*shape.columns, *shape.carried)]
    end, *place = F.col("_cdc_until"), F.col(f"_cdc_until.{POSITION}"), F.col(f"_cdc_until.{TIME}")
    validity = [*_cast_columns(VALID_TO, F.when(end.isNotNull(), epoch), *place), end.isNull().alias(IS_CURRENT.name)]
    begin = _cast_columns(VALID_FROM, epoch, F.col(POSITION), F.col(TIME))
    version = F.struct(*row, *begin, *validity, F.lit(_VERSION).alias(OP))
    keys = {shape.columns[place].name: name for place, name in zip(shape.keys, key_names(shape), strict=True)}
    empty = {c.name: F.lit(None).cast(c.type) for c in (*shape.columns, *shape.carried, *VALID_FROM)}
    close = F.struct(
        *((F.col(keys[name]) if name in keys else value).alias(name) for name, value in empty.items()),
        *_cast_columns(VALID_TO, epoch, position, time),
        F.lit(False).alias(IS_CURRENT.name),
        F.lit(_CLOSE).alias(OP),
    )
    first_of_key, begins = F.col("_cdc_nth") == 1, F.col(HERE).isNotNull()
    if AMENDS in events.columns:
        unchanged_begin = _cast_columns(VALID_FROM, *(F.lit(None) for _ in VALID_FROM))
        amend = F.struct(*row, *unchanged_begin, *validity, F.lit(_AMEND).alias(OP))
        close, begins = F.when(F.col(AMENDS), amend).otherwise(close), begins & ~F.col(AMENDS)
    both = F.array(F.when(first_of_key, close), F.when(begins, version))
    placed = events.withColumn("_cdc_until", until).withColumn("_cdc_nth", F.row_number().over(of_key))
    return placed.select(F.inline(F.array_compact(both)))


def _place(truncated: Truncated) -> Column:
    time = F.lit(truncated.commit_ts).cast("timestamp")
    return F.struct(F.lit(truncated.position).cast("bigint").alias(POSITION), time.alias(TIME))


def _cast_columns(columns: Sequence[SilverColumn], *values: Column) -> list[Column]:
    return [value.cast(c.type).alias(c.name) for c, value in zip(columns, values, strict=True)]
