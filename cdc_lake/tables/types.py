"""Maps each source column to its Spark SQL type and name in silver.

`LEDGER` is the only definition of the mapping: `plan`, `check`, `docs/reference/types.md`, the projection and DDL use
it. It maps type OIDs, which are fixed for the built-in types of PostgreSQL (`pg_type.dat`) and the GaussDB family
(`pg_type.h`); names are used only if a source sends no OID (0). Unmapped types (enums, domains, arrays, ranges,
geometry …) remain the text that the server prints. `tables.casts` converts the texts, and detects those that do not
fit.

Delta refuses blanks and `,;{}()=` in column names, a dot or backtick needs quoting in every query, Spark is
case-insensitive, and Iceberg reserves some names. Such a name gets `_` for these characters and a hash of the original,
`order id` → `order_id_5c1f3a`, so that it does not collide with an ordinary name. Names depend only on the columns
before them: adding a column renames none.

Silver's columns are the source's in their order, then the companions: decimals for a column of text (`both(p,s)` in
`types`), under its name with the suffix `_decimal`.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from cdc_lake.config.silver_tables import MAX_PRECISION, UNDECLARED, Declared, TypePolicy
from cdc_lake.errors import NameTaken, TypeRefused
from cdc_lake.model.relation import VARHDRSZ, Column, Relation, numeric_modifier


def quote_identifier(name: str) -> str:
    """An identifier in Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A string literal in Spark SQL.

    Spark first substitutes settings and environment variables for `${name}`, in strings too, so each dollar is escaped.
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024") + "'"


def properties_sql(properties: Mapping[str, str]) -> str:
    """Properties as TBLPROPERTIES takes them."""
    return ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())


@dataclass(frozen=True, slots=True)
class SilverColumn:
    """A column of a silver table: its name and its Spark SQL type."""

    name: str
    type: str

    @property
    def ddl(self) -> str:
        """The column in CREATE and ALTER TABLE."""
        return f"{quote_identifier(self.name)} {self.type}"


class Loss(enum.Enum):
    """What happens to a column's values: the same values, another form, or dropped because silver cannot or must not
    have them. `COMPUTED`: silver's own, derived from others.
    """

    LOSSLESS = "lossless"
    CONVERTED = "converted"
    REFUSED = "refused"
    LEFT_OUT = "left out"
    COMPUTED = "computed"


class Family(enum.Enum):
    """How a text is converted: one member per cast."""

    TEXT = "text"
    NUMBER_TEXT = "number as text"
    INTEGER = "integer"
    DECIMAL = "decimal"
    NUMBER = "number"
    NUMBER_OR_NULL = "number or null"
    FLOAT = "float"
    BOOLEAN = "boolean"
    BINARY = "binary"
    HEX = "hex"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The silver type of a column: Spark SQL's name, how text is converted, what is lost, and which values are held.

    `element`: the type of an array's elements.
    """

    sql: str
    family: Family
    loss: Loss
    note: str = ""
    held: str = ""
    element: ColumnType | None = None


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One PostgreSQL type: its OID, its catalog name, aliases, and the silver type."""

    oid: int
    name: str
    aliases: tuple[str, ...]
    type: ColumnType


def _text(note: str = "", loss: Loss = Loss.CONVERTED) -> ColumnType:
    return ColumnType("string", Family.TEXT, loss, note)


_AS_TEXT = _text("the text that the server prints")
_ARRAY = _text("the array as the server prints it")
_SAME_TEXT = _text("", Loss.LOSSLESS)
_INFINITE = "infinity, -infinity, BC, years above 9999"
_OWN = "of the GaussDB family"
_FLOAT_NOTE = "NaN, infinities and -0 are kept; in values that identify a row -0 is held"
_PADDED = _text("padded with spaces to its length, as the server prints it", Loss.LOSSLESS)
_SERVER_TEXT = _text(f"{_OWN}; the text the server prints")
_TIMESTAMP = ColumnType("timestamp_ntz", Family.TIMESTAMP, Loss.LOSSLESS, "microseconds", _INFINITE)
_INSTANT = ColumnType("timestamp", Family.TIMESTAMPTZ, Loss.LOSSLESS, "microseconds, the same instant", _INFINITE)
_MINUTES = replace(_TIMESTAMP, note=f"{_OWN}; whole minutes")
_BYTES = ColumnType("binary", Family.HEX, Loss.LOSSLESS, f"{_OWN}; digits in upper case on the wire")

