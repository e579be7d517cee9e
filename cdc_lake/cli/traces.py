"""Tracebacks for `--debug`, without secrets: servers repeat what they were sent, and drivers what servers said."""

from __future__ import annotations

import re
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdc_lake.config.project import Project

_MASKED = "••••••"
_PIECES = re.compile(r"[^\w.~-]+", re.ASCII)  # whatever else is escaped in an address, or ends a part of one
_PIECE = 6  # shorter ones say little, and are found in words of the traceback
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
    for part in sorted({part for secret in _secrets for part in _parts(secret)}, key=len, reverse=True):
        text = text.replace(part, _MASKED)
    return text


def _parts(secret: str) -> list[str]:
    """What a secret may be quoted as: whole, and, where it was taken for an address or escaped, in pieces."""
    return [secret, *(piece for piece in _PIECES.split(secret) if len(piece) >= _PIECE)]
