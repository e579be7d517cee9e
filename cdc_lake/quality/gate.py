"""The gate: what every change must satisfy before it is folded.

A table's conditions are its rules and one more for each column whose text may have no silver value. Each is a predicate
over one row after the change; what becomes of a failing change is decided by the condition's `on_fail`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyspark.sql import Column

OnFail = Literal["warn", "quarantine", "stop"]


@dataclass(frozen=True)
class Condition:
    """One thing a change must satisfy: `fails` is true where it does not, never NULL; `columns` are what it reads."""

    name: str
    on_fail: OnFail
    fails: Column
    columns: frozenset[int]


@dataclass(frozen=True, slots=True)
class RuleCount:
    """How a condition fared in a span: changes it judged, and changes that failed it."""

    table: str
    rule: str
    on_fail: OnFail
    evaluated: int
    failed: int


def failed_names(conditions: Sequence[Condition]) -> Column:
    """The names of the `quarantine` conditions a change fails, as an array; empty where it passes."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - counts and names need no Spark

    names = [F.when(c.fails, F.lit(c.name)) for c in conditions if c.on_fail == "quarantine"]
    return F.array_compact(F.array(*names)) if names else F.expr("CAST(array() AS array<string>)")
