"""Facts: what a row of the GaussDB family does not say of its table, as the catalog has it now."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cdc_lake.model.relation import Missing, ReplicaIdentity, TableName


class Storage(enum.Enum):
    """A table's storage engine; it decides what the server logs of a table without replica identity."""

    ASTORE = "astore"
    USTORE = "ustore"


@dataclass(frozen=True, slots=True)
class FamilyColumn:
    """A column as the catalog has it.

    `type_name`: `pg_type.typname`, with the schema before it outside `pg_catalog`. `printed`: `format_type(oid, NULL)`,
    what text rows print; needed only where the type is not built in. `number`: `pg_attribute.attnum`; `missing`: what
    rows from before it hold (`model.relation.Column`), by what the catalog keeps. `filled`: it may not be NULL, so that
    old rows hold something also where the catalog keeps nothing.
    """

    name: str
    type_name: str
    type_oid: int
    modifier: int = -1
    printed: str | None = None
    number: int | None = None
    missing: Missing | None = None
    filled: bool = False

    def describe(self) -> list[Any]:
        """As JSON holds it."""
        missing = None if self.missing is None else [self.missing.text]
        return [self.name, self.type_name, self.type_oid, self.modifier, self.printed, self.number, missing]

    @classmethod
    def from_description(cls, told: Sequence[Any]) -> FamilyColumn:
        """The inverse, also of those that know neither number nor default; raises TypeError."""
        name, type_name, type_oid, modifier, printed, number, missing = (*told, None, None)[:7]
        before = None if missing is None else Missing(*missing)
        return cls(name, type_name, type_oid, modifier, printed, number, before)


@dataclass(frozen=True, slots=True)
class FamilyTableFacts:
    """What the catalog says of a table now.

    `columns` in attribute order, without dropped ones. `identity_columns`: of the primary key under DEFAULT, of the
    index under INDEX; empty where the server logs no key. `type_names`: names by OID, of types that are not built in
    and not of these columns. `oid`: the table's; `highest`: the greatest number that a column of it ever had, 0: not
    known; `file`: `model.relation.Relation.storage`. `skipped`: generated columns that are left out of new rows, and
    are none of `columns`; old rows have them (`skip-generated-columns`).
    """

    columns: tuple[FamilyColumn, ...]
    primary_key: tuple[str, ...] = ()
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
    identity_columns: tuple[str, ...] = ()
    storage: Storage = Storage.ASTORE
    type_names: Mapping[int, str] = field(default_factory=dict)
    oid: int | None = None
    highest: int = 0
    file: int | None = None
    skipped: frozenset[str] = frozenset()

    @property
    def whole(self) -> bool:
        """Whether the server logs whole old rows."""
        bare = self.storage is Storage.USTORE and not self.identity_columns
        return bare or self.identity is ReplicaIdentity.FULL

    def describe(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "columns": [c.describe() for c in self.columns],
            "primary_key": list(self.primary_key),
            "identity": self.identity.value,
            "identity_columns": list(self.identity_columns),
            "storage": self.storage.value,
            "type_names": {str(oid): name for oid, name in self.type_names.items()},
            "oid": self.oid,
            "skipped": sorted(self.skipped),
        }

    @classmethod
    def from_description(cls, info: Mapping[str, Any]) -> FamilyTableFacts:
        """The inverse; raises KeyError, TypeError or ValueError where `info` is not one."""
        return cls(
            columns=tuple(map(FamilyColumn.from_description, info["columns"])),
            primary_key=tuple(info["primary_key"]),
            identity=ReplicaIdentity(info["identity"]),
            identity_columns=tuple(info["identity_columns"]),
            storage=Storage(info["storage"]),
            type_names={int(oid): name for oid, name in info["type_names"].items()},
            oid=info.get("oid"),
            skipped=frozenset(info.get("skipped", ())),
        )


FamilyCatalog: TypeAlias = Callable[[TableName], FamilyTableFacts | None]
"""Where facts come from; None for a table that is not there now. Asked by the thread that tabulates, seldom: when a row
has a shape that the last answer does not explain. Raises SourceError."""
