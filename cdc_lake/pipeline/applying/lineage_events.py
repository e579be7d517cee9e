"""Events of OpenLineage (specification 2-0-2), from what a run of apply did: a job a pipeline, a run a run.

Inputs are the source's tables, outputs silver's: bronze between them is a ledger of the first and no table of its own
to whom asks where a column comes from. Facets: schema, column lineage, numbers of what was written, and how the rules
fared. No row value is in an event.
"""

from __future__ import annotations

import uuid
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
from cdc_lake.pipeline.applying.applied import Applied, TableApplied
from cdc_lake.silver.column_lineage import From, How, columns_from, rows_by

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
    done: Applied,
    *,
    once: bool,
    error: BaseException | None = None,
    at: datetime | None = None,
) -> str:
    """One event as JSON. `state`: START, RUNNING, COMPLETE, FAIL or ABORT; `error`: what ended the run."""
    tables = [table for _, table in sorted(done.tables.items())]
    kind = JobTypeJobFacet("BATCH" if once else "STREAMING", "CDC_LAKE", "JOB", producer=_PRODUCER)
    facets: dict[str, Any] = {"processing_engine": ProcessingEngineRunFacet(_VERSION, "cdc_lake", producer=_PRODUCER)}
    if error is not None:
        facets["errorMessage"] = ErrorMessageRunFacet(_message(error), "PYTHON", producer=_PRODUCER)
    made = RunEvent(
        eventTime=(at or datetime.now(UTC)).isoformat(),
        eventType=RunState(state),
        run=Run(run_id(project.name, run), facets),
        job=Job(namespace, f"{project.name}.apply", {"jobType": kind}),
        inputs=[_input(project, table, done) for table in tables],
        outputs=[_output(project, table) for table in tables],
        producer=_PRODUCER,
    )
    return Serde.to_json(made)


def _message(error: BaseException) -> str:
    """An error of ours in its words, another by its kind: what it says may hold anything."""
    if isinstance(error, CdcLakeError):
        return f"{error.code}: {error.message}"
    return type(error).__name__


def _input(project: Project, table: TableApplied, done: Applied) -> InputDataset:
    namespace, name = source_name(project, table.target.source)
    relation = table.projection.source.relation
    fields = [
        SchemaDatasetFacetFields(column.name, column.type_name, ordinal_position=place)
        for place, column in enumerate(relation.columns, 1)
    ]
    found = InputDataset(namespace, name, facets={"schema": SchemaDatasetFacet(fields, producer=_PRODUCER)})
    if assertions := _assertions(table.target, done):
        judged = DataQualityAssertionsDatasetFacet(assertions, producer=_PRODUCER)
        found.inputFacets = {"dataQualityAssertions": judged}
    return found


def _assertions(target: Target, done: Applied) -> list[Assertion]:
    """How the rules of a table's changes fared in the run."""
    out = []
    for rule in target.row_rules:
        name = rule_name(rule)
        counted = done.rules.get((target.label, name, rule.on_fail))
        if counted is not None:
            evaluated, failed = counted
            columns = named_columns(rule)
            out.append(
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
    return out


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

    found = columns_from(table.projection, table.columns)
    return ColumnLineageDatasetFacet(
        {column: Fields([field(one.column, _how(one)) for one in ones]) for column, ones in found.items()},
        [field(column, Transformation("INDIRECT", "FILTER")) for column in rows_by(table.projection)],
        producer=_PRODUCER,
    )


def _how(one: From) -> Transformation:
    subtype = "IDENTITY" if one.how is How.SAME else "TRANSFORMATION"
    return Transformation("DIRECT", subtype, one.sql or None, one.how is How.MASKED)


def source_name(project: Project, table: TableName) -> tuple[str, str]:
    """Namespace and name of a source table, as OpenLineage names tables of PostgreSQL; the first of several hosts."""
    source = project.pipeline.source
    place = source.place.rpartition("/")[0].partition(",")[0]
    return f"{_SCHEMES.get(source.type, source.type)}://{place}", f"{source.database}.{table.schema}.{table.name}"


def silver_name(project: Project, target: Target) -> tuple[str, str]:
    """Namespace and name of a silver table: by its folder or, where a catalog keeps that to itself, by the catalog."""
    if target.format == "delta":
        return "file", str(project.silver_path(target))
    warehouse = project.iceberg_warehouse or ""
    if "://" not in warehouse:
        catalog = urlsplit(project.iceberg_uri)
        port = f":{catalog.port}" if catalog.port else ""
        return f"iceberg://{catalog.hostname}{port}", f"{warehouse}.{target.label}".lstrip(".")
    place = urlsplit(warehouse)
    folder = f"{place.path.rstrip('/')}/{target.namespace}/{target.name}"
    return ("file", folder) if place.scheme == "file" else (f"{place.scheme}://{place.netloc}", folder.lstrip("/"))
