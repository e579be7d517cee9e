"""The captured tables that the doctor looks at for their settings, and the shape that silver would have of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cdc_lake.config.project import Project, Target
from cdc_lake.errors import SourceError
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.pipeline.server import source_view
from cdc_lake.silver.shape import Shape, make_shape


def captured(project: Project, concerns: Callable[[Target], bool]) -> Iterator[tuple[Target, Relation]]:
    """Those of which `concerns` is true, with their layouts. None where the source does not answer: others say so."""
    if not any(concerns(project.target(TableName.parse(one.from_))) for one in project.pipeline.silver.tables):
        return
    try:
        with source_view(project) as source:
            found = [(project.target(name), source.layout(name)) for name in source.tables()]
    except SourceError:
        return
    for target, layout in found:
        if layout is not None and concerns(target):
            yield target, layout


def shape_of(target: Target, layout: Relation) -> Shape:
    """The shape of a table that has this layout. Raises CdcLakeError, as where it has no key."""
    return make_shape(
        [layout.layout], {layout.layout: layout}, target.keys, keyed=target.kind != "append", types=target.types
    )
