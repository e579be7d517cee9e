"""The ports of silver tables of any format: what changes a table (`SilverStore`), and what the table itself says
(`TableLog`): watermark, commits of other writers, statistics, rows of any version. The log is read without a JVM.

A version is what a cut refers to: Delta's table version, Iceberg's snapshot id. A commit without our marker that
changes rows is foreign; compaction and column changes are not. A restore to an older version is distinguished from a
write.

The watermark is read from the table's own commits and nowhere else. Delta stores it as the version
of an application transaction, Iceberg as a property of the snapshot's summary.

The application id names stream, table and **generation**: the number of the table's content. The single commit of a
rebuild begins the next generation, so the table itself contains the current one: on Delta as a property set by this
commit (querying unknown ids would read the whole log, tried), on Iceberg in our newest version.

A commit carries its data and its marker, or neither. `commit` passes the statement a table name; it does exactly one
writing statement on it. A commit based on a state that is no longer the newest is refused.

Transforms and layout unknown to the format are table properties, written with its DDL. So are its pipeline and the
stream for which it was created or adopted. A table of version 0.3.0 or earlier has neither: the marker of its newest
commit names the stream. A table with rows and without either was written by something else.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from cdc_lake.config.project import Project, Target
from cdc_lake.config.silver_tables import PROPERTY, Partition
from cdc_lake.errors import CdcLakeError, SilverMissing
from cdc_lake.tables.files import grouped
from cdc_lake.tables.object_store import LEASE
from cdc_lake.tables.types import SilverColumn, properties_sql, quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cdc_lake.tables.schema_evolution import SchemaChange


FIRST = 1
"""The generation of a stream's first content."""

_FORMER_NOTE: Final = re.compile(r"cdc_lake: planned for (?:no watermark|(\d+))")  # before version 0.5

GENERATION_PROPERTY = "cdc_lake.generation"
"""Property of a Delta table whose content is not the first."""

POSITION_PROPERTY = "cdc-lake.position"
APP_PROPERTY = "cdc-lake.app"
EPOCH_PROPERTY = "cdc-lake.epoch"


@dataclass(frozen=True, slots=True)
class Marker:
    """The state of a silver table: watermark for one stream (None: never merged), version, generation."""

    position: int | None
    version: int | None
    generation: int = FIRST


def app_id(stream: str, target: Target, generation: int) -> str:
    """The application id under which a stream writes a generation of a silver table."""
    return f"{written_by(stream, target)}{generation}"


def layout_app_id(stream: str, target: Target, generation: int) -> str:
    """The application id of a stream's schema changes to a table, each done once, at its position."""
    return f"{laid_out_by(stream, target)}{generation}"


def laid_out_by(stream: str, target: Target) -> str:
    """Prefix of the application ids of a stream's schema changes to a table."""
    return f"cdc_lake_layout:{stream}:{target.label}:"


def written_by(stream: str, target: Target) -> str:
    """Prefix of the application ids of a stream's commits to a silver table."""
    return f"cdc_lake:{stream}:{target.label}:"


def commit_note(app: str, position: int | None, base: Marker) -> str:
    """Metadata of a commit to a Delta table: its marker, the watermark for which it was planned, and the number of the
    holder of the lease under which it was made. `position` None: new content without a watermark.
    """
    note = {"app": app, "position": position, "planned_for": base.position}
    lease = LEASE.get()
    return json.dumps({"cdc_lake": note if lease is None else {**note, "epoch": lease.epoch}})


def planned_for(note: str) -> tuple[int | None] | None:
    """The watermark for which a commit with this metadata was planned; None if it does not say."""
    if former := _FORMER_NOTE.fullmatch(note):
        return (None if former[1] is None else int(former[1]),)
    with suppress(ValueError, KeyError, TypeError):  # metadata of another program
        planned = json.loads(note)["cdc_lake"]["planned_for"]
        return (None if planned is None else int(planned),)
    return None


def noted_app(note: str | None) -> tuple[str, int | None]:
    """Application id and position in the metadata of a commit; the id is empty if it is not ours, or older than 0.5."""
    with suppress(ValueError, KeyError, TypeError):  # metadata of another program
        mark = json.loads(note or "")["cdc_lake"]
        return str(mark["app"]), None if mark["position"] is None else int(mark["position"])
    return "", None


