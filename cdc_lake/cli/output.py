"""The only module that prints: results, progress and errors of a command.

Standard output is data: a result as text, or as one JSON document. Standard error is progress, notes and errors, with
colour and bars only on a terminal; if the pipeline sets `observe.log: json`, all of it is JSON lines instead.
Tracebacks of `--debug` have secrets removed, because servers repeat what they were sent, and drivers what servers
answered.
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
from types import TracebackType
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
"""Stages that only programs read: people see a command begin and end."""

_MASKED = "••••••"
_PIECES = re.compile(r"[^\w.~-]+", re.ASCII)  # whatever else is escaped in an address, or ends a part of one
_PIECE = 6  # shorter ones say little, and are found in words of the traceback
_secrets: frozenset[str] = frozenset()


def forget_secrets() -> None:
    """A new command line begins."""
    global _secrets  # noqa: PLW0603  # one process, one command line
    _secrets = frozenset()


def keep_out(project: Project) -> Project:
    """From here on no secret of this pipeline is in a traceback."""
    from cdc_lake.config.secrets import secret_values

    global _secrets  # noqa: PLW0603  # as above
    _secrets |= secret_values(project.pipeline)
    return project


def trace(error: BaseException) -> str:
    """The traceback of an error with its causes."""
    text = "".join(traceback.format_exception(error))
    for part in sorted({part for secret in _secrets for part in _parts(secret)}, key=len, reverse=True):
        text = text.replace(part, _MASKED)
    return text


def _parts(secret: str) -> list[str]:
    """What a secret may be quoted as: whole, and, where it was taken for an address or escaped, in pieces."""
    return [secret, *(piece for piece in _PIECES.split(secret) if len(piece) >= _PIECE)]


def document(verb: str, value: object) -> dict[str, Any]:
    """A result as a JSON document: `schema` first, then its fields; what is not a record stands under `items`."""
    body = plain(value)
    return {"schema": f"cdc-lake/{verb}/1", **(body if isinstance(body, dict) else {"items": body})}


def dumps(value: object, *, indent: int | None = 2) -> str:
    """JSON text with text as it is, not escaped."""
    return json.dumps(value, indent=indent, ensure_ascii=False)


def json_line(value: object) -> str:
    """A value of plain JSON parts on one line, for output of one object a line."""
    return json.dumps(value, ensure_ascii=False)


def plain(value: object) -> Any:  # noqa: PLR0911  # one return a kind of value
    """A value made of what JSON has: times ISO 8601 with zone, durations in seconds, decimals and bytes as text."""
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
    """The log that takes the place of narration, if any does."""
    return _log


def forget_log() -> None:
    """A new command line begins."""
    global _log  # noqa: PLW0603  # one process, one command line
    _log = None


def begin(project: Project, verb: str, options: OutputOptions, stream: TextIO) -> None:
    """From here on narration is a log, where `observability.logging` asks for it and nobody sits at a terminal."""
    if project.pipeline.observe.log != "json" or stream.isatty():
        return
    from cdc_lake.config.secrets import secret_values
    from cdc_lake.observability.logging import Level, Log, configure

    global _log  # noqa: PLW0603  # as above
    level = Level.DEBUG if options.verbose or options.debug else Level.ERROR if options.quiet else Level.INFO
    configure(stream, level=level, secrets=secret_values(project.pipeline))
    _log = Log(project.name, verb)


LINE_EVERY = 10.0
"""Seconds between two lines about the same stage where there is no terminal (`interface.md` section 3)."""

_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"  # ECMA-48: cursor position, erase
_narration: TextIO | None = None


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How to answer: as JSON or as text, how much, and whether in colour."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    debug: bool = False
    no_color: bool = False

    def plus(self, **more: bool) -> OutputOptions:
        """With these options on as well."""
        return replace(self, **{key: True for key, on in more.items() if on})

    def colour(self, stream: TextIO) -> bool:
        """Whether a stream gets colour."""
        return stream.isatty() and not self.no_color and not os.environ.get("NO_COLOR")


def separate_narration() -> None:
    """Give narration a descriptor of its own: while Spark starts, the process's standard error goes to a file."""
    global _narration  # noqa: PLW0603  # one process, one standard error
    _narration = os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1, encoding="utf-8", errors="replace")


def stderr() -> TextIO:
    """Where narration goes."""
    return _narration or sys.stderr


class CommandOutput:
    """What one command says. Safe to tell from several threads."""

    def __init__(self, options: OutputOptions, verb: str) -> None:
        self.options = options
        self.verb = verb
        self._bars: Bars | None = None
        self._reported_at: dict[str, float] = {}
        self._pace = Pace()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_progress()

    @property
    def width(self) -> int:
        """Columns of the terminal, COLUMNS or 80 elsewhere."""
        return max(40, shutil.get_terminal_size((80, 24)).columns)

    def result(self, value: object, text: str) -> None:
        """The result of a command: the document where JSON is asked for, the text otherwise."""
        self.end_progress()
        _write(sys.stdout, dumps(document(self.verb, value)) if self.options.json else self._printable(text))

    def raw(self, text: str) -> None:
        """Data that has a form of its own: a schema, SQL, a page."""
        self.end_progress()
        _write(sys.stdout, text)

    def screen(self, text: str) -> None:
        """Replace what the terminal shows, as far as it fits, without flicker."""
        height = max(2, shutil.get_terminal_size((80, 24)).lines)
        lines = self._printable(text).splitlines()
        if len(lines) >= height:
            lines = [*lines[: height - 2], f"… {pluralize(len(lines) - height + 2, 'more line')}"]
        _write(sys.stdout, f"{_HOME}{''.join(f'{line}{_REST_OF_LINE}{chr(10)}' for line in lines)}{_REST_OF_SCREEN}")

    def event(self, value: object) -> None:
        """One line of `run --json`."""
        with self._lock:
            _write(sys.stdout, dumps(plain(value), indent=None))

    def note(self, text: str) -> None:
        """Narration that stands on its own."""
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
        """Progress of a loop: an event, a bar or a line. Only `run --json` has events: elsewhere it is one document."""
        if self.options.json and self.verb == "run":
            self.event({"schema": f"cdc-lake/{self.verb}/1", "at": _timestamp(), **plain(progress)})
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
        """Every problem, one after the other."""
        self.end_progress()
        colour = self.options.colour(stderr())
        _write(stderr(), "\n\n".join(diagnostic_text(d, colour=colour) for d in problems))

    def error(self, error: CdcLakeError) -> None:
        """An error as people read it; as a document too where JSON is asked for."""
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
        """Something nobody foresaw."""
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
        """Leave the bars as they stand."""
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
    diagnostics = getattr(error, "diagnostics", ())
    return {
        "schema": "cdc-lake/error/1",
        "code": error.code,
        "message": error.message,
        "where": error.where,
        "hint": error.remedy,
        "retry": error.retry.value,
        "exit_code": error.exit_status,
        "diagnostics": plain(diagnostics),
    }


def _timestamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _write(stream: TextIO, text: str) -> None:
    stream.write(text if text.endswith("\n") else text + "\n")
    stream.flush()
