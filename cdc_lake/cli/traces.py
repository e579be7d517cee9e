"""Tracebacks for `--debug`, without secrets: servers repeat what they were sent, and drivers what servers said."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdc_lake.config.project import Project

_MASKED = "••••••"
_secrets: frozenset[str] = frozenset()


def forget() -> None:
    """A new command line begins."""
    global _secrets  # noqa: PLW0603  # one process, one command line
    _secrets = frozenset()


def keep_out(project: Project) -> Project:
    """From here on no secret of this pipeline is in a traceback."""
    from cdc_lake.config.secret_values import secret_values

    global _secrets  # noqa: PLW0603  # as above
    _secrets |= secret_values(project.pipeline)
    return project


def trace(error: BaseException) -> str:
    """The traceback of an error with its causes."""
    text = "".join(traceback.format_exception(error))
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, _MASKED)
    return text
