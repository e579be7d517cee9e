"""Whether a silver table was made as the pipeline says: its transforms, and how its files are divided."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from cdc_lake.config.partitioning import Partition
from cdc_lake.config.project import Project, Target
from cdc_lake.errors import DivisionChanged, TransformChanged, TransformUnfit
from cdc_lake.lake.made import Made, clustered_once, made_of, said_of
from cdc_lake.lake.store import SilverColumn, SilverStore
from cdc_lake.lake.typed_columns import typed_columns
from cdc_lake.model.relation import Relation
from cdc_lake.silver.projection import taken_columns

_PARTITIONS: Final = re.compile(r"smallint|int|bigint|float|double|decimal\(.*\)|boolean|date|timestamp|timestamp_ntz")
"""Types by whose values Delta divides files without losing any."""


def check_made(project: Project, target: Target) -> Made | None:
    """How the table was made, None where it is not there. Raises TransformChanged, DivisionChanged."""
    made, said = made_of(project, target), said_of(target)
    if made is None:
        return None
    if made.transforms != said.transforms:
        keys = "`columns`, `exclude`, `rename`, `compute` or `where`"
        raise TransformChanged(
            f"{target.label} was made with other {keys} than the pipeline has now", where=_where(project, target)
        )
    if made.partition_by != said.partition_by:
        have = ", ".join(made.partition_by) or "nothing"
        text = f"{target.label} is divided by {have}, the pipeline says {', '.join(said.partition_by) or 'nothing'}"
        raise DivisionChanged(text, where=_where(project, target, "partition_by"))
    return made


def divide(project: Project, target: Target, silver: SilverStore, columns: Sequence[SilverColumn]) -> None:
    """Check what is there, or is about to be made with `columns`; rows are kept together as the pipeline says now.

    Raises TransformUnfit, TransformChanged, DivisionChanged.
    """
    made = check_made(project, target)
    check_divided(project, target, columns)
    if made is not None and made.cluster_by != target.cluster_by:
        silver.cluster()


def check_divisible(project: Project, target: Target) -> None:
    """Raise DivisionChanged where the table that is there can never be divided as the pipeline says now."""
    if target.partition_by and clustered_once(project, target):
        text = f"{target.label} was clustered, and Delta never partitions a table that was"
        place = project.silver_path(target)
        hint = f"leave `partition_by` out, or move {place} away and rebuild it: its older versions go with the folder"
        raise DivisionChanged(text, where=_where(project, target, "partition_by"), hint=hint)


def check_divided(project: Project, target: Target, columns: Sequence[SilverColumn]) -> None:
    """Raise TransformUnfit where files of a table of `columns` are to be divided, or rows sorted, by one it lacks."""
    names = {column.name for column in columns}
    given = [("partition_by", Partition.parse(text).column) for text in target.partition_by]
    for key, name in [*given, *(("cluster_by", name) for name in target.cluster_by)]:
        if name not in names:
            text = f"`{key}` names `{name}`, and {target.label} has no such column"
            raise TransformUnfit(text, where=_where(project, target, key))
    check_partition_types(project, target, columns)


def check_partition_types(project: Project, target: Target, columns: Sequence[SilverColumn]) -> None:
    """Raise TransformUnfit if Delta cannot keep all values of a column that it is to divide files by.

    Delta stores the value of a partition column as text and reads an empty one as NULL. A table that was made so
    stays: values that would become NULL are held (`silver.shape`).
    """
    divided = [Partition.parse(text).column for text in target.partition_by] if target.format == "delta" else []
    for column in columns:
        if column.name not in divided or _PARTITIONS.fullmatch(column.type):
            continue
        made = made_of(project, target) if column.type == "string" else None
        if made is not None and column.name in made.partition_by:
            continue
        why = "an empty text would be stored as NULL" if column.type == "string" else "Delta cannot"
        text = f"`partition_by` names `{column.name}` of {target.label}, of type {column.type}: {why}"
        hint = (
            f"use `cluster_by: [{column.name}]`, or `format: iceberg` for the table; or divide it by a column "
            "of a number, a boolean or a date"
        )
        raise TransformUnfit(text, where=_where(project, target, "partition_by"), hint=hint)


def check_layout_divisible(project: Project, target: Target, relation: Relation) -> None:
    """The same for a layout of the source's table, without Spark; of which type computed columns are is not known."""
    made = typed_columns(relation, target.types)
    taken = taken_columns(made, target.transforms)
    check_partition_types(project, target, [SilverColumn(name, made[at].type.sql) for at, name in taken.items()])


def _where(project: Project, target: Target, key: str = "from") -> str:
    return project.written(target, key)
