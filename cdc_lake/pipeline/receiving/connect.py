"""From a pipeline to an open stream, with everything that its rows pass on their way to bronze."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeWriter
from cdc_lake.config.project import Project
from cdc_lake.lake.control import ControlTables
from cdc_lake.observe.progress import Tell
from cdc_lake.pipeline.receiving.configuration import number_configuration
from cdc_lake.pipeline.receiving.recopy import recopy
from cdc_lake.pipeline.receiving.repeats import RepeatsChecked
from cdc_lake.pipeline.server import opened_stream
from cdc_lake.pipeline.stream.open_stream import PATIENCE, OpenStream, nothing
from cdc_lake.pipeline.stream.redaction import RedactedBronze, redacted, redaction_of


@contextmanager
def open_stream(
    project: Project,
    bronze: BronzeWriter,
    control: ControlTables,
    stop: threading.Event,
    tell: Tell,
    *,
    patience: float = PATIENCE,
    first: bool = False,
    heed: Callable[[], object] = nothing,
) -> Iterator[OpenStream]:
    """Connect, start or check the stream, start replication; what it gives and copies is redacted. `first`: tables that
    came to the pipeline are copied before anything is read; `heed` is called meanwhile, now and then.

    Raises ConfigError, SourceError, LakeError, StateError, Stopped.
    """
    number = number_configuration(project, bronze.state(), control, tell)
    redaction = redaction_of(project, number)
    with opened_stream(
        project, RedactedBronze(bronze, redaction), control, stop, tell, patience, recopy, first=first, heed=heed
    ) as stream:
        tabulate = redacted(stream.tabulate, redaction)
        order = RepeatsChecked(
            stream.order,
            partial(bronze_reader, project),
            stream.state,
            configuration=number,
            tabulate=redacted(stream.again, redaction),
            # what rows that name their columns mean depends on the catalog too, which speaks of now
            by_catalog=project.pipeline.source.slot.plugin != "pgoutput",
            tell=tell,
        )
        yield replace(stream, tabulate=tabulate, order=order)
