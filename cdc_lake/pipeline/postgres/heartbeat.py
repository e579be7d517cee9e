"""The heartbeat: a small transactional message in the source's log, now and then, while a receiver runs without end.

A server with nothing to send tells a reader how far its log is (keepalives), and that alone lets a slot move on. A
heartbeat is a commit of this very database: it moves on also where something between swallows keepalives, and what is
written is seen to arrive. It needs a connection of its own: a commit may wait for a standby, the stream must not.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from cdc_lake.config.project import Project
from cdc_lake.errors import CdcLakeError, Retry
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.postgres.facts import session_of
from cdc_lake.pipeline.stream.rounds import Rounds
from cdc_lake.source.server import beat


class Heartbeat:
    """Beats while it is entered, every so many milliseconds; what is refused is told once."""

    def __init__(self, project: Project, every: int, tell: Tell) -> None:
        self._tell = tell
        self._refused = False
        self._rounds = Rounds(
            "cdc-lake-heartbeat",
            lambda: every / 1000,
            lambda: session_of(project, application=f"cdc_lake {project.name} heartbeat"),
            beat,
            self._failed,
        )

    def __enter__(self) -> Self:
        self._rounds.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rounds.__exit__(kind, error, trace)

    def _failed(self, error: CdcLakeError) -> None:
        """A server that is away, the receiver tells of; one that refuses is told of here."""
        if error.retry is Retry.NEVER and not self._refused:
            self._refused = True
            self._tell(Progress("warning", f"no heartbeat: {error.message}", facts={"code": error.code}))
