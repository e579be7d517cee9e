"""Negative controls of apply: each plants one bug in one place of the product while it is entered.

See `cdc_lake_testing.controls`.
"""
# ruff: noqa: SLF001 - a bug is planted behind what silver offers

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from cdc_lake.config.project import Project
from cdc_lake.observability.failpoints import TABLE_MERGED, failpoint
from cdc_lake.runtime.apply import table_span
from cdc_lake.silver import net_change
from cdc_lake.silver.changes import FROM, ORDER, TO, cast_rows, known_column
from cdc_lake.silver.layout_mapping import RelationMapping
from cdc_lake.tables.delta_silver import DeltaSilver
from cdc_lake.tables.iceberg_silver import IcebergSilver
from cdc_lake.tables.silver_table import Marker, Statement, app_id

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_APP, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"


@contextmanager
def batch_id_as_version() -> Iterator[None]:
    """Delta's transaction counts the batches of Spark's checkpoint, and what Delta skips is taken for done."""

    @contextmanager
    def marked(silver: Any, stream: str, base: Marker, generation: int, position: int) -> Iterator[None]:
        del base, position
        conf = silver._spark.conf
        conf.set(_APP, app_id(stream, silver._target, generation))
        conf.set(_VERSION, str(next_batch(silver._project)))
        try:
            yield
        finally:
            conf.unset(_APP)
            conf.unset(_VERSION)

    def whatever_version(silver: Any, stream: str, generation: int, position: int) -> int:
        del generation, position
        version = silver.marker(stream).version
        assert version is not None
        return int(version)

    with mock.patch.multiple(DeltaSilver, _marked=marked, _committed_version=whatever_version):
        yield


def next_batch(project: Project) -> int:
    """The number of the batch that Spark's checkpoint comes to next."""
    batches = [int(file.name) for file in (project.checkpoint / "offsets").glob("[0-9]*")]
    return max(batches, default=-1) + 1


@contextmanager
def last_row_wins() -> Iterator[None]:
    """A key's net change is its last change, also where that does not say what a column is."""

    def last(
        changes: DataFrame,
        by: Sequence[Column],
        shape: RelationMapping,
        unsent: frozenset[int],
        extra: Sequence[str] = (),
        also: Sequence[Column] = (),
    ) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - DataFrames come from a session that has it

        told = changes.withColumns({known_column(at): F.lit(True) for at in unsent})
        return folding(told, by, shape, unsent, extra, also)

    folding = net_change.last_and_known
    with mock.patch.object(net_change, "last_and_known", last):
        yield


@contextmanager
def marker_in_a_commit_of_its_own() -> Iterator[None]:
    """The rows are committed, and then the position."""

    @contextmanager
    def marked(silver: Any, stream: str, base: Marker, generation: int, position: int) -> Iterator[None]:
        del base
        yield
        failpoint(TABLE_MERGED)
        nothing = silver._spark.table(silver.name).limit(0).write.format("delta").mode("append")
        app = app_id(stream, silver._target, generation)
        nothing.option("txnAppId", app).option("txnVersion", str(position)).save(silver._log.storage.name)

    with mock.patch.object(DeltaSilver, "_marked", marked):
        yield


@contextmanager
def rules_judged_after_folding() -> Iterator[None]:
    """Only the last change of a key in a span is judged: the others are folded away before."""

    def folded(*given: Any) -> DataFrame:
        from pyspark.sql import Window  # noqa: PLC0415 - as where it is planted
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - the same

        of_key = Window.partitionBy(F.coalesce(TO, FROM)).orderBy(F.col(ORDER).desc())
        numbered = cast_rows(*given).withColumn("_last", F.row_number().over(of_key))
        return numbered.where("_last = 1").drop("_last")

    with mock.patch.object(table_span, "cast_rows", folded):
        yield


@contextmanager
def no_fence_on_iceberg() -> Iterator[None]:
    """A statement writes to the table itself, whatever others committed since it was planned."""

    def unfenced(silver: Any, stream: str, base: Marker, position: int, statement: Statement) -> int:
        silver._refresh()
        with silver._marking(stream, base.generation, position):
            silver._spark.sql(statement(silver.name))
        return int(silver._published_version(stream, base.generation, position))

    with mock.patch.object(IcebergSilver, "commit", unfenced):
        yield
