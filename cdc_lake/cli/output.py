"""The only module that prints: results, progress and errors of a command.

Standard output is data: a result as text, or as one JSON document. Standard error is progress, notes and errors, with
colour and bars only on a terminal; if the pipeline sets `observe.log: json`, all of it is JSON lines instead. Secrets
are removed from tracebacks of `--debug`, because error messages of servers and drivers may quote them.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import re
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Self, TextIO

from cdc_lake.cli.text import REPEATING, Pace, diagnostic_text, error_text, progress_line
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.diagnostic import Diagnostic, pluralize, printable
from cdc_lake.observability.events import ProgressEvent

if TYPE_CHECKING:
    from cdc_lake.cli.progress_bars import Bars
    from cdc_lake.config.project import Project
    from cdc_lake.observability.logging import Log


LOGGED = frozenset({"run"})
"""Stages for programs only: users see a command begin and end."""

_MASKED = "••••••"
_PIECES = re.compile(r"[^\w.~-]+", re.ASCII)  # characters that are escaped in a URL, or end a part of one
_PIECE = 6  # minimum length: shorter pieces reveal little, and occur in ordinary words
_secrets: frozenset[str] = frozenset()


def keep_out(project: Project) -> Project:
    """From now on hide the pipeline's secrets in tracebacks."""
    from cdc_lake.config.secrets import secret_values

    global _secrets  # noqa: PLW0603  # one process, one command line
    _secrets |= secret_values(project.pipeline)
    return project


def trace(error: BaseException) -> str:
    """The traceback of an error with its causes."""
    text = "".join(traceback.format_exception(error))
    for part in sorted({part for secret in _secrets for part in _parts(secret)}, key=len, reverse=True):
        text = text.replace(part, _MASKED)
    return text


def _parts(secret: str) -> list[str]:
    """The forms in which a secret may be quoted: whole and, for parsed or escaped URLs, in pieces."""
    return [secret, *(piece for piece in _PIECES.split(secret) if len(piece) >= _PIECE)]


def document(verb: str, value: object) -> dict[str, Any]:
    """A result as a JSON document: `schema` first, then its fields; a value that is not a record is under `items`."""
    body = plain(value)
    return {"schema": f"cdc-lake/{verb}/1", **(body if isinstance(body, dict) else {"items": body})}


def dumps(value: object, *, indent: int | None = 2) -> str:
    """JSON text without escaping non-ASCII characters; on one line if `indent` is None."""
    return json.dumps(value, indent=indent, ensure_ascii=False)


def plain(value: object) -> Any:  # noqa: PLR0911  # one return a kind of value
    """A value in JSON types: times in ISO 8601 with zone, durations in seconds, decimals and bytes as text."""
    match value:
        case None | bool() | str() if not isinstance(value, enum.Enum):
            return value
        case enum.Enum():
            return plain(value.value)
        case int() | float():
            return value
        case Mapping():
            return {str(plain(k)): plain(v) for k, v in value.items()}
        case list() | tuple():
            return [plain(v) for v in value]
        case set() | frozenset():
            return sorted(plain(v) for v in value)
        case datetime() | date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.hex()
        case Decimal() | PurePath():
            return str(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        case _:
            return str(value)


_log: Log | None = None


def current() -> Log | None:
    """The log that replaces progress output, if any."""
    return _log


def reset() -> None:
    """Forget the log and the secrets of the command line before."""
    global _log, _secrets
    _log, _secrets = None, frozenset()


def begin(project: Project, verb: str, options: OutputOptions, stream: TextIO) -> None:
    """From now on log progress, if `observability.logging` is set and standard error is not a terminal."""
    if project.pipeline.observe.log != "json" or stream.isatty():
        return
    from cdc_lake.config.secrets import secret_values
    from cdc_lake.observability.logging import Level, Log, configure

    global _log  # noqa: PLW0603  # as above
    level = Level.DEBUG if options.verbose or options.debug else Level.ERROR if options.quiet else Level.INFO
    configure(stream, level=level, secrets=secret_values(project.pipeline))
    _log = Log(project.name, verb)


LINE_EVERY = 10.0
"""Seconds between two lines about the same stage without a terminal (`interface.md` section 3)."""

_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"  # ECMA-48: cursor position, erase
_narration: TextIO | None = None


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """The output options: JSON or text, verbosity, colour."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    debug: bool = False
    no_color: bool = False

    def plus(self, **more: bool) -> OutputOptions:
        """The options combined with these."""
        return replace(self, **{key: True for key, on in more.items() if on})

    def colour(self, stream: TextIO) -> bool:
        """Whether a stream supports colour."""
        return stream.isatty() and not self.no_color and not os.environ.get("NO_COLOR")


def separate_narration() -> None:
    """Give progress output a descriptor of its own: while Spark starts, the process's standard error goes to a file."""
    global _narration  # noqa: PLW0603  # one process, one standard error
    _narration = os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1, encoding="utf-8", errors="replace")


def stderr() -> TextIO:
    """The stream for progress output."""
    return _narration or sys.stderr