LEDGER: tuple[LedgerRow, ...] = (
    LedgerRow(21, "int2", ("smallint",), ColumnType("smallint", Family.INTEGER, Loss.LOSSLESS)),
    LedgerRow(23, "int4", ("integer", "int"), ColumnType("int", Family.INTEGER, Loss.LOSSLESS)),
    LedgerRow(20, "int8", ("bigint",), ColumnType("bigint", Family.INTEGER, Loss.LOSSLESS)),
    LedgerRow(26, "oid", (), ColumnType("bigint", Family.INTEGER, Loss.LOSSLESS, "unsigned 32 bit on the server")),
    LedgerRow(700, "float4", ("real",), ColumnType("float", Family.FLOAT, Loss.LOSSLESS, _FLOAT_NOTE)),
    LedgerRow(701, "float8", ("double precision",), ColumnType("double", Family.FLOAT, Loss.LOSSLESS, _FLOAT_NOTE)),
    LedgerRow(
        1700, "numeric", ("decimal",), _text("no modifier, or more than 38 digits, or a scale outside 0…precision")
    ),
    LedgerRow(16, "bool", ("boolean",), ColumnType("boolean", Family.BOOLEAN, Loss.LOSSLESS)),
    LedgerRow(17, "bytea", (), ColumnType("binary", Family.BINARY, Loss.LOSSLESS)),
    LedgerRow(25, "text", (), _SAME_TEXT),
    LedgerRow(1043, "varchar", ("character varying",), _SAME_TEXT),
    LedgerRow(1042, "bpchar", ("character",), _PADDED),
    LedgerRow(18, "char", ('"char"',), _SAME_TEXT),
    LedgerRow(19, "name", (), _SAME_TEXT),
    LedgerRow(1082, "date", (), ColumnType("date", Family.DATE, Loss.LOSSLESS, held=_INFINITE)),
    LedgerRow(1114, "timestamp", ("timestamp without time zone",), _TIMESTAMP),
    LedgerRow(1184, "timestamptz", ("timestamp with time zone",), _INSTANT),
    LedgerRow(1083, "time", ("time without time zone",), _AS_TEXT),
    LedgerRow(1266, "timetz", ("time with time zone",), _AS_TEXT),
    LedgerRow(1186, "interval", (), _AS_TEXT),
    LedgerRow(2950, "uuid", (), _AS_TEXT),
    LedgerRow(114, "json", (), _text("the document as it was written", Loss.LOSSLESS)),
    LedgerRow(3802, "jsonb", (), _text("the document as the server prints it")),
    LedgerRow(142, "xml", (), _text("the document as it was written", Loss.LOSSLESS)),
    LedgerRow(869, "inet", (), _AS_TEXT),
    LedgerRow(650, "cidr", (), _AS_TEXT),
    LedgerRow(829, "macaddr", (), _AS_TEXT),
    LedgerRow(774, "macaddr8", (), _AS_TEXT),
    LedgerRow(1560, "bit", (), _AS_TEXT),
    LedgerRow(1562, "varbit", ("bit varying",), _AS_TEXT),
    LedgerRow(790, "money", (), _text("the text the server prints, by its lc_monetary")),
    LedgerRow(3614, "tsvector", (), _AS_TEXT),
    LedgerRow(3615, "tsquery", (), _AS_TEXT),
    LedgerRow(5545, "int1", ("tinyint",), ColumnType("smallint", Family.INTEGER, Loss.LOSSLESS, f"{_OWN}; 0 to 255")),
    LedgerRow(3969, "nvarchar2", (), _text(_OWN, Loss.LOSSLESS)),
    LedgerRow(90, "clob", (), _text(_OWN, Loss.LOSSLESS)),
    LedgerRow(88, "blob", (), _BYTES),
    LedgerRow(86, "raw", (), _BYTES),
    LedgerRow(9003, "smalldatetime", (), _MINUTES),
    LedgerRow(5801, "hash16", (), _SERVER_TEXT),
    LedgerRow(5802, "hash32", (), _SERVER_TEXT),
    LedgerRow(8305, "vector", (), _SERVER_TEXT),
)
"""The mapping. `column_type` computes bounded numerics from their modifier."""

_BY_OID: Mapping[int, LedgerRow] = MappingProxyType({row.oid: row for row in LEDGER})
_BY_NAME: Mapping[str, LedgerRow] = MappingProxyType({name: row for row in LEDGER for name in (row.name, *row.aliases)})
_NUMERIC = 1700
_OF_LENGTH = frozenset({1042, 1043, 3969})
_NUMERIC_NAMES = frozenset({"numeric", "decimal"})


