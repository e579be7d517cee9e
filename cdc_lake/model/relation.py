"""Relations: a source table's layout as the stream announces it.

A `Relation` is one version of a table's columns, in the order of the following tuples. Its `layout` is a 63-bit hash of
a canonical text, so that the same layout has the same number in every commit and on every machine.

Columns of two layouts are matched by their number in the source's catalog if both have it: a renamed column is the same
one, and a column that was dropped and created again under its name is another. If a layout has no numbers, columns are
matched by name, and a rename cannot be distinguished from a drop and an add.
"""

from __future__ import annotations

import enum
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

VARHDRSZ: Final = 4
"""A modifier is offset by the length word of a varlena (numeric.c, make_numeric_typmod)."""


class ReplicaIdentity(enum.Enum):
    """The old columns that the server logs; values are PostgreSQL's `pg_class.relreplident`."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


def escape_part(part: str) -> str:
    """A part of a qualified name, escaped so that only the dots between parts are bare."""
    return part.replace("\\", "\\\\").replace(".", "\\.")


def parts_of(text: str) -> list[str]:
    """The unescaped parts of a qualified name; raises ValueError if it ends with a backslash or a part is empty."""
    parts, part, after_backslash = [], "", False
    for char in text:
        if after_backslash:
            part, after_backslash = part + char, False
        elif char == "\\":
            after_backslash = True
        elif char == ".":
            parts.append(part)
            part = ""
        else:
            part += char
    parts.append(part)
    if after_backslash or not all(parts):
        msg = f"`{text}` is not a name: expected parts joined by dots"
        raise ValueError(msg)
    return parts


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A schema-qualified name, unquoted."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Parse the escaped form of `str()`: parts joined by a dot, with dot and backslash escaped by a backslash."""
        parts = parts_of(text)
        if len(parts) != 2:
            msg = f"`{text}` is not a table name: expected schema.table"
            raise ValueError(msg)
        return cls(parts[0], parts[1])

    def __str__(self) -> str:
        return f"{escape_part(self.schema)}.{escape_part(self.name)}"

    def column(self, name: str) -> str:
        """The full name of one of its columns: `schema.table.column`, escaped like the table's."""
        return f"{self}.{escape_part(name)}"


def numeric_modifier(modifier: int) -> tuple[int, int] | None:
    """Precision and scale of a numeric's modifier (scale is 11 bit signed since PostgreSQL 15), or None."""
    if modifier < VARHDRSZ:
        return None
    packed = modifier - VARHDRSZ
    return (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400


@dataclass(frozen=True, slots=True)
class Missing:
    """The value of an added column in older rows: a text as the server prints it; None: unknown."""

    text: str | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column: name, the server's type name, type OID and modifier (-1: none), and whether it is in the identity.

    `redacted`: how its values were changed before they landed, `null` or `sha256`; None if unchanged. `number`: its
    number in the source's catalog, which a rename does not change; None if unknown. `missing`: its value in older rows,
    None: NULL. `ambiguous`: it may also be another column of the table; `number` is then the likeliest one
    (`decode.historic_catalog`).
    """

    name: str
    type_name: str
    type_oid: int
    modifier: int = -1
    key: bool = False
    redacted: str | None = None
    number: int | None = None
    missing: Missing | None = None
    ambiguous: bool = False

    def describe(self) -> dict[str, object]:
        """Its part of a layout's canonical description."""
        description: dict[str, object] = {"name": self.name, "type": self.type_name, "oid": self.type_oid}
        description |= {"modifier": self.modifier, "key": self.key}
        description |= {} if self.redacted is None else {"redacted": self.redacted}
        description |= {} if self.number is None else {"number": self.number}
        description |= {"ambiguous": True} if self.ambiguous else {}
        return description if self.missing is None else description | {"missing": self.missing.text}

    @classmethod
    def from_description(cls, description: dict[str, Any]) -> Column:
        """The inverse of `describe`."""
        return cls(
            description["name"],
            description["type"],
            int(description["oid"]),
            int(description["modifier"]),
            bool(description["key"]),
            description.get("redacted"),
            description.get("number"),
            Missing(description["missing"]) if "missing" in description else None,
            bool(description.get("ambiguous", False)),
        )


@dataclass(frozen=True)
class Relation:
    """A table's layout: columns by position, and what the server logs of old rows.

    `primary_key` has the names of the source's primary key columns in key order, empty if there is none; it comes from
    the catalog, `Column.key` from the stream. `storage` shows whether the table was rewritten between two layouts: its
    file if it differs from the original one, for a partitioned table a hash of those of its partitions. `mixed`: a
    partition logs other old columns than its root; `Column.key` then marks those that all log, and a whole old row in
    the stream has NULL for others. `ambiguous`: other columns may identify rows as well, so that an update without an
    old row may belong to another row (`decode.historic_catalog`).
    """

    table: TableName
    columns: tuple[Column, ...]
    identity: ReplicaIdentity
    primary_key: tuple[str, ...] = ()
    oid: int | None = None
    storage: int | None = None
    mixed: bool = False
    ambiguous: bool = False

    def describe(self) -> dict[str, object]:
        """The canonical description, as stored in the `info` of an `R` row."""
        description: dict[str, object] = {
            "relation": str(self.table),
            "identity": self.identity.value,
            "primary_key": list(self.primary_key),
            "columns": [c.describe() for c in self.columns],
        }
        description |= {} if self.oid is None else {"oid": self.oid}
        description |= {} if self.storage is None else {"storage": self.storage}
        description |= {"mixed": True} if self.mixed else {}
        return description | {"ambiguous": True} if self.ambiguous else description

    @classmethod
    def from_description(cls, info: dict[str, object]) -> Relation:
        """The inverse of `describe`; raises KeyError, TypeError or ValueError if `info` is malformed."""
        columns = info["columns"]
        key = info["primary_key"]
        if not isinstance(columns, list) or not isinstance(key, list):
            msg = "a layout must contain lists of columns and key names"
            raise TypeError(msg)
        return cls(
            table=TableName.parse(str(info["relation"])),
            columns=tuple(map(Column.from_description, columns)),
            identity=ReplicaIdentity(info["identity"]),
            primary_key=tuple(str(k) for k in key),
            oid=int(str(info["oid"])) if "oid" in info else None,
            storage=int(str(info["storage"])) if "storage" in info else None,
            mixed=bool(info.get("mixed", False)),
            ambiguous=bool(info.get("ambiguous", False)),
        )

    @cached_property
    def layout(self) -> int:
        """A 63-bit hash of the description: equal layouts have equal numbers everywhere."""
        text = json.dumps(self.describe(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

    @property
    def names(self) -> tuple[str, ...]:
        """Column names by position."""
        return tuple(c.name for c in self.columns)


def predecessors(before: Relation, after: Relation) -> tuple[int | None, ...]:
    """For each column of `after` its position in `before`, None if it is new."""
    if has_common_numbering(before, after):
        places = {column.number: position for position, column in enumerate(before.columns)}
        return tuple(places.get(column.number) for column in after.columns)
    names = {name: position for position, name in enumerate(before.names)}
    return tuple(names.get(name) for name in after.names)


def has_common_numbering(before: Relation, after: Relation) -> bool:
    """Whether the columns of both can be matched by number: only within the same table."""
    every = (*before.columns, *after.columns)
    return before.oid == after.oid and before.oid is not None and all(c.number is not None for c in every)


def made_again(before: Relation, after: Relation) -> bool:
    """Whether the later layout belongs to another table of the same name: the first one was dropped."""
    return before.oid is not None and after.oid is not None and before.oid != after.oid
