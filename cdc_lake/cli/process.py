"""Runs one command line as one process: signals, errors and exit codes.

The codes are stable: `docs/reference/exit-codes.md`. The first Ctrl-C or SIGTERM requests a clean stop, a second Ctrl-C
stops at once. Both are safe: commits to bronze and silver are atomic, and nothing is acknowledged to the server before
it is durable.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

import typer

from cdc_lake.cli import output
from cdc_lake.cli.command import Interrupted, current_options, set_options
from cdc_lake.cli.output import CommandOutput, OutputOptions, stderr
from cdc_lake.errors import CdcLakeError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONFIG = 3
EXIT_PENDING = 6
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


def run_command(app: typer.Typer, arguments: list[str]) -> int:
    """Run one command line and return its exit code; only the exit of the interpreter passes."""
    set_options(OutputOptions())
    output.reset()
    name = next((a for a in arguments if not a.startswith("-")), "")
    try:
        return _run(app, arguments, name)
    except BrokenPipeError:
        # The reader of our output is gone. Python flushes at exit, so standard output is redirected.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def _run(app: typer.Typer, arguments: list[str], name: str) -> int:
    try:
        return int(app(args=arguments, prog_name="cdc-lake", standalone_mode=False) or 0)
    except typer.Exit as done:
        return done.exit_code
    except (typer.Abort, Interrupted, KeyboardInterrupt):
        text = "interrupted: state is as the last commit left it; run the same command to continue"
        CommandOutput(current_options(), name).note(text)
        return EXIT_INTERRUPTED
    except CdcLakeError as error:
        CommandOutput(current_options(), name).error(error)
        return error.exit_status
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001  # an error that arrives here is a bug, and is reported as one
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # an invalid command line
            return _usage(error)
        CommandOutput(current_options(), name).bug(error)
        return EXIT_BUG


def _usage(error: Any) -> int:
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help page
        stderr().write(f"{message}\n")
        return EXIT_USAGE
    context = getattr(error, "ctx", None)
    command = f"{context.command_path} --help" if context else "cdc-lake --help"
    stderr().write(f"error: {message}\n\nhint: `{command}` shows its options\n")
    return EXIT_USAGE


FIRST = "stopping: the batch in flight is finished or dropped, nothing is lost; Ctrl-C again stops now"


class StopOnSignal:
    """Inside the block, signals set `event`. `by` is the first signal, None if there was none."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.event = threading.Event()
        self.by: signal.Signals | None = None
        self._report = report
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.event.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.by = self.by or signal.Signals(number)
        self.event.set()
        # A handler may run while the main thread holds the view's lock: report from a separate thread.
        threading.Thread(target=self._report, args=(FIRST,), daemon=True).start()


def stop_when_input_ends(event: threading.Event) -> None:
    """Set `event` when standard input ends, that is, when the parent process is gone."""

    def watch() -> None:
        # Not sys.stdin: a thread that waits inside it aborts the exit of the interpreter.
        while os.read(0, 4096):
            pass
        event.set()

    threading.Thread(target=watch, name="parent", daemon=True).start()
