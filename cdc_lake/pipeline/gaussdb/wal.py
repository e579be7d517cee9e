"""What a server of the GaussDB family keeps for the pipeline's slot (`pipeline.wal.kept.KeptWal`).

The family has no limit of its own: nothing says how much may still be written before a slot is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cdc_lake.config.project import Project
from cdc_lake.model.position import OrderDomain
from cdc_lake.pipeline.gaussdb.facts import retained, session_of
from cdc_lake.pipeline.wal.ladder import WalLook
from cdc_lake.source.gaussdb.connection import target_of
from cdc_lake.source.gaussdb.server import current_lsn
from cdc_lake.source.gaussdb.slot import drop_slot_when_free, find_slot
from cdc_lake.source.gaussdb.snapshot import csn_now
from cdc_lake.source.wire.connect import connect


@dataclass(frozen=True, slots=True)
class FamilyWal:
    """See KeptWal."""

    project: Project

    @contextmanager
    def looking(self) -> Iterator[Callable[[], WalLook | None]]:
        """See KeptWal."""
        with session_of(self.project) as session:

            def look() -> WalLook | None:
                found = find_slot(session, self.project.slot)
                if found is None or found.confirmed is None:
                    return None
                log_end = current_lsn(session)
                kept = retained(found, log_end)
                if kept is None:
                    return None
                in_bytes = found.order is OrderDomain.LSN
                end = log_end.value if in_bytes else csn_now(session).value - 1
                return WalLook(time.time(), end, found.confirmed, kept, in_bytes=in_bytes)

            yield look

    def drop(self, patience: float) -> None:
        """See KeptWal."""
        with connect(target_of(self.project.family, self.project.root)) as session:
            drop_slot_when_free(session, self.project.slot, patience)
