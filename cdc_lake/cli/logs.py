"""The log of a command: none, or, where its pipeline asks for it, all that narration would say, as JSON lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from cdc_lake.cli.view import Look
    from cdc_lake.config.project import Project
    from cdc_lake.observe.log import Log

_log: Log | None = None


def current() -> Log | None:
    """The log that takes the place of narration, if any does."""
    return _log


def forget() -> None:
    """A new command line begins."""
    global _log  # noqa: PLW0603  # one process, one command line
    _log = None


def begin(project: Project, verb: str, look: Look, stream: TextIO) -> None:
    """From here on narration is a log, where `observe.log` asks for it and nobody sits at a terminal."""
    if project.pipeline.observe.log != "json" or stream.isatty():
        return
    from cdc_lake.config.secret_values import secret_values
    from cdc_lake.observe.log import Level, Log, configure

    global _log  # noqa: PLW0603  # as above
    level = Level.DEBUG if look.verbose or look.debug else Level.ERROR if look.quiet else Level.INFO
    configure(stream, level=level, pretty=False, colour=False, secrets=secret_values(project.pipeline))
    _log = Log(project.name, verb)
