"""Partitions of a silver table as its pipeline file writes them: `region`, `days(ordered_at)`, `bucket(16, id)`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TIME = re.compile(r"(years|months|days|hours)\(\s*([^(),\s]+)\s*\)")
_NUMBERED = re.compile(r"(bucket|truncate)\(\s*([1-9][0-9]{0,8})\s*,\s*([^(),\s]+)\s*\)")


@dataclass(frozen=True, slots=True)
class Partition:
    """One way files are divided: by a column as it is, or by what Iceberg makes of it (`transform`, `number`)."""

    column: str
    transform: str = ""
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Read it. Raises ValueError."""
        if (m := _TIME.fullmatch(text)) is not None:
            return cls(m[2], m[1])
        if (m := _NUMBERED.fullmatch(text)) is not None:
            return cls(m[3], m[1], int(m[2]))
        if not text or re.search(r"[(),\s]", text):
            raise ValueError(f"no partition: {text}")  # told with a sentence of its own
        return cls(text)

    def __str__(self) -> str:
        """As the file writes it."""
        if not self.transform:
            return self.column
        return f"{self.transform}({f'{self.number}, ' if self.number else ''}{self.column})"
