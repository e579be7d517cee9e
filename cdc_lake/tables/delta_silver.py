"""Delta silver tables, by their path or by their name in a Hive metastore; AWS Glue has names only for readers.

The marker is Delta's application transaction: `txnAppId` and `txnVersion` are session settings that apply to every
Delta write, so they are set for one statement and reset in `finally`. Delta itself skips a statement whose version is
not higher than the table's, and refuses one whose transaction read an older version of the marker; a plan made before
another writer's commit is refused here, because Delta would run it on a state for which it was not made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import ConcurrentModification, IcebergMissing, NameElsewhere, OtherCatalog, OtherWriter
from cdc_lake.tables import silver_table
from cdc_lake.tables.delta_table_log import DeltaTableLog
from cdc_lake.tables.schema_evolution import AddColumn, SchemaChange, columns_after, only_adds, restate_columns
from cdc_lake.tables.silver_table import FIRST, GENERATION_PROPERTY, OWN, OWNER, Marker, Statement
from cdc_lake.tables.store_options import crate_options
from cdc_lake.tables.types import SilverColumn, literal, properties_sql, quote_identifier

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession


_APP = "spark.databricks.delta.write.txnAppId"
_NOTE = "spark.databricks.delta.commitInfo.userMetadata"
_VERSION = "spark.databricks.delta.write.txnVersion"


class DeltaSilver:
    """A silver table of format `delta` in one session."""

    def __init__(self, spark: SparkSession, project: Project, target: Target) -> None:
        self._spark = spark
        self._project = project
        self._target = target
        self._log = DeltaTableLog(project, target)

    @property
    def name(self) -> str:
        """The table by its path, or its name."""
        return silver_table.table_ref(self._project, self._target).sql

    def marker(self, stream: str) -> Marker:
        """Read by delta-rs: 13 ms, no job (measured)."""
        return self._log.marker(stream)

    def columns(self) -> tuple[SilverColumn, ...] | None:
        """From the table's schema."""
        if not self._log.exists():
            return None
        schema = self._spark.table(self.name).schema
        return tuple(SilverColumn(f.name, f.dataType.simpleString()) for f in schema.fields)

    def create(self, columns: Sequence[SilverColumn], stream: str) -> None:
        """By DDL; the checkpoint interval of 100 removes the latency peak of every tenth commit (measured)."""
        ddl = ", ".join(c.ddl for c in columns)
        self._spark.sql(f"CREATE TABLE IF NOT EXISTS {self.name} ({ddl}) {self._clauses(stream)}")
        register(self._spark, self._project, self._target)  # another program may have taken the name meanwhile

    def take_over(self, columns: Sequence[SilverColumn], stream: str) -> None:
        """By one REPLACE TABLE with a query: without one Delta compares a path's table with the existing one (tried).
        Application transactions survive it, so the generation increases.
        """
        none = ", ".join(f"CAST(NULL AS {c.type}) AS {quote_identifier(c.name)}" for c in columns)
        generation = int(self._properties().get(GENERATION_PROPERTY, FIRST)) + 1
        app = silver_table.app_id(stream, self._target, generation)
        clauses = self._clauses(stream, {**_features(columns), GENERATION_PROPERTY: str(generation)})
        with self._with_note(silver_table.commit_note(app, None, Marker(None, None))):
            self._spark.sql(f"CREATE OR REPLACE TABLE {self.name} {clauses} AS SELECT {none} WHERE false")

    def cluster(self) -> None:
        """By DDL: `maintain` clusters the rows, existing ones too."""
        listed = f"({silver_table.cluster_sql(self._target)})" if self._target.cluster_by else "NONE"
        self._spark.sql(f"ALTER TABLE {self.name} CLUSTER BY {listed}")
        self._spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({silver_table.division_properties(self._target)})")

    def laid_out(self, stream: str, base: Marker) -> int | None:
        """The version of the layout's own application transaction."""
        app = silver_table.layout_app_id(stream, self._target, base.generation)
        reached: int | None = self._existing().transaction_version(app)
        return reached

    def reshape(self, stream: str, base: Marker, position: int, changes: Sequence[SchemaChange], live: str) -> None:
        """One atomic commit of schema, rows and an application transaction of the layout's own.

        Added columns come with an append of zero rows. Everything else replaces the table: type widening and column
        mapping could do part of it without rewriting rows, but exclude readers that do not support them.
        """
        have = self.columns()
        assert have is not None, "a table that is not there is created"
        self._check_base(stream, base)
        if (asked := _features(columns_after(have, changes))) and not _features(have):
            self._spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({properties_sql(asked)})")
        if only_adds(changes):
            # Delta expects partition columns even in an empty DataFrame.
            divided = self._existing().metadata().partition_columns
            adds = [column for column in have if column.name in divided]
            adds += [change.column for change in changes if isinstance(change, AddColumn)]
            rows = self._spark.range(0).selectExpr(
                *(f"CAST(NULL AS {c.type}) AS {quote_identifier(c.name)}" for c in adds)
            )
            writer = rows.write.format("delta").mode("append").option("mergeSchema", "true")
        else:
            columns = [
                f"{sql} AS {quote_identifier(column.name)}" for column, sql in restate_columns(have, changes, live)
            ]
            rows = self._spark.table(self.name).selectExpr(*columns)
            writer = rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
            detail = self._spark.sql(f"DESCRIBE DETAIL {self.name}").first()
            assert detail is not None  # one row for each table
            if detail["partitionColumns"]:  # the same partitioning or clustering
                writer = writer.partitionBy(*detail["partitionColumns"])
            if detail["clusteringColumns"]:
                writer = writer.clusterBy(*detail["clusteringColumns"])
        app = silver_table.layout_app_id(stream, self._target, base.generation)
        writer = writer.option("txnAppId", app).option("txnVersion", str(position))
        with self._with_note(silver_table.commit_note(app, position, base)):
            writer.save(silver_table.table_ref(self._project, self._target).address)

    def commit(self, stream: str, base: Marker, position: int, statement: Statement) -> int:
        """Run one statement that carries the marker."""
        # Once the statement has begun, Delta itself fences: the transaction action is a read dependency of it.
        self._check_base(stream, base)
        with self._marked(stream, base, base.generation, position):
            self._spark.sql(statement(self.name))
        version = self._committed_version(stream, base.generation, position)
        planned_on = -1 if base.version is None else base.version
        foreign_commit = self._log.concurrent_commit(stream, planned_on, version)
        if foreign_commit is not None:
            raise OtherWriter(
                f"{self._target.label} was modified outside cdc_lake: {foreign_commit.text}", where=self._target.label
            )
        return version

    def replace(
        self, stream: str, base: Marker, generation: int, position: int, columns: Sequence[SilverColumn], query: str
    ) -> int:
        """By one REPLACE TABLE. It changes the table's metadata, so concurrent commits conflict: a running merge fails
        on it, and it fails on a merge that has ended meanwhile.
        """
        if self.marker(stream) != base:
            raise ConcurrentModification(f"another writer committed to {self._target.label}")
        chosen = ", ".join(
            f"CAST({quote_identifier(c.name)} AS {c.type}) AS {quote_identifier(c.name)}" for c in columns
        )
        properties = {**self._properties(), **_features(columns)}
        clauses = self._clauses(stream, {**properties, GENERATION_PROPERTY: str(generation)})
        statement = f"CREATE OR REPLACE TABLE {self.name} {clauses} AS SELECT {chosen} FROM ({query})"
        with self._marked(stream, base, generation, position):
            self._spark.sql(statement)
        return self._committed_version(stream, generation, position)

    def _properties(self) -> dict[str, str]:
        """Properties that a REPLACE would reset (version retention); not column numbers, which it renews."""
        properties = self._log.properties() or {}
        return {key: value for key, value in properties.items() if key != "delta.columnMapping.maxColumnId"}

    def _existing(self) -> DeltaTable:
        table = self._log.open()
        assert table is not None, "only an existing table is asked"
        return table

    def _clauses(self, stream: str, table_properties: Mapping[str, str] | None = None) -> str:
        """The clauses of CREATE and REPLACE TABLE after the columns; `table_properties`: existing properties."""
        comment = literal(silver_table.table_comment(self._target.source))
        others = {key: value for key, value in (table_properties or {}).items() if key not in OWN | OWNER}
        own = {**silver_table.own_properties(self._target), **silver_table.owner_properties(self._project, stream)}
        properties = {**others, "delta.checkpointInterval": "100", **own}
        clustered = f" CLUSTER BY ({silver_table.cluster_sql(self._target)})" if self._target.cluster_by else ""
        divided = f"{silver_table.partition_sql(self._target)}{clustered}"
        ref = silver_table.table_ref(self._project, self._target)
        place = f" LOCATION {literal(str(ref.address))}" if ref.is_registered else ""
        return f"USING delta{divided}{place} COMMENT {comment} TBLPROPERTIES ({properties_sql(properties)})"

    @contextmanager
    def _marked(self, stream: str, base: Marker, generation: int, position: int) -> Iterator[None]:
        """Let the commit of the one statement inside carry the marker."""
        conf = self._spark.conf
        app = silver_table.app_id(stream, self._target, generation)
        conf.set(_APP, app)
        conf.set(_VERSION, str(position))
        try:
            with self._with_note(silver_table.commit_note(app, position, base)):
                yield
        finally:
            conf.unset(_APP)
            conf.unset(_VERSION)

    @contextmanager
    def _with_note(self, note: str) -> Iterator[None]:
        """Let the commit of the one statement inside carry a note."""
        self._spark.conf.set(_NOTE, note)
        try:
            with self._rivals_refused():
                yield
        finally:
            self._spark.conf.unset(_NOTE)

    def _committed_version(self, stream: str, generation: int, position: int) -> int:
        """The version that was just committed. Raises ConcurrentModification if Delta skipped the statement."""
        marker = self.marker(stream)
        is_committed = (marker.position, marker.generation) == (position, generation)
        if marker.version is None or not is_committed:  # Delta skipped the statement: its position is older
            raise ConcurrentModification(f"another writer committed to {self._target.label}")
        return marker.version

    def _check_base(self, stream: str, base: Marker) -> None:
        now = self.marker(stream)
        if (now.position, now.generation) != (base.position, base.generation):
            raise ConcurrentModification(f"another writer committed to {self._target.label}")

    @contextmanager
    def _rivals_refused(self) -> Iterator[None]:
        try:
            yield
        except Exception as cause:
            if is_conflict(cause):
                raise ConcurrentModification(f"another writer committed to {self._target.label}") from cause
            raise


