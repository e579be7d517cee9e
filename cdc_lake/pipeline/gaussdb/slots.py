"""The slots of a server of the GaussDB family (`pipeline.ports.slot_care.SlotCare`).

Its slots are never temporary, and it does not show who reads them. One in CSN order moves by what its reader confirms
alone: no function takes a CSN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.errors import NotForThisSource, SlotActive
from cdc_lake.model.position import Lsn, OrderDomain, format_position
from cdc_lake.pipeline.gaussdb.facts import retained, session_of
from cdc_lake.pipeline.gaussdb.slot_details import details
from cdc_lake.pipeline.gaussdb.stream import check_resume
from cdc_lake.pipeline.gaussdb.view import who
from cdc_lake.pipeline.ports.slot_details import SlotDetails
from cdc_lake.pipeline.ports.slot_values import SlotAdvanced, SlotFound, SlotView, within_bronze
from cdc_lake.source.gaussdb import slot
from cdc_lake.source.gaussdb.connection import target_of
from cdc_lake.source.gaussdb.server import current_lsn, read_settings
from cdc_lake.source.wire.connect import connect


@dataclass(frozen=True, slots=True)
class FamilySlots:
    """See SlotCare."""

    project: Project

    def views(self) -> list[SlotView]:
        """See SlotCare."""
        with session_of(self.project) as session:
            end, logged = current_lsn(session), read_settings(session).slots_logged
            return [self._view(one, retained(one, end), logged=logged) for one in slot.all_slots(session)]

    def find(self, name: str) -> SlotFound | None:
        """See SlotCare."""
        with session_of(self.project) as session:
            found, end = slot.find_slot(session, name), current_lsn(session)
            if found is None:
                return None
            by_log = found.order is OrderDomain.LSN
            return SlotFound(_confirmed(found), retained(found, end), end.value if by_log else None)

    def inspect(self, name: str, state: Callable[[], BronzeState | None]) -> SlotDetails | None:
        """See SlotCare."""
        with session_of(self.project) as session:
            facts, end, settings = slot.find_slot(session, name), current_lsn(session), read_settings(session)
            if facts is None:
                return None
            view = self._view(facts, retained(facts, end), logged=settings.slots_logged)
            return details(self.project, session, settings, facts, view, end, state())

    def advance(self, state: Callable[[], BronzeState], upto: int | None) -> SlotAdvanced:
        """See SlotCare. Raises NotForThisSource for a slot in CSN order."""
        project, name, place = self.project, self.project.slot, self.project.family.place
        if project.family.slot_order == "csn":
            hint = "`cdc-lake run --once --only receive` confirms what bronze holds, and that moves it"
            raise NotForThisSource(f"slot `{name}` is in CSN order: no function moves it", where=place, hint=hint)
        with connect(target_of(project.family, project.root)) as session:
            there, held = slot.find_slot(session, name), state()
            found = check_resume(project, session, who(project, session), held, there)
            before = reached = found.confirmed
            assert before is not None  # `check_slot` says so
            assert reached is not None
            if (target := within_bronze(held.confirm, upto)) > before:
                if found.active:
                    raise SlotActive(f"advancing slot `{name}`: a receiver reads it", where=place)
                reached = slot.advance_slot(session, name, Lsn(target)).value
        return SlotAdvanced(project.name, name, str(Lsn(before)), str(Lsn(reached)), reached - before)

    def drop(self, name: str, wait: float) -> None:
        """See SlotCare."""
        with connect(target_of(self.project.family, self.project.root)) as session:
            slot.drop_slot_when_free(session, name, wait)

    def _view(self, facts: slot.FamilySlotFacts, kept: int | None, *, logged: bool) -> SlotView:
        """`logged`: standbys have the slots too."""
        state, reason = ("active", "read by a receiver") if facts.active else ("idle", "nobody reads it")
        if facts.kind == "logical" and facts.confirmed is None:
            state, reason = "lost", "it has no confirmed position"
        return SlotView(
            name=facts.name,
            own=facts.name == self.project.slot,
            kind=facts.kind,
            plugin=facts.plugin,
            database=facts.database,
            temporary=False,
            failover=logged,
            state=state,
            reason=reason,
            confirmed=_confirmed(facts),
            retained_bytes=kept,
            safe_bytes=None,
        )


def _confirmed(facts: slot.FamilySlotFacts) -> str | None:
    return None if facts.confirmed is None else format_position(facts.confirmed, facts.order)
