"""Left: a slot of PostgreSQL that a start made, or was making, before it broke off and bronze knew of it.

Only one with two-phase decoding can be: any other is made when its stream is begun in bronze.
"""

from __future__ import annotations

from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.lake.control import ControlTables, control_tables
from cdc_lake.pipeline.state.intention import Intention
from cdc_lake.source.connection import Session
from cdc_lake.source.server import ServerFacts, identify
from cdc_lake.source.slot import SlotFacts
from cdc_lake.source.stream import Kind


def intention_of(project: Project, facts: ServerFacts) -> Intention:
    """To make the pipeline's slot at a server."""
    return Intention(Kind.POSTGRES, facts.system, facts.database, project.slot)


def left_over(there: SlotFacts, intention: Intention, state: BronzeState | None, control: ControlTables) -> bool:
    """Whether a slot is left from a start that came after what bronze holds."""
    after = intention.after(control) if there.two_phase else None
    return after is not None and (state is None or after >= state.epoch)


def left_by_a_start(project: Project, session: Session, there: SlotFacts, state: BronzeState | None) -> bool:
    """The same, for who only looks. Raises SourceError."""
    if not there.two_phase:
        return False
    intention = intention_of(project, identify(session, project.postgres))
    return left_over(there, intention, state, control_tables(project))
