"""Catalog facts that rows of the GaussDB family omit about their table, and the family's types by OID.

Binary rows name a type by its OID, text and JSON rows by the output of `format_type` without a modifier. Both are
mapped here for built-in types, so that rows of a dropped column still have one. Source: openGauss, pg_type.h, and
recordings. OIDs of PostgreSQL are the same; clob is printed as `text`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeAlias

from cdc_lake.decode.historic_catalog import Attribute, UniqueIndex
from cdc_lake.model.relation import Missing, ReplicaIdentity, TableName


class Storage(enum.Enum):
    """A table's storage engine; it determines what the server logs for a table without replica identity."""

    ASTORE = "astore"
    USTORE = "ustore"


@dataclass(frozen=True, slots=True)
class GaussDbColumn:
    """A column in the catalog.

    `type_name`: `pg_type.typname`, with its schema outside `pg_catalog`. `printed`: `format_type(oid, NULL)`, as text
    rows print it; needed only if the type is not built in. `number`: `pg_attribute.attnum`; `missing`: the value of
    earlier rows (`model.relation.Column`), according to the catalog. `filled`: it is NOT NULL, so old rows have a value
    even if the catalog has none.
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
        """Convert to JSON values."""
        missing = None if self.missing is None else [self.missing.text]
        return [self.name, self.type_name, self.type_oid, self.modifier, self.printed, self.number, missing]

    @classmethod
    def from_description(cls, description: Sequence[Any]) -> GaussDbColumn:
        """The inverse, also for descriptions without number or default; raises TypeError."""
        name, type_name, type_oid, modifier, printed, number, missing = (*description, None, None)[:7]
        before = None if missing is None else Missing(*missing)
        return cls(name, type_name, type_oid, modifier, printed, number, before)


@dataclass(frozen=True, slots=True)
class GaussDbTableMetadata:
    """The current catalog facts of a table.

    `columns` in attribute order, without dropped ones. `identity_columns`: of the primary key with DEFAULT, of the
    index with INDEX; empty if the server logs no key. `type_names`: names by OID, of types that are neither built in
    nor of these columns; `printed_types`: OID and name of such a type by its printed form, None: there is none. `oid`:
    of the table; `attributes`: all columns that it ever had, except those that rows omit, empty if unknown;
    `key_changed`: see `pgoutput.relations.TableFacts`; `file`: `model.relation.Relation.storage`. `skipped`: generated
    columns that new rows omit, and that are not among `columns`; old rows have them (`skip-generated-columns`).
    `indexes`: the unique ones; `identity_changed`: the transaction that wrote the row of `pg_class` with the kind of
    replica identity. None if every UPDATE has an old row, so that it is not needed. `version`: a text that changes
    whenever these facts do.
    """

    columns: tuple[GaussDbColumn, ...]
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
    def logs_full_rows(self) -> bool:
        """Whether the server logs whole old rows."""
        bare = self.storage is Storage.USTORE and not self.identity_columns
        return bare or self.identity is ReplicaIdentity.FULL

    @property
    def changes(self) -> tuple[int, ...]:
        """The transactions that wrote these facts."""
        written = {self.key_changed, self.identity_changed, *(row.changed for row in self.attributes)}
        written |= {number for row in self.indexes for number in (row.created, row.changed)}
        return tuple(row for row in written if row is not None)

    def describe(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return {
            "columns": [c.describe() for c in self.columns],
            "primary_key": list(self.primary_key),
            "identity": self.identity.value,
            "identity_columns": list(self.identity_columns),
            "storage": self.storage.value,
            "type_names": {str(oid): name for oid, name in self.type_names.items()},
            "oid": self.oid,
            "skipped": sorted(self.skipped),
            "attributes": [asdict(attribute) for attribute in self.attributes],
            "key_changed": self.key_changed,
            "file": self.file,
        }

    @classmethod
    def from_description(cls, info: Mapping[str, Any]) -> GaussDbTableMetadata:
        """The inverse; raises KeyError, TypeError or ValueError if `info` is invalid."""
        return cls(
            columns=tuple(map(GaussDbColumn.from_description, info["columns"])),
            primary_key=tuple(info["primary_key"]),
            identity=ReplicaIdentity(info["identity"]),
            identity_columns=tuple(info["identity_columns"]),
            storage=Storage(info["storage"]),
            type_names={int(oid): name for oid, name in info["type_names"].items()},
            oid=info.get("oid"),
            skipped=frozenset(info.get("skipped", ())),
            attributes=tuple(_attribute(attribute) for attribute in info.get("attributes", ())),
            key_changed=info.get("key_changed"),
            file=info.get("file"),
        )


def _attribute(description: Mapping[str, Any]) -> Attribute:
    missing = description["missing"]
    return Attribute(**{**description, "missing": None if missing is None else Missing(**missing)})


FamilyCatalog: TypeAlias = Callable[[TableName], GaussDbTableMetadata | None]
"""The source of facts; None for a table that does not exist now. Called by the thread that tabulates, rarely: when the
last answer does not explain the columns of a row. Raises SourceError."""


def named_by(version: str) -> str:
    """The transaction that set a table's name, schema or owner, and the owner: its row type is written with them."""
    return " ".join(version.split()[-2:])


