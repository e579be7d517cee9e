"""Iceberg silver tables in a catalog shared by Spark and pyiceberg.

The marker is a property of the version's summary. Iceberg would let a stale plan take data and marker back (tried), so
a statement runs on a branch made at the version whose marker was read, and `fast_forward` publishes it: refused when
main has moved meanwhile. The branch is the session's own: on a shared one a rival's statement would build on ours.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import TableChangedMeanwhile
from cdc_lake.lake.evolution import ChangeType, SchemaChange
from cdc_lake.lake.frames import viewed
from cdc_lake.lake.iceberg_draft import Draft
from cdc_lake.lake.iceberg_layout import Progress, assignments, begin, finish, progress, promoted
from cdc_lake.lake.made import cluster_sql, division_properties, own_properties, partition_sql
from cdc_lake.lake.marker import (
    APP_PROPERTY,
    POSITION_PROPERTY,
    Marker,
    app_id,
    iceberg_table,
    layout_app_id,
    read_marker,
)
from cdc_lake.lake.owner import owner_properties, table_comment
from cdc_lake.lake.spark_catalog import check_catalog
from cdc_lake.lake.store import SilverColumn, Work, literal, quoted
from cdc_lake.observe.failpoint import BRANCH_WRITTEN, LAYOUT_BEGUN, LAYOUT_FILLED, failpoint

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

_PROPERTY = "spark.sql.iceberg.snapshot-property."
_PREFIX = "cdc_lake"  # of the branches' names
_BRANCH = "cdc_lake.branch"  # session setting that names the session's
_CONTENT = "cdc_lake_content"  # view of what a table is replaced by
_MAKING = threading.Lock()
"""What the catalog cannot do twice at once: prepare a new catalog's tables, as each session does at its first use of
it, and make a namespace."""


class IcebergSilver:
    """A silver table of format `iceberg` in one session."""

    def __init__(self, spark: SparkSession, project: Project, target: Target) -> None:
        self._spark = spark
        self._project = project
        self._target = target
        self._catalog = project.pipeline.lake.iceberg.catalog

    @property
    def name(self) -> str:
        """The table in its catalog."""
        return f"{self._catalog}.{quoted(self._target.namespace)}.{quoted(self._target.name)}"

    def marker(self, stream: str) -> Marker:
        """Read by pyiceberg from the catalog, never from Spark's cache."""
        return read_marker(self._project, self._target, stream)

    def columns(self) -> tuple[SilverColumn, ...] | None:
        """From the table's schema. Raises OtherCatalog."""
        check_catalog(self._spark, self._project)
        with _MAKING:  # the first use of the catalog in this session
            exists = self._spark.catalog.tableExists(self.name)
        if not exists:
            return None
        self._refresh()  # another session or process may have changed it
        schema = self._spark.table(self.name).schema
        return tuple(SilverColumn(f.name, f.dataType.simpleString()) for f in schema.fields)

    def create(self, columns: Sequence[SilverColumn], stream: str) -> None:
        """By DDL; the table has no version until its first commit."""
        with _MAKING:
            self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._catalog}.{quoted(self._target.namespace)}")
        ddl = ", ".join(c.ddl for c in columns)
        self._spark.sql(f"CREATE TABLE IF NOT EXISTS {self.name} ({ddl}) {self._clauses(stream)}")
        if self._target.cluster_by:
            self.cluster()

    def take_over(self, columns: Sequence[SilverColumn], stream: str) -> None:
        """By one REPLACE TABLE, behind which no version is the newest: a marker of any generation is in the past."""
        ddl = ", ".join(c.ddl for c in columns)
        self._spark.sql(f"REPLACE TABLE {self.name} ({ddl}) {self._clauses(stream)}")
        self.cluster()
        self._refresh()

    def cluster(self) -> None:
        """By DDL: each task sorts what it writes, `maintain` sorts across files. Without a shuffle: MERGE has none."""
        self._cluster(self.name)

    def _cluster(self, name: str) -> None:
        listed = f"LOCALLY ORDERED BY {cluster_sql(self._target)}" if self._target.cluster_by else "UNORDERED"
        self._spark.sql(f"ALTER TABLE {name} WRITE {listed}")
        # what a former content was made with stays otherwise
        self._spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({division_properties(self._target)})")

    def laid_out(self, stream: str, base: Marker) -> int | None:
        """By the table's property."""
        reached = self._reached(stream, base)
        return reached.position if reached is not None and reached.done else None

    def reshape(self, stream: str, base: Marker, position: int, changes: Sequence[SchemaChange], live: str) -> None:
        """By commits of metadata, with an UPDATE between them where rows change; each goes on from the one before."""
        rows = assignments(changes, live) if base.version is not None else {}
        swaps = any(isinstance(change, ChangeType) and not promoted(change) for change in changes)
        app = layout_app_id(stream, self._target, base.generation)
        begun, done = Progress(app, position, done=False), Progress(app, position, done=True)
        if self._reached(stream, base) != begun:
            begin(self._table(), base.version, changes, begun if rows or swaps else done)
            self._refresh()
            failpoint(LAYOUT_BEGUN)
        if not rows and not swaps:
            return
        version = base.version
        if rows:
            sets = ", ".join(f"{quoted(name)} = {sql}" for name, sql in rows.items())
            version = self._commit(stream, base, base.position, self._setting(sets))
            failpoint(LAYOUT_FILLED)
        finish(self._table(), version, changes, done)
        self._refresh()

    def _setting(self, sets: str) -> Work:
        def work(table: str) -> None:
            self._spark.sql(f"UPDATE {table} SET {sets}")

        return work

    def _reached(self, stream: str, base: Marker) -> Progress | None:
        reached = progress(self._table())
        app = layout_app_id(stream, self._target, base.generation)
        return reached if reached is not None and reached.app == app else None

    def _table(self) -> Table:
        table = iceberg_table(self._project, self._target)
        assert table is not None, "a table that is not there is created"
        return table

    def _refresh(self) -> None:
        self._spark.catalog.refreshTable(self.name)  # else the session goes on with the schema it has seen

    def commit(self, stream: str, base: Marker, position: int, work: Work) -> int:
        """Run one statement on a branch at `base`, then publish the branch."""
        return self._commit(stream, base, position, work)

    def _commit(self, stream: str, base: Marker, position: int | None, work: Work) -> int:
        """`position` None: rows are of an earlier stream, and stay so."""
        branch = self._branch(base)
        try:
            with self._marking(stream, base.generation, position):
                work(f"{self.name}.branch_{branch}")
        except Exception as cause:
            if f"(does not exist): {branch}" in str(cause):  # another session took ours for left behind
                raise TableChangedMeanwhile(f"another writer works on {self._target.label}") from cause
            raise
        failpoint(BRANCH_WRITTEN)
        self._publish(branch)
        return self._published(stream, base.generation, position)

    def replace(
        self, stream: str, base: Marker, generation: int, position: int, columns: Sequence[SilverColumn], query: str
    ) -> int:
        """By a draft (`lake.iceberg_draft`), because a branch has the columns of its table."""
        ddl = ", ".join(c.ddl for c in columns)
        self.create(columns, stream)
        if self.marker(stream) != base:
            raise TableChangedMeanwhile(f"another writer committed to {self._target.label}")
        with Draft(self._project, self._target) as draft:
            name = f"{self._catalog}.{quoted(self._target.namespace)}.{quoted(draft.name)}"
            self._spark.sql(f"REPLACE TABLE {name} ({ddl}) {self._clauses(stream)}")
            self._cluster(name)
            with self._marking(stream, generation, position), self._planned_apart(query) as content:
                self._spark.sql(f"INSERT OVERWRITE {name} BY NAME SELECT * FROM {content}")
            failpoint(BRANCH_WRITTEN)
            draft.publish(base.version)
        self._spark.sql(f"REFRESH TABLE {self.name}")
        return self._published(stream, generation, position)

    def _planned_apart(self, query: str) -> AbstractContextManager[str]:
        """A view of the query's rows that brings a plan of its own: inside of a statement that writes into another
        format Delta does not prepare its tables, and refuses those that have rows marked as gone (seen with 4.4.0).
        On disk meanwhile, as it is a whole table.
        """
        from pyspark import StorageLevel  # noqa: PLC0415 - an extra: a receiver has no Spark

        return viewed(
            self._spark.sql(query).localCheckpoint(eager=False, storageLevel=StorageLevel.DISK_ONLY), _CONTENT
        )

    def _clauses(self, stream: str) -> str:
        """What CREATE and REPLACE TABLE say behind the columns."""
        comment = literal(table_comment(self._target.source))
        given = {**own_properties(self._target), **owner_properties(self._project, stream)}
        own = "".join(f", {literal(key)} = {literal(value)}" for key, value in given.items())
        return (
            f"USING iceberg{partition_sql(self._target)} COMMENT {comment} TBLPROPERTIES ("
            "'format-version' = '2', 'write.merge.distribution-mode' = 'none', "
            "'write.metadata.delete-after-commit.enabled' = 'true', 'write.metadata.previous-versions-max' = '50'"
            f"{own})"
        )

    @contextmanager
    def _marking(self, stream: str, generation: int, position: int | None) -> Iterator[None]:
        """Let what is written inside carry the marker, or without a position only say that it is ours."""
        conf = self._spark.conf
        if position is None:
            conf.set(_PROPERTY + APP_PROPERTY, layout_app_id(stream, self._target, generation))
        else:
            conf.set(_PROPERTY + POSITION_PROPERTY, str(position))
            conf.set(_PROPERTY + APP_PROPERTY, app_id(stream, self._target, generation))
        try:
            yield
        finally:
            conf.unset(_PROPERTY + POSITION_PROPERTY)
            conf.unset(_PROPERTY + APP_PROPERTY)

    def _published(self, stream: str, generation: int, position: int | None) -> int:
        """The version that was just published."""
        marker = self.marker(stream)
        if (marker.position, marker.generation) != (position, generation) or marker.version is None:
            raise TableChangedMeanwhile(f"{self._target.label} does not show the version that was just published")
        return marker.version

    def _branch(self, base: Marker) -> str:
        """The session's branch, made at `base`; branches that other sessions left behind go."""
        branch: str | None = self._spark.conf.get(_BRANCH, None)
        if branch is None:
            branch = f"{_PREFIX}_{uuid4().hex}"
            self._spark.conf.set(_BRANCH, branch)
            table = iceberg_table(self._project, self._target)
            for left in [] if table is None else [r for r in table.refs() if r.startswith(_PREFIX)]:
                self._spark.sql(f"ALTER TABLE {self.name} DROP BRANCH IF EXISTS {quoted(left)}")
        at = f"AS OF VERSION {base.version}" if base.version is not None else ""
        self._spark.sql(f"ALTER TABLE {self.name} CREATE OR REPLACE BRANCH {branch} {at}")
        if base.version is None and (table := iceberg_table(self._project, self._target)) and table.current_snapshot():
            raise TableChangedMeanwhile(f"another writer committed to {self._target.label}")
        return branch

    def _publish(self, branch: str) -> None:
        table = literal(f"{self._target.namespace}.{self._target.name}")
        try:
            self._spark.sql(f"CALL {self._catalog}.system.fast_forward({table}, 'main', '{branch}')")
        except Exception as cause:
            if "not an ancestor" in str(cause) or f"does not exist: {branch}" in str(cause):
                raise TableChangedMeanwhile(f"another writer committed to {self._target.label}") from cause
            raise
