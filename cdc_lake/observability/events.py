"""The events of the log with their names and fields, and progress as the loops report it.

An event is a stage of progress, a note, or what ended a command. Every event has `timestamp`, `level`, `event`,
`pipeline`, `verb` and `text` besides its own fields, and `run` if it belongs to a run of the control table `runs`.
Fields hold names, codes, positions and numbers; never a row value.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias


class Level(enum.IntEnum):
    """The least that is written; numbers as in the standard library."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True, slots=True)
class Event:
    """One name. `level`: what it has unless it carries a code, which is a warning at least; `repeats`: told over and
    over while a loop runs, so that only now and then one is written.
    """

    name: str
    level: Level
    help: str
    fields: tuple[str, ...] = ()
    repeats: bool = False


FIELDS: Final[Mapping[str, str]] = {
    "run": "identifier of the run, as the control table `runs` has it",
    "code": "code of the error or warning; `cdc-lake explain CODE` prints its page",
    "table": "silver table; of a comparison the source table",
    "tables": "source tables",
    "position": "position in the stream as it can be pasted, `0/16B3748` or a CSN",
    "upto": "the same as tables store it, an integer",
    "done": "how much of it is done, in `unit`",
    "total": "how much there is of it",
    "unit": "what is counted: rows, changes, tables, files, spans, keys, bytes of WAL, CSNs",
    "epoch": "epoch of the stream",
    "transactions": "transactions of one commit to bronze",
    "changes": "changes of one commit to bronze",
    "operations": "the same by operation: I U D T M X S",
    "bytes": "bytes written, or of files that were put together or removed",
    "version": "version of the bronze table that holds it",
    "server_end": "end of the server's log as it last said, an integer",
    "way": "how the table was written: overwrite, append or merge ([which when](../concepts/applying.md))",
    "broadcast": "whether the changes were sent to every executor",
    "bounded": "whether only a part of the table was looked at",
    "seconds": "how long it took",
    "files_written": "files that were written",
    "bytes_written": "bytes of these",
    "files_replaced": "files that these took the place of",
    "bytes_replaced": "bytes of those",
    "files_marked": "files of which rows were marked as deleted",
    "kind": "operation on the columns, `add_column` for one",
    "operation": "an operation that was allowed, in the words of `plan`",
    "columns": "names of columns",
    "configuration": "number of the configuration",
    "changed": "names of columns that are redacted otherwise from here on",
    "timeline": "timeline of the server now",
    "before": "timeline of the server until now",
    "part": "what was done: retention, compaction, expiry, removal",
    "files": "files there were",
    "into": "files they became",
    "delete_files": "files of deletes that were put together",
    "versions": "versions that left",
    "bytes_after": "bytes of these",
    "decoded_later": "transactions decoded later of which nothing is needed any more",
    "log_entries": "entries of the table's log that were removed",
    "rows": "rows that left",
    "verdict": "what a comparison found of a table",
    "outcome": "done, stopped or failed",
    "where": "file or place that the error is about",
    "hint": "what to do",
    "exit_code": "exit code of the command",
    "retry": "whether waiting helps: never or later",
}
"""Every field that an event may have besides those of every event, with its meaning."""

_COUNTED: Final = ("done", "total", "unit")

EVENTS: Final = (
    Event("run", Level.INFO, "A run began, or ended.", ("outcome", "seconds", "code")),
    Event(
        "connect",
        Level.INFO,
        "The receiver is connected, or found something out about the server.",
        ("upto", "columns", "configuration", "changed", "timeline", "before"),
    ),
    Event("snapshot", Level.INFO, "A step of the initial copy.", ("epoch", *_COUNTED)),
    Event(
        "receive",
        Level.INFO,
        "What the receiver came across.",
        ("code", "tables", "position", "configuration"),
        repeats=True,
    ),
    Event(
        "landed",
        Level.INFO,
        "Transactions are in bronze and confirmed. `done` counts the changes of the run.",
        ("position", "upto", "transactions", "changes", "operations", "bytes", "version", "server_end", *_COUNTED),
        repeats=True,
    ),
    Event("backlog", Level.INFO, "How much of the way to a known end is done.", ("position", *_COUNTED), repeats=True),
    Event("paused", Level.INFO, "A silver table was paused or goes on.", ("table", "position")),
    Event("left", Level.INFO, "A table is not followed any more.", ("table", "position")),
    Event("renew", Level.INFO, "A silver table begins again with a copy.", ("table", "position")),
    Event("retry", Level.WARNING, "Something failed and is tried again.", ("code",)),
    Event("apply", Level.INFO, "What apply does or waits for.", ("code",), repeats=True),
    Event("layout", Level.INFO, "A column of a silver table was changed.", ("table", "kind")),
    Event(
        "merge",
        Level.INFO,
        "A silver table was written. `done` counts the changes that went in.",
        (
            "table", "way", "broadcast", "bounded", "seconds", "files_written", "bytes_written", "files_replaced",
            "bytes_replaced", "files_marked", *_COUNTED,
        ),
        repeats=True,
    ),
    Event("cut", Level.INFO, "The silver tables are at one position.", ("position", "upto"), repeats=True),
    Event("broken", Level.ERROR, "A silver table could not go on and waits.", ("table", "code")),
    Event(
        "warning",
        Level.WARNING,
        "Something that should be looked at; work goes on.",
        ("code", "operation", "table", "upto"),
    ),
    Event("judge", Level.INFO, "Silver was judged by the rules of tables."),
    Event("promise", Level.INFO, "A cut stays readable, or does so no longer.", ("code", "table")),
    Event(
        "maintain",
        Level.INFO,
        "A step of upkeep.",
        (
            "table", "part", "files", "into", "bytes", "bytes_after", "delete_files", "versions", "decoded_later",
            "log_entries", "rows", "epoch", "upto", "code",
        ),
        repeats=True,
    ),
    Event("compare", Level.INFO, "A comparison took its snapshot, or judged a table.", ("table", "verdict", *_COUNTED)),
    Event("chain", Level.INFO, "A step of `inspect chain`.", _COUNTED, repeats=True),
    Event("rebuild", Level.INFO, "A step of a rebuild.", _COUNTED, repeats=True),
    Event("record", Level.INFO, "A recording began."),
    Event("note", Level.INFO, "What the command says besides."),
    Event("error", Level.ERROR, "What ended the command.", ("code", "where", "hint", "retry", "exit_code")),
)  # fmt: skip
"""Every event, in the order of its page."""

BY_NAME: Final[Mapping[str, Event]] = {event.name: event for event in EVENTS}
OF_EVERY_EVENT: Final = frozenset({"event", "level", "timestamp", "pipeline", "verb", "run", "text", "refused"})
"""Fields that need not be declared. `refused` names fields that were left out because nobody declared them."""


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """One thing that happened.

    `stage` is a stable word, an event of `observability.events`; `text` says it to a person without row values; `done`
    of `total` in `unit` where it can be counted; `facts` are numbers and names for `--json` and the log: the event's
    fields.
    """

    stage: str
    text: str
    done: int | None = None
    total: int | None = None
    unit: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


ProgressReporter: TypeAlias = Callable[[ProgressEvent], None]


def silent(progress: ProgressEvent) -> None:
    """Tell nobody."""
    del progress


def of_run(run: str, report: ProgressReporter) -> ProgressReporter:
    """Says of everything which run it is of, unless that is said already."""

    def on_progress(progress: ProgressEvent) -> None:
        report(replace(progress, facts={"run": run, **progress.facts}))

    return on_progress
