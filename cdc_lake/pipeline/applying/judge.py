"""Judging: the conditions of a table, and one pass over a span that counts how they fare.

The pass decides how the span is folded, so it also counts what is not a rule: updates that move a row to another key,
and changes a rule cannot judge because a value was not sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from cdc_lake.bronze.outline import Outline
from cdc_lake.config.project import Target
from cdc_lake.config.rules import Expression, RowRule, rule_name
from cdc_lake.errors import RuleColumnMissing
from cdc_lake.lake.store import quoted
from cdc_lake.model.decision import CEILING
from cdc_lake.pipeline.applying.key_parts import KeyPart
from cdc_lake.pipeline.target.rule_expressions import reads, replaced
from cdc_lake.quality.gate import Condition, RuleCount
from cdc_lake.quality.rules import fails, holds_not
from cdc_lake.silver.changes import FROM, OP, ORDINAL, POSITION, TO, fits, fits_old, known
from cdc_lake.silver.complete import any_of, judged, told
from cdc_lake.silver.kind import TablePart
from cdc_lake.silver.projecting import BLIND, moves
from cdc_lake.silver.projection import MATCHES, NOT_SENT, Projection

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_INTEGERS = {"smallint", "int", "bigint"}


@dataclass(frozen=True, slots=True)
class Survey:
    """What a span holds.

    `moved`: updates that change the key, whether or not a filter takes both rows; `nulls`: changes of a key with a part
    that is NULL; `failing`: changes to be held; `lacking`: changes with a judged value that was not sent; `stop`:
    position and name of the first failing `stop` rule; `bounds`: smallest and largest value of an integer first key
    column, None where keys move; `parts`: conditions that rows of the parts of the table meet in which keys lie, none
    where keys move.
    """

    counts: tuple[RuleCount, ...]
    moved: int
    nulls: int
    failing: int
    lacking: int
    stop: tuple[int, str] | None
    bounds: tuple[int, int] | None
    parts: tuple[str, ...] = ()

    @property
    def plain(self) -> bool:
        """Nothing to follow: the span can be folded by key."""
        return not (self.moved or self.nulls or self.failing or self.lacking)


UNJUDGED = Survey((), 0, 0, 0, 0, None, None)
"""What a span holds where nothing is judged."""


def conditions(
    target: Target, part: TablePart, projection: Projection, *, completed: bool = False, deletes: bool = False
) -> list[Condition]:
    """A table's conditions, over changes with the columns of its source.

    `completed`: values that were not sent are in `_cdc_judged_<n>`, and `_cdc_blind` says where they cannot be;
    `deletes`: what these say of the old row is kept too, so it must have a silver value.
    """
    rules = _rules(target, projection, part.unsent, completed=completed)
    if part.released:
        rules = [replace(rule, fails=rule.fails & ~let_through()) for rule in rules]
    found = [*rules, *_misfits(projection, deletes=deletes)]
    needed = (projection.needed | foreign(target, projection)) & part.unsent
    if needed and projection.transforms.any and not deletes:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - names and counts need no Spark

        blind = F.col(BLIND) if completed else F.lit(False)
        found.append(Condition(NOT_SENT, "quarantine", blind, needed))
    return found


def let_through() -> Column:
    """Whether a change was held, and is made now because somebody said so."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - names and counts need no Spark

    return F.col(ORDINAL) < CEILING


def foreign(target: Target, projection: Projection) -> frozenset[int]:
    """Columns that an expression or a rule reads and that silver does not have: only a change can tell them."""
    judged_ = {at for rule in target.row_rules for at in _read(rule, projection)}
    return (projection.needed | judged_) - frozenset(projection.kept)


def _read(rule: RowRule, projection: Projection) -> frozenset[int]:
    """The positions of the columns that a rule judges, of those that are there."""
    if isinstance(rule, Expression):
        return reads(rule, projection.source)
    at = projection.source.position(rule.column)
    return frozenset() if at is None else frozenset({at})


def _rules(target: Target, projection: Projection, unsent: frozenset[int], *, completed: bool) -> list[Condition]:
    out = []
    for rule in target.row_rules:
        read = _read(rule, projection)
        if isinstance(rule, Expression):
            failing = _false(rule, projection, read & unsent, completed=completed)
        elif not read:
            raise RuleColumnMissing(
                f"there is no column `{rule.column}` in {target.source}",
                where=f"{target.label}, rule {rule_name(rule)}",
            )
        else:
            (at,) = read
            column = projection.source.columns[at]
            failing = _of_rows(fails(rule, column.type, _value(at, projection, unsent, completed=completed)))
        out.append(Condition(rule_name(rule), rule.on_fail, _matching(failing, projection), read))
    return out


def _value(at: int, projection: Projection, unsent: frozenset[int], *, completed: bool) -> Column:
    """What is judged of a column: its value after the change."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - names and counts need no Spark

    return F.col(judged(at) if completed and at in unsent else quoted(projection.source.columns[at].name))


def _false(rule: Expression, projection: Projection, unsent: frozenset[int], *, completed: bool) -> Column:
    """Whether an expression is false. It is not worked out where it might raise: of no row, or of values that are not
    known.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    columns = {at: projection.source.columns[at] for at in sorted(unsent)}
    there = F.col(OP).isin("I", "U")
    if not completed:
        return holds_not(rule.expression, there & ~any_of([~F.col(known(at)) for at in columns]))
    by = {column.name: f"CAST({quoted(judged(at))} AS {column.type})" for at, column in columns.items()}
    return holds_not(replaced(rule.expression, by), there & ~any_of([~F.col(told(at)) for at in columns]))


