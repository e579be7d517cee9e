"""Selects the adapter for a pipeline's type of source: PostgreSQL, or the GaussDB family.

Each adapter is imported only when it is used, because it needs only its own driver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.config.project import Project
from cdc_lake.config.source import FamilySource
from cdc_lake.connectors.base import ComparisonSource, ReceiverContext, SlotAdmin, SourceIntrospection
from cdc_lake.connectors.open_stream import OpenStream
from cdc_lake.connectors.snapshot_copy import Recopy
from cdc_lake.control.snapshots import CopiedTable
from cdc_lake.model.relation import TableName
from cdc_lake.source.socket_io import Opened, ignore_open


def source_view(project: Project) -> AbstractContextManager[SourceIntrospection]:
    """Connect to the pipeline's source for introspection. Raises SourceError."""
    if _of_family(project):
        from cdc_lake.connectors.gaussdb.introspection import family_view  # noqa: PLC0415

        return family_view(project)
    from cdc_lake.connectors.postgres.introspection import postgres_view  # noqa: PLC0415

    return postgres_view(project)


def compare_source(project: Project, state: StreamCheckpoint) -> AbstractContextManager[ComparisonSource]:
    """Connect to the source of bronze for a comparison. Raises SourceError, StateError."""
    if _of_family(project):
        from cdc_lake.connectors.gaussdb.comparison import family_side  # noqa: PLC0415

        return family_side(project, state)
    from cdc_lake.connectors.postgres.comparison import postgres_side  # noqa: PLC0415

    return postgres_side(project, state)


def opened_stream(
    context: ReceiverContext, patience: float, recopy: Recopy, *, first: bool, enforce_wal_budget: Callable[[], object]
) -> AbstractContextManager[OpenStream]:
    """Connect, start or check the stream, start replication. `first`: `recopy` copies added tables before anything is
    read, while `enforce_wal_budget` is called; otherwise in parallel. Raises SourceError, LakeError, StateError,
    Stopped.
    """
    if _of_family(context.project):
        from cdc_lake.connectors.gaussdb.adapter import open_family  # noqa: PLC0415

        return open_family(context, patience, recopy, first=first, enforce_wal_budget=enforce_wal_budget)
    from cdc_lake.connectors.postgres.adapter import open_postgres  # noqa: PLC0415

    return open_postgres(context, patience, recopy, first=first, enforce_wal_budget=enforce_wal_budget)


def copy_again(
    context: ReceiverContext, state: StreamCheckpoint, tables: Sequence[TableName], opened: Opened = ignore_open
) -> tuple[str, tuple[CopiedTable, ...]]:
    """Copy the given tables that the stream contains; returns the name of the copy in bronze.

    `opened`: called with connections. Raises CopyUnplaced, SourceError, LakeError, StateError, Stopped.
    """
    if _of_family(context.project):
        from cdc_lake.connectors.gaussdb.comparison import copy_family  # noqa: PLC0415

        return copy_family(context, state, tables, opened)
    from cdc_lake.connectors.postgres.snapshot import copy_postgres  # noqa: PLC0415

    return copy_postgres(context, state, tables, opened)


def slot_care(project: Project) -> SlotAdmin:
    """The slots of the pipeline's server."""
    if _of_family(project):
        from cdc_lake.connectors.gaussdb.introspection import GaussDbSlots  # noqa: PLC0415

        return GaussDbSlots(project)
    from cdc_lake.connectors.postgres.introspection import PostgresSlots  # noqa: PLC0415

    return PostgresSlots(project)


def _of_family(project: Project) -> bool:
    return isinstance(project.pipeline.source, FamilySource)
