"""A diagnostic: one value for the terminal, JSON, HTML and tests."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.Enum):
    """How bad it is: an error stops, a warning does not."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file, 1-based, with the path of the value inside the document."""

    file: str
    line: int
    column: int
    path: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}"
        return f"{place}  ({self.path})" if self.path else place


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """What is wrong, where, and what to do."""

    severity: Severity
    code: str
    summary: str
    location: Location | None = None
    hint: str = ""
