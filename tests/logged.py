"""What was told, as a log has it."""

from __future__ import annotations

import io
from collections.abc import Iterable

import structlog

from cdc_lake.observe.log import Level, Log, configure
from cdc_lake.observe.progress import Progress


def logged(told: Iterable[Progress]) -> str:
    """Everything as JSON lines; asserts that no field was refused."""
    stream = io.StringIO()
    configure(stream, level=Level.DEBUG, pretty=False, colour=False)
    try:
        log = Log("shop", "run")
        for one in told:
            log.tell(one)
    finally:
        structlog.reset_defaults()
    assert '"refused"' not in stream.getvalue(), stream.getvalue()
    return stream.getvalue()
