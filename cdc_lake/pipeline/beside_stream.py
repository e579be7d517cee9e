"""What goes on beside the stream of a PostgreSQL where the pipeline asks for it: a heartbeat, a watch over its WAL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from cdc_lake.config.project import Project
from cdc_lake.config.source import PostgresSource
from cdc_lake.errors import SlotGivenUp
from cdc_lake.observe.progress import Tell

if TYPE_CHECKING:
    from cdc_lake.pipeline.wal_watch import WalWatch


@contextmanager
def beside_the_stream(project: Project, tell: Tell, *, once: bool) -> Iterator[WalWatch | None]:
    """Both while a receiver runs, the heartbeat for one without end; where the slot is given up, it is dropped then."""
    source = project.pipeline.source
    with ExitStack() as entered:
        if not isinstance(source, PostgresSource) or (source.wal_budget is None and source.heartbeat is None):
            yield None
            return
        # imported here: each kind of source needs its own driver only
        from cdc_lake.pipeline.heartbeat import Heartbeat  # noqa: PLC0415
        from cdc_lake.pipeline.wal_watch import WalWatch  # noqa: PLC0415

        if source.heartbeat is not None and not once:
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