_AWS_KEYS: Final = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_REGISTERED: set[tuple[str, str, str | None]] = set()
_LOCATION: Final = re.compile(r"(?m)^Location: (?:file:/*(?=/))?(.+)$")


def register(spark: SparkSession, project: Project, target: Target) -> None:
    """Register an existing table in the metastore, if the pipeline has one, or prepare its name to be created.

    A name whose table is no longer at our address, because its folder was moved away, is removed. Raises
    NameElsewhere, OtherCatalog.
    """
    ref, metastore = silver_table.table_ref(project, target), project.pipeline.lake.delta.metastore
    if metastore is None or "/" in target.namespace:  # a draft's
        return
    exists = DeltaTableLog(project, target).exists()
    if (known := (metastore, target.label, ref.address)) in _REGISTERED and exists:
        return
    hive = metastore == project.pipeline.lake.delta.hive
    names = _HiveNames(spark, metastore) if hive else _GlueNames(project, metastore.partition("+")[2] or None)
    place = names.find(target)
    if place is not None:
        if place.rstrip("/") != ref.address:
            where = f"at {place}" if place else "a view"
            raise NameElsewhere(f"{target.label} in the metastore is {where}, not at {ref.address}", where=target.label)
        if not exists:
            names.drop(target)
    elif exists:
        names.add(target, str(ref.address))
    if exists:
        _REGISTERED.add(known)


