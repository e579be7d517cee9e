"""The commands that need neither source nor lake: `init`, `validate`, `explain`, `schema` and `bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from cdc_lake.cli.command import Call, verb
from cdc_lake.cli.process import EXIT_CONFIG

if TYPE_CHECKING:
    from cdc_lake.deploy.databricks_bundle import BundleFile


project_app = typer.Typer()


@verb(project_app, "init", pipeline=False)
def init(
    call: Call,
    template: Annotated[str, Argument(help="Template: demo, postgres, gaussdb, qhb, databricks or empty.")],
    folder: Annotated[Path, Argument(metavar="DIR", help="Directory of the new project.")],
    force: Annotated[bool, Option("--force", help="Write into a directory that is not empty.")] = False,
) -> None:
    """Create a project that is ready to run."""
    from cdc_lake.cli.project_template import scaffold
    from cdc_lake.cli.text import new_project_text

    call.show(scaffold(template, folder, force=force), new_project_text)


@verb(project_app, "validate")
def validate(
    call: Call,
    files: Annotated[
        list[Path] | None, Argument(metavar="[FILE]...", help="Pipeline files (default: those of the project).")
    ] = None,
) -> None:
    """Validate pipeline files without connecting to anything; report all problems with their line and column."""
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
    code: Annotated[str | None, Argument(help="Error code, as in `error[CODE]`.")] = None,
    every: Annotated[bool, Option("--list", help="List all codes with their titles.")] = False,
) -> None:
    """Explain an error code: what happened, why, and what to do."""
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
    """Print the JSON Schema of pipeline files, for editors."""
    from cdc_lake.cli.output import dumps
    from cdc_lake.config.schema import json_schema

    call.view.raw(dumps(json_schema()))


@verb(project_app, "bundle", pipeline=False)
def bundle(
    call: Call,
    pipeline: Annotated[
        Path | None, Argument(metavar="[PIPELINE]", help="Pipeline file (default: the only one of the project).")
    ] = None,
    out: Annotated[
        Path | None, Option("--out", metavar="DIR", help="Directory in the project (default: `deploy`).")
    ] = None,
    schedule: Annotated[
        str | None,
        Option(
            "--schedule",
            metavar="CRON",
            help="Schedule of the apply job (Quartz, UTC); by default it runs continuously.",
        ),
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite a databricks.yml with different content.")] = False,
) -> None:
    """Write the Databricks bundle of a pipeline (databricks.yml): jobs that receive, apply, report and maintain."""
    from cdc_lake.cli.command import choose
    from cdc_lake.config.loader import project_root
    from cdc_lake.deploy.databricks_bundle import write_bundle

    file = choose(pipeline, Path.cwd())
    folder = out or project_root(file) / "deploy"
    call.show(write_bundle(file, folder, schedule=schedule, force=force), bundle_text)


def bundle_text(result: BundleFile) -> str:
    """The written files, the requirements of the workspace, and the next steps."""
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
