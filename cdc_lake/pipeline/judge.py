"""Judging: the conditions of a table, and one pass over a span that counts how they fare.

The pass decides how the span is folded, so it also counts what is not a rule: updates that move a row to another key,
and changes a rule cannot judge because a value was not sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc_lake.bronze.outline import Outline
from cdc_lake.config.project import Target
from cdc_lake.errors import RuleColumnMissing
from cdc_lake.lake.store import quoted
from cdc_lake.quality.gate import Condition, RuleCount
from cdc_lake.quality.rules import fails, rule_name
from cdc_lake.silver.changes import FROM, OP, POSITION, TO, fits, fits_old, known
from cdc_lake.silver.complete import any_of, judged
from cdc_lake.silver.kind import TablePart
from cdc_lake.silver.shape import Shape

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_INTEGERS = {"smallint", "int", "bigint"}


@dataclass(frozen=True, slots=True)
class Survey:
    """What a span holds.

    `moved`: updates that change the key; `nulls`: changes of a key with a part that is NULL; `failing`: changes to be
    held; `lacking`: changes with a judged value that was not sent; `stop`: position and name of the first failing
    `stop` rule; `bounds`: smallest and largest value of an integer first key column, None where keys move.
    """

    counts: tuple[RuleCount, ...]
    moved: int
    nulls: int
    failing: int
    lacking: int
    stop: tuple[int, str] | None
    bounds: tuple[int, int] | None

    @property
    def plain(self) -> bool:
        """Nothing to follow: the span can be folded by key."""
        return not (self.moved or self.nulls or self.failing or self.lacking)


UNJUDGED = Survey((), 0, 0, 0, 0, None, None)
"""What a span holds where nothing is judged."""


def conditions(target: Target, part: TablePart, *, completed: bool = False, deletes: bool = False) -> list[Condition]:
    """A table's conditions. `completed`: values that were not sent are in `_cdc_judged_<n>`; `deletes`: what these say
    of the old row is kept too, so it must have a silver value.
    """
    return [*_rules(target, part.shape, part.unsent, completed=completed), *_misfits(part.shape, deletes=deletes)]


def _rules(target: Target, shape: Shape, unsent: frozenset[int], *, completed: bool) -> list[Condition]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - names and counts need no Spark

    out = []
    for rule in target.rules:
        at = shape.position(rule.column)
        if at is None:
            raise RuleColumnMissing(
                f"there is no column `{rule.column}` in {target.source}",
                where=f"{target.label}, rule {rule_name(rule)}",
            )
        column = shape.columns[at]
        value = F.col(judged(at)) if completed and at in unsent else F.col(quoted(column.name))
        out.append(Condition(rule_name(rule), rule.on_fail, _of_rows(fails(rule, column.type, value)), frozenset({at})))
    return out


def _misfits(shape: Shape, *, deletes: bool) -> list[Condition]:
    """Texts without a silver value: held, or the run ends before them; never clipped, never NULL."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    out = []
    for at, column in enumerate(shape.columns):
        if shape.may_misfit(at):
            misfit = _of_rows(~F.col(fits(at)), *("D" * deletes))
            if shape.old_values:
                misfit = misfit | ~F.col(fits_old(at))
            out.append(Condition(f"type_{column.name}", shape.types.misfit, misfit, frozenset()))
    return out


def survey(changes: DataFrame, target: Target, part: TablePart, judge: Sequence[Condition], seen: Outline) -> Survey:
    """Count in one job; without a job where there is nothing to count."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    shape = part.shape
    first = shape.key_columns[0] if shape.keys else shape.columns[0]
    bounded = bool(shape.keys) and first.type in _INTEGERS and not seen.truncates and 0 not in shape.nullable
    if not judge and not seen.olds and not bounded and not shape.nullable:
        return UNJUDGED
    unsent = {
        at for c in judge for at in c.columns if known(at) in changes.columns and judged(at) not in changes.columns
    }
    lacking = any_of([(F.col(OP) != "D") & ~F.col(known(at)) for at in sorted(unsent)])
    held = any_of([c.fails for c in judge if c.on_fail == "quarantine"])
    wanted = {
        "moved": F.count_if((F.col(OP) == "U") & (F.col(FROM) != F.col(TO))),
        "nulls": F.count_if(has_null()) if shape.nullable else F.lit(0),
        "judged": F.count_if(F.col(OP) != "D"),
        "lacking": F.count_if(lacking),
        "failing": F.count_if(held),
        "low": F.min(quoted(first.name)) if bounded else F.lit(None),
        "high": F.max(quoted(first.name)) if bounded else F.lit(None),
    }
    for n, condition in enumerate(judge):
        wanted[f"failed_{n}"] = F.count_if(condition.fails)
        if condition.on_fail == "stop":
            wanted[f"stop_{n}"] = F.min(F.when(condition.fails, F.col(POSITION)))
    row = changes.agg(*(column.alias(name) for name, column in wanted.items())).first()
    assert row is not None  # an aggregate without groups has one row
    stops = [
        (row[f"stop_{n}"], c.name) for n, c in enumerate(judge) if c.on_fail == "stop" and row[f"stop_{n}"] is not None
    ]
    return Survey(
        counts=tuple(
            RuleCount(target.label, c.name, c.on_fail, row["judged"], row[f"failed_{n}"]) for n, c in enumerate(judge)
        ),
        moved=row["moved"],
        nulls=row["nulls"],
        failing=row["failing"],
        lacking=row["lacking"],
        stop=min(stops) if stops else None,
        # A row that moves is deleted at a key that no change of the span may have as its own.
        bounds=None if row["low"] is None or row["moved"] else (row["low"], row["high"]),
    )


def has_null() -> Column:
    """Whether a change touches a key with a part that is NULL."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return any_of([F.coalesce(F.exists(name, lambda part: part.isNull()), F.lit(False)) for name in (FROM, TO)])


def _of_rows(fails_: Column, *also: str) -> Column:
    """A delete has no row to judge, and a truncate none at all."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    return F.col(OP).isin("I", "U", *also) & fails_
