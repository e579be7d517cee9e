"""The command line `cdc-lake`: parses arguments, calls a function and passes its result to the view.

Imports of a command are inside it, so that `--help` starts no Spark and opens no table.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from cdc_lake.cli.command import Call, Debug, DryRun, Json, NoColor, Quiet, Verbose, set_options, verb
from cdc_lake.cli.commands.compare import compare_app
from cdc_lake.cli.commands.cuts import cuts_app
from cdc_lake.cli.commands.inspect import inspect_app
from cdc_lake.cli.commands.maintenance import maintenance_app
from cdc_lake.cli.commands.project import project_app
from cdc_lake.cli.commands.quarantine import quarantine_app
from cdc_lake.cli.commands.recordings import recordings_app
from cdc_lake.cli.commands.slots import slot_app
from cdc_lake.cli.output import CommandOutput, OutputOptions, plain, separate_narration, stderr
from cdc_lake.cli.process import EXIT_INTERRUPTED, EXIT_PENDING, run_command

if TYPE_CHECKING:
    from cdc_lake.observability.events import ProgressReporter
    from cdc_lake.ops.status import Status


ORDER = (
    *("init", "validate", "check", "plan", "run", "status", "compare", "report"),
    *("inspect", "quarantine", "cuts", "pause", "resume"),
    *("resync", "restart", "rebuild", "maintain", "upgrade", "slot"),
    *("record", "replay", "bundle", "explain", "schema"),
)
"""The order of the commands in the help: from creating a project to a first proof, then operation, then the rest."""


class _InOrder(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))


app = typer.Typer(
    name="cdc-lake",
    cls=_InOrder,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Replicate PostgreSQL-family databases to Delta Lake and Iceberg: whole transactions, in order, exactly once.",
)
app.add_typer(inspect_app, name="inspect")
app.add_typer(quarantine_app, name="quarantine")
app.add_typer(cuts_app, name="cuts")
app.add_typer(slot_app, name="slot")
for commands in (compare_app, maintenance_app, project_app, recordings_app):
    app.add_typer(commands)


def _version(on: bool) -> None:
    if on:
        from importlib.metadata import version

        CommandOutput(OutputOptions(), "version").raw(f"cdc-lake {version('cdc_lake')}")
        raise typer.Exit


@app.callback()
def read_shared_options(
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    debug: Debug = False,
    no_color: NoColor = False,
    version: Annotated[
        bool, Option("--version", is_eager=True, callback=_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Read the options that stand before the command."""
    del version
    set_options(OutputOptions(json=json, quiet=quiet, verbose=verbose, debug=debug, no_color=no_color))


@verb(app, "check")
def check(
    call: Call,
    sql: Annotated[bool, Option("--sql", help="Print only the SQL a DBA must run (combine with --ddl).")] = False,
    ddl: Annotated[
        bool,
        Option("--ddl", help="Print only the DDL of the event trigger that publishes schema changes (PostgreSQL)."),
    ] = False,
    only: Annotated[
        str | None,
        Option("--only", metavar="receive", help="Check only what a receive-only host needs, without Spark."),
    ] = None,
) -> None:
    """Check everything a run needs: Java, Spark, JARs, server, role, slot, tables, lake; with fixes for problems."""
    from cdc_lake.cli.commands.status import ledger_text
    from cdc_lake.cli.text import check_text
    from cdc_lake.ops.check import runner

    if only not in {None, "receive"}:
        raise typer.BadParameter("expected `receive`", param_hint="--only")
    project = call.project()
    if sql or ddl:
        parts = [*([runner.dba_sql(project)] if sql else ()), *([runner.ddl_sql(project)] if ddl else ())]
        call.view.raw("\n\n".join(parts))
        return
    receives = only is not None
    examination = runner.examine(project, receives=receives)
    options = call.view.options
    colour = options.colour(sys.stdout)
    types = "" if options.quiet else ledger_text(examination.types, colour=colour, verbose=options.verbose)
    quiet = options.quiet and not options.verbose
    text = types + check_text(
        examination.lines, call.view.width, colour=colour, verbose=options.verbose, quiet=quiet, receives=receives
    )
    call.view.result({"ok": examination.ok, "lines": examination.lines, "types": examination.types}, text)
    if not examination.ok:
        raise typer.Exit(1)


@verb(app, "plan")
def plan(
    call: Call,
    show_config: Annotated[
        bool,
        Option(
            "--show-config",
            help="Print every setting in effect and where it comes from, without connecting to the source.",
        ),
    ] = False,
    exit_code: Annotated[bool, Option("--exit-code", help="Exit with status 6 if changes are pending.")] = False,
    adopt: Annotated[
        list[str] | None, Option("--adopt", metavar="TABLE", help="Plan as if `run --adopt TABLE` were given.")
    ] = None,
) -> None:
    """Show what `run` would do, without doing it."""
    from cdc_lake.cli.commands.status import ledger_text
    from cdc_lake.cli.text import plan_text, settings_text

    project = call.project()
    if show_config:
        from cdc_lake.config.effective import effective

        settings = effective(project)
        call.view.result({"settings": settings}, settings_text(settings, call.view.width))
        return
    from cdc_lake.ops.plan import plan as work_out

    planned = work_out(project, adopt=frozenset(adopt or ()))
    options = call.view.options
    types = ledger_text(planned.types, colour=options.colour(sys.stdout), verb="plan", verbose=options.verbose)
    call.view.result(planned, ("" if options.quiet else types) + plan_text(planned, verbose=options.verbose))
    if exit_code and planned.changes:
        raise typer.Exit(EXIT_PENDING)


