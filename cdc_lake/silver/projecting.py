"""Projecting: typed changes with the columns of the source become changes with silver's (`silver.projection`).

Every function is from DataFrame to DataFrame, without an action. What an expression reads is the value after the
change, completed where it was not sent (`silver.complete.complete_for_rules`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from cdc_lake.lake.store import literal, quoted
from cdc_lake.silver.changes import FROM, OP, ORDER, TO, fits, fits_old, known
from cdc_lake.silver.complete import FOUND, any_of, judged, row_window, told
from cdc_lake.silver.own_columns import UNSENT
from cdc_lake.silver.projection import BESIDE, MATCHES, Projection

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BLIND = "_cdc_blind"
"""Whether the row after a change cannot be worked out: a value that is needed is not known."""

LEFT_TO = "_cdc_left_to"
"""The key that a row has after an update which does not tell by itself whether the row matches."""

_MOVED = "_cdc_moved"  # by a move the row came into silver, or left it
_WHOLE = "_cdc_whole"  # the change tells the row before it, as far as the filter reads it
_WAS = "_cdc_was"
_INSIDE = "_cdc_inside"  # silver has the row before a change


def old_values(projection: Projection) -> dict[str, str]:
    """What a filter reads of the row before a change, as SQL over bronze's row."""
    if projection.where is None:
        return {}
    shape = projection.source
    texts = {at: shape.text(at, "old") for at in sorted(projection.condition)}
    readable = [f"({shape.fits(at, f'({text})')})" for at, text in texts.items() if shape.may_misfit(at)]
    whole = " AND ".join([shape.whole_old, *readable])
    return {_WHOLE: whole, **{_old(at): shape.value(at, text) for at, text in texts.items()}}


def filtered(changes: DataFrame, projection: Projection) -> DataFrame:
    """The changes of the rows that the filter takes, as if the source's table had no others.

    A row that stops matching is deleted, one that begins to match is inserted; what is of neither is left out. Where a
    change does not tell the row before it, silver may have that; where the filter reads a value that is not known, the
    row may match, and `_cdc_matches` is true.
    """
    return changes if projection.where is None else _rewritten(_with_matches(changes, projection), projection)


def _rewritten(after: DataFrame, projection: Projection) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    was, out = _before(after, projection), F.col(OP).isin("I", "U") & ~F.col(MATCHES)
    operation = F.when(out, "D").when((F.col(OP) == "U") & ~F.col(_WAS), "I").otherwise(F.col(OP))
    kept = was.where(F.col(MATCHES) | F.col(_WAS)).withColumns(
        {
            OP: operation,
            _MOVED: moves(was),
            FROM: F.when(F.col(_WAS), F.col(FROM)),
            TO: F.when(~out, F.col(TO)),
            # A row that moved and stopped matching is deleted where it was.
            **{
                column.name: F.when(out, F.expr(projection.source.typed(at, f"{FROM}[{index}]"))).otherwise(
                    F.col(quoted(column.name))
                )
                for index, (at, column) in enumerate(
                    zip(projection.source.keys, projection.source.key_columns, strict=True)
                )
            },
        }
    )
    return kept.drop(_WAS)


def moves(changes: DataFrame) -> Column:
    """Whether a change moved a row to another key: also one that a filter made an insert or a delete of."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

    return F.col(_MOVED) if _MOVED in changes.columns else (F.col(OP) == "U") & (F.col(FROM) != F.col(TO))


def concerning(changes: DataFrame, projection: Projection) -> DataFrame:
    """Of a table that keeps every change: those of which it is not known that neither row of theirs matches."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    if projection.where is None:
        return changes
    both = _before(_with_matches(changes, projection), projection)
    return both.where((F.col(OP) == "T") | F.col(MATCHES) | F.col(_WAS)).drop(_WAS)