@dataclass(frozen=True, slots=True)
class TableRef:
    """Where a silver table is. `sql`: its name in Spark; `address`: its folder or URI, None if a catalog decides."""

    sql: str
    address: str | None

    @property
    def by_address(self) -> str:
        """Its name in Spark even if it is not registered yet."""
        return self.sql if self.address is None else f"delta.{quote_identifier(self.address)}"

    @property
    def is_registered(self) -> bool:
        """Whether it is at an address, and has a name in the Hive metastore too."""
        return self.sql != self.by_address


def table_ref(project: Project, target: Target) -> TableRef:
    """Where the silver table of a target is: every place that a table can have is decided here."""
    name = ".".join(map(quote_identifier, (target.namespace, target.name)))
    if target.format == "delta":
        address = str(project.silver_address(target) or project.silver_path(target))
        by_name = project.pipeline.lake.delta.hive is not None and "/" not in target.namespace  # as a draft's
        return TableRef(name if by_name else f"delta.{quote_identifier(address)}", address)
    return TableRef(f"{project.pipeline.lake.iceberg.catalog}.{name}", None)


_R = TypeVar("_R")


def repeat_on_conflict(
    work: Callable[[], _R], is_lost: Callable[[Exception], bool], error: CdcLakeError, tries: int
) -> _R:
    """The result of `work`, which is repeated while its commit is lost to another one; after `tries`, raise `error`."""
    for remaining in reversed(range(tries)):
        try:
            return work()
        except Exception as cause:
            if not is_lost(cause):
                raise
            if not remaining:
                raise error from cause
    raise AssertionError


Statement: TypeAlias = Callable[[str], str]
"""Returns the SQL of a writing statement, given the name of the table or branch to write to."""


class SilverStore(Protocol):
    """One silver table in one session."""

    @property
    def name(self) -> str:
        """The table as SQL reads it."""

    def marker(self, stream: str) -> Marker:
        """Its watermark and version, read from the table."""

    def columns(self) -> tuple[SilverColumn, ...] | None:
        """Its columns, None if it does not exist."""

    def create(self, columns: Sequence[SilverColumn], stream: str) -> None:
        """Create the table, owned by the pipeline from its first version on (`tables.silver_table`)."""

    def laid_out(self, stream: str, base: Marker) -> int | None:
        """The position of the last layout whose operations were all done; None if there is none."""

    def reshape(self, stream: str, base: Marker, position: int, changes: Sequence[SchemaChange], live: str) -> None:
        """Apply the changes of a new layout that begins at `position`, once, even if called repeatedly.

        `base`: the marker for which the changes were planned; `live`: SQL of the condition that a row exists in the
        source's table. Raises ConcurrentModification, Unconvertible.
        """

    def take_over(self, columns: Sequence[SilverColumn], stream: str) -> None:
        """Adopt another owner's table: empty, with these columns, in one commit. Its earlier versions stay readable;
        none of its existing markers has its generation.
        """

    def cluster(self) -> None:
        """Cluster rows as the pipeline file says, from the next commit on."""

    def commit(self, stream: str, base: Marker, position: int, statement: Statement) -> int:
        """Run a statement whose commit carries `position`, in the generation of `base`; returns the new version.

        Raises ConcurrentModification.
        """

    def replace(
        self, stream: str, base: Marker, generation: int, position: int, columns: Sequence[SilverColumn], query: str
    ) -> int:
        """Replace the content by the rows of `query`, with these columns, in one commit that begins `generation` at
        `position`; returns the new version. Earlier versions stay readable, with their columns. A missing table is
        created. Raises ConcurrentModification if the table is not at `base` any more.
        """


CLUSTER: Final = "cdc_lake.cluster_by"
OWN: Final = frozenset({PROPERTY, CLUSTER})
"""Properties that record how a table was created."""


@dataclass(frozen=True, slots=True)
class TableLayout:
    """`transforms`: their fingerprint, empty if there are none. The others are as in the pipeline file."""

    transforms: str
    partition_by: tuple[str, ...]
    cluster_by: tuple[str, ...]


def declared_layout(target: Target) -> TableLayout:
    """How the pipeline file wants the table created."""
    partitions = tuple(str(Partition.parse(text)) for text in target.partition_by)
    return TableLayout(target.transforms.fingerprint, partitions, target.cluster_by)


def own_properties(target: Target) -> dict[str, str]:
    """The layout as table properties; without those that do not apply."""
    return {key: value for key, value in _layout_properties(target).items() if value}


