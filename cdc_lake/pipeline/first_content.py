"""The first content of silver: the rows of a stream's initial snapshot, and the first cut."""

from __future__ import annotations

import json
from collections.abc import Container
from dataclasses import replace

from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.errors import RuleStopped, SnapshotIncomplete
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.marker import read_marker
from cdc_lake.model.relation import TableName
from cdc_lake.pipeline.cuts import PAUSED, Cut, TableState, found
from cdc_lake.pipeline.holds import hold_log
from cdc_lake.pipeline.table_steps import TableSteps


def first_content(
    project: Project, control: ControlTables, steps: TableSteps, state: BronzeState, paused: Container[str]
) -> Cut:
    """Give each table of the snapshot its first content; the cut, which is the caller's to write.

    A table that has it already is left as it is; one that is paused stays before its copy, and gets it when it goes on.
    Raises SnapshotIncomplete, RuleStopped.
    """
    done = [r for r in control.snapshots() if r.stream == state.stream and r.state == "complete"]
    if not done:
        raise SnapshotIncomplete("the initial snapshot is not complete yet: there is nothing to apply")
    position = done[-1].position
    tables: dict[str, TableState] = {}
    jobs, held = [], hold_log(control)
    for entry in json.loads(done[-1].tables):
        relation = str(entry["relation"])
        target = project.target(TableName.parse(relation))
        marker = read_marker(project, target, state.stream)
        at = marker.position or position
        layout = steps.layout_at(state, target, position, at, int(entry["layout"]))
        tables[relation] = replace(found(target, state, marker, at, held), layout=layout)
        if marker.position is None and relation in paused:
            tables[relation] = replace(tables[relation], state=PAUSED, position=position - 1)  # before its copy
        elif marker.position is None:
            jobs.append(steps.first(state, target, position, int(entry["layout"]), marker))
    prepared = steps.prepare(jobs, tables)
    for one in prepared:
        if one.stop is not None:
            steps.done.count(one)
            raise RuleStopped(f"rule `{one.stop[1]}` stops the run: a row of the snapshot breaks it")
    steps.merge(prepared, tables)
    for relation, table in tables.items():
        if table.version is None and table.state != PAUSED:
            version = read_marker(project, project.target(TableName.parse(relation)), state.stream).version
            tables[relation] = replace(table, version=version)
    return Cut(position, tables)