def _with_matches(changes: DataFrame, projection: Projection) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    assert projection.where is not None
    reads = sorted(projection.condition)
    unknown = any_of([~F.col(known(at)) for at in reads if known(at) in changes.columns])
    unreadable = any_of([~F.col(fits(at)) for at in reads if projection.source.may_misfit(at)])
    stays = F.col(OP).isin("I", "U")
    matches = F.coalesce(F.when(stays, F.expr(projection.where.sql)), F.lit(False))
    return changes.withColumn(MATCHES, stays & (unknown | unreadable | matches))


def _before(changes: DataFrame, projection: Projection) -> DataFrame:
    """Add `_cdc_was`: whether the row before a change matched, or may have."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    assert projection.where is not None
    names = {projection.source.columns[at].name: at for at in sorted(projection.condition)}
    if not names:  # a filter that reads nothing takes all rows, or none
        return changes.withColumn(_WAS, F.col(OP).isin("U", "D"))
    saved = changes.withColumns({f"_cdc_new_{at}": F.col(quoted(name)) for name, at in names.items()})
    swapped = saved.withColumns({name: F.col(_old(at)) for name, at in names.items()})
    whole = F.col(OP).isin("U", "D") & F.col(_WHOLE)
    matched = F.coalesce(F.when(whole, F.expr(projection.where.sql)), F.lit(False))
    was = swapped.withColumn(_WAS, F.col(OP).isin("U", "D") & (~F.col(_WHOLE) | matched))
    back = was.withColumns({name: F.col(f"_cdc_new_{at}") for name, at in names.items()})
    return back.drop(*(f"_cdc_new_{at}" for at in names.values()))


def filled(
    changes: DataFrame, projection: Projection, completed: Collection[int], foreign: Collection[int]
) -> DataFrame:
    """Changes, none left out yet, in which values that were not sent have their places, filtered by them.

    `completed`: columns whose values stand in `_cdc_judged_<n>`; `foreign`: columns that are needed and that silver
    lacks. A value counts where the change sent it, or where silver keeps its column and has the row before the change:
    had a span ended there, nothing else would tell it. Where that is not enough, `_cdc_blind` is true. `_cdc_left_to`
    is the key that a row has after an update that does not tell by itself whether it matches.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    changes = changes.withColumns({_sent(at): F.col(known(at)) for at in completed})
    inside: Column = F.lit(True)
    if projection.where is not None:
        guessed = _with_values(changes, projection, completed)
        # What was worked out of the change before is right up to the first change of the row that is held.
        before = F.lag(F.struct(F.col(MATCHES).alias("matched"))).over(row_window(F.col(ORDER)))
        there = F.when(before.isNull(), F.col(FOUND)).otherwise(before["matched"])
        changes = _with_matches(guessed, projection).withColumn(_INSIDE, F.coalesce(there, F.lit(False)))
        inside = F.col(_INSIDE)
    counts = {at: F.col(_sent(at)) | (F.lit(at not in foreign) & inside & F.col(told(at))) for at in completed}
    changes = changes.withColumns({told(at): of for at, of in counts.items()})
    changes = changes.withColumns({judged(at): F.when(F.col(told(at)), F.col(judged(at))) for at in completed})
    changes = _with_values(changes, projection, completed)

    def lacks(places: Collection[int]) -> Column:
        return any_of([~F.col(told(at)) for at in sorted(places) if at in counts])

    blind = lacks(foreign)
    if projection.where is not None:
        changes = _with_matches(changes, projection)
        blind = lacks(projection.condition) | (F.col(MATCHES) & lacks(projection.needed.union(foreign)))
    update, doubt = F.col(OP) == "U", any_of([~F.col(_sent(at)) for at in counts if at in projection.condition])
    changes = changes.withColumns({BLIND: update & blind, LEFT_TO: F.when(update & doubt, F.col(TO))})
    changes = changes.drop(_INSIDE, *(_sent(at) for at in completed))
    return changes if projection.where is None else _rewritten(changes, projection)


