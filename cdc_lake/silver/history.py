"""The kind `history`: every version of a row, one a key and transaction, whatever the spans.

A version holds from the transaction that made it until before the next one that touched its key. States inside a
transaction never existed. A delete or a truncate closes a version, a move to another key closes the one it leaves and
opens one where it goes. What an update did not send is taken from the version before, so every version is whole. Where
only some columns are tracked (`silver.tracked`), a transaction that changed none of them amends the version that holds.

Of each key's events (`silver.events`) in order the rows are versions that end where the next event is. The first event
of a key, or the truncate before it, closes the version that silver has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cdc_lake.errors import ColumnNotTracked
from cdc_lake.lake.store import SilverColumn, quoted
from cdc_lake.model.truncated import Truncated
from cdc_lake.silver.changes import OP, POSITION, TIME
from cdc_lake.silver.events import HERE, SEGMENT, key_events, key_names
from cdc_lake.silver.kind import Flag, Kind, TablePart
from cdc_lake.silver.merge_sql import insert, same_key, select, typed_literal
from cdc_lake.silver.own_columns import IS_CURRENT, VALID_FROM, VALID_TO
from cdc_lake.silver.shape import Shape, comparable
from cdc_lake.silver.tracked import AMENDS, merged_runs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CLOSE, _AMEND, _VERSION = "C", "A", "V"  # what a row for the MERGE does


@dataclass(frozen=True, slots=True)
class History(Kind):
    """Every version. `track`: the source's columns that make one; None: every change does."""

    words: ClassVar = "`kind: history`"
    own: ClassVar = (*VALID_FROM, *VALID_TO, IS_CURRENT)
    flag: ClassVar = Flag(IS_CURRENT, value=True)

    track: tuple[str, ...] | None = None

    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """Rows that end or amend the version silver has of a key, and new versions; `_cdc_op` says which is which."""
        events = key_events(changes, target, part, traced=traced)
        if self.track is not None:
            events = merged_runs(events, target, part.shape, self._tracked(part.shape))
        return _versions(events, part)

    def statement(self, table: str, view: str, part: TablePart, within: Sequence[str]) -> str:
        """A MERGE: versions that hold are closed by key, the others are inserted."""
        on = f"{same_key(part, within)} AND t.{quoted(IS_CURRENT.name)} AND s.{OP} <> '{_VERSION}'"
        names = [quoted(c.name) for c in self.columns(part.shape)]
        close = [f"{quoted(c.name)} = s.{quoted(c.name)}" for c in (*VALID_TO, IS_CURRENT)]
        amend = [f"{quoted(c.name)} = s.{quoted(c.name)}" for c in (*part.shape.columns, *part.shape.carried)]
        changed = f"WHEN MATCHED AND s.{OP} = '{_AMEND}' THEN UPDATE SET {', '.join([*amend, *close])} "
        return (
            f"MERGE INTO {table} t USING {view} s ON {on} "
            f"{'' if self.track is None else changed}WHEN MATCHED THEN UPDATE SET {', '.join(close)} "
            f"WHEN NOT MATCHED AND s.{OP} = '{_VERSION}' THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f's.{name}' for name in names)}){_truncate(part)}"
        )

    def appended(self, table: str, view: str, part: TablePart) -> str:
        """Versions alone: there is none to be closed."""
        return insert(table, view, (quoted(c.name) for c in self.columns(part.shape)), _VERSION)

    def first(self, view: str, shape: Shape) -> str:
        """All that was copied, all of it from the snapshot's position on."""
        return select(view, (quoted(c.name) for c in self.columns(shape)), _VERSION)

    def _tracked(self, shape: Shape) -> list[SilverColumn]:
        """The silver columns that make a version. Raises ColumnNotTracked."""
        out = []
        for name in self.track or ():
            at = shape.position(name)
            if at is None:
                raise ColumnNotTracked(f"there is no column `{name}` in {shape.relation.table}")
            if not comparable(shape.columns[at]):
                raise ColumnNotTracked(f"values of column `{name}` of {shape.relation.table} cannot be compared")
            out.append(shape.columns[at])
        return out


