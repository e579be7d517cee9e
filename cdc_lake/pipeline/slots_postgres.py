"""The slots of a PostgreSQL (`pipeline.slots.SlotCare`)."""

from __future__ import annotations

from dataclasses import dataclass

from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.lake.control import control_tables
from cdc_lake.model.position import Lsn
from cdc_lake.pipeline.postgres_facts import reading, session_of
from cdc_lake.pipeline.postgres_resume import check_own_slot, check_same
from cdc_lake.pipeline.slot_values import SlotAdvanced, SlotFound, SlotView, within_bronze
from cdc_lake.source import slot
from cdc_lake.source.server import check_server, identify, wal_position


@dataclass(frozen=True, slots=True)
class PostgresSlots:
    """See SlotCare."""

    project: Project

    def views(self) -> list[SlotView]:
        """See SlotCare."""
        with reading(self.project) as session:
            return [_view(facts, own=facts.name == self.project.slot) for facts in slot.all_slots(session)]

    def find(self, name: str) -> SlotFound | None:
        """See SlotCare."""
        with session_of(self.project) as session:
            found = slot.find_slot(session, name)
            if found is None:
                return None
            confirmed = None if found.confirmed is None else str(found.confirmed)
            return SlotFound(confirmed, found.retained, wal_position(session).value)

    def advance(self, state: BronzeState, upto: int | None) -> SlotAdvanced:
        """See SlotCare."""
        project, source = self.project, self.project.postgres
        with session_of(project, replication=True) as replication, session_of(project) as session:
            facts = identify(replication, source)
            check_server(facts, source.place)
            _, held = check_same(project, replication, facts, state, control_tables(project))
            found = check_own_slot(project, slot.find_slot(session, project.slot), facts.database, held.confirm)
            before = reached = found.confirmed
            assert before is not None  # `check_own_slot` says so
            assert reached is not None
            if (target := within_bronze(held.confirm, upto)) > before.value:
                reached = slot.advance_slot(session, project.slot, Lsn(target))
        return SlotAdvanced(project.name, project.slot, str(before), str(reached), reached.value - before.value)

    def drop(self, name: str, wait: float) -> None:
        """See SlotCare."""
        with session_of(self.project, replication=True) as replication:
            slot.drop_slot_when_free(replication, name, wait)


def _view(facts: slot.SlotFacts, *, own: bool) -> SlotView:
    state, reason = "idle", "nobody reads it"
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
