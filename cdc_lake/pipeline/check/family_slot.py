"""The doctor's look at the pipeline's slot on a server of the GaussDB family."""

from __future__ import annotations

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError, SlotActive
from cdc_lake.lake.control import control_tables
from cdc_lake.model.position import format_position
from cdc_lake.pipeline.check.line import CheckLine, failed
from cdc_lake.pipeline.gaussdb.facts import retained
from cdc_lake.pipeline.gaussdb.start import intended
from cdc_lake.pipeline.gaussdb.stream import check_resume
from cdc_lake.pipeline.gaussdb.view import who
from cdc_lake.pipeline.ports.action import size
from cdc_lake.pipeline.state.ownership import check_own_bronze, unclaimed_slot
from cdc_lake.pipeline.state.streams import check_unfinished, is_complete, starts_over
from cdc_lake.source.gaussdb.server import FamilyServerFacts
from cdc_lake.source.gaussdb.slot import FamilySlotFacts, find_slot
from cdc_lake.source.wire.session import WireSession


def slot_line(project: Project, session: WireSession) -> CheckLine:
    """Whether the next run can go on with the slot, or make it: free, active, foreign, ahead, of another order."""
    try:
        found = find_slot(session, project.slot)
    except CdcLakeError as error:
        return failed("slot", error)
    state, control = bronze_reader(project).state(), control_tables(project)  # behind the slot: receivers land first
    try:
        facts = who(project, session)
        if is_complete(state, control):
            check_resume(project, session, facts, state, found)
            assert found is not None
            return _resumed(project, facts, found)
        check_own_bronze(project, state, control)
        again = starts_over(state, control)
        if state is not None and not again:
            check_unfinished(state)
    except CdcLakeError as error:
        return failed("slot", error)
    if found is None:
        when = "next run, with a new stream" if again else "first run"
        return CheckLine(ok=True, subject="slot", text=f"{project.slot}: made by the {when}")
    if intended(project, facts, control, state, anew=again):
        text = f"{project.slot} is left from a start that broke off: the next run makes it anew"
        return CheckLine(ok=True, subject="slot", text=text)
    return failed("slot", unclaimed_slot(project, bronze_reader(project).place, state))


def _resumed(project: Project, facts: FamilyServerFacts, found: FamilySlotFacts) -> CheckLine:
    kept = retained(found, facts.flushed)
    wal = "" if kept is None else f"; {size(kept)} of WAL kept for it"
    if found.active:
        fix = "a second run would wait for it: stop the other receiver first"
        text = f"{project.slot} is read by a receiver{wal}"
        return CheckLine(ok=None, subject="slot", text=text, fix=fix, code=SlotActive.code)
    at = "" if found.confirmed is None else f", confirmed up to {format_position(found.confirmed, found.order)}"
    return CheckLine(ok=True, subject="slot", text=f"{project.slot} is free, in {found.order.name} order{at}{wal}")
