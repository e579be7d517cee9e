"""Undecoded: why a transaction stands in bronze as the bytes it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Undecoded:
    """The error that decoding a transaction gave, and what is known of it all the same.

    `frames`: how many rows `X` it has. `code`, `message`, `where`: of the error; no values. `tables`: those it changes,
    as bronze writes them, as far as they could be read. `by`: the version of cdc_lake that could not decode it.
    """

    frames: int
    code: str
    message: str
    where: str
    tables: tuple[str, ...]
    by: str

    def describe(self) -> dict[str, object]:
        """As the COMMIT row's `info` has it."""
        return {
            "frames": self.frames,
            "code": self.code,
            "message": self.message,
            "where": self.where,
            "tables": list(self.tables),
            "by": self.by,
        }

    @classmethod
    def from_description(cls, info: Mapping[str, Any]) -> Undecoded:
        """The inverse; raises KeyError, TypeError or ValueError where `info` is not one."""
        return cls(
            frames=int(info["frames"]),
            code=str(info["code"]),
            message=str(info["message"]),
            where=str(info["where"]),
            tables=tuple(str(table) for table in info["tables"]),
            by=str(info["by"]),
        )
