"""Tables of a PostgreSQL copied again: in the exported snapshot of a temporary slot, as the initial copy is.

The snapshot shows exactly the transactions that end at or below the slot's consistent point (decision 0038). Of a table
that just came into the publication nothing behind that point is missing: a slot begins only when every transaction has
ended that ran when it was made, and those that begin later are decoded with the publication as it is now.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack

from cdc_lake.bronze.port import BronzeState, BronzeWriter
from cdc_lake.config.project import Project
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.relation import TableName
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.postgres.copy import Copying, copy_some
from cdc_lake.pipeline.postgres.resume import check_same
from cdc_lake.pipeline.postgres.sessions import Dial
from cdc_lake.pipeline.postgres.start import exported_point
from cdc_lake.pipeline.state.copies import CopiedTable, copy_name
from cdc_lake.source.ending import Opened, nobody
from cdc_lake.source.server import identify


def copy_postgres(
    project: Project,
    state: BronzeState,
    tables: Sequence[TableName],
    bronze: BronzeWriter,
    control: ControlTables,
    stop: threading.Event,
    tell: Tell,
    told: Opened = nobody,
) -> tuple[str, tuple[CopiedTable, ...]]:
    """Copy those of the tables that the stream carries; the name of their copy in bronze. Raises SourceError,
    LakeError, StateError, Stopped.
    """
    with ExitStack() as opened:
        dial = Dial(project, opened, told)
        replication = dial("copy's slot", replication=project.postgres.streams)
        check_same(project, replication, identify(replication, dial.source), state, control)
        session = dial("copy")
        with exported_point(project, session, replication, dial, stop) as made:
            tell(Progress("snapshot", f"copy as of {made.consistent}", facts={"epoch": state.epoch}))
            attempt = Copying(project, session, dial, bronze, control, state, stop, tell)
            name, chosen = copy_name(state, made.consistent.value), frozenset(tables)
            return name, copy_some(attempt, made, chosen.__contains__, name)
