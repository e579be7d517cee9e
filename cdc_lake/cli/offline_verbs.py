"""The verbs that need neither source nor lake: `init`, `validate`, `explain`, `schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cdc_lake.cli.process import EXIT_CONFIG
from cdc_lake.cli.verb import Call, verb


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    verb(app, "init", pipeline=False)(init)
    verb(app, "validate")(validate)
    verb(app, "explain", pipeline=False)(explain)
    verb(app, "schema", pipeline=False)(schema)


def init(
    call: Call,
    template: Annotated[str, typer.Argument(help="demo, postgres, gaussdb, qhb, databricks or empty.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the new project.")],
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")] = False,
) -> None:
    """Write a project that runs."""
    from cdc_lake.cli.render import new_project_text
    from cdc_lake.cli.scaffold import scaffold

    made = scaffold(template, folder, force=force)
    call.view.result(made, new_project_text(made))


def validate(
    call: Call, files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Pipeline files.")] = None
) -> None:
    """Check pipeline files without touching anything: all problems at once, with their places."""
    from cdc_lake.cli.chosen import candidates
    from cdc_lake.cli.render import validation_text
    from cdc_lake.config.load import display
    from cdc_lake.config.load import validate as find_problems
    from cdc_lake.model.diagnostic import Severity

    chosen = list(files or ([call.pipeline] if call.pipeline else candidates(Path.cwd()))) or [call.file()]
    found = find_problems(chosen, environment=call.environment)
    failed = any(d.severity is Severity.ERROR for d in found)
    if found and not call.view.look.json:
        call.view.diagnostics(found)
    names = [display(f) for f in chosen]
    call.view.result({"valid": not failed, "files": names, "diagnostics": found}, validation_text(names, found))
    if failed:
        raise typer.Exit(EXIT_CONFIG)


def explain(
    call: Call,
    code: Annotated[str | None, typer.Argument(help="As in `error[CODE]`.")] = None,
    every: Annotated[bool, typer.Option("--list", help="All codes with their titles.")] = False,
) -> None:
    """The page of an error code: what happened, why, what to do."""
    from cdc_lake.cli.pages import page, titles

    if every:
        listed = titles()
        body = [{"code": c, "title": t} for c, t in listed]
        call.view.result({"codes": body}, "\n".join(f"{c}  {t}" for c, t in listed))
        return
    if code is None:
        raise typer.BadParameter("name a code, or use --list", param_hint="CODE")
    text = page(code)
    call.view.result({"code": code.strip().upper(), "page": text}, text)


def schema(call: Call) -> None:
    """The JSON Schema of pipeline files, for editors."""
    from cdc_lake.cli.document import dumps
    from cdc_lake.config.json_schema import json_schema

    call.view.raw(dumps(json_schema()))
