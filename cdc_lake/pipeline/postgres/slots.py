"""The slots of a PostgreSQL (`pipeline.ports.slot_care.SlotCare`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.lake.control import control_tables
from cdc_lake.model.position import Lsn
from cdc_lake.pipeline.ports.slot_details import SlotDetails
from cdc_lake.pipeline.ports.slot_values import SlotAdvanced, SlotFound, SlotView, within_bronze
from cdc_lake.pipeline.postgres.facts import reading, session_of
from cdc_lake.pipeline.postgres.resume import check_own_slot, check_same
from cdc_lake.pipeline.postgres.slot_details import details, read_for_moments
from cdc_lake.source import slot
from cdc_lake.source.server import check_server, identify, wal_position


@dataclass(frozen=True, slots=True)
class PostgresSlots:
    """See SlotCare."""

    project: Project

    def views(self) -> list[SlotView]:
        """See SlotCare."""
        with reading(self.project) as session:
            return [_view(self.project, facts) for facts in slot.all_slots(session)]

    def find(self, name: str) -> SlotFound | None:
        """See SlotCare."""
        with session_of(self.project) as session:
            found = slot.find_slot(session, name)
            if found is None:
                return None
            confirmed = None if found.confirmed is None else str(found.confirmed)
            return SlotFound(confirmed, found.retained, wal_position(session).value)

    def inspect(self, name: str, state: Callable[[], BronzeState | None]) -> SlotDetails | None:
        """See SlotCare."""
        with reading(self.project) as session:
            facts = slot.find_slot(session, name)
            if facts is None:
                return None
            return details(self.project, session, facts, _view(self.project, facts), state())

    def advance(self, state: Callable[[], BronzeState], upto: int | None) -> SlotAdvanced:
        """See SlotCare."""
        project, source = self.project, self.project.postgres
        with session_of(project, replication=source.streams) as replication, session_of(project) as session:
            there, have = slot.find_slot(session, project.slot), state()
            facts = identify(replication, source)
            check_server(facts, source.place)
            _, held = check_same(project, replication, facts, have, control_tables(project))
            found = check_own_slot(project, there, facts.database, held.confirm)
            before = reached = found.confirmed
            assert before is not None  # `check_own_slot` says so
            assert reached is not None
            if (target := within_bronze(held.confirm, upto)) > before.value:
                reached = slot.advance_slot(session, project.slot, Lsn(target))
        return SlotAdvanced(project.name, project.slot, str(before), str(reached), reached.value - before.value)

    def drop(self, name: str, wait: float) -> None:
        """See SlotCare."""
        with session_of(self.project, replication=self.project.postgres.streams) as session:
            slot.drop_slot_when_free(session, name, wait)


def _view(project: Project, facts: slot.SlotFacts) -> SlotView:
    own = facts.name == project.slot
    rests = "read for moments only (`mode: polling`)" if read_for_moments(project, facts) else "nobody reads it"
    state, reason = "idle", rests
    if facts.lost:
        state, reason = "lost", f"the server gave it up ({facts.invalidation or facts.wal_status})"
    elif facts.active_pid is not None:
        state, reason = "active", f"read by server process {facts.active_pid}"
    return SlotView(
        name=facts.name,
        own=own,
        kind=facts.kind,
        plugin=facts.plugin,
        database=facts.database,
        temporary=facts.temporary,
        failover=facts.failover,
        state=state,
        reason=reason,
        confirmed=None if facts.confirmed is None else str(facts.confirmed),
        retained_bytes=facts.retained,
        safe_bytes=facts.safe,
    )
