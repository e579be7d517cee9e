"""Facts: what a row of the GaussDB family does not say of its table, as the catalog has it now."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias

from cdc_lake.decode.historic_catalog import Attribute, UniqueIndex
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
    and not of these columns; `printed_types`: OID and name of such a type by what text rows print, None: there is none.
    `oid`: of the table; `attributes`: all columns that it ever had, but for those that rows leave out, empty: not
    known; `key_changed`: see `announced.TableFacts`; `file`: `model.relation.Relation.storage`.
    `skipped`: generated columns that are left out of new rows, and are none of `columns`; old rows have them
    (`skip-generated-columns`). `indexes`: the unique ones; `identity_changed`: the transaction that wrote the row of
    `pg_class`, which names the kind of replica identity. None where every UPDATE has an old row, so that nobody need
    know. `version`: a text that is another one once the catalog says something else.
    """

    columns: tuple[FamilyColumn, ...]
    primary_key: tuple[str, ...] = ()
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT
    identity_columns: tuple[str, ...] = ()
    storage: Storage = Storage.ASTORE
    type_names: Mapping[int, str] = field(default_factory=dict)
    oid: int | None = None
    attributes: tuple[Attribute, ...] = ()
    key_changed: int | None = None
    file: int | None = None
    skipped: frozenset[str] = frozenset()
    indexes: tuple[UniqueIndex, ...] = ()
    identity_changed: int | None = None
    printed_types: Callable[[str], tuple[int, str] | None] = field(default=lambda _: None, compare=False)
    version: str = field(default="", compare=False)

    @property
    def whole(self) -> bool:
        """Whether the server logs whole old rows."""
        bare = self.storage is Storage.USTORE and not self.identity_columns
        return bare or self.identity is ReplicaIdentity.FULL

    @property
    def changes(self) -> tuple[int, ...]:
        """The transactions that wrote what the catalog says."""
        written = {self.key_changed, self.identity_changed, *(one.changed for one in self.attributes)}
        written |= {number for one in self.indexes for number in (one.created, one.changed)}
        return tuple(one for one in written if one is not None)

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
            "attributes": [asdict(one) for one in self.attributes],
            "key_changed": self.key_changed,
            "file": self.file,
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
            attributes=tuple(_attribute(one) for one in info.get("attributes", ())),
            key_changed=info.get("key_changed"),
            file=info.get("file"),
        )


def _attribute(told: Mapping[str, Any]) -> Attribute:
    missing = told["missing"]
    return Attribute(**{**told, "missing": None if missing is None else Missing(**missing)})


FamilyCatalog: TypeAlias = Callable[[TableName], FamilyTableFacts | None]
"""Where facts come from; None for a table that is not there now. Asked by the thread that tabulates, seldom: when a row
has a shape that the last answer does not explain. Raises SourceError."""


_FROZEN: Final = 2


def named_by(version: str) -> str:
    """By which transaction a table got its name, schema or owner, and the owner: its row type is written with them."""
    return " ".join(version.split()[-2:])


def named_anew(before: str, now: str) -> bool:
    """Whether a table got another name, or the same one again, between two `named_by`; not where it only got an owner.

    Servers that freeze a row may write 2 over the number of its transaction.
    """
    (by, owner), (last, last_owner) = now.split(), before.split()
    return by != last and int(by) > _FROZEN and owner == last_owner


Versions: TypeAlias = Callable[[Collection[TableName]], Mapping[TableName, tuple[int, str]]]
"""OID and `FamilyTableFacts.version` of tables as the catalog has them now; nothing of those that are not there. Raises
SourceError."""
