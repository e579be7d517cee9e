"""What goes on beside a stream where the pipeline asks for it: a watch over the WAL, a heartbeat of a PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cdc_lake.config.project import Project
from cdc_lake.config.source import PostgresSource
from cdc_lake.errors import SlotGivenUp
from cdc_lake.observe.progress import Tell
from cdc_lake.pipeline.receiving.wal_watch import WalWatch


@contextmanager
def beside_the_stream(project: Project, tell: Tell, *, once: bool) -> Iterator[WalWatch | None]:
    """Both while a receiver runs, the heartbeat for one without end; where the slot is given up, it is dropped then."""
    source = project.pipeline.source
    with ExitStack() as entered:
        if isinstance(source, PostgresSource) and source.heartbeat is not None and not once:
            # imported here: each kind of source needs its own driver only
            from cdc_lake.pipeline.postgres.heartbeat import Heartbeat  # noqa: PLC0415

            entered.enter_context(Heartbeat(project, source.heartbeat, tell))
        if source.wal_budget is None:
            yield None
            return
        watch = entered.enter_context(WalWatch(project, source.wal_budget, tell))
        try:
            yield watch
        except SlotGivenUp:
            watch.give_up()
            raise
