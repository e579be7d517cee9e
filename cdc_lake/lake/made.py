"""How a silver table was made: its transforms and how its files are divided, read from the table itself.

What the format knows is read from the format; the rest stands in properties of the table, written with its DDL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from cdc_lake.config.partitioning import Partition
from cdc_lake.config.project import Project, Target
from cdc_lake.config.transforms import PROPERTY
from cdc_lake.lake.marker import iceberg_table
from cdc_lake.lake.store import literal, quoted

CLUSTER: Final = "cdc_lake.cluster_by"
OWN: Final = frozenset({PROPERTY, CLUSTER})
"""Properties that say how a table was made."""


@dataclass(frozen=True, slots=True)
class Made:
    """`transforms`: their fingerprint, empty for none. The others are as the pipeline file writes them."""

    transforms: str
    partition_by: tuple[str, ...]
    cluster_by: tuple[str, ...]


def made_of(project: Project, target: Target) -> Made | None:
    """How the table was made, None where it does not exist. Without a JVM."""
    if target.format == "delta":
        try:
            found = DeltaTable(str(project.silver_path(target))).metadata()
        except TableNotFoundError:
            return None
        return _made(found.configuration, tuple(found.partition_columns))
    table = iceberg_table(project, target)
    if table is None:
        return None
    names = {field.field_id: field.name for field in table.schema().fields}
    parts = [_iceberg_partition(str(f.transform), names[f.source_id]) for f in table.spec().fields]
    return _made(table.properties, tuple(map(str, parts)))


def clustered_once(project: Project, target: Target) -> bool:
    """Whether the table is a Delta table that was clustered at any time: Delta never lets it be partitioned (tried)."""
    if target.format != "delta":
        return False
    try:
        features = DeltaTable(str(project.silver_path(target))).protocol().writer_features
    except TableNotFoundError:
        return False
    return "clustering" in (features or ())


def said_of(target: Target) -> Made:
    """How the pipeline file says that it is to be made."""
    partitions = tuple(str(Partition.parse(text)) for text in target.partition_by)
    return Made(target.transforms.fingerprint, partitions, target.cluster_by)


def own_properties(target: Target) -> dict[str, str]:
    """What a table says of itself by properties; nothing of what it is not."""
    given = {PROPERTY: target.transforms.fingerprint, CLUSTER: _listed(target.cluster_by)}
    return {key: value for key, value in given.items() if value}


def partition_sql(target: Target) -> str:
    """The clause of a table's DDL that divides its files; empty for none."""
    parts = [_partition_sql(Partition.parse(text)) for text in target.partition_by]
    return f" PARTITIONED BY ({', '.join(parts)})" if parts else ""


def cluster_sql(target: Target) -> str:
    """The columns that rows are kept together by, as SQL lists them."""
    return ", ".join(quoted(name) for name in target.cluster_by)


def division_properties(target: Target) -> str:
    """All that a table says of itself by properties, as DDL writes it; empty for what it is not."""
    given = {PROPERTY: target.transforms.fingerprint, CLUSTER: _listed(target.cluster_by)}
    return ", ".join(f"{literal(key)} = {literal(value)}" for key, value in given.items())


def _made(given: Mapping[str, str], partitions: tuple[str, ...]) -> Made:
    cluster = tuple(name for name in given.get(CLUSTER, "").split(",") if name)
    return Made(given.get(PROPERTY, ""), partitions, cluster)


def _listed(names: tuple[str, ...]) -> str:
    return ",".join(names)  # a silver name holds no comma (`lake.names`)


def _partition_sql(one: Partition) -> str:
    if not one.transform:
        return quoted(one.column)
    return f"{one.transform}({f'{one.number}, ' if one.number else ''}{quoted(one.column)})"


def _iceberg_partition(transform: str, column: str) -> Partition:
    """Iceberg's word for a transform: `day`, `bucket[16]`, `identity`."""
    name, _, number = transform.rstrip("]").partition("[")
    if name == "identity":
        return Partition(column)
    words = {"year": "years", "month": "months", "day": "days", "hour": "hours"}
    return Partition(column, words.get(name, name), int(number or 0))