def partition_sql(target: Target) -> str:
    """The clause of a table's DDL that partitions it; empty if there is none."""
    parts = [_partition_sql(Partition.parse(text)) for text in target.partition_by]
    return f" PARTITIONED BY ({', '.join(parts)})" if parts else ""


def cluster_sql(target: Target) -> str:
    """The clustering columns as an SQL list."""
    return ", ".join(quote_identifier(name) for name in target.cluster_by)


def division_properties(target: Target) -> str:
    """All layout properties as DDL; empty if they do not apply."""
    return properties_sql(_layout_properties(target))


def _layout_properties(target: Target) -> dict[str, str]:
    # a silver name contains no comma (`tables.types`)
    return {PROPERTY: target.transforms.fingerprint, CLUSTER: ",".join(target.cluster_by)}


def parse_layout(properties: Mapping[str, str], partitions: tuple[str, ...]) -> TableLayout:
    """The layout of a table with these properties and partitions."""
    cluster = tuple(name for name in properties.get(CLUSTER, "").split(",") if name)
    return TableLayout(properties.get(PROPERTY, ""), partitions, cluster)


def _partition_sql(partition: Partition) -> str:
    if not partition.transform:
        return quote_identifier(partition.column)
    number = f"{partition.number}, " if partition.number else ""
    return f"{partition.transform}({number}{quote_identifier(partition.column)})"


PIPELINE: Final = "cdc_lake.pipeline"
STREAM: Final = "cdc_lake.stream"
OWNER: Final = frozenset({PIPELINE, STREAM})
"""Properties that record the owner of a table; replacing the table replaces them."""

