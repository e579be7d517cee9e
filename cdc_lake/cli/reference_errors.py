"""The page of all errors: codes by family, from the tree of errors and the titles of their pages."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from cdc_lake.cli.pages import titles
from cdc_lake.config.problems import ConfigInvalid, Problem
from cdc_lake.errors.root import CdcLakeError, Retry, kinds

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

_DEFINED_IN: Final = ("cdc_lake.errors", "cdc_lake.cli.scaffold", "cdc_lake.deploy.bundle_check")


def errors_page() -> str:
    """Every code with its page, the exit code that a command ends with, and whether it may just be repeated."""
    facts = _facts()
    parts = [
        "\n# Errors\n",
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
