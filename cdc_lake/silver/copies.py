"""The kind `current` of a table without a key: its rows as they are now, the same one as often as the source has it.

Nothing but its values says which row a change is of, so the server must log all of them (REPLICA IDENTITY FULL), and
which of several equal rows goes makes no difference. Silver numbers equal rows in `_copy`: a span adds or takes away
the last ones. To take away what is not there fails the job: silver is then not what the stream changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc_lake.lake.store import SilverColumn, quoted
from cdc_lake.silver.changes import FROM, OP, ORDER, TO, after_truncates
from cdc_lake.silver.complete import MISSING_BASE
from cdc_lake.silver.kind import Flag, RowIdentity, TablePart
from cdc_lake.silver.merge_sql import insert, same_key
from cdc_lake.silver.own_columns import COPY, with_own
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COPY = quoted(COPY.name)


@dataclass(frozen=True, slots=True)
class Copies:
    """Rows that only their values identify (`silver.kind.Kind`)."""

    @property
    def words(self) -> str:
        """As the pipeline and the source say it."""
        return "`kind: current` without a key"

    @property
    def own(self) -> tuple[SilverColumn, ...]:
        """`_copy`."""
        return (COPY,)

    @property
    def flag(self) -> Flag | None:
        """All rows."""
        return None

    @property
    def identity(self) -> RowIdentity:
        """All values."""
        return RowIdentity.CONTENT

    def carried(self, shape: Shape) -> Mapping[SilverColumn, str]:
        """None of its own."""
        del shape
        return {}

    def columns(self, shape: Shape) -> tuple[SilverColumn, ...]:
        """The source's, then lineage, then `_copy`."""
        return with_own(shape, self.own)

    def net(self, changes: DataFrame, target: DataFrame | None, part: TablePart, *, traced: bool) -> DataFrame:
        """Copies to be added, `_cdc_op` U, and taken away, D."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

        del traced
        shape = part.shape
        counted = _counted(after_truncates(changes, part.truncated), shape)
        have = F.lit(0).cast("bigint")
        if target is not None and not part.truncated:
            there = _there(target, counted, shape)
            same = [
                there[f"_cdc_of_{at}"].eqNullSafe(counted[quoted(c.name)]) for at, c in enumerate(shape.key_columns)
            ]
            counted = counted.join(F.broadcast(there), same, "left")
            have = F.coalesce("_cdc_have", have)
        missing = F.raise_error(F.lit(MISSING_BASE)).cast("bigint")
        after = have + F.col("_cdc_more")
        after = F.when(after < 0, missing).otherwise(after)
        numbers = F.sequence(F.least(have, after) + 1, F.greatest(have, after))
        return counted.where("_cdc_more <> 0").select(
            *(F.col(quoted(c.name)) for c in (*shape.columns, *shape.carried)),
            F.explode(numbers).alias(COPY.name),
            F.when(F.col("_cdc_more") > 0, F.lit("U")).otherwise(F.lit("D")).alias(OP),
        )

    def statement(self, table: str, view: str, part: TablePart, bounds: tuple[int, int] | None) -> str:
        """A MERGE by values and number; where there was a truncate, the other rows go."""
        names = [quoted(c.name) for c in self.columns(part.shape)]
        carried = [quoted(c.name) for c in part.shape.carried]
        update = f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{n} = s.{n}' for n in carried)} " if carried else ""
        gone = " WHEN NOT MATCHED BY SOURCE THEN DELETE" if part.truncated else ""
        return (
            f"MERGE INTO {table} t USING {view} s ON {same_key(part, bounds)} AND t.{_COPY} = s.{_COPY} "
            f"WHEN MATCHED AND s.{OP} = 'D' THEN DELETE {update}"
            f"WHEN NOT MATCHED AND s.{OP} = 'U' THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f's.{n}' for n in names)}){gone}"
        )

    def appended(self, table: str, view: str, part: TablePart) -> str:
        """Copies alone: there is none to be taken away."""
        return insert(table, view, (quoted(c.name) for c in self.columns(part.shape)), "U")

    def first(self, table: str, view: str, shape: Shape) -> str:
        """An overwrite: a new content begins."""
        return insert(table, view, (quoted(c.name) for c in self.columns(shape)), "U", anew=True)


def _counted(changes: DataFrame, shape: Shape) -> DataFrame:
    """Each row that changes brought or took away, with `_cdc_more`, how many more of it there are."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    carried = F.struct(F.col(ORDER), *(F.col(quoted(c.name)) for c in shape.carried))

    def one(texts: str, more: int) -> Column:
        # The key is the layout's columns in their order; a companion is made of the text of one of them.
        places = [shape.relation.names.index(one.source.name) for one in shape.made]
        values = [
            F.expr(shape.typed(at, f"{texts}[{place}]")).alias(c.name)
            for at, (place, c) in enumerate(zip(places, shape.columns, strict=True))
        ]
        signed = F.struct(*values, F.lit(more).alias("_cdc_by"), carried.alias("_cdc_carried"))
        return F.when(F.col(texts).isNotNull(), signed)

    rows = changes.select(F.inline(F.array_compact(F.array(one(TO, 1), one(FROM, -1)))))
    last = F.max_by("_cdc_carried", F.col(f"_cdc_carried.{ORDER}")).alias("_cdc_last")
    grouped = rows.groupBy(*(F.col(quoted(c.name)) for c in shape.columns))
    counted = grouped.agg(F.sum("_cdc_by").alias("_cdc_more"), last)
    return counted.select(
        *(F.col(quoted(c.name)) for c in shape.columns),
        *(F.col(f"_cdc_last.{quoted(c.name)}") for c in shape.carried),
        "_cdc_more",
    )


def _there(target: DataFrame, counted: DataFrame, shape: Shape) -> DataFrame:
    """How many rows of each kind silver has, by `_cdc_of_<n>`."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    names = [f"_cdc_of_{at}" for at in range(len(shape.key_columns))]
    wanted = counted.select(*(F.col(quoted(c.name)).alias(n) for c, n in zip(shape.key_columns, names, strict=True)))
    same = [target[quoted(c.name)].eqNullSafe(wanted[n]) for c, n in zip(shape.key_columns, names, strict=True)]
    found = (
        target.join(F.broadcast(wanted), same)
        .groupBy(*names)
        .agg(F.count_if(F.lit(True)).alias("_cdc_rows"), F.max(_COPY).alias("_cdc_last"))
    )
    # Numbers with gaps were not written by this kind: which row would go is not known then.
    odd = F.raise_error(F.lit(MISSING_BASE)).cast("bigint")
    have = F.when(F.col("_cdc_rows") == F.col("_cdc_last"), F.col("_cdc_last")).otherwise(odd)
    # Kept by the executors, not planned again: Spark 4.1 does not find an Iceberg table that a MERGE's view reads
    # behind an aggregate ("No plan for TableReference", tried with a window).
    return found.select(*names, have.alias("_cdc_have")).localCheckpoint()