_APP: Final = re.compile(r"cdc_lake:(?P<stream>.+):[^:]+:\d+", re.DOTALL)
COMMENT: Final = re.compile(r"current rows of (?P<source>.+), by cdc_lake", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Owner:
    """`pipeline`, `stream`: from the table, None if not recorded. `unused`: created here, and never written. `source`:
    the source table of its rows, None if not recorded.
    """

    pipeline: str | None
    stream: str | None
    unused: bool = False
    source: str | None = field(default=None, compare=False)


def table_comment(source: object) -> str:
    """The comment of a silver table of a source table."""
    return f"current rows of {source}, by cdc_lake"


def owner_properties(project: Project, stream: str) -> dict[str, str]:
    """The properties that record the owner of a table created for a stream."""
    return {PIPELINE: project.name, STREAM: stream}


def stream_of(app: str) -> str | None:
    """The stream in an application id, None if it is not one of a merge."""
    app_match = _APP.fullmatch(app)
    return None if app_match is None else app_match["stream"]


_ROWS_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """`put_back`: the table has older content again; otherwise rows were written. `text` describes the commit."""

    put_back: bool
    text: str


@dataclass(frozen=True, slots=True)
class CommitMetrics:
    """What one commit wrote. `files`, `size`: data files added and all bytes written; `replaced`, `replaced_size`: data
    files removed, and all bytes removed; `marked`: data files with rows marked as deleted (Delta), or delete files
    (Iceberg).
    """

    files: int
    size: int
    replaced: int
    replaced_size: int
    marked: int

    @property
    def facts(self) -> dict[str, int]:
        """The metrics for progress and the control table `runs`."""
        return {
            "files_written": self.files,
            "bytes_written": self.size,
            "files_replaced": self.replaced,
            "bytes_replaced": self.replaced_size,
            "files_marked": self.marked,
        }


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Data files of the newest version, their bytes, and whether deleted rows are marked in them."""

    files: int
    size: int
    marked: bool


class TableLog(Protocol):
    """One silver table. Every method reads the newest state. Raises CatalogUnreachable, StoreUnavailable."""

    def exists(self) -> bool:
        """Whether the table exists."""

    def version(self) -> int | None:
        """The newest version; None if the table does not exist or, on Iceberg, has no snapshot yet."""

    def marker(self, stream: str, version: int | None = None) -> Marker:
        """The watermark and version, now or at a version; both None if the table does not exist.

        Raises SilverMissing if the table exists and the version does not.
        """

    def is_latest(self, version: int) -> bool:
        """Whether `version` is certainly the newest: a quick check for every table at every start."""

    def is_replaced(self, stream: str, version: int, position: int) -> bool:
        """Whether our merge of `position`, committed as `version`, was replaced by another commit: in a local folder, a
        program that commits at the same time may overwrite its log entry. A version no longer in the log is not
        checked.
        """

    def foreign_commit(self, stream: str, known_version: int, now: int, generation: int) -> ForeignCommit | None:
        """A foreign commit between `known_version`, which had `generation`, and `now`; None if there is none.

        Commits before the first commit of a later generation do not count.
        """

    def commit_metrics(self, version: int) -> CommitMetrics:
        """What the commit that made `version` wrote; the commit must be recent."""

    def is_readable(self, version: int) -> bool:
        """Whether a version has its metadata and its data files."""

    def statistics(self) -> TableStatistics:
        """Size of the newest version; zeros if the table does not exist or is empty."""

    def all_below(self, version: int | None, column: str, low: int) -> bool:
        """Whether every value of an integer column at `version` (None: the table is empty) is known to be below `low`.

        Proven by the bounds of each data file; a file without bounds proves nothing.
        """

    def layout(self) -> TableLayout | None:
        """How the table was created, None if it does not exist."""

    def was_clustered(self) -> bool:
        """Whether the table was ever clustered in a way that excludes partitioning."""

    def owner(self) -> Owner | None:
        """The owner of the table; None if it does not exist."""

    def columns(self) -> tuple[SilverColumn, ...] | None:
        """The columns with Spark's type names; None if the table does not exist."""

    def read(self, version: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows at a version, the newest by default, in no order.

        Columns have the table's types, text as string or large_string. Raises SilverMissing if the table or the version
        does not exist.
        """

    def read_empty(self) -> pa.Table:
        """No rows, in the columns of the newest version. Raises SilverMissing if there is no table."""

    def read_blocks(self, version: int | None = None) -> tuple[pa.Schema, Iterator[pa.Table]]:
        """The schema at a version, and the rows as from `read`, some 10,000 at a time. Raises SilverMissing."""

    def count_rows(self, version: int | None = None, where: tuple[str, bool] | None = None) -> int:
        """The number of rows at a version.

        Args:
            version: The version, the newest by default.
            where: A boolean column and the value that it has in the rows to be counted; None counts all.

        Raises:
            SilverMissing: The table or the version does not exist.
            LakeError: The table cannot be read.
        """


class SqlTable(ABC):
    """What of the log of a silver table any SQL session can read (`TableLog`); the rows pass through the driver."""

    def __init__(self, spark: SparkSession, target: Target, name: str) -> None:
        self._spark, self._target, self._name = spark, target, name

    @abstractmethod
    def is_readable(self, version: int) -> bool:
        """Whether a version has its metadata."""

    def exists(self) -> bool:
        """By asking the catalog."""
        return bool(self._spark.catalog.tableExists(self._name))

    def columns(self) -> tuple[SilverColumn, ...] | None:
        """From the schema in Spark."""
        if not self.exists():
            return None
        fields = self._frame(None).schema.fields
        return tuple(SilverColumn(field.name, field.dataType.simpleString()) for field in fields)

    def read(self, version: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """By a query."""
        return self._frame(version, "*" if columns is None else ", ".join(map(quote_identifier, columns))).toArrow()

    def read_empty(self) -> pa.Table:
        """The schema of a query."""
        return self._frame(None).limit(0).toArrow()

    def read_blocks(self, version: int | None = None) -> tuple[pa.Schema, Iterator[pa.Table]]:
        """By a query whose result is in memory."""
        rows = self.read(version)
        return rows.schema, group_batches(rows.to_batches(), rows.schema)

    def count_rows(self, version: int | None = None, where: tuple[str, bool] | None = None) -> int:
        """By a query."""
        rows = self._frame(version)
        return int((rows if where is None else rows.where(f"{quote_identifier(where[0])} = {where[1]}")).count())

    def _frame(self, version: int | None, columns: str = "*") -> DataFrame:
        if not self.exists() or (version is not None and not self.is_readable(version)):
            raise SilverMissing(self._target.label, version)
        as_of = "" if version is None else f" VERSION AS OF {version}"
        return self._spark.sql(f"SELECT {columns} FROM {self._name}{as_of}")


def column_names(log: TableLog) -> tuple[str, ...]:
    """Column names in the table's order; none if the table does not exist."""
    return tuple(column.name for column in log.columns() or ())


def group_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Combine record batches, which may have few rows each, into tables."""
    groups = grouped(batches, lambda batch: batch.num_rows, _ROWS_AT_ONCE)
    return (pa.Table.from_batches(group).cast(schema) for group in groups)
