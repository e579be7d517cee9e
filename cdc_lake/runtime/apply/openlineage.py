"""Events of OpenLineage (specification 2-0-2) from what a run of apply did, with column lineage.

A job for each pipeline, a run for each run. Inputs are the source's tables, outputs silver's: bronze between them
is not a dataset of the lineage. Facets: schema, column lineage, counts of rows and bytes written, and the results of
the rules. No row value is in an event.

Column lineage follows from a table's projection; `silver.row_tracing`, which follows rows, is unrelated to it.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import urlsplit

from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.generated.column_lineage_dataset import (
    ColumnLineageDatasetFacet,
    Fields,
    InputField,
    Transformation,
)
from openlineage.client.generated.data_quality_assertions_dataset import Assertion, DataQualityAssertionsDatasetFacet
from openlineage.client.generated.error_message_run import ErrorMessageRunFacet
from openlineage.client.generated.job_type_job import JobTypeJobFacet
from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet
from openlineage.client.generated.processing_engine_run import ProcessingEngineRunFacet
from openlineage.client.generated.schema_dataset import SchemaDatasetFacet, SchemaDatasetFacetFields
from openlineage.client.generated.symlinks_dataset import Identifier, SymlinksDatasetFacet
from openlineage.client.serde import Serde

from cdc_lake.config.project import Project, Target
from cdc_lake.config.rules import named_columns, rule_name
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.apply.merge import ApplyTotals, TableApplied
from cdc_lake.silver.kind import old_column
from cdc_lake.silver.layout_mapping import RelationMapping
from cdc_lake.silver.transforms import Projection
from cdc_lake.tables.silver_table import table_ref
from cdc_lake.tables.types import SilverColumn


class ColumnFate(enum.Enum):
    """How a value is transformed: not at all (except in name or type), computed, or redacted before bronze."""

    SAME = "same"
    COMPUTED = "computed"
    MASKED = "masked"


@dataclass(frozen=True, slots=True)
class ColumnOrigin:
    """A column of the source that a column of silver comes from; `sql`: the expression, where there is one."""

    column: str
    how: ColumnFate
    sql: str = ""


def columns_from(projection: Projection, columns: Sequence[SilverColumn]) -> dict[str, tuple[ColumnOrigin, ...]]:
    """What each silver column comes from, by name; without columns that describe the change and not the row."""
    indexes = {column.name: index for index, column in _places(projection)}
    old = {old_column(column).name: index for index, column in _places(projection)}
    sources: dict[str, tuple[ColumnOrigin, ...]] = {}
    computed_columns = projection.silver.columns[len(projection.silver.columns) - len(projection.computed) :]
    computed = dict(zip((column.name for column in computed_columns), projection.computed, strict=True))
    for column in columns:
        if column.name in indexes:
            sources[column.name] = (_column_source(projection.source, indexes[column.name]),)
        elif column.name in computed:
            expression = computed[column.name]
            read = sorted(projection.read_by(expression))
            sources[column.name] = tuple(
                ColumnOrigin(
                    source.column,
                    source.how if source.how is ColumnFate.MASKED else ColumnFate.COMPUTED,
                    expression.sql,
                )
                for source in (_column_source(projection.source, index) for index in read)
            )
        elif column.name in old:
            sources[column.name] = (_column_source(projection.source, old[column.name]),)
    return sources


def rows_by(projection: Projection) -> tuple[str, ...]:
    """The columns of the source that decide which rows silver has."""
    columns = projection.source.typed_columns
    return tuple(dict.fromkeys(columns[index].source.name for index in sorted(projection.condition)))


def _places(projection: Projection) -> list[tuple[int, SilverColumn]]:
    """The silver columns that are a column of the source, each with its place there."""
    of = getattr(projection.silver, "of", None)
    if of is None:
        return list(enumerate(projection.silver.columns))
    return [(index, column) for index, column in zip(of, projection.silver.columns, strict=True) if index is not None]


def _column_source(source: RelationMapping, index: int) -> ColumnOrigin:
    column = source.typed_columns[index]
    how = ColumnFate.COMPUTED if column.companion else ColumnFate.SAME
    return ColumnOrigin(column.source.name, how if column.source.redacted is None else ColumnFate.MASKED)


_VERSION: Final = version("cdc_lake")
_PRODUCER: Final = f"urn:cdc_lake:{_VERSION}"
_SCHEMES: Final = {"qhb": "postgres"}
"""Types of sources whose tables others know under the name of PostgreSQL's protocol; the others under their own."""