def named_anew(before: str, now: str) -> bool:
    """Whether a table was renamed, even to the same name, between two `named_by`; not if only its owner changed.

    Servers that freeze a row may replace the id of its transaction by 2.
    """
    (by, owner), (last, last_owner) = now.split(), before.split()
    return by != last and int(by) > 2 and owner == last_owner


Versions: TypeAlias = Callable[[Collection[TableName]], Mapping[TableName, tuple[int, str]]]
"""Current OID and `GaussDbTableMetadata.version` of tables, without those that do not exist. Raises SourceError."""


@dataclass(frozen=True, slots=True)
class BuiltinType:
    """`name` is `pg_type.typname`, `printed` is what a text row has in brackets after a column's name."""

    name: str
    printed: str


_SAME: Final = {
    17: "bytea", 19: "name", 24: "regproc", 25: "text", 26: "oid", 27: "tid", 28: "xid", 86: "raw", 88: "blob",
    114: "json", 142: "xml", 600: "point", 601: "lseg", 602: "path", 603: "box", 604: "polygon", 628: "line",
    650: "cidr", 718: "circle", 790: "money", 829: "macaddr", 869: "inet", 1082: "date", 1186: "interval", 1560: "bit",
    1700: "numeric", 1790: "refcursor", 2205: "regclass", 2950: "uuid", 3614: "tsvector", 3615: "tsquery",
    3802: "jsonb", 3969: "nvarchar2", 5801: "hash16", 5802: "hash32", 8305: "vector", 9003: "smalldatetime",
}  # fmt: skip
_OTHER: Final = {
    16: ("bool", "boolean"),
    18: ("char", '"char"'),
    20: ("int8", "bigint"),
    21: ("int2", "smallint"),
    23: ("int4", "integer"),
    90: ("clob", "text"),
    700: ("float4", "real"),
    701: ("float8", "double precision"),
    1042: ("bpchar", "character"),
    1043: ("varchar", "character varying"),
    1083: ("time", "time without time zone"),
    1114: ("timestamp", "timestamp without time zone"),
    1184: ("timestamptz", "timestamp with time zone"),
    1266: ("timetz", "time with time zone"),
    1562: ("varbit", "bit varying"),
    5545: ("int1", "tinyint"),
}
_ARRAYS: Final = {
    16: 1000, 17: 1001, 20: 1016, 21: 1005, 23: 1007, 25: 1009, 114: 199, 700: 1021, 701: 1022, 1042: 1014,
    1043: 1015, 1082: 1182, 1083: 1183, 1114: 1115, 1184: 1185, 1186: 1187, 1266: 1270, 1560: 1561, 1562: 1563,
    1700: 1231, 2950: 2951, 3802: 3807,
}  # fmt: skip
_SCALARS: Final = {oid: BuiltinType(name, name) for oid, name in _SAME.items()} | {
    oid: BuiltinType(*both) for oid, both in _OTHER.items()
}

BUILTIN: Final = _SCALARS | {
    array: BuiltinType("_" + _SCALARS[element].name, _SCALARS[element].printed + "[]")
    for element, array in _ARRAYS.items()
}
"""Types by OID."""

OID_OF: Final = {kind.printed: oid for oid, kind in BUILTIN.items() if oid != 90}
"""OIDs by printed form; `text` is text, although a clob is printed as text too."""
