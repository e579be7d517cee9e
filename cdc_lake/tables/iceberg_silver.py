"""Iceberg silver tables in a catalog shared by Spark and pyiceberg, and staged tables beside them.

The marker is a property of the snapshot's summary. Iceberg would let an outdated plan replace data and marker (tried),
so a statement never runs on the table itself, but, as the catalog allows (`tables.catalog_fence`):

* on a branch created at the version whose marker was read. `fast_forward` publishes it: refused if main has moved.
* on a staged table, a second catalog entry created from the table's metadata at that version. A commit of the staged
  version to the table publishes it: refused if the table has a newer version. 0.2 to 1.1 s slower.

Each session has its own branch or staged table: on a shared one another session's statement would build on ours.

A branch has the columns of its table, and Iceberg's own REPLACE TABLE overwrites concurrent commits. So new content,
with other columns if necessary, always goes through a staged table, which also publishes its schema and layout. Old
versions, tags and branches stay.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Self, assert_never
from uuid import uuid4

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import CatalogWithoutFence, ConcurrentModification, SilverMissing
from cdc_lake.observability.failpoints import BRANCH_WRITTEN, LAYOUT_BEGUN, LAYOUT_FILLED, failpoint
from cdc_lake.tables import schema_evolution, silver_table
from cdc_lake.tables.catalog import catalog_address, check_catalog, open_catalog, reaching, refusal_errors
from cdc_lake.tables.catalog_fence import Fence, silver_fence
from cdc_lake.tables.iceberg_table_log import IcebergTableLog, iceberg_table
from cdc_lake.tables.object_store import LEASE
from cdc_lake.tables.schema_evolution import ChangeType, Progress, SchemaChange
from cdc_lake.tables.silver_table import APP_PROPERTY, EPOCH_PROPERTY, POSITION_PROPERTY, Marker, Statement
from cdc_lake.tables.spark_session import materialize, temp_view
from cdc_lake.tables.types import SilverColumn, literal, properties_sql, quote_identifier

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate
    from pyspark.sql import SparkSession


_AHEAD = 1_000
"""Added to the last sequence number: other sessions' branches increase it too, and ours must be the catalog's highest.
"""


_DRAFT = "__cdc_lake_draft_"


class StagedTable:
    """A staged copy of the table of `target`; on exit the entry is dropped, but none of the table's files."""

    def __init__(self, project: Project, target: Target, owner: str | None = None) -> None:
        """`owner`: in the name of the entry, so that only one session writes to it.

        Without an owner, each instance has an entry of its own, and entries that other processes left are dropped.
        """
        self._target = target
        self._address = catalog_address(project)
        self._catalog = open_catalog(self._address)
        self._first = owner is None
        self.owner = owner or uuid4().hex[:8]
        self.name = f"{target.name}{_DRAFT}{self.owner}"

    def __enter__(self) -> Self:
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - an extra

        with reaching(self._address):
            try:
                self._base = self._catalog.load_table((self._target.namespace, self._target.name))
            except NoSuchTableError as cause:
                raise SilverMissing(self._target.label) from cause
            self._drop_abandoned()
            try:
                self._catalog.register_table(self._entry, self._base.metadata_location)
            except refusal_errors() as cause:
                message = f"the Iceberg catalog `{self._address.name}` does not support `registerTable`"
                raise CatalogWithoutFence(message, where=self._target.label) from cause
        return self

    def __exit__(self, *_: object) -> None:
        """Drop our entry and the metadata files that only it had: each commit would leave one."""
        with reaching(self._address):
            draft = self._drop(self.name)
        for location in set() if draft is None else _metadata_files(draft) - _metadata_files(self._base):
            with suppress(OSError):  # an orphan file is harmless
                self._base.io.delete(location)

    @property
    def _entry(self) -> tuple[str, str]:
        return self._target.namespace, self.name

    def require_base(self, base: int | None) -> None:
        """Raise ConcurrentModification if the table was not at `base` when it was staged."""
        if self._base.metadata.current_snapshot_id != base:
            raise ConcurrentModification(f"another writer committed to {self._target.label}")

    def publish(self, base: int | None) -> None:
        """Publish the staged table's newest version, if the table is still at `base`. Raises ConcurrentModification."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - an extra
        from pyiceberg.table import update as u  # noqa: PLC0415 - an extra

        with reaching(self._address):
            draft, live = self._catalog.load_table(self._entry).metadata, self._base.metadata
            requirements: tuple[u.TableRequirement, ...] = (
                u.AssertTableUUID(uuid=live.table_uuid),
                u.AssertRefSnapshotId(ref="main", snapshot_id=base),
                u.AssertCurrentSchemaId(current_schema_id=live.current_schema_id),
                u.AssertLastAssignedFieldId(last_assigned_field_id=live.last_column_id),
            )
            try:
                self._catalog.commit_table(self._base, requirements, _updates(live, draft))
            except (CommitFailedException, ValueError) as cause:
                raise ConcurrentModification(f"another writer committed to {self._target.label}") from cause

    def _drop_abandoned(self) -> None:
        """Drop our own entry of a failed commit and, the first time, those that killed processes left."""
        names = [self.name]
        if self._first:
            prefix = f"{self._target.name}{_DRAFT}"
            tables = self._catalog.list_tables(self._target.namespace)
            names = [name for *_, name in tables if name.startswith(prefix)]
        for name in names:
            self._drop(name)

    def _drop(self, name: str) -> Table | None:
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - an extra

        entry = (self._target.namespace, name)
        try:
            draft = self._catalog.load_table(entry)
            self._catalog.drop_table(entry)
        except NoSuchTableError:
            return None
        return draft


def _metadata_files(table: Table) -> set[str]:
    return {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}


def _updates(live: TableMetadata, draft: TableMetadata) -> tuple[TableUpdate, ...]:
    """The updates from the table's metadata to that of the staged table."""
    from pyiceberg.table import update as u  # noqa: PLC0415 - an extra

    version = draft.current_snapshot()
    assert version is not None, "the draft was written"
    schemas = {schema.schema_id for schema in live.schemas}
    specs = {spec.spec_id for spec in live.partition_specs}
    orders = {order.order_id for order in live.sort_orders}
    changed = {key: value for key, value in draft.properties.items() if live.properties.get(key) != value}
    placed = version.model_copy(update={"sequence_number": live.last_sequence_number + _AHEAD})
    return (
        *(u.AddSchemaUpdate(schema=schema) for schema in draft.schemas if schema.schema_id not in schemas),
        u.SetCurrentSchemaUpdate(schema_id=draft.current_schema_id),
        *(u.AddPartitionSpecUpdate(spec=spec) for spec in draft.partition_specs if spec.spec_id not in specs),
        u.SetDefaultSpecUpdate(spec_id=draft.default_spec_id),
        *(u.AddSortOrderUpdate(sort_order=order) for order in draft.sort_orders if order.order_id not in orders),
        u.SetDefaultSortOrderUpdate(sort_order_id=draft.default_sort_order_id),
        *((u.SetPropertiesUpdate(updates=changed),) if changed else ()),
        u.AddSnapshotUpdate(snapshot=placed),
        u.SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=version.snapshot_id),
    )


