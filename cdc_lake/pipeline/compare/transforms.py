"""The source's rows as silver would have them: through the transforms of its table, for a comparison.

Leaving out and renaming columns needs no Spark. Where something has to be evaluated, Spark does it over the texts that
the source printed, typed as silver types them; what comes back are the numbers of the rows that match, and the computed
values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from cdc_lake.config.project import Project, Target
from cdc_lake.lake.session import derive, start
from cdc_lake.lake.typed_columns import typed_columns
from cdc_lake.model.relation import Relation
from cdc_lake.pipeline.target.transforms import projection_of
from cdc_lake.silver.projection import Projection, taken_columns
from cdc_lake.silver.shape import Shape, make_shape

_NUMBER = "_cdc_number"


@dataclass(frozen=True)
class Seen:
    """Rows of a source table as silver sees them. `rows`: texts by source column, of those that match; `whole`: of all;
    `computed`: typed values of `rows`.
    """

    rows: pa.Table
    whole: pa.Table
    computed: pa.Table


class View:
    """How silver sees the rows of a source table. Raises TransformUnfit.

    `names`: source column → silver's name of it; `companions`: decimal in silver → the column of text that it stands
    beside there; `computed`: columns that only silver has.
    """

    def __init__(self, project: Project, target: Target, relation: Relation) -> None:
        made = typed_columns(relation, target.types)
        taken = taken_columns(made, target.transforms)
        self._project, self._target, self._relation = project, target, relation
        self.names = {made[at].source.name: name for at, name in taken.items() if not made[at].companion}
        self.companions = {name: self.names[made[at].source.name] for at, name in taken.items() if made[at].companion}
        self.computed = tuple(name for name, _ in target.transforms.compute)

    @property
    def evaluates(self) -> bool:
        """Whether Spark has to evaluate expressions over the rows."""
        return self._target.transforms.expressions

    def of(self, source: pa.Table) -> Seen:
        """What silver would have of some rows, texts by source column. Raises JavaMissing, SparkMissing,
        SparkNotStarted.
        """
        kept = source.select(list(self.names))
        if not self.evaluates:
            return Seen(kept, kept, pa.table({}))
        matching = self._evaluated(source)
        return Seen(kept.take(matching[_NUMBER]), kept, matching.drop_columns([_NUMBER]))

    @cached_property
    def _plan(self) -> tuple[Any, Shape, Projection]:
        spark = derive(start(self._project, log=self._project.lake / "logs" / "compare.log"))
        layout = self._relation.layout
        shape = make_shape([layout], {layout: self._relation}, self._target.keys, types=self._target.types)
        return spark, shape, projection_of(spark, self._project, self._target, shape)

    def _evaluated(self, source: pa.Table) -> pa.Table:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - most comparisons need no Spark

        spark, shape, projection = self._plan
        names = self._relation.names
        texts = {f"c{at}": source[name] for at, name in enumerate(names)}
        frame = spark.createDataFrame(pa.table({_NUMBER: pa.array(range(source.num_rows), pa.int64()), **texts}))
        typed = frame.select(
            F.col(_NUMBER),
            *(
                F.expr(shape.typed(at, f"`c{names.index(one.source.name)}`")).alias(one.name)
                for at, one in enumerate(shape.made)
            ),
        )
        if projection.where is not None:
            typed = typed.where(F.expr(projection.where.sql))
        computed = [F.expr(sql).alias(name) for name, sql in self._target.transforms.compute]
        return typed.select(_NUMBER, *computed).toArrow().select([_NUMBER, *self.computed])
