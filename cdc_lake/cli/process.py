"""One command line as one process: what can end it, what is said then, and the exit code.

The codes are a promise: `docs/reference/exit-codes.md`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from cdc_lake.cli import logs
from cdc_lake.cli.traces import forget
from cdc_lake.cli.verb import Interrupted, look, set_look
from cdc_lake.cli.view import Look, View, stderr
from cdc_lake.errors import CdcLakeError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONFIG = 3
EXIT_PENDING = 6
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


def run_command(app: typer.Typer, arguments: list[str]) -> int:
    """Run one command line and return its exit code; nothing escapes but the end of the interpreter."""
    set_look(Look())
    forget()
    logs.forget()
    name = next((a for a in arguments if not a.startswith("-")), "")
    try:
        return _run(app, arguments, name)
    except BrokenPipeError:
        # Who read our output has gone. Python flushes at exit: give it a place to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def _run(app: typer.Typer, arguments: list[str], name: str) -> int:
    try:
        return int(app(args=arguments, prog_name="cdc-lake", standalone_mode=False) or 0)
    except typer.Exit as done:
        return done.exit_code
    except (typer.Abort, Interrupted, KeyboardInterrupt):
        return _interrupted(name)
    except CdcLakeError as error:
        View(look(), name).error(error)
        return error.exit_status
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001  # the last place: what comes here is a bug, said as one
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # a wrong command line
            return _usage(error)
        View(look(), name).bug(error)
        return EXIT_BUG


def _interrupted(name: str) -> int:
    View(look(), name).note("interrupted: state is as the last commit left it, run the same command to go on")
    return EXIT_INTERRUPTED


def _usage(error: Any) -> int:
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help page
        stderr().write(f"{message}\n")
        return EXIT_USAGE
    context = getattr(error, "ctx", None)
    command = f"{context.command_path} --help" if context else "cdc-lake --help"
    stderr().write(f"error: {message}\n\nhint: `{command}` shows what is possible\n")
    return EXIT_USAGE
