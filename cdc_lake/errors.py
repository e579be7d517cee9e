"""Every error of cdc_lake, drawn as a tree.

::

    CdcLakeError
    ├─ ConfigError      CFG1xx  a pipeline file, an environment, a reference
    ├─ SourceError      SRC2xx  the database: connection, slot, publication, snapshot
    ├─ DecodeError      DEC3xx  bytes of the stream
    ├─ LakeError        LAK4xx  tables: bronze, silver, control; Spark; catalogs
    ├─ QualityError     QUA5xx  rules and reports
    ├─ StateError       STA6xx  watermarks, fences, order
    └─ DeployError      DEP7xx  bundles and jobs

The message says what failed and where, the hint what to do, `retry` whether waiting helps. The cause is chained,
never pasted into the message; no message holds a row value or a secret. Each code has a page in `docs/errors/`.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class Retry(enum.Enum):
    """Whether trying again without changing anything can help."""

    NEVER = "never"
    LATER = "later"


class CdcLakeError(Exception):
    """The root: a code, a message in the user's words, a place, a hint, and whether waiting helps."""

    code: ClassVar[str] = "CDC000"
    hint: ClassVar[str] = ""
    retry: ClassVar[Retry] = Retry.NEVER
    exit_code: ClassVar[int | None] = None

    def __init__(self, message: str, *, where: str = "", hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.remedy = type(self).hint if hint is None else hint

    @property
    def exit_status(self) -> int:
        """The process exit code this error stands for (`docs/reference/exit-codes.md`)."""
        if self.exit_code is not None:
            return self.exit_code
        return 4 if self.retry is Retry.LATER else 1


# ── configuration ────────────────────────────────────────────────────────────────────────────────────────────


class ConfigError(CdcLakeError):
    """A pipeline file cannot be used as it is."""

    code = "CFG100"
    exit_code = 3


# ── source ───────────────────────────────────────────────────────────────────────────────────────────────────


class SourceError(CdcLakeError):
    """The source database refused, is not reachable, or is not what bronze was fed from."""

    code = "SRC200"


# ── decoding ─────────────────────────────────────────────────────────────────────────────────────────────────


class DecodeError(CdcLakeError):
    """Bytes that are not what the protocol allows. `offset` counts from the start of the message."""

    code = "DEC300"
    hint = "keep the stream with `cdc-lake record` and report it: nothing was landed beyond the last commit"

    def __init__(self, message: str, *, offset: int = 0, where: str = "", hint: str | None = None) -> None:
        super().__init__(f"{message} (at byte {offset})", where=where, hint=hint)
        self.offset = offset


class TruncatedMessage(DecodeError):
    """A message ends before the value it announces."""

    code = "DEC301"

    def __init__(self, *, need: int, left: int, at: int) -> None:
        super().__init__(f"the message ends early: {need} bytes announced, {left} left", offset=at)


# ── lake ─────────────────────────────────────────────────────────────────────────────────────────────────────


class LakeError(CdcLakeError):
    """A table could not be read or written."""

    code = "LAK400"


# ── quality ──────────────────────────────────────────────────────────────────────────────────────────────────


class QualityError(CdcLakeError):
    """A rule or a report."""

    code = "QUA500"


# ── state ────────────────────────────────────────────────────────────────────────────────────────────────────


class StateError(CdcLakeError):
    """Positions, watermarks or streams do not fit together."""

    code = "STA600"


class MalformedPosition(StateError):
    """A text that is not a position."""

    code = "STA601"
    hint = "an LSN looks like 0/16B3748, a CSN like 951909"

    def __init__(self, text: str) -> None:
        super().__init__(f"`{text}` is not a position")


# ── deployment ───────────────────────────────────────────────────────────────────────────────────────────────


class DeployError(CdcLakeError):
    """A bundle or a job."""

    code = "DEP700"
