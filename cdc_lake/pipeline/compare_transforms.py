"""The source's rows as silver would have them: through the transforms of its table, for a comparison.

Leaving out and renaming columns needs no Spark. Where something has to be evaluated, Spark does it over the texts that
the source printed, typed as silver types them; what comes back are the numbers of the rows that match, and the computed
values.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from cdc_lake.config.project import Project, Target
from cdc_lake.lake.session import derive, start
from cdc_lake.lake.typed_columns import typed_columns
from cdc_lake.model.relation import Relation
from cdc_lake.pipeline.transforms import projection_of
from cdc_lake.silver.projection import taken_columns
from cdc_lake.silver.shape import make_shape

_NUMBER = "_cdc_number"


@dataclass(frozen=True)
class Seen:
    """A source table as silver sees it. `rows`: texts by source column, of the rows that match; `whole`: of all rows;
    `computed`: typed values of `rows`. `names`: source column → silver's name of it; `companions`: decimal in silver →
    the column of text that it stands beside there.
    """

    rows: pa.Table
    whole: pa.Table
    computed: pa.Table
    names: dict[str, str]
    companions: dict[str, str]


def seen(project: Project, target: Target, relation: Relation, source: pa.Table) -> Seen:
    """What silver would have of `source`. Raises TransformUnfit, JavaMissing, SparkMissing, SparkNotStarted."""
    made = typed_columns(relation, target.types)
    taken = taken_columns(made, target.transforms)
    names = {made[at].source.name: name for at, name in taken.items() if not made[at].companion}
    beside = {name: names[made[at].source.name] for at, name in taken.items() if made[at].companion}
    kept = source.select(list(names))
    if not target.transforms.expressions:
        return Seen(kept, kept, pa.table({}), names, beside)
    matching = _evaluated(project, target, relation, source)
    return Seen(kept.take(matching[_NUMBER]), kept, matching.drop_columns([_NUMBER]), names, beside)


def _evaluated(project: Project, target: Target, relation: Relation, source: pa.Table) -> pa.Table:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - most comparisons need no Spark

    spark = derive(start(project, log=project.lake / "logs" / "compare.log"))
    shape = make_shape([relation.layout], {relation.layout: relation}, target.keys, types=target.types)
    projection = projection_of(spark, project, target, shape)
    texts = {f"c{at}": source[name] for at, name in enumerate(relation.names)}
    frame = spark.createDataFrame(pa.table({_NUMBER: pa.array(range(source.num_rows), pa.int64()), **texts}))
    typed = frame.select(
        F.col(_NUMBER),
        *(
            F.expr(shape.typed(at, f"`c{relation.names.index(one.source.name)}`")).alias(one.name)
            for at, one in enumerate(shape.made)
        ),
    )
    if projection.where is not None:
        typed = typed.where(F.expr(projection.where.sql))
    given = dict(target.transforms.compute)
    computed = [F.expr(sql).alias(name) for name, sql in given.items()]
    return typed.select(_NUMBER, *computed).toArrow().select([_NUMBER, *given])
