"""The commands that need neither source nor lake: `init`, `validate`, `explain`, `schema` and `bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdc_lake.cli.command import Call, verb
from cdc_lake.cli.process import EXIT_CONFIG

if TYPE_CHECKING:
    from cdc_lake.deploy.databricks_yaml import BundleFile


project_app = typer.Typer()


@verb(project_app, "init", pipeline=False)
def init(
    call: Call,
    template: Annotated[str, typer.Argument(help="demo, postgres, gaussdb, qhb, databricks or empty.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the new project.")],
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")] = False,
) -> None:
    """Write a project that runs."""
    from cdc_lake.cli.project_template import scaffold
    from cdc_lake.cli.text import new_project_text

    project = scaffold(template, folder, force=force)
    call.view.result(project, new_project_text(project))


@verb(project_app, "validate")
def validate(
    call: Call, files: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Pipeline files.")] = None
) -> None:
    """Check pipeline files without touching anything: all problems at once, with their places."""
    from cdc_lake.cli.command import candidates
    from cdc_lake.cli.text import validation_text
    from cdc_lake.config.loader import display
    from cdc_lake.config.loader import validate as find_problems
    from cdc_lake.model.diagnostic import Severity

    chosen = list(files or ([call.pipeline] if call.pipeline else candidates(Path.cwd()))) or [call.file()]
    problems = find_problems(chosen, environment=call.environment)
    failed = any(d.severity is Severity.ERROR for d in problems)
    if problems and not call.view.options.json:
        call.view.diagnostics(problems)
    names = [display(f) for f in chosen]
    call.view.result({"valid": not failed, "files": names, "diagnostics": problems}, validation_text(names, problems))
    if failed:
        raise typer.Exit(EXIT_CONFIG)


@verb(project_app, "explain", pipeline=False)
def explain(
    call: Call,
    code: Annotated[str | None, typer.Argument(help="As in `error[CODE]`.")] = None,
    every: Annotated[bool, typer.Option("--list", help="All codes with their titles.")] = False,
) -> None:
    """The page of an error code: what happened, why, what to do."""
    from cdc_lake.cli.text import page, titles

    if every:
        listed = titles()
        body = [{"code": c, "title": t} for c, t in listed]
        call.view.result({"codes": body}, "\n".join(f"{c}  {t}" for c, t in listed))
        return
    if code is None:
        raise typer.BadParameter("name a code, or use --list", param_hint="CODE")
    text = page(code)
    call.view.result({"code": code.strip().upper(), "page": text}, text)


@verb(project_app, "schema", pipeline=False)
def schema(call: Call) -> None:
    """The JSON Schema of pipeline files, for editors."""
    from cdc_lake.cli.output import dumps
    from cdc_lake.config.schema import json_schema

    call.view.raw(dumps(json_schema()))


@verb(project_app, "bundle", pipeline=False)
def bundle(
    call: Call,
    pipeline: Annotated[
        Path | None, typer.Argument(metavar="[PIPELINE]", help="Pipeline file; the project's only one by default.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder in the project; its `deploy` by default.")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option("--schedule", metavar="CRON", help="When apply runs (Quartz, UTC); on and on by default."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over a databricks.yml that says something else.")
    ] = False,
) -> None:
    """Write the Databricks bundle of a pipeline, databricks.yml: jobs that receive, apply, report and maintain."""
    from cdc_lake.cli.command import choose
    from cdc_lake.config.loader import project_root
    from cdc_lake.deploy.databricks_yaml import write_bundle

    file = choose(pipeline, Path.cwd())
    folder = out or project_root(file) / "deploy"
    result = write_bundle(file, folder, schedule=schedule, force=force)
    call.view.result(result, bundle_text(result))


def bundle_text(result: BundleFile) -> str:
    """What was written, what the workspace must have, and the next steps."""
    lines = [f"{'written ' if result.written else 'unchanged'} {result.file}", f"jobs     {', '.join(result.jobs)}"]
    if result.secrets:
        lines.append(f"secrets  {', '.join(result.secrets)}")
    wheel = Path(result.wheel)
    build = f"uv build --wheel --out-dir {wheel.parent.resolve()}   # in the sources of cdc_lake"
    target = "--target dev --var node_type_id=…"
    steps = [
        *([] if result.wheel_there else [build]),
        f"cd {wheel.parent.parent}",
        f"databricks bundle validate {target}",
        f"databricks bundle deploy {target}",
    ]
    return "\n".join([*lines, "", "next:", *(f"  {step}" for step in steps)])
