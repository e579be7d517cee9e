"""What a silver table takes from its source: columns, names, rows, types, partitions; and the section `bronze.redact`.

Expressions are Spark SQL over the columns of one source row, by their silver names before `rename`. A declared type
applies to every value: a value that it cannot hold is quarantined or stops the run, and is never truncated, rounded or
replaced by NULL.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from cdc_lake.config.fields import Section, Text

PROPERTY = "cdc_lake.transforms"
"""Property of a silver table that stores the fingerprint of its transforms."""


@dataclass(frozen=True, slots=True)
class Transforms:
    """`columns`: only these, None: all except `exclude`; `rename`: source name → silver name; `compute`: silver name →
    expression; `where`: only rows for which it is true, None: all.
    """

    columns: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    compute: tuple[tuple[str, str], ...] = ()
    where: str | None = None

    @property
    def any(self) -> bool:
        """Whether silver rows differ from source rows, or some source rows are omitted."""
        return self != Transforms()

    @property
    def expressions(self) -> bool:
        """Whether there are expressions to evaluate."""
        return bool(self.compute) or self.where is not None

    @property
    def fingerprint(self) -> str:
        """Equal for equal transforms; empty if there are none."""
        if not self.any:
            return ""
        content = {
            "columns": None if self.columns is None else sorted(self.columns),
            "exclude": sorted(self.exclude),
            "rename": sorted(self.rename),
            "compute": sorted(self.compute),
            "where": self.where,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:32]

    def keeps(self, column: str) -> bool:
        """Whether silver includes a source column."""
        return column in self.columns if self.columns is not None else column not in self.exclude

    def silver_name(self, column: str, name: str) -> str:
        """The silver name of a source column, which is `name` unless `rename` changes it."""
        return dict(self.rename).get(column, name)


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
    """A declared silver type, by Spark's name. `both`: the column remains text, and a second one has this type."""

    sql: str
    both: bool = False

    @classmethod
    def parse(cls, text: str) -> Declared:
        """Parse `string`, `int`, `decimal(p,s)`, `both(p,s)`, `array<int>` …; raises ValueError for anything else."""
        plain = text.replace(" ", "")
        if (number := _NUMBER.fullmatch(plain)) is not None:
            return cls(_decimal(int(number[2]), int(number[3])), number[1] == "both")
        if (array := _ARRAY.fullmatch(plain)) is not None:
            return cls(f"array<{array[1] if array[1] in _ELEMENTS else _element(array[1])}>")
        if plain not in _SCALARS:
            listed = ", ".join(sorted(_SCALARS))
            msg = f"`{text}` is not a silver type: write one of {listed}, decimal(p,s), both(p,s) or array<…> of one"
            raise ValueError(msg)
        return cls(plain)


@dataclass(frozen=True, slots=True)
class TypePolicy:
    """The types that a pipeline declares for one table. `numeric`: for numerics that no decimal holds exactly.

    `misfit`: how to handle a value that its type cannot hold: its change is held, or the run ends before it.
    `bare_points`: the source prints the same number with or without a digit before the decimal point, as the GaussDB
    family does.
    """

    numeric: Declared = field(default_factory=lambda: Declared("string"))
    columns: tuple[tuple[str, Declared], ...] = ()
    misfit: Literal["quarantine", "stop"] = "quarantine"
    bare_points: bool = False

    def declared_for(self, column: str) -> Declared | None:
        """The type declared for a source column, None without a declaration."""
        return next((declared for name, declared in self.columns if name == column), None)


UNDECLARED: Final = TypePolicy()
"""No types are declared."""


def _decimal(precision: int, scale: int) -> str:
    if not 1 <= precision <= MAX_PRECISION or not scale <= precision:
        msg = f"({precision},{scale}) is not a decimal: 1 to {MAX_PRECISION} digits, the second number in the fraction"
        raise ValueError(msg)
    return f"decimal({precision},{scale})"


def _element(text: str) -> str:
    if (number := _NUMBER.fullmatch(text)) is None or number[1] == "both":
        msg = f"`{text}` is not an element type: write one of {', '.join(sorted(_ELEMENTS))} or decimal(p,s)"
        raise ValueError(msg)
    return _decimal(int(number[2]), int(number[3]))


def _check_declared(text: str) -> str:
    Declared.parse(text)
    return text


def _checked_numeric(text: str) -> str:
    declared = Declared.parse(text)
    if declared.sql != "string" and not declared.sql.startswith("decimal"):
        raise ValueError(f"`{text}` is not a policy for numerics: write string, decimal(p,s) or both(p,s)")
    return text


DeclaredType = Annotated[str, AfterValidator(_check_declared)]
"""A silver type, as text."""
NumericType = Annotated[str, AfterValidator(_checked_numeric)]
"""The type of numerics without bounds, as text."""


_TIME = re.compile(r"(years|months|days|hours)\(\s*([^(),\s]+)\s*\)")
_NUMBERED = re.compile(r"(bucket|truncate)\(\s*([1-9][0-9]{0,8})\s*,\s*([^(),\s]+)\s*\)")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition field: a column, or an Iceberg transform of it (`transform`, `number`)."""

    column: str
    transform: str = ""
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Parse the text of a pipeline file. Raises ValueError."""
        if (m := _TIME.fullmatch(text)) is not None:
            return cls(m[2], m[1])
        if (m := _NUMBERED.fullmatch(text)) is not None:
            return cls(m[3], m[1], int(m[2]))
        if not text or re.search(r"[(),\s]", text):
            raise ValueError(f"no partition: {text}")  # told with a sentence of its own
        return cls(text)

    def __str__(self) -> str:
        """The text of a pipeline file."""
        if not self.transform:
            return self.column
        return f"{self.transform}({f'{self.number}, ' if self.number else ''}{self.column})"


MIN_KEY: int = 16
"""Minimum length of a key, in bytes: 128 bits if they are random."""

_STRATEGY: TypeAlias = Literal["drop", "null", "sha256"]
Strategy: TypeAlias = Annotated[
    _STRATEGY,  # `null` without quotes is YAML's null
    BeforeValidator(lambda value: "null" if value is None else value, json_schema_input_type=_STRATEGY | None),
]


class Redact(Section):
    """How to redact some columns before anything is written to the lake."""

    columns: Annotated[list[Text], Field(min_length=1)]
    """Columns as `schema.table.column`; `*` and `?` match within a part, also tables and columns that are added
    later."""
    strategy: Strategy
    """`drop`: omit the column; `null`: store NULL; `sha256`: store a keyed hash of its text."""