def _with_values(changes: DataFrame, projection: Projection, completed: Collection[int]) -> DataFrame:
    """The values in `_cdc_judged_<n>` in the places of the columns that silver depends on."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    own = {at: projection.source.columns[at] for at in sorted(completed) if at in projection.needed}
    changes = changes.withColumns({c.name: F.col(judged(at)).cast(c.type) for at, c in own.items()})
    return changes.withColumns({known(at): F.col(told(at)) for at in own})


def projected(changes: DataFrame, projection: Projection, unsent: frozenset[int]) -> tuple[DataFrame, frozenset[int]]:
    """Filtered changes with silver's columns, and the positions of those that some change does not know."""
    return _silver_columns(changes, projection, unsent) if projection.transforms.any else (changes, unsent)


def _silver_columns(
    changes: DataFrame, projection: Projection, unsent: frozenset[int]
) -> tuple[DataFrame, frozenset[int]]:
    """The kept columns under their silver names, and the computed ones: of rows that are there and fully known."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    source, silver = projection.source, projection.silver
    spent = {c.name for c in source.columns}
    spent |= {name(at) for at in range(len(source.columns)) for name in (known, fits, fits_old, judged, told)}
    spent |= {MATCHES, BLIND, FOUND, LEFT_TO, _MOVED, _WHOLE} | {_old(at) for at in projection.condition}
    columns = [F.col(quoted(name)).alias(name.removeprefix(BESIDE)) for name in changes.columns if name not in spent]
    unknown: set[int] = set()
    stays = F.col(OP).isin("I", "U")
    for at, (place, column) in enumerate(zip(projection.kept, silver.columns, strict=False)):
        columns.append(F.col(quoted(source.columns[place].name)).alias(column.name))
        if place in unsent:
            unknown.add(at)
            columns.append(F.col(known(place)).alias(known(at)))
    first = len(projection.kept)
    for at, (one, column) in enumerate(zip(projection.computed, silver.columns[first:], strict=True), start=first):
        lacking = [F.col(known(place)) for place in sorted(projection.read_by(one) & unsent)]
        told_ = ~any_of([~flag for flag in lacking])
        columns.append(F.when(stays & told_, F.expr(one.sql)).cast(column.type).alias(column.name))
        if lacking:
            unknown.add(at)
            columns.append(told_.alias(known(at)))
    return changes.select(*columns), frozenset(unknown)


def projected_changes(changes: DataFrame, projection: Projection, unsent: frozenset[int]) -> DataFrame:
    """Changes of a table that keeps every change, with silver's columns.

    A computed value that cannot be worked out is NULL and stands in `_unchanged`, as a value that was not sent does.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    if not projection.transforms.any:
        return changes
    unchanged = f"{BESIDE}{UNSENT.name}"
    return _silver_columns(changes.withColumn(unchanged, F.expr(_unsent_sql(projection))), projection, unsent)[0]


def _unsent_sql(projection: Projection) -> str:
    """Silver's names of the columns that were not sent, from the source's names of them."""
    source, silver, name = projection.source, projection.silver, quoted(f"{BESIDE}{UNSENT.name}")
    renamed = zip(projection.kept, silver.columns, strict=False)
    kept = {source.columns[place].name: column.name for place, column in renamed}
    cases = " ".join(f"WHEN {literal(old)} THEN {literal(new)}" for old, new in kept.items())
    listed = f"array_compact(transform({name}, c -> CASE c {cases} END))"
    for one, column in zip(projection.computed, silver.columns[len(kept) :], strict=True):
        if one.reads:
            lacks = f"arrays_overlap({name}, array({', '.join(literal(read) for read in sorted(one.reads))}))"
            listed = f"concat({listed}, array_compact(array(CASE WHEN {lacks} THEN {literal(column.name)} END)))"
    return f"CASE WHEN size({listed}) > 0 THEN {listed} END"


def _old(at: int) -> str:
    return f"_cdc_old_{at}"


def _sent(at: int) -> str:
    return f"_cdc_sent_{at}"