def _misfits(projection: Projection, *, deletes: bool) -> list[Condition]:
    """Texts without a silver value: held, or the run ends before them; never clipped, never NULL. What silver does not
    take may be odd.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    out, shape = [], projection.source
    for at, column in enumerate(shape.columns):
        if at in projection.used and shape.may_misfit(at):
            misfit = _of_rows(~F.col(fits(at)), *("D" * deletes))
            if at not in projection.condition and not deletes:
                misfit = _matching(misfit, projection)
            if shape.old_values and at in projection.kept:
                misfit = misfit | ~F.col(fits_old(at))
            out.append(Condition(f"type_{column.name}", shape.types.misfit, misfit, frozenset()))
    return out


def _matching(fails_: Column, projection: Projection) -> Column:
    """Only rows that silver takes are judged."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return fails_ if projection.where is None else fails_ & F.col(MATCHES)


def survey(
    changes: DataFrame,
    target: Target,
    part: TablePart,
    judge: Sequence[Condition],
    seen: Outline,
    parts: Sequence[KeyPart] = (),
) -> Survey:
    """Count in one job; without a job where there is nothing to count. `parts`: how the table is divided by its key.

    Whether values fit is a condition of nearly every column: which of them do not is counted only where some do not.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    shape = part.shape
    first = shape.key_columns[0] if shape.keys else shape.columns[0]
    bounded = bool(shape.keys) and first.type in _INTEGERS and not seen.truncates and 0 not in shape.nullable
    parts = () if seen.truncates else parts
    if not judge and not seen.olds and not bounded and not shape.nullable and not parts:
        return UNJUDGED
    unsent = {
        at for c in judge for at in c.columns if known(at) in changes.columns and judged(at) not in changes.columns
    }
    lacking = any_of([(F.col(OP) != "D") & ~F.col(known(at)) for at in sorted(unsent)])
    held = any_of([c.fails for c in judge if c.on_fail == "quarantine"])
    wanted = {
        "moved": F.count_if(moves(changes)),
        "nulls": F.count_if(has_null()) if shape.nullable else F.lit(0),
        "judged": F.count_if((F.col(OP) != "D") & (F.col(MATCHES) if MATCHES in changes.columns else F.lit(True))),
        "lacking": F.count_if(lacking),
        "failing": F.count_if(held),
        "misfits": F.count_if(any_of([c.fails for c in judge if not c.columns])),
        "low": F.min(quoted(first.name)) if bounded else F.lit(None),
        "high": F.max(quoted(first.name)) if bounded else F.lit(None),
    }
    for n, one in enumerate(parts):
        wanted[f"part_{n}"] = F.collect_set(F.expr(one.of_change))
    for n, condition in enumerate(judge):
        wanted |= _counted(n, condition) if condition.columns else {}
    row = _aggregated(changes, wanted)
    rare = [_counted(n, condition) for n, condition in enumerate(judge) if row["misfits"] and not condition.columns]
    row |= _aggregated(changes, reduce(or_, rare)) if rare else {}
    stops = [(row[f"stop_{n}"], c.name) for n, c in enumerate(judge) if row.get(f"stop_{n}") is not None]
    return Survey(
        counts=tuple(
            RuleCount(target.label, c.name, c.on_fail, row["judged"], row.get(f"failed_{n}", 0))
            for n, c in enumerate(judge)
        ),
        moved=row["moved"],
        nulls=row["nulls"],
        failing=row["failing"],
        lacking=row["lacking"],
        stop=min(stops) if stops else None,
        # A row that moves is deleted at a key that no change of the span may have as its own.
        bounds=None if row["low"] is None or row["moved"] else (row["low"], row["high"]),
        parts=() if row["moved"] else tuple(filter(None, (p.condition(row[f"part_{n}"]) for n, p in enumerate(parts)))),
    )


def _counted(number: int, condition: Condition) -> dict[str, Column]:
    """What is counted of a condition."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    out = {f"failed_{number}": F.count_if(condition.fails)}
    if condition.on_fail == "stop":
        out[f"stop_{number}"] = F.min(F.when(condition.fails, F.col(POSITION)))
    return out


def _aggregated(changes: DataFrame, wanted: Mapping[str, Column]) -> dict[str, Any]:
    row = changes.agg(*(column.alias(name) for name, column in wanted.items())).first()
    assert row is not None  # an aggregate without groups has one row
    return dict(row.asDict())


def has_null() -> Column:
    """Whether a change touches a key with a part that is NULL."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return any_of([F.coalesce(F.exists(name, lambda part: part.isNull()), F.lit(False)) for name in (FROM, TO)])


def _of_rows(fails_: Column, *also: str) -> Column:
    """A delete has no row to judge, and a truncate none at all."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return F.col(OP).isin("I", "U", *also) & fails_