_PROPERTY = "spark.sql.iceberg.snapshot-property."
_PREFIX = "cdc_lake"  # of branch names
_BRANCH = "cdc_lake.branch"  # session setting with the name of its branch
_CONTENT = "cdc_lake_content"  # view of the new content of a table
_TRIES = 5
_MAKING = threading.Lock()
"""For what the catalog cannot do concurrently: prepare its tables, on each session's first use, and create a namespace.
"""


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
        return silver_table.table_ref(self._project, self._target).sql

    def marker(self, stream: str) -> Marker:
        """Read by pyiceberg from the catalog, never from Spark's cache."""
        return IcebergTableLog(self._project, self._target).marker(stream)

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
        """By DDL; the table has no version until its first commit. Raises the reason why the catalog has no fence."""
        silver_fence(self._project)
        with _MAKING:
            self._spark.sql(
                f"CREATE NAMESPACE IF NOT EXISTS {self._catalog}.{quote_identifier(self._target.namespace)}"
            )
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
        """By DDL: each task sorts what it writes, `maintain` sorts across files. No shuffle, because MERGE has none."""
        self._cluster(self.name)

    def _cluster(self, name: str) -> None:
        listed = (
            f"LOCALLY ORDERED BY {silver_table.cluster_sql(self._target)}" if self._target.cluster_by else "UNORDERED"
        )
        self._spark.sql(f"ALTER TABLE {name} WRITE {listed}")
        # otherwise properties of the former content remain
        self._spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({silver_table.division_properties(self._target)})")

    def laid_out(self, stream: str, base: Marker) -> int | None:
        """By the table's property."""
        reached = self._current_progress(stream, base)
        return reached.position if reached is not None and reached.done else None

    def reshape(self, stream: str, base: Marker, position: int, changes: Sequence[SchemaChange], live: str) -> None:
        """By metadata commits, with an UPDATE between them if rows change; each resumes after the previous one."""
        rows = schema_evolution.assignments(changes, live) if base.version is not None else {}
        swaps = any(isinstance(change, ChangeType) and not schema_evolution.is_promotion(change) for change in changes)
        app = silver_table.layout_app_id(stream, self._target, base.generation)
        begun, final_progress = Progress(app, position, done=False), Progress(app, position, done=True)
        if self._current_progress(stream, base) != begun:
            schema_evolution.begin(self._table(), base.version, changes, begun if rows or swaps else final_progress)
            self._refresh()
            failpoint(LAYOUT_BEGUN)
        if not rows and not swaps:
            return
        version = base.version
        if rows:
            sets = ", ".join(f"{quote_identifier(name)} = {sql}" for name, sql in rows.items())
            version = self.commit(stream, base, base.position, lambda table: f"UPDATE {table} SET {sets}")
            failpoint(LAYOUT_FILLED)
        schema_evolution.finish(self._table(), version, changes, final_progress)
        self._refresh()

    def _current_progress(self, stream: str, base: Marker) -> Progress | None:
        reached = schema_evolution.progress(self._table())
        app = silver_table.layout_app_id(stream, self._target, base.generation)
        return reached if reached is not None and reached.app == app else None

    def _table(self) -> Table:
        table = iceberg_table(self._project, self._target)
        assert table is not None, "a table that is not there is created"
        return table

    def _refresh(self) -> None:
        self._spark.catalog.refreshTable(self.name)  # otherwise the session keeps using the old schema

    def commit(self, stream: str, base: Marker, position: int | None, statement: Statement) -> int:
        """Run one statement at `base`, by the catalog's fence. `position` None: rows of an earlier stream."""
        match silver_fence(self._project):
            case Fence.BRANCH:
                self._commit_on_branch(stream, base, position, statement)
            case Fence.DRAFT:
                self._commit_on_draft(stream, base, position, statement)
            case other:
                assert_never(other)
        return self._published_version(stream, base.generation, position)

    def _commit_on_branch(self, stream: str, base: Marker, position: int | None, statement: Statement) -> None:
        branch = self._branch(base)
        try:
            with self._marking(stream, base.generation, position):
                self._spark.sql(statement(f"{self.name}.branch_{branch}"))
        except Exception as cause:
            if f"(does not exist): {branch}" in str(cause):  # another session removed our branch as abandoned
                raise ConcurrentModification(f"another writer is working on {self._target.label}") from cause
            raise
        failpoint(BRANCH_WRITTEN)
        self._publish(branch)

    def _commit_on_draft(self, stream: str, base: Marker, position: int | None, statement: Statement) -> None:
        with self._new_draft() as draft:
            draft.require_base(base.version)
            try:
                with self._marking(stream, base.generation, position):
                    self._spark.sql(statement(self._name_of(draft)))
            except Exception as cause:
                text = str(cause)
                if draft.name in text and ("TABLE_OR_VIEW_NOT_FOUND" in text or "does not exist" in text):
                    raise ConcurrentModification(f"another writer is working on {self._target.label}") from cause
                raise
            failpoint(BRANCH_WRITTEN)
            draft.publish(base.version)
        self._refresh()

    def _new_draft(self) -> StagedTable:
        """The session's staged table, to be entered."""
        draft = StagedTable(self._project, self._target, self._spark.conf.get(_BRANCH + _DRAFT, None))
        self._spark.conf.set(_BRANCH + _DRAFT, draft.owner)
        return draft

    def _name_of(self, draft: StagedTable) -> str:
        return f"{self._catalog}.{quote_identifier(self._target.namespace)}.{quote_identifier(draft.name)}"

    def replace(
        self, stream: str, base: Marker, generation: int, position: int, columns: Sequence[SilverColumn], query: str
    ) -> int:
        """Through a staged table (`tables.iceberg_silver`), because a branch has the columns of its table."""
        ddl = ", ".join(c.ddl for c in columns)
        self.create(columns, stream)
        if self.marker(stream) != base:
            raise ConcurrentModification(f"another writer committed to {self._target.label}")
        with self._new_draft() as draft:
            name = self._name_of(draft)
            self._spark.sql(f"REPLACE TABLE {name} ({ddl}) {self._clauses(stream)}")
            self._cluster(name)
            with self._marking(stream, generation, position), self._planned_apart(query) as content:
                self._spark.sql(f"INSERT OVERWRITE {name} BY NAME SELECT * FROM {content}")
            failpoint(BRANCH_WRITTEN)
            draft.publish(base.version)
        self._spark.sql(f"REFRESH TABLE {self.name}")
        return self._published_version(stream, generation, position)

    def _planned_apart(self, query: str) -> AbstractContextManager[str]:
        """A view of the query's rows with a plan of its own: inside a statement that writes another format Delta does
        not prepare its tables, and refuses those with deletion vectors (seen with 4.4.0). Stored on disk meanwhile,
        because it is a whole table.
        """
        return temp_view(materialize(self._spark.sql(query), large=True), _CONTENT)

    def _clauses(self, stream: str) -> str:
        """The clauses of CREATE and REPLACE TABLE after the columns."""
        comment = literal(silver_table.table_comment(self._target.source))
        properties = {
            **silver_table.own_properties(self._target),
            **silver_table.owner_properties(self._project, stream),
        }
        own = f", {properties_sql(properties)}" if properties else ""
        return (
            f"USING iceberg{silver_table.partition_sql(self._target)} COMMENT {comment} TBLPROPERTIES ("
            "'format-version' = '2', 'write.merge.distribution-mode' = 'none', "
            "'write.metadata.delete-after-commit.enabled' = 'true', 'write.metadata.previous-versions-max' = '50'"
            f"{own})"
        )

    @contextmanager
    def _marking(self, stream: str, generation: int, position: int | None) -> Iterator[None]:
        """Let commits inside carry the marker or, without a position, only identify them as ours."""
        conf = self._spark.conf
        if position is None:
            conf.set(_PROPERTY + APP_PROPERTY, silver_table.layout_app_id(stream, self._target, generation))
        else:
            conf.set(_PROPERTY + POSITION_PROPERTY, str(position))
            conf.set(_PROPERTY + APP_PROPERTY, silver_table.app_id(stream, self._target, generation))
        if (lease := LEASE.get()) is not None:
            conf.set(_PROPERTY + EPOCH_PROPERTY, str(lease.epoch))
        try:
            yield
        finally:
            for name in (POSITION_PROPERTY, APP_PROPERTY, EPOCH_PROPERTY):
                conf.unset(_PROPERTY + name)

    def _published_version(self, stream: str, generation: int, position: int | None) -> int:
        """The version that was just published."""
        marker = self.marker(stream)
        if (marker.position, marker.generation) != (position, generation) or marker.version is None:
            raise ConcurrentModification(f"{self._target.label} does not show the version that was just published")
        return marker.version

    def _branch(self, base: Marker) -> str:
        """Create the session's branch at `base`; abandoned branches of other sessions are removed."""
        branch: str | None = self._spark.conf.get(_BRANCH, None)
        if branch is None:
            branch = f"{_PREFIX}_{uuid4().hex}"
            self._spark.conf.set(_BRANCH, branch)
            table = iceberg_table(self._project, self._target)
            for left in [] if table is None else [r for r in table.refs() if r.startswith(_PREFIX)]:
                self._change_reference(f"ALTER TABLE {self.name} DROP BRANCH IF EXISTS {quote_identifier(left)}")
        version_clause = f"AS OF VERSION {base.version}" if base.version is not None else ""
        self._change_reference(f"ALTER TABLE {self.name} CREATE OR REPLACE BRANCH {branch} {version_clause}")
        if base.version is None and (table := iceberg_table(self._project, self._target)) and table.current_snapshot():
            raise ConcurrentModification(f"another writer committed to {self._target.label}")
        return branch

    def _publish(self, branch: str) -> None:
        table = literal(f"{self._target.namespace}.{self._target.name}")
        try:
            self._change_reference(f"CALL {self._catalog}.system.fast_forward({table}, 'main', '{branch}')")
        except Exception as cause:
            if "not an ancestor" in str(cause) or f"does not exist: {branch}" in str(cause):
                raise ConcurrentModification(f"another writer committed to {self._target.label}") from cause
            raise

    def _change_reference(self, statement: str) -> None:
        """Run a statement that changes one branch, again while commits of others come between. Raises
        ConcurrentModification.
        """
        lost = ConcurrentModification(f"another writer committed to {self._target.label}")
        silver_table.repeat_on_conflict(lambda: self._spark.sql(statement), is_commit_lost, lost, _TRIES)


def is_commit_lost(cause: Exception) -> bool:
    """Whether Iceberg refused a commit because another one was first."""
    text = str(cause)
    return any(word in text for word in ("CommitFailedException", "ValidationException", "Cannot commit"))
