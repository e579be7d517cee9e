"""Copying tables again, beside the stream: each as of a place among the transactions that is known exactly.

    copied into bronze, chunk by chunk → `snapshots` says which tables, and where they stand

The stream goes on meanwhile, and so does silver; the copy is in force where silver reaches its position
(`pipeline.applying.renewing`). A process that dies before the last step leaves rows that nobody reads.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from cdc_lake.bronze.open import bronze_beside
from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.errors import TableNotKnown
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.lease import copy_lease
from cdc_lake.model.counting import counted
from cdc_lake.model.relation import TableName
from cdc_lake.observe.failpoint import RECOPIED, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.receiving.configuration import number_configuration
from cdc_lake.pipeline.server import copy_again
from cdc_lake.pipeline.state.copies import CopiedTable, record_recopied
from cdc_lake.pipeline.stream.redaction import RedactedBronze, redaction_of
from cdc_lake.source.ending import Opened, nobody
from cdc_lake.source.stream import shown


def recopy(
    project: Project,
    state: BronzeState,
    tables: Sequence[TableName],
    control: ControlTables,
    stop: threading.Event,
    tell: Tell,
    opened: Opened = nobody,
) -> tuple[CopiedTable, ...]:
    """Copy tables of a stream, all in one snapshot, and put the copies in force. `opened`: told of connections.

    Raises AnotherCopy, TableNotKnown, CopyUnplaced, ConfigError, SourceError, LakeError, StateError, Stopped.
    """
    with copy_lease(project.lease):
        number = number_configuration(project, state, control, tell)
        bronze = RedactedBronze(bronze_beside(project), redaction_of(project, number))
        name, copied = copy_again(project, state, tables, bronze, control, stop, tell, opened)
        if missing := sorted(set(tables) - {one.relation for one in copied}):
            raise TableNotKnown(f"the stream does not carry {', '.join(map(str, missing))}")
        failpoint(RECOPIED)
        record_recopied(control, state, name, copied)
    at = shown(state.stream, copied[0].position)
    text = (
        f"copied {counted(len(copied), 'table')} beside the stream, as of {at}: silver takes the copy when it is there"
    )
    tell(Progress("snapshot", text, facts={"epoch": state.epoch}))
    return copied
