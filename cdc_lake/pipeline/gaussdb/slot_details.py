"""One slot of the GaussDB family, seen from all sides (see `pipeline.ports.slot_details`): its servers tell less."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.errors import SourceError
from cdc_lake.model.position import Lsn, OrderDomain
from cdc_lake.pipeline.gaussdb.stream import check_resume
from cdc_lake.pipeline.gaussdb.view import who
from cdc_lake.pipeline.ports.slot_details import (
    LEAST_LET_GO,
    BesideBronze,
    SlotDetails,
    SlotThreat,
    beside_bronze,
    held_already,
    nothing_of_it,
    unbounded,
)
from cdc_lake.pipeline.ports.slot_values import SlotView
from cdc_lake.source.gaussdb.server import FamilySettings
from cdc_lake.source.gaussdb.slot import FamilySlotFacts
from cdc_lake.source.wire.session import WireSession


def details(
    project: Project,
    session: WireSession,
    settings: FamilySettings,
    facts: FamilySlotFacts,
    view: SlotView,
    end: Lsn,
    state: BronzeState | None,
) -> SlotDetails:
    """Everything of a slot, of which `facts` and `view` were made; the log ends at `end`. Raises SourceError."""
    bronze = beside_bronze(state, facts.confirmed, facts.order) if view.own else None
    return SlotDetails(
        pipeline=project.name,
        source=session.place,
        server=str(settings.version),
        slot=view,
        order=facts.order.value,
        read_by="a receiver, which the server does not name" if facts.active else None,
        inactive_since=None,
        restart=None if facts.restart is None else str(facts.restart),
        log_end=str(end),
        wal_status=None,
        invalidation=None,
        conflicting=None,
        catalog_xmin=facts.catalog_xmin,
        catalog_age=None,
        synced=None,
        two_phase=None,
        two_phase_at=None,
        counters=None,
        bronze=bronze,
        threats=(
            *(_for_the_pipeline(project, session, facts, state) if view.own else ()),
            *_threats(facts, bronze, own=view.own),
        ),
    )


def _for_the_pipeline(
    project: Project, session: WireSession, facts: FamilySlotFacts, state: BronzeState | None
) -> Iterator[SlotThreat]:
    """Why the pipeline could not go on with its slot."""
    if state is None:
        yield nothing_of_it(facts.name)
        return
    try:
        check_resume(project, session, who(project, session), state, facts)
    except SourceError as error:
        yield SlotThreat(error.message, error.remedy)


def _threats(facts: FamilySlotFacts, bronze: BesideBronze | None, *, own: bool) -> Iterator[SlotThreat]:
    if facts.kind == "logical" and facts.confirmed is None:
        if not own:
            remedy = f"its reader has to begin anew: cdc-lake slot drop {facts.name} --yes"
            yield SlotThreat("it has no confirmed position: nobody can read it", remedy)
        return
    if facts.active:
        return
    yield unbounded(own=own, bound="")
    held = 0 if bronze is None or facts.order is OrderDomain.CSN else bronze.unconfirmed or 0
    if held >= LEAST_LET_GO:
        yield held_already(held)
