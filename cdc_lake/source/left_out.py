"""Changes that a server leaves out of what it decodes, and only warns of: PostgreSQL 18, where the publication is gone.

Before that version it ends the stream with an error.
"""

from __future__ import annotations

from psycopg.errors import Diagnostic

from cdc_lake.errors import PublicationMissing
from cdc_lake.source.connection import Session


class LeftOut:
    """Listens to what a server warns a session of. `error`: what it means, None as long as nothing was left out."""

    def __init__(self, session: Session) -> None:
        self.error: PublicationMissing | None = None
        session.add_notice_handler(self._noticed)

    def check(self) -> None:
        """Raise PublicationMissing where something was left out."""
        if self.error is not None:
            raise self.error

    def _noticed(self, said: Diagnostic) -> None:
        """The driver tells of it while it looks for the message behind it."""
        # object_not_in_prerequisite_state: of pgoutput's warnings only this one
        if self.error is None and (said.severity_nonlocalized, said.sqlstate) == ("WARNING", "55000"):
            self.error = PublicationMissing(f"the server leaves changes out: {said.message_primary}")