def _truncate(part: TablePart) -> str:
    """What the first truncate does to the keys that no change of the span touches."""
    if not part.truncated:
        return ""
    first = part.truncated[0]
    values = (part.span.epoch, first.position, first.commit_ts, False)
    sets = [f"{quoted(c.name)} = {typed_literal(v, c)}" for c, v in zip((*VALID_TO, IS_CURRENT), values, strict=True)]
    return f" WHEN NOT MATCHED BY SOURCE AND t.{quoted(IS_CURRENT.name)} THEN UPDATE SET {', '.join(sets)}"


def _versions(events: DataFrame, part: TablePart) -> DataFrame:
    """The rows for the MERGE: what ends a key's first event brings about in silver, and versions with their ends."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    shape, truncated = part.shape, part.truncated
    of_key = Window.partitionBy(*key_names(shape)).orderBy(POSITION)
    following = F.lead(F.struct(POSITION, TIME, SEGMENT)).over(of_key)
    ends = F.struct(following[POSITION].alias(POSITION), following[TIME].alias(TIME))
    until = F.when(following.isNotNull(), ends)
    at, time = F.col(POSITION), F.col(TIME)
    if truncated:
        truncates = F.array(*(_place(one) for one in truncated))
        # A truncate ends what is there, also before the first change that a key has behind it.
        until = F.when(following[SEGMENT] == F.col(SEGMENT), ends).otherwise(F.get(truncates, F.col(SEGMENT)))
        late, first = F.col(SEGMENT) > 0, _place(truncated[0])
        at, time = F.when(late, first[POSITION]).otherwise(at), F.when(late, first[TIME]).otherwise(time)
    epoch = F.lit(part.span.epoch)
    names = [c.name for c in (*shape.columns, *shape.carried)]
    version = F.struct(
        *(F.col(f"{HERE}.{quoted(name)}").alias(name) for name in names),
        *_named(VALID_FROM, epoch, F.col(POSITION), F.col(TIME)),
        *_named(VALID_TO, F.when(F.col("_cdc_until").isNotNull(), epoch), *_parts("_cdc_until")),
        F.col("_cdc_until").isNull().alias(IS_CURRENT.name),
        F.lit(_VERSION).alias(OP),
    )
    keys = {shape.columns[place].name: name for place, name in zip(shape.keys, key_names(shape), strict=True)}
    empty = {c.name: F.lit(None).cast(c.type) for c in (*shape.columns, *shape.carried, *VALID_FROM)}
    close = F.struct(
        *((F.col(keys[name]) if name in keys else value).alias(name) for name, value in empty.items()),
        *_named(VALID_TO, epoch, at, time),
        F.lit(False).alias(IS_CURRENT.name),
        F.lit(_CLOSE).alias(OP),
    )
    first_of_key, begins = F.col("_cdc_nth") == 1, F.col(HERE).isNotNull()
    if AMENDS in events.columns:
        amend = F.struct(
            *(F.col(f"{HERE}.{quoted(name)}").alias(name) for name in names),
            *_named(VALID_FROM, *(F.lit(None) for _ in VALID_FROM)),
            *_named(VALID_TO, F.when(F.col("_cdc_until").isNotNull(), epoch), *_parts("_cdc_until")),
            F.col("_cdc_until").isNull().alias(IS_CURRENT.name),
            F.lit(_AMEND).alias(OP),
        )
        close, begins = F.when(F.col(AMENDS), amend).otherwise(close), begins & ~F.col(AMENDS)
    both = F.array(F.when(first_of_key, close), F.when(begins, version))
    placed = events.withColumn("_cdc_until", until).withColumn("_cdc_nth", F.row_number().over(of_key))
    return placed.select(F.inline(F.array_compact(both)))


def _place(truncated: Truncated) -> Column:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    time = F.lit(truncated.commit_ts).cast("timestamp")
    return F.struct(F.lit(truncated.position).cast("bigint").alias(POSITION), time.alias(TIME))


def _parts(place: str) -> tuple[Column, Column]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return F.col(f"{place}.{POSITION}"), F.col(f"{place}.{TIME}")


def _named(columns: Sequence[SilverColumn], *values: Column) -> list[Column]:
    return [value.cast(c.type).alias(c.name) for c, value in zip(columns, values, strict=True)]
