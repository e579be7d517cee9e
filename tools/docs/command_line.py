"""The pages of commands, exit codes and error codes.

From the command line itself, the table of exit codes, and the tree of errors with the titles of their pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from typer.main import get_command

from cdc_lake.cli.app import app
from cdc_lake.cli.text import titles
from cdc_lake.errors.base import CdcLakeError, Retry, kinds
from cdc_lake.model.diagnostic import ConfigInvalid, Problem
from tools.docs import GENERATED

_VERBS = """\
What `--help` shows, for every verb. `cdc-lake --install-completion` teaches your shell (bash, zsh, fish, PowerShell)
to complete verbs and options; open a new one afterwards. `--show-completion` prints what that would write.
"""

EXIT_CODES = (
    (0, "done", "A continuous run that was asked to stop by SIGTERM ends with it too: that is how it ends."),
    (
        1,
        "failed",
        "The message says why. Also: `check` or `status --exit-code` found something to fix, `compare` a difference.",
    ),
    (2, "wrong command line", "An unknown verb or option, or no pipeline chosen."),
    (3, "configuration invalid", "Every problem is listed with its place; `cdc-lake validate` lists them again."),
    (4, "source or lake not reachable or busy", "Nothing is lost; the same command may be tried again."),
    (
        5,
        "a quality rule stopped the run",
        "A rule with `on_fail: stop`; everything before that transaction is applied. Also: rules prevented a pin.",
    ),
    (6, "changes pending", "Only `plan --exit-code`."),
    (70, "a bug", "The message says how to report it; `--debug` shows the traceback."),
    (130, "interrupted", "By Ctrl-C, or a run with `--once` by SIGTERM; state is as the last commit left it."),
)


def exit_codes_page() -> str:
    """The promise about exit codes."""
    rows = "".join(f"| {code} | {name} | {text} |\n" for code, name, text in EXIT_CODES)
    return f"{GENERATED}\n# Exit codes\n\nA promise: they do not change.\n\n| code | means | |\n|---|---|---|\n{rows}"


def commands_page() -> str:
    """Every verb with its options, as `--help` shows them."""
    os.environ["COLUMNS"] = "100"
    parts = [
        f"{GENERATED}\n# Command line\n",
        _VERBS,
    ]
    parts += [f"## {path}\n\n```\n{text}\n```\n" for path, text in _helps(get_command(app), "cdc-lake", None)]
    return "\n".join(parts)


def _helps(command: Any, path: str, parent: Any) -> Iterator[tuple[str, str]]:
    context = command.context_class(command, info_name=path.rpartition(" ")[2], parent=parent, terminal_width=100)
    yield path, command.get_help(context).rstrip()
    inner = getattr(command, "commands", {})
    for name in command.list_commands(context) if inner else ():  # in the order of its help
        if not inner[name].hidden:  # names of an older version
            yield from _helps(inner[name], f"{path} {name}", context)


FAMILIES: Final = {
    "CFG": "Configuration: pipeline files, and what the command line names",
    "SRC": "Source: the server, its slot, its tables",
    "DEC": "Decoding: what the server sent",
    "LAK": "Lake: files, stores, catalogs, Spark, silver tables",
    "QUA": "Quality: rules",
    "STA": "State: bronze, cuts, control tables, what runs beside it",
    "DEP": "Deployment: bundles, jobs, monitoring, reports",
    "CDC": "The root of the tree; never said",
}

_ABOUT: Final = """\
`cdc-lake explain CODE` prints the page of a code: what happened, why, what to do, an example. [Exit
codes](exit-codes.md) are a promise, and so is *try again*: the same command, with nothing changed, may do.
"""

_DEFINED_IN: Final = ("cdc_lake.errors", "cdc_lake.cli.project_template")


def errors_page() -> str:
    """Every code with its page, the exit code that a command ends with, and whether it may just be repeated."""
    facts = _facts()
    parts = [
        f"{GENERATED}\n# Errors\n",
        _ABOUT,
    ]
    for family, about in FAMILIES.items():
        rows = [
            f"| [{code}](../errors/{code}.md) | {title} | {_row(facts, code)} |"
            for code, title in titles()
            if code.startswith(family)
        ]
        parts += [f"## {about}\n", "| code | | exit | try again |\n|---|---|---|---|", "\n".join(rows), ""]
    return "\n".join(parts)


def _row(facts: dict[str, type[CdcLakeError]], code: str) -> str:
    kind = facts[code]
    return f"{kind.status()} | {'yes' if kind.retry is Retry.LATER else ''}"


def _facts() -> dict[str, type[CdcLakeError]]:
    """The class that each code ends a command with; problems of files end it together."""
    for module in _DEFINED_IN:
        import_module(module)
    own = {kind.code: kind for kind in kinds(CdcLakeError)}
    return {**dict.fromkeys((str(problem.value) for problem in Problem), ConfigInvalid), **own}
