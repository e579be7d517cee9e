"""Writes logs as JSON lines to standard error, with structlog.

Every line is one of the events of `observability.events` and passes the same two processors: undeclared fields are
omitted and named, and known secrets are masked. No row value is ever an argument of a log call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final, TextIO

import structlog

from cdc_lake.errors import CdcLakeError
from cdc_lake.observability.events import BY_NAME, OF_EVERY_EVENT, Level, ProgressEvent

__all__ = ["Level", "Log", "configure"]

EVERY: Final = 10.0
"""Seconds between two lines of a repeating event, for each table; debug level has them all."""
MASKED: Final = "••••••"
_SHORTEST_SECRET: Final = 4
"""Characters: a shorter secret occurs in many words, and masking would reveal it."""

_Fields = MutableMapping[str, Any]


def configure(stream: TextIO, *, level: Level, secrets: frozenset[str] = frozenset()) -> None:
    """Send the logs of this process to a stream as JSON lines, with `secrets` masked."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            only_declared,
            masking(secrets),
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )


def only_declared(logger: object, method: str, fields: _Fields) -> _Fields:
    """Omit undeclared fields, and name them; an undeclared event keeps only its name.

    A wrong log call must neither stop a loop nor reveal unchecked data.
    """
    del logger, method
    event = BY_NAME.get(fields["event"])
    allowed = OF_EVERY_EVENT.union(event.fields) if event is not None else OF_EVERY_EVENT - {"text"}
    declared = {name: value for name, value in fields.items() if name in allowed}
    if refused := sorted(fields.keys() - allowed):
        declared["refused"] = refused
    return declared


def masking(secrets: frozenset[str]) -> Callable[[object, str, _Fields], _Fields]:
    """A processor that masks these secrets at any depth."""
    ordered_secrets = sorted((text for text in secrets if len(text) >= _SHORTEST_SECRET), key=len, reverse=True)

    def mask(value: object) -> object:
        if isinstance(value, str):
            for secret in ordered_secrets:
                value = value.replace(secret, MASKED)
            return value
        if isinstance(value, Mapping):
            return {mask(key): mask(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [mask(item) for item in value]
        return value

    def process(logger: object, method: str, fields: _Fields) -> _Fields:
        del logger, method
        return {key: mask(value) for key, value in fields.items()}

    return process


class Log:
    """Reports of a command as events. Thread-safe."""

    def __init__(self, pipeline: str, verb: str) -> None:
        self._log = structlog.get_logger().bind(pipeline=pipeline, verb=verb)
        self._reported_at: dict[tuple[str, object], float] = {}
        self._lock = threading.Lock()

    def report(self, progress: ProgressEvent) -> None:
        """Log a stage of progress; a repeating one only occasionally above debug level, unless it has a code."""
        counted = {"done": progress.done, "total": progress.total, "unit": progress.unit or None}
        fields = {name: value for name, value in counted.items() if value is not None} | dict(progress.facts)
        self._write(self._level(progress), progress.stage, text=progress.text, **fields)

    def note(self, text: str) -> None:
        """Log a message of a command."""
        self._write(Level.INFO, "note", text=text)

    def error(self, error: CdcLakeError) -> None:
        """Log the error that ends a command."""
        fields: dict[str, object] = {"code": error.code, "retry": error.retry.value, "exit_code": error.exit_status}
        fields |= {name: value for name, value in (("where", error.where), ("hint", error.remedy)) if value}
        self._write(Level.ERROR, "error", text=error.message, **fields)

    def _write(self, level: Level, event: str, **fields: object) -> None:
        with self._lock:
            self._log.log(level, event, **fields)

    def _level(self, progress: ProgressEvent) -> Level:
        event = BY_NAME.get(progress.stage)
        level = Level.INFO if event is None else event.level
        if "code" in progress.facts:
            return max(level, Level.WARNING)
        if event is None or not event.repeats:
            return level
        now, key = time.monotonic(), (progress.stage, progress.facts.get("table"))
        with self._lock:
            if now - self._reported_at.get(key, -EVERY) < EVERY:
                return Level.DEBUG
            self._reported_at[key] = now
        return level
