"""The view: the only module that prints.

Standard output is data: a result as text, or as one JSON document. Standard error is narration: progress, notes,
errors.
Colour and bars only where the stream is a terminal. Text of results comes from the `render` modules, which are pure.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from cdc_lake.cli import logs
from cdc_lake.cli.document import document, dumps, plain
from cdc_lake.cli.render_error import diagnostic_text, error_text
from cdc_lake.cli.stages import LOGGED, REPEATING, Pace, line
from cdc_lake.cli.traces import trace
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.counting import counted
from cdc_lake.model.diagnostic import Diagnostic
from cdc_lake.model.printable import printable
from cdc_lake.observe.progress import Progress

if TYPE_CHECKING:
    from cdc_lake.cli.bars import Bars

LINE_EVERY = 10.0
"""Seconds between two lines about the same stage where there is no terminal (`interface.md` section 3)."""

_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"  # ECMA-48: cursor position, erase
_narration: TextIO | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """How to answer: as JSON or as text, how much, and whether in colour."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    debug: bool = False
    no_color: bool = False

    def plus(self, **more: bool) -> Look:
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


class View:
    """What one command says. Safe to tell from several threads."""

    def __init__(self, look: Look, verb: str) -> None:
        self.look = look
        self.verb = verb
        self._bars: Bars | None = None
        self._told: dict[str, float] = {}
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
        _write(sys.stdout, dumps(document(self.verb, value)) if self.look.json else self._printable(text))

    def raw(self, text: str) -> None:
        """Data that has a form of its own: a schema, SQL, a page."""
        self.end_progress()
        _write(sys.stdout, text)

    def screen(self, text: str) -> None:
        """Replace what the terminal shows, as far as it fits, without flicker."""
        height = max(2, shutil.get_terminal_size((80, 24)).lines)
        lines = self._printable(text).splitlines()
        if len(lines) >= height:
            lines = [*lines[: height - 2], f"… {counted(len(lines) - height + 2, 'more line')}"]
        _write(sys.stdout, f"{_HOME}{''.join(f'{one}{_REST_OF_LINE}{chr(10)}' for one in lines)}{_REST_OF_SCREEN}")

    def event(self, value: object) -> None:
        """One line of `run --json`."""
        with self._lock:
            _write(sys.stdout, dumps(plain(value), indent=None))

    def note(self, text: str) -> None:
        """Narration that stands on its own."""
        text = printable(text)
        if (log := logs.current()) is not None:
            log.note(text)
        elif not self.look.quiet:
            with self._lock:
                if self._bars is not None:
                    self._bars.line(text)
                else:
                    _write(stderr(), text)

    def tell(self, progress: Progress) -> None:
        """Progress of a loop: an event, a bar or a line. Only `run --json` has events: elsewhere it is one document."""
        if self.look.json and self.verb == "run":
            self.event({"schema": f"cdc-lake/{self.verb}/1", "at": _now(), **plain(progress)})
        elif (log := logs.current()) is not None:
            log.tell(progress)
        elif self.look.quiet or progress.stage in LOGGED:
            return
        elif stderr().isatty() and not self.look.verbose:
            with self._lock:
                self._bar().show(replace(progress, text=printable(progress.text, keep="")))
        else:
            pace = self._pace.of(progress)
            if self._due(progress):
                self.note(line(progress, pace))

    def diagnostics(self, found: Sequence[Diagnostic]) -> None:
        """Every problem, one after the other."""
        self.end_progress()
        colour = self.look.colour(stderr())
        _write(stderr(), "\n\n".join(diagnostic_text(d, colour=colour) for d in found))

    def error(self, error: CdcLakeError) -> None:
        """An error as people read it; as a document too where JSON is asked for."""
        self.end_progress()
        if self.look.json:
            _write(sys.stdout, dumps(error_document(error), indent=None if self.verb == "run" else 2))
        if (log := logs.current()) is not None:
            log.error(error)
        else:
            _write(stderr(), error_text(error, colour=self.look.colour(stderr())))
        if self.look.debug:
            _write(stderr(), trace(error))

    def bug(self, error: BaseException) -> None:
        """Something nobody foresaw."""
        self.end_progress()
        kind = type(error).__name__
        if self.look.json:
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
        if self.look.debug:
            _write(stderr(), trace(error))

    def end_progress(self) -> None:
        """Leave the bars as they stand."""
        with self._lock:
            if self._bars is not None:
                self._bars.close()
                self._bars = None

    def _printable(self, text: str) -> str:
        return printable(text, colour=self.look.colour(sys.stdout))

    def _bar(self) -> Bars:
        if self._bars is None:
            from cdc_lake.cli.bars import Bars

            self._bars = Bars(stderr(), colour=self.look.colour(stderr()))
        return self._bars

    def _due(self, progress: Progress) -> bool:
        if self.look.verbose or (progress.done is None and progress.stage not in REPEATING):
            return True
        if progress.done is not None and progress.done == progress.total:
            return True
        now = time.monotonic()
        with self._lock:
            if now - self._told.get(progress.stage, -LINE_EVERY) < LINE_EVERY:
                return False
            self._told[progress.stage] = now
        return True


def error_document(error: CdcLakeError) -> dict[str, object]:
    """An error as a document."""
    found = getattr(error, "diagnostics", ())
    return {
        "schema": "cdc-lake/error/1",
        "code": error.code,
        "message": error.message,
        "where": error.where,
        "hint": error.remedy,
        "retry": error.retry.value,
        "exit_code": error.exit_status,
        "diagnostics": plain(found),
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _write(stream: TextIO, text: str) -> None:
    stream.write(text if text.endswith("\n") else text + "\n")
    stream.flush()