def source_type(column: Column) -> str:
    """The source's type for display: with precision and scale, or length, if the column has them."""
    if is_numeric(column) and (precision_scale := numeric_modifier(column.modifier)) is not None:
        return f"{column.type_name}({precision_scale[0]},{precision_scale[1]})"
    if column.type_oid in _OF_LENGTH and column.modifier >= VARHDRSZ:
        return f"{column.type_name}({column.modifier - VARHDRSZ})"
    return _array_name(column) or column.type_name


def column_type(column: Column, policy: TypePolicy = UNDECLARED) -> ColumnType:
    """The silver type of a source column. Unknown types remain text, and are reported as such.

    Raises TypeRefused if a type is declared that the column cannot have.
    """
    own, declared = _own_and_declared(column, policy)
    silver_type = own if declared is None else _apply_declared(column, own, declared)
    if policy.bare_points and is_numeric(column) and silver_type.family is Family.TEXT:
        return replace(silver_type, family=Family.NUMBER_TEXT)
    return silver_type


def companion_type(column: Column, policy: TypePolicy) -> ColumnType | None:
    """The type of the companion of a text column, None if there is none; see `column_type`."""
    _, declared = _own_and_declared(column, policy)
    if declared is None or not declared.both:
        return None
    note = f"NULL if `{column.name}` is not a valid {declared.sql}"
    return ColumnType(declared.sql, Family.NUMBER_OR_NULL, Loss.CONVERTED, note)


def type_name(column: Column) -> str:
    """The canonical name of the source's type; an unknown one by the source's name."""
    row = _BY_OID.get(column.type_oid) or _BY_NAME.get(column.type_name)
    return column.type_name if row is None else row.name


def element_of(column: Column) -> Column | None:
    """The element of an array as a column; None if the column's type is not an array, judged by its name."""
    array = _array_name(column)
    return None if array is None else replace(column, type_name=array.removesuffix("[]"), type_oid=0)


def is_numeric(column: Column) -> bool:
    """Whether a column is of type numeric."""
    return column.type_oid == _NUMERIC or (column.type_oid == 0 and column.type_name in _NUMERIC_NAMES)


def _own_and_declared(column: Column, policy: TypePolicy) -> tuple[ColumnType, Declared | None]:
    own, declared = _own_type(column), policy.declared_for(column.name)
    is_open = declared is None and is_numeric(column) and own.family is Family.TEXT
    return own, policy.numeric if is_open else declared


def _own_type(column: Column) -> ColumnType:
    """What the source's type alone gives."""
    if is_numeric(column):
        return _numeric(column.modifier)
    row = _BY_OID.get(column.type_oid) if column.type_oid else _BY_NAME.get(column.type_name)
    if row is None:
        return _ARRAY if _array_name(column) else _AS_TEXT
    return row.type


def _array_name(column: Column) -> str | None:
    """`text[]` for `_text`, the catalog's name of an array; None if it is not an array, judged by its name."""
    schema, dot, name = column.type_name.rpartition(".")
    if column.type_name.endswith("[]"):
        return column.type_name
    return f"{schema}{dot}{name[1:]}[]" if name.startswith("_") else None


def _numeric(modifier: int) -> ColumnType:
    precision_scale = numeric_modifier(modifier)
    if precision_scale is None:
        return _text("numeric without precision: any number of digits, NaN and infinities")
    precision, scale = precision_scale
    if precision > MAX_PRECISION:
        return _text(f"more digits than the {MAX_PRECISION} that a decimal can have")
    if not 0 <= scale <= precision:
        return _text("a scale that a decimal cannot have")
    return ColumnType(f"decimal({precision},{scale})", Family.DECIMAL, Loss.LOSSLESS, held="NaN")


_READ_AS: Mapping[str, tuple[Family, str]] = MappingProxyType(
    {
        **dict.fromkeys(("smallint", "int", "bigint"), (Family.INTEGER, "values that are not integers of that size")),
        **dict.fromkeys(("float", "double"), (Family.FLOAT, "values that are not numbers of that size")),
        "boolean": (Family.BOOLEAN, "values that are neither t nor f"),
        "binary": (Family.BINARY, "values that are not hexadecimal digits"),
        "string": (Family.TEXT, ""),
        "date": (Family.DATE, _INFINITE),
        "timestamp": (Family.TIMESTAMPTZ, _INFINITE),
        "timestamp_ntz": (Family.TIMESTAMP, _INFINITE),
    }
)
"""How a text with a declared type is converted, and which values are held."""
_WIDER_INTEGERS = {("smallint", "int"), ("smallint", "bigint"), ("int", "bigint")}


