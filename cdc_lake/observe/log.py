"""Logs: structlog to standard error, pretty on a terminal, one JSON object a line otherwise.

Loggers are named for the module that speaks. No row value and no secret is ever an argument of a log call.
"""

from __future__ import annotations

import enum
from typing import TextIO

import structlog


class Level(enum.IntEnum):
    """The least that is written; numbers as in the standard library."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


def configure(stream: TextIO, *, level: Level, pretty: bool, colour: bool) -> None:
    """Send the logs of this process to a stream: for people where `pretty`, as JSON lines otherwise."""
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=colour, exception_formatter=structlog.dev.plain_traceback)
        if pretty
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not pretty:
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
