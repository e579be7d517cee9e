"""The decorator `verb`: a command with the shared options of all commands, before or after its name.

A command's function takes a `Call` first and its own options after it. The shared options (`--json`, `-q`, `-v`,
`--debug`, `--no-color`, and `--pipeline`, `--env` for commands on a pipeline) are declared only here, as is the choice
of the pipeline file if none is named.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer import Argument, Option

from cdc_lake.cli import output
from cdc_lake.cli.output import CommandOutput, OutputOptions, keep_out, stderr
from cdc_lake.model.diagnostic import PipelineNotChosen

if TYPE_CHECKING:
    from cdc_lake.config.project import Project

R = TypeVar("R")

_OUTPUT = "Output"
_PIPELINE = "Pipeline"

Json = Annotated[bool, Option("--json", help="Print one JSON document on standard output.", rich_help_panel=_OUTPUT)]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Suppress progress; print errors only.", rich_help_panel=_OUTPUT)]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Print every step, and logs.", rich_help_panel=_OUTPUT)]
Debug = Annotated[bool, Option("--debug", help="Print debug logs, and tracebacks of errors.", rich_help_panel=_OUTPUT)]
NoColor = Annotated[bool, Option("--no-color", help="Disable colors, as NO_COLOR=1 does.", rich_help_panel=_OUTPUT)]
PipelineFile = Annotated[
    Path | None,
    Option(
        "--pipeline", "-p", metavar="FILE", help="Pipeline file (default: the only one of the project).",
        rich_help_panel=_PIPELINE,
    ),
]  # fmt: skip
Environment = Annotated[
    str | None,
    Option("--env", "-e", metavar="NAME", help="Override settings with conf/NAME.yaml.", rich_help_panel=_PIPELINE),
]

Table = Annotated[str, Argument(help="Source table: schema.table, or a table of the schema `public`.")]
Epoch = Annotated[int | None, Option("--epoch", min=1, help="Epoch of the stream (default: the newest).")]
DryRun = Annotated[bool, Option("--dry-run", help="Show what would be done, without doing it.")]
Wait = Annotated[
    float, Option("--wait", metavar="SECONDS", min=0, help="How long to wait for the current reader of the slot.")
]

_SHARED = {"json": Json, "quiet": Quiet, "verbose": Verbose, "debug": Debug, "no_color": NoColor}
_OF_PIPELINE = {"pipeline": PipelineFile, "env": Environment}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a command: its output options, and its pipeline."""

    verb: str
    view: CommandOutput
    pipeline: Path | None
    environment: str | None

    def file(self) -> Path:
        """The pipeline file. Raises PipelineNotChosen."""
        return choose(self.pipeline, Path.cwd())

    def project(self) -> Project:
        """The loaded pipeline. Raises ConfigInvalid, PipelineNotChosen, LakeError."""
        from cdc_lake.config.loader import load_project

        project = keep_out(load_project(self.file(), environment=self.environment))
        project.require_folders()
        output.begin(project, self.verb, self.view.options, stderr())
        for warning in project.warnings:
            place = "" if warning.location is None else f" ({warning.location.file}:{warning.location.line})"
            self.view.note(f"warning: {warning.summary}{place}; {warning.hint}")
        return project

    def show(self, result: R, text: Callable[[R], str]) -> None:
        """Print a result of the command: as text, or as a JSON document."""
        self.view.result(result, text(result))


class Interrupted(BaseException):
    """Ctrl-C during a command. Not KeyboardInterrupt, which typer handles itself, silently."""


_options: OutputOptions = OutputOptions()


def current_options() -> OutputOptions:
    """The output options of the running command; errors that end it use them too."""
    return _options


def set_options(new: OutputOptions) -> None:
    """Set these output options as a base for a command's own ones."""
    global _options  # noqa: PLW0603  # one process, one command line
    _options = new


def verb(
    app: typer.Typer, name: str, *, pipeline: bool = True, document: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command with the shared options after its own; `document`: its name in JSON output."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        own = list(signature.parameters.values())[1:]
        shared = {**(_OF_PIPELINE if pipeline else {}), **_SHARED}
        added = [
            inspect.Parameter(
                key,
                inspect.Parameter.KEYWORD_ONLY,
                default=None if key in _OF_PIPELINE else False,
                annotation=annotation,
            )
            for key, annotation in shared.items()
        ]

        @functools.wraps(function)
        def command(**options: Any) -> None:
            chosen = {key: options.pop(key) for key in shared}
            set_options(current_options().plus(**{key: chosen[key] for key in _SHARED}))
            try:
                with CommandOutput(current_options(), document or name) as view:
                    function(Call(name, view, chosen.get("pipeline"), chosen.get("env")), **options)
            except KeyboardInterrupt as stop:
                raise Interrupted from stop

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + added
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # what inspect looks for
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        del command.__wrapped__  # otherwise typer reads the inner signature
        return app.command(name)(command)

    return register


_SUFFIXES = frozenset({".yaml", ".yml"})
_PIPELINE_KEY = re.compile(rb"^pipeline\s*:", re.MULTILINE)


def choose(file: Path | None, folder: Path) -> Path:
    """The named file, or the only one of the project in `folder`. Raises PipelineNotChosen."""
    if file is not None:
        return file
    from cdc_lake.config.loader import display

    files = candidates(folder)
    if len(files) == 1:
        return files[0]
    if not files:
        raise PipelineNotChosen(
            f"no pipeline file in {folder}",
            hint="go to the project's folder, name a file with `--pipeline FILE`, or start with "
            "`cdc-lake init postgres DIR`",
        )
    names = "\n  ".join(display(f) for f in files)
    raise PipelineNotChosen(
        f"this project has {len(files)} pipelines:\n  {names}", hint=f"name one: `--pipeline {display(files[0])}`"
    )


def candidates(folder: Path) -> list[Path]:
    """The pipeline files of a project: all of `pipelines/`, or the files in the folder that contain `pipeline:`."""
    from cdc_lake.config.loader import PIPELINES

    inside = folder / PIPELINES
    if inside.is_dir() and (files := _yaml(inside)):
        return files
    return [f for f in _yaml(folder) if folder.name == PIPELINES or _PIPELINE_KEY.search(f.read_bytes())]


def _yaml(folder: Path) -> list[Path]:
    return sorted(f for f in folder.iterdir() if f.suffix in _SUFFIXES and f.is_file())
