"""Events of OpenLineage, read strictly: each is brought back into the client's own model and has to come out the same.

The package ships no JSON schema; its model is generated from the specification's.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable
from enum import Enum
from typing import Any

import attr
from openlineage.client.event_v2 import RunEvent
from openlineage.client.generated import (
    base,
    column_lineage_dataset,
    data_quality_assertions_dataset,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
    symlinks_dataset,
)
from openlineage.client.serde import Serde

FACETS = {
    "schema": schema_dataset.SchemaDatasetFacet,
    "columnLineage": column_lineage_dataset.ColumnLineageDatasetFacet,
    "symlinks": symlinks_dataset.SymlinksDatasetFacet,
    "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
    "dataQualityAssertions": data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet,
    "jobType": job_type_job.JobTypeJobFacet,
    "processing_engine": processing_engine_run.ProcessingEngineRunFacet,
    "errorMessage": error_message_run.ErrorMessageRunFacet,
}


def read(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Events from their lines; asserts that each is what the model takes and gives."""
    events = [json.loads(line) for line in lines]
    for event in events:
        assert Serde.to_dict(_revived(RunEvent, event)) == event
    return events


def _revived(kind: Any, value: Any) -> Any:
    """A value as the model's type has it; a key that the model does not know is an error."""
    if typing.get_origin(kind) in {typing.Union, types.UnionType}:
        kind = next(one for one in typing.get_args(kind) if one is not type(None))
    if typing.get_origin(kind) is list:
        return [_revived(typing.get_args(kind)[0], one) for one in value]
    if typing.get_origin(kind) is dict:
        of = typing.get_args(kind)[1]
        facets = isinstance(of, type) and issubclass(of, base.BaseFacet)
        return {name: _revived(FACETS[name] if facets else of, one) for name, one in value.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if not attr.has(kind):
        assert kind is Any or isinstance(value, kind), (kind, value)
        return value
    fields, hints = attr.fields_dict(kind), typing.get_type_hints(kind)
    assert value.keys() <= fields.keys(), (kind, value)
    given = {fields[name].alias: _revived(hints[name], one) for name, one in value.items() if fields[name].init}
    made = kind(**given)
    for name, one in value.items():
        assert fields[name].init or getattr(made, name) == one, (kind, name)
    return made
