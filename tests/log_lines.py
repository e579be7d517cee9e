"""What was told, as a log has it."""

from __future__ import annotations

import io
from collections.abc import Iterable

import structlog

from cdc_lake.observability.events import ProgressEvent
from cdc_lake.observability.logging import Level, Log, configure


def logged(told: Iterable[ProgressEvent]) -> str:
    """Everything as JSON lines; asserts that no field was refused."""
    stream = io.StringIO()
    configure(stream, level=Level.DEBUG)
    try:
        log = Log("shop", "run")
        for one in told:
            log.report(one)
    finally:
        structlog.reset_defaults()
    assert '"refused"' not in stream.getvalue(), stream.getvalue()
    return stream.getvalue()
