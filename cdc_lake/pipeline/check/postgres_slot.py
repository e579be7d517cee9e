"""The doctor's look at a PostgreSQL's slot, beside what bronze holds."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError
from cdc_lake.lake.control import control_tables
from cdc_lake.pipeline.check.line import CheckLine, failed
from cdc_lake.pipeline.postgres.left import left_by_a_start
from cdc_lake.pipeline.postgres.resume import check_own_slot
from cdc_lake.pipeline.state.ownership import check_own_bronze, unclaimed_slot
from cdc_lake.pipeline.state.streams import starts_over
from cdc_lake.source.connection import Session
from cdc_lake.source.slot import SlotFacts


def slot_lines(project: Project, session: Session, found: SlotFacts | None) -> Iterator[CheckLine]:
    """Whether the slot can be made, or read on. Raises SourceError."""
    state = bronze_reader(project).state()
    control, place = control_tables(project), bronze_reader(project).place
    try:
        check_own_bronze(project, state, control)
    except CdcLakeError as error:
        yield failed("slot", error)
        return
    again = starts_over(state, control)
    if found is None and again:
        yield CheckLine(ok=True, subject="slot", text=f"{project.slot}: made by the next run, with a new stream")
        return
    if found is None and state is None:
        yield CheckLine(ok=True, subject="slot", text=f"{project.slot}: made by the first run")
        return
    if found is not None and left_by_a_start(project, session, found, state):
        text = f"{project.slot} is left from a start that broke off: the next run makes it anew"
        yield CheckLine(ok=True, subject="slot", text=text)
        return
    if found is not None and (state is None or again):
        yield failed("slot", unclaimed_slot(project, place, state))
        return
    assert state is not None
    try:
        facts = check_own_slot(project, found, project.postgres.database, state.confirm)
    except CdcLakeError as error:
        yield failed("slot", error)
        return
    if facts.active_pid is not None:
        text = f"{project.slot} is read by server process {facts.active_pid}"
        fix = "a second run would wait for it: stop the other receiver first"
        yield CheckLine(ok=None, subject="slot", text=text, fix=fix, code="SRC213")
    else:
        yield CheckLine(ok=True, subject="slot", text=f"{project.slot} is free, confirmed up to {facts.confirmed}")
