"""Sessions of one task of a pipeline on its PostgreSQL: each with its name, closed together, all on one host."""

from __future__ import annotations

from contextlib import ExitStack

from cdc_lake.config.project import Project
from cdc_lake.source.connection import Session, connect, pinned
from cdc_lake.source.ending import Opened, nobody


class Dial:
    """Opens sessions that `opened` closes. What belongs together is read from one host, also while a failover is under
    way: all are opened to the host of the first.
    """

    def __init__(self, project: Project, opened: ExitStack, told: Opened = nobody) -> None:
        """`told`: of every connection."""
        self.source = project.postgres
        """The source, with one host as soon as a session is open."""
        self._project = project
        self._opened = opened
        self._told = told

    def __call__(self, what: str, *, replication: bool = False) -> Session:
        """A session that the server shows as `cdc_lake PIPELINE WHAT`. Raises SourceError."""
        name = f"cdc_lake {self._project.name} {what}"
        session = connect(self.source, self._project.root, application=name, replication=replication, told=self._told)
        self._opened.callback(session.close)
        self.source = pinned(self.source, session)
        return session
