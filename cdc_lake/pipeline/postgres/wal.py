"""What a PostgreSQL keeps for the pipeline's slot (`pipeline.wal.kept.KeptWal`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cdc_lake.config.project import Project
from cdc_lake.pipeline.postgres.facts import reading, session_of
from cdc_lake.pipeline.wal.ladder import WalLook
from cdc_lake.source import slot
from cdc_lake.source.server import wal_position


@dataclass(frozen=True, slots=True)
class PostgresWal:
    """See KeptWal."""

    project: Project

    @contextmanager
    def looking(self) -> Iterator[Callable[[], WalLook | None]]:
        """See KeptWal."""
        with reading(self.project) as session:

            def look() -> WalLook | None:
                found = slot.find_slot(session, self.project.slot)
                if found is None or found.retained is None or found.confirmed is None:
                    return None
                end = wal_position(session).value
                return WalLook(time.time(), end, found.confirmed.value, found.retained, found.safe)

            yield look

    def drop(self, patience: float) -> None:
        """See KeptWal."""
        with session_of(self.project, replication=self.project.postgres.streams) as session:
            slot.drop_slot_when_free(session, self.project.slot, patience)
