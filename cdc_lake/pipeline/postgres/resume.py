"""Whether a stream of PostgreSQL that bronze holds can go on: at the same server, database and log, from its slot."""

from __future__ import annotations

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.lake.control import ControlTables
from cdc_lake.pipeline.state.ownership import check_named_slot
from cdc_lake.pipeline.stream.failover import check_log_reaches, check_timeline, last_timeline
from cdc_lake.pipeline.stream.slot_race import bronze_may_go_on
from cdc_lake.source import slot
from cdc_lake.source.connection import Session
from cdc_lake.source.resume import check_fed_from
from cdc_lake.source.server import ServerFacts, timeline_of
from cdc_lake.source.stream import StreamIdentity
from cdc_lake.source.timeline import Timeline


def check_resume(
    project: Project,
    session: Session,
    replication: Session,
    facts: ServerFacts,
    state: BronzeState,
    control: ControlTables,
) -> tuple[Timeline, BronzeState]:
    """Raise unless the stream that bronze holds can go on at this server, database and slot; as `check_same`."""
    timeline, held = check_same(project, replication, facts, state, control)
    found = slot.find_slot(session, project.slot)
    confirmed = None if found is None or found.confirmed is None else found.confirmed.value
    with bronze_may_go_on(project, state, confirmed):
        check_own_slot(project, found, facts.database, held.confirm)
    return timeline, held


def check_same(
    project: Project, replication: Session, facts: ServerFacts, state: BronzeState, control: ControlTables
) -> tuple[Timeline, BronzeState]:
    """Raise unless bronze was fed from this server and database, and all it holds is in its log.

    Its timeline, and the state to go on from (`failover.check_timeline`).
    """
    identity = StreamIdentity.parse(state.stream)
    check_named_slot(project, state)
    check_fed_from(identity, system=facts.system, database=facts.database, slot=project.slot)
    timeline = timeline_of(replication, facts.timeline)
    reader = bronze_reader(project)
    held = check_timeline(timeline, last_timeline(control, state), reader, state)
    check_log_reaches(facts.flushed, reader, held)
    return timeline, held


def check_own_slot(project: Project, found: slot.SlotFacts | None, database: str, held: int) -> slot.SlotFacts:
    """The pipeline's slot, as `slot.check_slot` of what the pipeline asks for; `found`: as the server has it."""
    source = project.postgres
    plugin, two_phase = source.slot.plugin, source.decoding.two_phase
    return slot.check_slot(found, project.slot, database, held, plugin, two_phase=two_phase)