class _HiveNames:
    """Names in the Hive metastore of a session. Raises OtherCatalog."""

    def __init__(self, spark: SparkSession, metastore: str) -> None:
        uris = spark.conf.get("spark.hadoop.hive.metastore.uris", None)
        if spark.conf.get("spark.sql.catalogImplementation", None) != "hive" or uris not in (None, metastore):
            raise OtherCatalog(f"this session of Spark does not use the Hive metastore {metastore}", where=metastore)
        self._spark = spark

    def find(self, target: Target) -> str | None:
        """Where the table of the name is: None if there is none, empty for a view."""
        namespace = quote_identifier(target.namespace)
        self._spark.sql(f"CREATE DATABASE IF NOT EXISTS {namespace}")
        row = self._spark.sql(f"SHOW TABLE EXTENDED IN {namespace} LIKE {literal(target.name)}").first()
        location = None if row is None else _LOCATION.search(row["information"])
        return None if row is None else location[1] if location else ""

    def drop(self, target: Target) -> None:
        self._spark.sql(f"DROP TABLE {_quoted(target)}")

    def add(self, target: Target, address: str) -> None:
        self._spark.sql(f"CREATE TABLE IF NOT EXISTS {_quoted(target)} USING delta LOCATION {literal(address)}")


class _GlueNames:
    """Names in AWS Glue, in which Spark, Trino and Athena find Delta tables. Raises IcebergMissing."""

    def __init__(self, project: Project, endpoint: str | None) -> None:
        try:
            import boto3  # noqa: PLC0415 - an extra
        except ImportError as cause:
            raise IcebergMissing("glue") from cause
        assert project.storage is not None, "`validate` requires it"
        options = crate_options(project.storage)
        keys = {name: value for name, value in options.items() if name in _AWS_KEYS}  # boto3 has the same names
        self._glue: Any = boto3.client("glue", region_name=options["aws_region"], endpoint_url=endpoint, **keys)

    def find(self, target: Target) -> str | None:
        try:
            table = self._glue.get_table(DatabaseName=target.namespace.lower(), Name=target.name.lower())["Table"]
        except self._glue.exceptions.EntityNotFoundException:
            return None
        return "" if table.get("TableType") == "VIRTUAL_VIEW" else str(table["StorageDescriptor"]["Location"])

    def drop(self, target: Target) -> None:
        self._glue.delete_table(DatabaseName=target.namespace.lower(), Name=target.name.lower())

    def add(self, target: Target, address: str) -> None:
        with suppress(self._glue.exceptions.AlreadyExistsException):
            self._glue.create_database(DatabaseInput={"Name": target.namespace.lower()})
        hive, hadoop = "org.apache.hadoop.hive", "org.apache.hadoop.mapred"
        storage = {
            "Location": address,
            "Columns": [{"Name": "col", "Type": "array<string>"}],  # as Spark does: readers take them from Delta's log
            "InputFormat": f"{hadoop}.SequenceFileInputFormat",
            "OutputFormat": f"{hive}.ql.io.HiveSequenceFileOutputFormat",
            "SerdeInfo": {
                "SerializationLibrary": f"{hive}.serde2.lazy.LazySimpleSerDe", "Parameters": {"path": address},
            },
        }  # fmt: skip
        # Spark and Trino know a Delta table by its provider, Athena by `table_type`.
        kind = {"EXTERNAL": "TRUE", "spark.sql.sources.provider": "delta", "table_type": "delta"}
        made = {"Name": target.name.lower(), "TableType": "EXTERNAL_TABLE", "Parameters": kind}
        self._glue.create_table(
            DatabaseName=target.namespace.lower(), TableInput={**made, "StorageDescriptor": storage}
        )


def _quoted(target: Target) -> str:
    return ".".join(map(quote_identifier, (target.namespace, target.name)))


def is_conflict(cause: Exception) -> bool:
    """Whether another commit was first."""
    return "Concurrent" in type(cause).__name__ or "DELTA_CONCURRENT" in str(cause)


def _features(columns: Sequence[SilverColumn]) -> dict[str, str]:
    """The properties that Delta needs to accept columns of types that the table did not have when it was created."""
    return {"delta.feature.timestampNtz": "supported"} if any("timestamp_ntz" in c.type for c in columns) else {}
