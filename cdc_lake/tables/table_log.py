"""The port of what a silver table itself says: watermark, commits of other writers, statistics, rows of any version.

Implementations read the table's metadata without a JVM: Delta by delta-rs (`tables.delta_table_log`), Iceberg by
pyiceberg (`tables.iceberg_table_log`). A version is what a cut refers to: Delta's table version, Iceberg's snapshot id.

A commit without our marker that changes rows is foreign; compaction and column changes are not. A restore to an older
version is distinguished from a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from cdc_lake.tables.files import grouped
from cdc_lake.tables.silver_table import Marker, Owner, TableLayout
from cdc_lake.tables.types import SilverColumn

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


def column_names(log: TableLog) -> tuple[str, ...]:
    """Column names in the table's order; none if the table does not exist."""
    return tuple(column.name for column in log.columns() or ())


def group_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Combine record batches, which may have few rows each, into tables."""
    groups = grouped(batches, lambda batch: batch.num_rows, _ROWS_AT_ONCE)
    return (pa.Table.from_batches(group).cast(schema) for group in groups)
