"""From a pipeline to an open stream, by the kind of its source."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager

from cdc_lake.bronze.port import BronzeWriter
from cdc_lake.config.project import Project
from cdc_lake.config.source import FamilySource
from cdc_lake.lake.control import ControlTables
from cdc_lake.observe.progress import Tell
from cdc_lake.pipeline.open_stream import PATIENCE, OpenStream


def open_stream(
    project: Project,
    bronze: BronzeWriter,
    control: ControlTables,
    stop: threading.Event,
    tell: Tell,
    *,
    patience: float = PATIENCE,
) -> AbstractContextManager[OpenStream]:
    """Connect, start or check the stream, start replication. Raises SourceError, LakeError, StateError, Stopped."""
    # imported here: each kind of source needs its own driver only
    if isinstance(project.pipeline.source, FamilySource):
        from cdc_lake.pipeline.family_stream import open_family  # noqa: PLC0415

        return open_family(project, bronze, control, stop, tell, patience)
    from cdc_lake.pipeline.postgres_stream import open_postgres  # noqa: PLC0415

    return open_postgres(project, bronze, control, stop, tell, patience)
