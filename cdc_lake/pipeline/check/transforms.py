"""The doctor's look at transforms: whether they name what is there, and what may be held because it was not sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import CdcLakeError, SourceError, TransformUnfit
from cdc_lake.lake.names import silver_names
from cdc_lake.model.relation import Relation, ReplicaIdentity
from cdc_lake.pipeline.check.captured import captured, shape_of
from cdc_lake.pipeline.check.line import CheckLine, failed
from cdc_lake.pipeline.server import source_view
from cdc_lake.pipeline.target.division import check_layout_divisible
from cdc_lake.pipeline.target.shared_names import shared_names
from cdc_lake.pipeline.target.transforms import check_possible, words_read
from cdc_lake.silver.kinds import kind_of
from cdc_lake.silver.projection import silver_shape
from cdc_lake.source.quoting import quoted

_ALWAYS_SENT: Final = frozenset(
    {
        *("int2", "int4", "int8", "float4", "float8", "bool", "oid", "money", "char", "name"),
        *("date", "time", "timetz", "timestamp", "timestamptz", "interval", "uuid", "macaddr", "macaddr8"),
        *("smallint", "integer", "bigint", "real", "double precision", "boolean"),
        *("timestamp without time zone", "timestamp with time zone"),
    }
)
"""Types of fixed size, by the catalog's names and SQL's: their values are never stored apart from the row."""


def names(project: Project) -> Iterator[CheckLine]:
    """Tables that would be written to one silver table."""
    try:
        with source_view(project) as source:
            shared = shared_names(project, source.tables())
    except SourceError:
        return  # said elsewhere
    yield from (failed("names", error) for error in {error.message: error for error in shared.values()}.values())


def transforms(project: Project) -> Iterator[CheckLine]:
    """What should be known of the tables that have transforms. What Spark's analyser says comes with the first row."""
    for target, layout in captured(project, lambda one: one.transforms.any or bool(one.partition_by)):
        yield from _table(project, target, layout)


def _table(project: Project, target: Target, layout: Relation) -> Iterator[CheckLine]:
    given = target.transforms
    computed = {name: "string" for name, _ in given.compute}  # of which type they are does not matter here
    try:
        check_possible(project, target, kind_of(target, layout))
        shape = shape_of(target, layout)
        silver_shape(shape, given, computed, target.label, lambda key: project.written(target, key))
        check_layout_divisible(project, target, layout)
    except TransformUnfit as unfit:
        yield failed("transforms", unfit)
        return
    except CdcLakeError:
        return  # no key: said elsewhere
    yield CheckLine(ok=True, subject="transforms", text=f"{target.label}: every column that is named is there")
    if target.kind == "append":
        return
    if doubtful := _doubtful(target, layout):
        text = f"{layout.table}: an update may not send {', '.join(doubtful)}; where silver lacks the value, it is held"
        fix = f"ALTER TABLE {quoted(layout.table)} REPLICA IDENTITY FULL;  or leave the columns out"
        yield CheckLine(ok=None, subject="transforms", text=text, fix=fix)


def _doubtful(target: Target, layout: Relation) -> list[str]:
    """Columns that an update may leave out and that silver may not be able to tell."""
    if layout.identity is ReplicaIdentity.FULL:
        return []
    given = target.transforms
    words = words_read(target)
    out = []
    for column, name in zip(layout.columns, silver_names(layout), strict=True):
        read = name.casefold() in words or column.name.casefold() in words
        needed = (
            (given.keeps(column.name) or read) if given.where is not None else read and not given.keeps(column.name)
        )
        if needed and not column.key and column.type_name not in _ALWAYS_SENT:
            out.append(column.name)
    return out
