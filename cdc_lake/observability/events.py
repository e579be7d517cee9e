"""The log events with their names and fields, and the progress that the loops report.

An event is a stage of progress, a note, or the error that ended a command. Every event has `timestamp`, `level`,
`event`, `pipeline`, `verb` and `text` besides its own fields, and `run` if it belongs to a run of the control table
`runs`. Fields contain names, codes, positions and numbers; never a row value.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias


class Level(enum.IntEnum):
    """The minimum level that is written; numbers as in the standard library."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `level`: its level, at least a warning if it has a code; `repeats`: reported continuously while a loop
    runs, so only some are written.
    """

    name: str
    level: Level
    help: str
    fields: tuple[str, ...] = ()
    repeats: bool = False


_COUNTED: Final = ("done", "total", "unit")

EVENTS: Final = (
    Event("run", Level.INFO, "A run started or ended.", ("outcome", "seconds", "code")),
    Event(
        "connect", Level.INFO, "The receiver connected, or learned something about the server.",
        ("upto", "columns", "configuration", "changed", "timeline", "before"),
    ),
    Event("snapshot", Level.INFO, "A step of the initial copy.", ("epoch", *_COUNTED)),
    Event(
        "receive", Level.INFO, "The receiver encountered something notable.",
        ("code", "tables", "position", "configuration"), repeats=True,
    ),
    Event(
        "landed", Level.INFO, "Transactions are in bronze and acknowledged. `done` counts the changes of the run.",
        ("position", "upto", "transactions", "changes", "operations", "bytes", "version", "server_end", *_COUNTED),
        repeats=True,
    ),
    Event("backlog", Level.INFO, "Progress towards a known end.", ("position", *_COUNTED), repeats=True),
    Event("paused", Level.INFO, "A silver table was paused or resumed.", ("table", "position")),
    Event("left", Level.INFO, "A table is no longer captured.", ("table", "position")),
    Event("renew", Level.INFO, "A silver table starts again with a copy.", ("table", "position")),
    Event("retry", Level.WARNING, "Something failed and is retried.", ("code",)),
    Event("apply", Level.INFO, "What apply does, or what it waits for.", ("code",), repeats=True),
    Event("layout", Level.INFO, "A column of a silver table was changed.", ("table", "kind")),
    Event(
        "merge", Level.INFO, "A silver table was written. `done` counts the changes that were applied.",
        (
            "table", "mode", "broadcast", "bounded", "seconds", "files_written", "bytes_written", "files_replaced",
            "bytes_replaced", "files_marked", *_COUNTED,
        ),
        repeats=True,
    ),
    Event("cut", Level.INFO, "The silver tables are at one position.", ("position", "upto"), repeats=True),
    Event("failed", Level.ERROR, "A silver table cannot continue and waits.", ("table", "code")),
    Event(
        "warning", Level.WARNING, "Something needs attention; work continues.", ("code", "operation", "table", "upto"),
    ),
    Event("judge", Level.INFO, "The rules of the tables were evaluated on silver."),
    Event("pin", Level.INFO, "A cut is kept readable, or no longer.", ("code", "table")),
    Event(
        "maintain", Level.INFO, "A step of maintenance.",
        (
            "table", "part", "files", "into", "bytes", "bytes_after", "delete_files", "versions", "decoded_later",
            "log_entries", "rows", "epoch", "upto", "code",
        ),
        repeats=True,
    ),
    Event("compare", Level.INFO, "A comparison took its snapshot, or judged a table.", ("table", "verdict", *_COUNTED)),
    Event("chain", Level.INFO, "A step of `inspect chain`.", _COUNTED, repeats=True),
    Event("rebuild", Level.INFO, "A step of a rebuild.", _COUNTED, repeats=True),
    Event("record", Level.INFO, "A recording started."),
    Event("note", Level.INFO, "Additional output of a command."),
    Event("error", Level.ERROR, "The error that ended the command.", ("code", "where", "hint", "retry", "exit_code")),
)  # fmt: skip
"""Every event, in the order of its documentation page."""

BY_NAME: Final[Mapping[str, Event]] = {event.name: event for event in EVENTS}
OF_EVERY_EVENT: Final = frozenset({"event", "level", "timestamp", "pipeline", "verb", "run", "text", "refused"})
"""Fields that need no declaration. `refused` names undeclared fields that were omitted."""


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """One progress report.

    `stage` is a stable word, an event of `observability.events`; `text` describes it without row values; `done` of
    `total` in `unit` if countable; `facts` are numbers and names for `--json` and the log: the event's fields.
    """

    stage: str
    text: str
    done: int | None = None
    total: int | None = None
    unit: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


ProgressReporter: TypeAlias = Callable[[ProgressEvent], None]


def silent(progress: ProgressEvent) -> None:
    """Discard the report."""
    del progress


def of_run(run: str, report: ProgressReporter) -> ProgressReporter:
    """Add the run to every report that lacks it."""

    def on_progress(progress: ProgressEvent) -> None:
        report(replace(progress, facts={"run": run, **progress.facts}))

    return on_progress