def _apply_declared(column: Column, own: ColumnType, declared: Declared) -> ColumnType:
    if declared.both:
        if is_numeric(column):
            return _text(f"every digit; the second column has the value if it is a valid {declared.sql}")
    elif declared.sql == own.sql:
        return own
    elif declared.sql == "string":
        return _text("the text that the server prints, as declared")
    elif declared.sql.startswith("decimal") if is_numeric(column) else own.family is Family.TEXT:
        return _read_as(declared.sql)
    elif own.family is Family.INTEGER and (own.sql, declared.sql) in _WIDER_INTEGERS:
        return ColumnType(declared.sql, Family.INTEGER, Loss.LOSSLESS, "as declared")
    what = "both a text and a decimal" if declared.both else declared.sql
    raise TypeRefused(f"column `{column.name}` of type {column.type_name} cannot be {what}")


def _read_as(sql: str) -> ColumnType:
    if sql.startswith("array<"):
        element = _read_as(sql[6:-1])
        held = "other than one dimension from 1 on" + (f"; elements: {element.held}" if element.held else "")
        return ColumnType(sql, Family.ARRAY, Loss.CONVERTED, "as declared", held, element)
    if sql.startswith("decimal"):
        held = "NaN, infinities, more digits than it has before or after the decimal point"
        return ColumnType(sql, Family.NUMBER, Loss.CONVERTED, "as declared; padded with zeros", held)
    family, held = _READ_AS[sql]
    return ColumnType(sql, family, Loss.CONVERTED, "as declared", held)


_REFUSED = re.compile(r"[\s,;{}()=.`\x00-\x1f\x7f]")
# Iceberg's metadata columns (MetadataColumns.java), Delta's of the change data feed, Spark's hidden one
_RESERVED = frozenset({
    "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number", "_change_type",
    "_change_ordinal", "_commit_snapshot_id", "_commit_version", "_commit_timestamp", "_metadata",
})  # fmt: skip


def silver_names(relation: Relation) -> tuple[str, ...]:
    """The silver name of each column, by position: case-insensitively unique."""
    return names_for(relation.names)


def names_for(columns: Sequence[str]) -> tuple[str, ...]:
    """The silver names of columns in layout order; of names that differ only by case the first stays unchanged."""
    taken_names: set[str] = set()
    names: list[str] = []
    for column in columns:
        name = _free(column, taken_names)
        taken_names.add(fold_case(name))
        names.append(name)
    return tuple(names)


def _free(column: str, taken_names: set[str]) -> str:
    ordinary = _REFUSED.search(column) is None and fold_case(column) not in _RESERVED
    if ordinary and fold_case(column) not in taken_names:
        return column
    stem, turn = _REFUSED.sub("_", column), 0
    while True:
        mark = hashlib.sha256(f"{turn}:{column}".encode()).hexdigest()[:6]
        if fold_case(name := f"{stem}_{mark}") not in taken_names:
            return name
        turn += 1


def fold_case(name: str) -> str:
    """A name folded for case-insensitive catalogs."""
    # Broader than Java's equalsIgnoreCase, which also compares upper case forms (a dotless i equals an i there).
    return name.upper().casefold()


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A silver column: the source's column, its silver name, its type. `companion`: the source's text is in another."""

    source: Column
    name: str
    type: ColumnType
    companion: bool = False


def typed_columns(relation: Relation, policy: TypePolicy) -> tuple[TypedColumn, ...]:
    """The silver columns of a layout. Raises TypeRefused, and NameTaken if a companion's name is taken."""
    own = [
        TypedColumn(column, name, column_type(column, policy))
        for column, name in zip(relation.columns, silver_names(relation), strict=True)
    ]
    taken_names = {typed_column.name.casefold() for typed_column in own}
    companions = []
    for typed_column in own:
        kind = companion_type(typed_column.source, policy)
        if kind is not None:
            name = f"{typed_column.name}_decimal"
            if name.casefold() in taken_names:
                raise NameTaken(
                    f"{relation.table} has a column `{name}`, which is also the name of a column that silver adds",
                    hint=f"declare `{typed_column.source.name}` differently from `both` (`types`), then run "
                    "`cdc-lake rebuild TABLE`",
                )
            companions.append(TypedColumn(typed_column.source, name, kind, companion=True))
    return (*own, *companions)


def check_declared(relation: Relation, policy: TypePolicy) -> None:
    """Raise TypeRefused if a type is declared for a missing column."""
    for name, _ in policy.columns:
        if name not in relation.names:
            raise TypeRefused(f"`types.columns` names `{name}`, but {relation.table} has no such column")
