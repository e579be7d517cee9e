"""Type policy: the silver types that a pipeline declares, where the source's type leaves a choice.

A declared type is a promise about every value: what it cannot hold is held or stops the run, and is never clipped,
rounded or made NULL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import AfterValidator

MAX_PRECISION: Final = 38
"""Digits of Spark's, Delta's and Iceberg's widest decimal."""

_ELEMENTS: Final = frozenset(
    ("string", "int", "bigint", "float", "double", "boolean", "binary", "date", "timestamp", "timestamp_ntz")
)
_SCALARS: Final = _ELEMENTS | {"smallint"}
_NUMBER: Final = re.compile(r"(decimal|both)\((\d+),(\d+)\)")
_ARRAY: Final = re.compile(r"array<(.+)>")


@dataclass(frozen=True, slots=True)
class Declared:
    """A declared silver type by Spark's name; `both`: the column stays text, and one of this type stands beside it."""

    sql: str
    both: bool = False

    @classmethod
    def parse(cls, text: str) -> Declared:
        """Read `string`, `int`, `decimal(p,s)`, `both(p,s)`, `array<int>` …; raises ValueError for anything else."""
        plain = text.replace(" ", "")
        if (number := _NUMBER.fullmatch(plain)) is not None:
            return cls(_decimal(int(number[2]), int(number[3])), number[1] == "both")
        if (array := _ARRAY.fullmatch(plain)) is not None:
            element = array[1]
            if element not in _ELEMENTS:
                element = _element(element)
            return cls(f"array<{element}>")
        if plain not in _SCALARS:
            listed = ", ".join(sorted(_SCALARS))
            msg = f"`{text}` is no silver type: write one of {listed}, decimal(p,s), both(p,s) or array<…> of one"
            raise ValueError(msg)
        return cls(plain)


@dataclass(frozen=True, slots=True)
class TypePolicy:
    """What a pipeline declares for one table. `numeric`: of numerics that no decimal holds whole by themselves.

    `misfit`: what a value does that its type cannot hold: its change is held, or the run ends before it. `bare_points`:
    the source prints one number with a digit before its point and without it, as the GaussDB family does.
    """

    numeric: Declared = field(default_factory=lambda: Declared("string"))
    columns: tuple[tuple[str, Declared], ...] = ()
    misfit: Literal["quarantine", "stop"] = "quarantine"
    bare_points: bool = False

    def of(self, column: str) -> Declared | None:
        """What is declared for a source column by its name."""
        return next((declared for name, declared in self.columns if name == column), None)


UNDECLARED: Final = TypePolicy()
"""The pipeline declares nothing."""


def _decimal(precision: int, scale: int) -> str:
    if not 1 <= precision <= MAX_PRECISION or not scale <= precision:
        msg = f"({precision},{scale}) is no decimal: 1 to {MAX_PRECISION} digits, of them the second number as fraction"
        raise ValueError(msg)
    return f"decimal({precision},{scale})"


def _element(text: str) -> str:
    if (number := _NUMBER.fullmatch(text)) is None or number[1] == "both":
        msg = f"`{text}` is no type of elements: write one of {', '.join(sorted(_ELEMENTS))} or decimal(p,s)"
        raise ValueError(msg)
    return _decimal(int(number[2]), int(number[3]))


def _checked(text: str) -> str:
    Declared.parse(text)
    return text


def _checked_numeric(text: str) -> str:
    declared = Declared.parse(text)
    if declared.sql != "string" and not declared.sql.startswith("decimal"):
        msg = f"`{text}` is no policy of numerics: write string, decimal(p,s) or both(p,s)"
        raise ValueError(msg)
    return text


DeclaredType = Annotated[str, AfterValidator(_checked)]
"""Text of a silver type."""
NumericType = Annotated[str, AfterValidator(_checked_numeric)]
"""Text of what becomes of numerics without bounds."""
