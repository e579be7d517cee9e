"""What serves a pipeline's source, by its kind: a PostgreSQL, or a server of the GaussDB family.

Each kind is imported only where it is asked for, as it needs its own driver only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from cdc_lake.bronze.port import BronzeState, BronzeWriter
from cdc_lake.config.project import Project
from cdc_lake.config.source import FamilySource
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.relation import TableName
from cdc_lake.observe.progress import Tell
from cdc_lake.pipeline.ports.side import CompareSource
from cdc_lake.pipeline.ports.slot_care import SlotCare
from cdc_lake.pipeline.ports.view import SourceView
from cdc_lake.pipeline.state.copies import CopiedTable
from cdc_lake.pipeline.stream.copies_beside import Recopy
from cdc_lake.pipeline.stream.open_stream import OpenStream
from cdc_lake.pipeline.wal.kept import KeptWal
from cdc_lake.source.ending import Opened, nobody


def source_view(project: Project) -> AbstractContextManager[SourceView]:
    """Connect to the pipeline's source, to look at it. Raises SourceError."""
    if _of_family(project):
        from cdc_lake.pipeline.gaussdb.view import family_view  # noqa: PLC0415

        return family_view(project)
    from cdc_lake.pipeline.postgres.view import postgres_view  # noqa: PLC0415

    return postgres_view(project)


def compare_source(project: Project, state: BronzeState) -> AbstractContextManager[CompareSource]:
    """Connect to the source that bronze was fed from, to compare with it. Raises SourceError, StateError."""
    if _of_family(project):
        from cdc_lake.pipeline.gaussdb.side import family_side  # noqa: PLC0415

        return family_side(project, state)
    from cdc_lake.pipeline.postgres.side import postgres_side  # noqa: PLC0415

    return postgres_side(project, state)


def opened_stream(
    project: Project,
    bronze: BronzeWriter,
    control: ControlTables,
    stop: threading.Event,
    tell: Tell,
    patience: float,
    recopy: Recopy,
    *,
    first: bool,
    heed: Callable[[], object],
) -> AbstractContextManager[OpenStream]:
    """Connect, start or check the stream, start replication. `first`: tables that came to the pipeline are copied, by
    `recopy`, before anything is read, while `heed` is called; otherwise beside it. Raises SourceError, LakeError,
    StateError, Stopped.
    """
    if _of_family(project):
        from cdc_lake.pipeline.gaussdb.stream import open_family  # noqa: PLC0415

        return open_family(project, bronze, control, stop, tell, patience, recopy, first=first, heed=heed)
    from cdc_lake.pipeline.postgres.stream import open_postgres  # noqa: PLC0415

    return open_postgres(project, bronze, control, stop, tell, patience, recopy, first=first, heed=heed)


def copy_again(
    project: Project,
    state: BronzeState,
    tables: Sequence[TableName],
    bronze: BronzeWriter,
    control: ControlTables,
    stop: threading.Event,
    tell: Tell,
    opened: Opened = nobody,
) -> tuple[str, tuple[CopiedTable, ...]]:
    """Copy those of the tables that the stream carries; the name of their copy in bronze.

    `opened`: told of connections. Raises CopyUnplaced, SourceError, LakeError, StateError, Stopped.
    """
    if _of_family(project):
        from cdc_lake.pipeline.gaussdb.recopy import copy_family  # noqa: PLC0415

        return copy_family(project, state, tables, bronze, control, stop, tell, opened)
    from cdc_lake.pipeline.postgres.recopy import copy_postgres  # noqa: PLC0415

    return copy_postgres(project, state, tables, bronze, control, stop, tell, opened)


def slot_care(project: Project) -> SlotCare:
    """The slots of the pipeline's server."""
    if _of_family(project):
        from cdc_lake.pipeline.gaussdb.slots import FamilySlots  # noqa: PLC0415

        return FamilySlots(project)
    from cdc_lake.pipeline.postgres.slots import PostgresSlots  # noqa: PLC0415

    return PostgresSlots(project)


def kept_wal(project: Project) -> KeptWal:
    """The log that the pipeline's server keeps for its slot."""
    if _of_family(project):
        from cdc_lake.pipeline.gaussdb.wal import FamilyWal  # noqa: PLC0415

        return FamilyWal(project)
    from cdc_lake.pipeline.postgres.wal import PostgresWal  # noqa: PLC0415

    return PostgresWal(project)


def _of_family(project: Project) -> bool:
    return isinstance(project.pipeline.source, FamilySource)
