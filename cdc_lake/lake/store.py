"""The silver store: what merging needs of a table, whatever its format.

A commit carries its data and its marker, or neither. `commit` hands the work a table name to write to; the work does
exactly one writing statement on it. A commit made on a state that is no longer the newest is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from cdc_lake.config.project import Project, Target
from cdc_lake.lake.marker import Marker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc_lake.lake.evolution import SchemaChange

Work: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SilverColumn:
    """A column of a silver table: its name and its Spark SQL type."""

    name: str
    type: str

    @property
    def ddl(self) -> str:
        """The column as CREATE and ALTER TABLE take it."""
        return f"{quoted(self.name)} {self.type}"


class SilverStore(Protocol):
    """One silver table in one session."""

    @property
    def name(self) -> str:
        """The table as SQL reads it."""
        ...

    def marker(self, stream: str) -> Marker:
        """Its watermark and version, read from the table."""
        ...

    def columns(self) -> tuple[SilverColumn, ...] | None:
        """Its columns, None where it does not exist."""
        ...

    def create(self, columns: Sequence[SilverColumn], stream: str) -> None:
        """Make the table, the pipeline's own from its first version on (`lake.owner`)."""
        ...

    def laid_out(self, stream: str, base: Marker) -> int | None:
        """The position of the last layout whose operations were all done; None where there were none."""
        ...

    def reshape(self, stream: str, base: Marker, position: int, changes: Sequence[SchemaChange], live: str) -> None:
        """Do what a new layout that begins at `position` asks of the table, once, however often it is called.

        `base`: the marker the changes were worked out from; `live`: SQL of the condition under which a row is one that
        the source's table has. Raises TableChangedMeanwhile, Unconvertible.
        """
        ...

    def take_over(self, columns: Sequence[SilverColumn], stream: str) -> None:
        """Make a table that was somebody else's the pipeline's own: empty, with these columns, in one commit. Its
        versions before that stay readable; its generation is one that no marker of it names.
        """
        ...

    def cluster(self) -> None:
        """Keep rows together as the pipeline says now, from the next commit on."""
        ...

    def commit(self, stream: str, base: Marker, position: int, work: Work) -> int:
        """Run `work` so that its commit carries `position`, in the generation of `base`; the version it made.

        Raises TableChangedMeanwhile.
        """
        ...

    def replace(
        self, stream: str, base: Marker, generation: int, position: int, columns: Sequence[SilverColumn], query: str
    ) -> int:
        """Make the rows of `query` the whole content, with these columns, in one commit that begins `generation` at
        `position`; the version it made. Versions before it stay readable, with the columns they had. A table that is
        not there is made. Raises TableChangedMeanwhile where it is not at `base` any more.
        """
        ...


def store(spark: SparkSession, project: Project, target: Target) -> SilverStore:
    """The store of a target's format; `spark` must be a session used for nothing else meanwhile."""
    if target.format == "delta":
        from cdc_lake.lake.delta import DeltaSilver  # noqa: PLC0415 - formats know the port, the port names them once

        return DeltaSilver(spark, project, target)
    from cdc_lake.lake.iceberg import IcebergSilver  # noqa: PLC0415 - as above

    return IcebergSilver(spark, project, target)


def quoted(name: str) -> str:
    """An identifier in Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A string literal in Spark SQL.

    Before anything else Spark puts settings and the environment of its process in place of `${name}`, in strings too,
    so no dollar stands as one.
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"