@verb(app, "run")
def run(
    call: Call,
    once: Annotated[
        bool, Option("--once", help="Process everything up to the current position of the source, then exit.")
    ] = False,
    only: Annotated[str | None, Option("--only", metavar="receive|apply", help="Run only one of the loops.")] = None,
    allow: Annotated[
        list[str] | None,
        Option("--allow", metavar="OPERATION", help="Allow this destructive operation, given as `plan` prints it."),
    ] = None,
    adopt: Annotated[
        list[str] | None,
        Option(
            "--adopt",
            metavar="TABLE",
            help="Replace the contents of this silver table (namespace.table), even if it belongs to another pipeline "
            "or was not written by cdc-lake.",
        ),
    ] = None,
    until_input_ends: Annotated[bool, Option("--until-input-ends", hidden=True)] = False,
) -> None:
    """Carry out the plan: receive changes into bronze and apply them to silver."""
    from cdc_lake.cli.process import StopOnSignal, stop_when_input_ends
    from cdc_lake.cli.text import run_text

    if only not in {None, "receive", "apply"}:
        raise typer.BadParameter("expected `receive` or `apply`", param_hint="--only")
    for option, words in (("--allow", allow), ("--adopt", adopt)):
        if words and only == "receive":
            raise typer.BadParameter(
                "cannot be combined with --only receive, which changes no silver table", param_hint=option
            )
    project = call.project()
    report_progress: ProgressReporter = call.view.report
    if only == "receive":
        from cdc_lake.cli import arrow_memory

        arrow_memory.load()
        report_progress = arrow_memory.giving_back(report_progress)
    from cdc_lake.runtime.run import run as execute

    with StopOnSignal(call.view.note) as stop:
        if until_input_ends:
            stop_when_input_ends(stop.event)
        summary = execute(
            project,
            once=once,
            only=only,
            stop=stop.event,
            report=report_progress,
            allowed=frozenset(allow or ()),
            adopt=frozenset(adopt or ()),
        )
    if call.view.options.json:
        call.view.event({"schema": "cdc-lake/run/1", "stage": "summary", **plain(summary)})
    else:
        call.view.result(summary, run_text(summary))
    # Being stopped is the regular end of a run without `--once`: a service manager sends SIGTERM.
    if stop.by is signal.SIGINT or (stop.by is not None and once):
        raise typer.Exit(EXIT_INTERRUPTED)


@verb(app, "status")
def status(
    call: Call,
    watch: Annotated[
        bool,
        Option(
            "--watch", "-w", help="Refresh until Ctrl-C: the whole screen on a terminal, otherwise one line each time."
        ),
    ] = False,
    every: Annotated[float, Option("--every", metavar="SECONDS", min=0.5, help="Refresh interval of --watch.")] = 2.0,
    html: Annotated[
        Path | None,
        Option("--html", metavar="FILE", help="Also write the status as an HTML page; with --watch, at every refresh."),
    ] = None,
    exit_code: Annotated[
        bool,
        Option(
            "--exit-code",
            help="Exit with status 1 if the source is unreachable, the slot is missing or lost, the receiver waits, "
            "or a table or the stream cannot continue.",
        ),
    ] = False,
) -> None:
    """Show the state of the pipeline: tables, slot, lags and quarantined rows, each with its reason."""
    from cdc_lake.cli.commands.status import status_text, watch_status
    from cdc_lake.ops.status import status as look_up

    project = call.project()

    def load_status() -> Status:
        current = look_up(project)
        if html is not None:
            from cdc_lake.ops.html_pages import write_status_page

            write_status_page(project, current, html)
        return current

    if watch and exit_code:
        raise typer.BadParameter(
            "cannot be combined with --watch, which does not end by itself", param_hint="--exit-code"
        )
    if watch:
        watch_status(call.view, load_status, every)
        return
    value = load_status()
    call.view.result(value, status_text(value, call.view.width, colour=call.view.options.colour(sys.stdout)))
    if exit_code and value.troubles:
        raise typer.Exit(1)


@verb(app, "report")
def report(
    call: Call, open_it: Annotated[bool, Option("--open", help="Open the report in a browser.")] = False
) -> None:
    """Write the data quality and run report, as an HTML file and a JSON file."""
    from cdc_lake.ops.html_pages import report as write

    files = write(call.project())
    call.view.result(files, f"report  {files.html}\ndata    {files.json}")
    if open_it:
        import webbrowser

        if not webbrowser.open(Path(files.html).resolve().as_uri()):
            call.view.note("no browser could be started; open the file above")


@verb(app, "maintain")
def maintain(
    call: Call,
    dry_run: DryRun = False,
    force: Annotated[
        bool,
        Option("--force", help="Expire what is old enough even if something still needs it, and print what is lost."),
    ] = False,
    only: Annotated[
        str | None, Option("--only", metavar="bronze|silver", help="Maintain only bronze or only silver.")
    ] = None,
) -> None:
    """Maintain bronze and silver: expire old transactions and versions, compact small files, delete orphan files."""
    from cdc_lake.cli.commands.maintenance import maintenance_text
    from cdc_lake.runtime.maintain import maintain as keep_up

    if only not in {None, "bronze", "silver"}:
        raise typer.BadParameter("expected `bronze` or `silver`", param_hint="--only")
    result = keep_up(call.project(), dry_run=dry_run, force=force, only=only, report=call.view.report)
    call.view.result(result, maintenance_text(result))


def main() -> None:
    """The entry point of `cdc-lake`: runs the command line and exits with a code of `docs/reference/exit-codes.md`."""
    with contextlib.suppress(OSError, ValueError):  # without a standard error progress is discarded
        separate_narration()
    code = run_command(app, sys.argv[1:])
    if code == EXIT_INTERRUPTED:
        # Exit immediately: threads that still merge or decode are not waited for; their uncommitted work is lost.
        sys.stdout.flush()
        stderr().flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