class CommandOutput:
    """The output of one command. Thread-safe."""

    def __init__(self, options: OutputOptions, verb: str) -> None:
        self.options = options
        self.verb = verb
        self._bars: Bars | None = None
        self._reported_at: dict[str, float] = {}
        self._pace = Pace()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_progress()

    @property
    def width(self) -> int:
        """Width of the terminal; otherwise COLUMNS or 80."""
        return max(40, shutil.get_terminal_size((80, 24)).columns)

    def result(self, value: object, text: str) -> None:
        """Print the result of a command: the document for JSON, otherwise the text."""
        self.end_progress()
        _write(sys.stdout, dumps(document(self.verb, value)) if self.options.json else self._printable(text))

    def raw(self, text: str) -> None:
        """Print data in its own format: a schema, SQL, a page."""
        self.end_progress()
        _write(sys.stdout, text)

    def screen(self, text: str) -> None:
        """Replace the content of the terminal, as far as it fits, without flicker."""
        height = max(2, shutil.get_terminal_size((80, 24)).lines)
        lines = self._printable(text).splitlines()
        if len(lines) >= height:
            lines = [*lines[: height - 2], f"… {pluralize(len(lines) - height + 2, 'more line')}"]
        _write(sys.stdout, f"{_HOME}{''.join(f'{line}{_REST_OF_LINE}{chr(10)}' for line in lines)}{_REST_OF_SCREEN}")

    def event(self, value: object) -> None:
        """Print one line of `run --json`."""
        with self._lock:
            _write(sys.stdout, dumps(plain(value), indent=None))

    def note(self, text: str) -> None:
        """Print a message."""
        text = printable(text)
        if (log := current()) is not None:
            log.note(text)
        elif not self.options.quiet:
            with self._lock:
                if self._bars is not None:
                    self._bars.line(text)
                else:
                    _write(stderr(), text)

    def report(self, progress: ProgressEvent) -> None:
        """Show progress of a loop: an event, a bar or a line. Only `run --json` has events, others one document."""
        if self.options.json and self.verb == "run":
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self.event({"schema": f"cdc-lake/{self.verb}/1", "at": now, **plain(progress)})
        elif (log := current()) is not None:
            log.report(progress)
        elif self.options.quiet or progress.stage in LOGGED:
            return
        elif stderr().isatty() and not self.options.verbose:
            with self._lock:
                self._bar().show(replace(progress, text=printable(progress.text, keep="")))
        else:
            pace = self._pace.describe_pace(progress)
            if self._due(progress):
                self.note(progress_line(progress, pace))

    def diagnostics(self, problems: Sequence[Diagnostic]) -> None:
        """Print every problem, one after the other."""
        self.end_progress()
        colour = self.options.colour(stderr())
        _write(stderr(), "\n\n".join(diagnostic_text(d, colour=colour) for d in problems))

    def error(self, error: CdcLakeError) -> None:
        """Print an error as text, and also as a document for JSON."""
        self.end_progress()
        if self.options.json:
            _write(sys.stdout, dumps(error_document(error), indent=None if self.verb == "run" else 2))
        if (log := current()) is not None:
            log.error(error)
        else:
            _write(stderr(), error_text(error, colour=self.options.colour(stderr())))
        if self.options.debug:
            _write(stderr(), trace(error))

    def bug(self, error: BaseException) -> None:
        """Print an unexpected error."""
        self.end_progress()
        kind = type(error).__name__
        if self.options.json:
            body = {
                "schema": "cdc-lake/error/1",
                "code": None,
                "message": f"a bug in cdc-lake ({kind})",
                "exit_code": 70,
            }
            _write(sys.stdout, dumps(body, indent=None if self.verb == "run" else 2))
        command = " ".join(["cdc-lake", *sys.argv[1:2]])
        _write(
            stderr(),
            f"error: a bug in cdc-lake ({kind}): state on disk is as the last commit left it\n\n"
            f"hint: run `{command} --debug …` again and report the traceback with the version (`cdc-lake --version`)\n"
            "      in the project's issue tracker; look it over first, a traceback may name your tables",
        )
        if self.options.debug:
            _write(stderr(), trace(error))

    def end_progress(self) -> None:
        """Stop updating the bars."""
        with self._lock:
            if self._bars is not None:
                self._bars.close()
                self._bars = None

    def _printable(self, text: str) -> str:
        return printable(text, colour=self.options.colour(sys.stdout))

    def _bar(self) -> Bars:
        if self._bars is None:
            from cdc_lake.cli.progress_bars import Bars

            self._bars = Bars(stderr(), colour=self.options.colour(stderr()))
        return self._bars

    def _due(self, progress: ProgressEvent) -> bool:
        if self.options.verbose or (progress.done is None and progress.stage not in REPEATING):
            return True
        if progress.done is not None and progress.done == progress.total:
            return True
        now = time.monotonic()
        with self._lock:
            if now - self._reported_at.get(progress.stage, -LINE_EVERY) < LINE_EVERY:
                return False
            self._reported_at[progress.stage] = now
        return True


def error_document(error: CdcLakeError) -> dict[str, object]:
    """An error as a document."""
    return {
        "schema": "cdc-lake/error/1",
        "code": error.code,
        "message": error.message,
        "where": error.where,
        "hint": error.remedy,
        "retry": error.retry.value,
        "exit_code": error.exit_status,
        "diagnostics": plain(getattr(error, "diagnostics", ())),
    }


def _write(stream: TextIO, text: str) -> None:
    stream.write(text if text.endswith("\n") else text + "\n")
    stream.flush()
