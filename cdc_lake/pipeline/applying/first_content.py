"""The first content of silver: the rows of a stream's initial snapshot, and the first cut."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.errors import SilverNotOwned, SnapshotIncomplete
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.marker import read_marker
from cdc_lake.model.relation import TableName
from cdc_lake.pipeline.applying.table_span import stopped_by_rule
from cdc_lake.pipeline.applying.table_steps import TableSteps
from cdc_lake.pipeline.state.copies import beginning, initial_copies
from cdc_lake.pipeline.state.cuts import IN, PAUSED, Cut, TableState, found
from cdc_lake.pipeline.state.holds import hold_log


def first_content(
    project: Project, control: ControlTables, steps: TableSteps, state: BronzeState, paused: Container[str]
) -> Cut:
    """Give each table of the snapshot its first content; the cut at the stream's beginning, the caller's to write.

    A table that was copied at another position stands there, and is in the cuts from there on. One that has its
    content already is left as it is; one that is paused stays before its copy, and gets it when it goes on.
    Raises SnapshotIncomplete, RuleStopped.
    """
    copies = initial_copies(control.snapshots(), state.stream)
    if copies is None:
        raise SnapshotIncomplete("the initial snapshot is not complete yet: there is nothing to apply")
    tables: dict[str, TableState] = {}
    jobs, held = [], hold_log(control)
    shared = steps.shared_names(copies)
    for relation, copy in copies.items():
        target = project.target(copy.relation)
        if (error := shared.get(copy.relation)) is not None:  # the marker is of another table's rows
            steps.set_aside(target, copy.position - 1, error, tables)
            continue
        marker = read_marker(project, target, state.stream)
        adopts = steps.adopts(target)
        if adopts is True:
            marker = replace(marker, position=None, version=None)  # what it holds is nothing to go on from
        at = marker.position or copy.position
        layout = steps.layout_at(state, target, copy.position, at, copy.layout)
        if isinstance(adopts, SilverNotOwned):
            steps.set_aside(target, copy.position - 1, adopts, tables)
            continue
        tables[relation] = replace(found(target, state, marker, at, held), layout=layout)
        if marker.position is None and relation in paused:
            tables[relation] = replace(tables[relation], state=PAUSED, position=copy.position - 1)  # before its copy
        elif marker.position is None:
            first = replace(steps.first(state, target, copy.position, copy.layout, marker), adopts=adopts)
            jobs.append(steps.behind(state, first))
    prepared = steps.prepare(jobs, tables)
    for one in prepared:
        if one.stop is not None:
            steps.done.count(one)
            raise stopped_by_rule([one])
    steps.merge(prepared, tables)
    for relation, table in tables.items():
        if table.version is None and table.state == IN:
            version = read_marker(project, project.target(TableName.parse(relation)), state.stream).version
            tables[relation] = replace(table, version=version)
    return Cut(beginning(control, state), tables)
