"""The verb `bundle`: a pipeline as jobs on Databricks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cdc_lake.cli.verb import Call, verb


def register(app: typer.Typer) -> None:
    """Add the verb."""
    verb(app, "bundle", pipeline=False)(bundle)


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
    check: Annotated[
        bool, typer.Option("--check", help="Check the databricks.yml that is there; write nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write over a databricks.yml that says something else.")
    ] = False,
) -> None:
    """Write the Databricks bundle of a pipeline, databricks.yml: jobs that receive, apply, report and maintain."""
    from cdc_lake.cli.chosen import choose
    from cdc_lake.cli.render_bundle import bundle_text
    from cdc_lake.config.load import project_root
    from cdc_lake.deploy.bundle_file import check_file, write_bundle

    if check and (schedule or force):
        raise typer.BadParameter("nothing is written with --check", param_hint="--schedule, --force")
    file = choose(pipeline, Path.cwd())
    folder = out or project_root(file) / "deploy"
    done = check_file(file, folder) if check else write_bundle(file, folder, schedule=schedule, force=force)
    if done.warnings and not call.view.look.json:
        call.view.diagnostics(done.warnings)
    call.view.result(done, bundle_text(done))