def run_id(pipeline: str, run: str) -> str:
    """The UUID of a run, from its identifier in the control table `runs`: whoever has one finds the other."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"cdc_lake:{pipeline}:{run}"))


def event(  # what an event says
    project: Project,
    namespace: str,
    run: str,
    state: str,
    totals: ApplyTotals,
    *,
    once: bool,
    error: BaseException | None = None,
) -> str:
    """One event as JSON. `state`: START, RUNNING, COMPLETE, FAIL or ABORT; `error`: what ended the run."""
    tables = [table for _, table in sorted(totals.tables.items())]
    kind = JobTypeJobFacet("BATCH" if once else "STREAMING", "CDC_LAKE", "JOB", producer=_PRODUCER)
    facets: dict[str, Any] = {"processing_engine": ProcessingEngineRunFacet(_VERSION, "cdc_lake", producer=_PRODUCER)}
    if error is not None:
        facets["errorMessage"] = ErrorMessageRunFacet(_message(error), "PYTHON", producer=_PRODUCER)
    run_event = RunEvent(
        eventTime=datetime.now(UTC).isoformat(),
        eventType=RunState(state),
        run=Run(run_id(project.name, run), facets),
        job=Job(namespace, f"{project.name}.apply", {"jobType": kind}),
        inputs=[_input(project, table, totals) for table in tables],
        outputs=[_output(project, table) for table in tables],
        producer=_PRODUCER,
    )
    return Serde.to_json(run_event)


def _message(error: BaseException) -> str:
    """An error of ours in its words, another by its kind: what it says may hold anything."""
    if isinstance(error, CdcLakeError):
        return f"{error.code}: {error.message}"
    return type(error).__name__


def _input(project: Project, table: TableApplied, totals: ApplyTotals) -> InputDataset:
    namespace, name = source_name(project, table.target.source)
    relation = table.projection.source.relation
    fields = [
        SchemaDatasetFacetFields(column.name, column.type_name, ordinal_position=place)
        for place, column in enumerate(relation.columns, 1)
    ]
    dataset = InputDataset(namespace, name, facets={"schema": SchemaDatasetFacet(fields, producer=_PRODUCER)})
    if assertions := _assertions(table.target, totals):
        judged = DataQualityAssertionsDatasetFacet(assertions, producer=_PRODUCER)
        dataset.inputFacets = {"dataQualityAssertions": judged}
    return dataset


def _assertions(target: Target, totals: ApplyTotals) -> list[Assertion]:
    """How the rules of a table's changes fared in the run."""
    assertions = []
    for rule in target.row_rules:
        name = rule_name(rule)
        counted = totals.rules.get((target.label, name, rule.on_fail))
        if counted is not None:
            evaluated, failed = counted
            columns = named_columns(rule)
            assertions.append(
                Assertion(
                    assertion=rule.rule,
                    success=failed == 0,
                    column=columns[0] if len(columns) == 1 else None,
                    severity="warn" if rule.on_fail == "warn" else "error",
                    name=name,
                    expected="0",
                    actual=str(failed),
                    params={"evaluated": str(evaluated), "on_fail": rule.on_fail},
                )
            )
    return assertions


def _output(project: Project, table: TableApplied) -> OutputDataset:
    namespace, name = silver_name(project, table.target)
    fields = [
        SchemaDatasetFacetFields(column.name, column.type, ordinal_position=place)
        for place, column in enumerate(table.columns, 1)
    ]
    catalog = Identifier(f"cdc_lake://{project.name}", table.target.label, "TABLE")
    written = OutputStatisticsOutputDatasetFacet(table.changes, table.size, table.files, producer=_PRODUCER)
    return OutputDataset(
        namespace,
        name,
        facets={
            "schema": SchemaDatasetFacet(fields, producer=_PRODUCER),
            "columnLineage": _lineage(project, table),
            "symlinks": SymlinksDatasetFacet([catalog], producer=_PRODUCER),
        },
        outputFacets={"outputStatistics": written},
    )


def _lineage(project: Project, table: TableApplied) -> ColumnLineageDatasetFacet:
    namespace, name = source_name(project, table.target.source)

    def field(column: str, how: Transformation) -> InputField:
        return InputField(namespace, name, column, [how])

    sources = columns_from(table.projection, table.columns)
    return ColumnLineageDatasetFacet(
        {column: Fields([field(source.column, _how(source)) for source in ones]) for column, ones in sources.items()},
        [field(column, Transformation("INDIRECT", "FILTER")) for column in rows_by(table.projection)],
        producer=_PRODUCER,
    )


def _how(source: ColumnOrigin) -> Transformation:
    subtype = "IDENTITY" if source.how is ColumnFate.SAME else "TRANSFORMATION"
    return Transformation("DIRECT", subtype, source.sql or None, source.how is ColumnFate.MASKED)


def source_name(project: Project, table: TableName) -> tuple[str, str]:
    """Namespace and name of a source table, as OpenLineage names tables of PostgreSQL; the first of several hosts."""
    source = project.pipeline.source
    place = source.place.rpartition("/")[0].partition(",")[0]
    return f"{_SCHEMES.get(source.type, source.type)}://{place}", f"{source.database}.{table.schema}.{table.name}"


def silver_name(project: Project, target: Target) -> tuple[str, str]:
    """Namespace and name of a silver table: by its folder or, where a catalog keeps that to itself, by the catalog."""
    address = table_ref(project, target).address
    if address is not None:
        scheme, _, rest = address.partition("://")
        store, _, key = rest.partition("/")
        return (f"{scheme}://{store}", key) if store else ("file", address)
    warehouse = project.iceberg_warehouse or ""
    if "://" not in warehouse:
        catalog = urlsplit(project.iceberg_uri)
        port = f":{catalog.port}" if catalog.port else ""
        return f"iceberg://{catalog.hostname}{port}", f"{warehouse}.{target.label}".lstrip(".")
    place = urlsplit(warehouse)
    folder = f"{place.path.rstrip('/')}/{target.namespace}/{target.name}"
    return ("file", folder) if place.scheme == "file" else (f"{place.scheme}://{place.netloc}", folder.lstrip("/"))
