"""Types: which Spark SQL type a PostgreSQL column gets in silver, how its text becomes it, and when it does not fit.

`LEDGER` is the one place of the mapping: `plan`, `check`, `docs/reference/types.md`, the projection and DDL read it. It
goes by type OID, which is fixed for PostgreSQL's own types (`pg_type.dat`); only where a source gives no OID (0) it
goes by name. What has no row there (enums, domains, arrays, ranges, geometry …) stays the text the server prints.

`cast_sql` never raises and is right only where `fits_sql` is true. `fits_sql` is mostly a round trip: Spark's casts are
lenient ('0044-03-15 BC' casts to a date of our era), so a value fits where its typed form prints as the very text the
server sent. A text that does not fit is held under the rule `type_<column>`: never clipped, never NULL.

Text is what PostgreSQL prints with DateStyle ISO, TimeZone UTC, extra_float_digits >= 1 and bytea_output hex; the Spark
session is in ANSI mode and UTC (`lake.session`). Other settings on either side make values not fit: loud, not wrong.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cdc_lake.model.relation import Column

SPARK_MAX_PRECISION = 38
"""Digits of Spark's, Delta's and Iceberg's widest decimal."""

_VARHDRSZ = 4  # numeric's modifier is offset by the length word of a varlena (numeric.c, make_numeric_typmod)


class Loss(enum.Enum):
    """What becomes of a value: the same kind of value, or the server's text of it."""

    LOSSLESS = "lossless"
    CONVERTED = "converted"


class Family(enum.Enum):
    """How a text is read: one member a way of casting."""

    TEXT = "text"
    INTEGER = "integer"
    DECIMAL = "decimal"
    FLOAT = "float"
    BOOLEAN = "boolean"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """The silver type of a column: Spark SQL's name of it, how it is read, what is lost, and which values are held."""

    sql: str
    family: Family
    loss: Loss
    note: str = ""
    held: str = ""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One PostgreSQL type: its OID, the name its catalog gives, other names of it, and the silver type."""

    oid: int
    name: str
    aliases: tuple[str, ...]
    type: ColumnType


def _text(note: str = "", loss: Loss = Loss.CONVERTED) -> ColumnType:
    return ColumnType("string", Family.TEXT, loss, note)


_AS_TEXT = _text("the text the server prints")
_SAME_TEXT = _text("", Loss.LOSSLESS)
_INFINITE = "infinity, -infinity, BC, years above 9999"

LEDGER: tuple[LedgerRow, ...] = (
    LedgerRow(21, "int2", ("smallint",), ColumnType("smallint", Family.INTEGER, Loss.LOSSLESS)),
    LedgerRow(23, "int4", ("integer", "int"), ColumnType("int", Family.INTEGER, Loss.LOSSLESS)),
    LedgerRow(20, "int8", ("bigint",), ColumnType("bigint", Family.INTEGER, Loss.LOSSLESS)),
    LedgerRow(26, "oid", (), ColumnType("bigint", Family.INTEGER, Loss.LOSSLESS, "unsigned 32 bit on the server")),
    LedgerRow(
        700, "float4", ("real",), ColumnType("float", Family.FLOAT, Loss.LOSSLESS, "NaN, infinities and -0 stay")
    ),
    LedgerRow(
        701,
        "float8",
        ("double precision",),
        ColumnType("double", Family.FLOAT, Loss.LOSSLESS, "NaN, infinities and -0 stay"),
    ),
    LedgerRow(
        1700, "numeric", ("decimal",), _text("no modifier, or more than 38 digits, or a scale outside 0…precision")
    ),
    LedgerRow(16, "bool", ("boolean",), ColumnType("boolean", Family.BOOLEAN, Loss.LOSSLESS)),
    LedgerRow(17, "bytea", (), ColumnType("binary", Family.BINARY, Loss.LOSSLESS)),
    LedgerRow(25, "text", (), _SAME_TEXT),
    LedgerRow(1043, "varchar", ("character varying",), _SAME_TEXT),
    LedgerRow(
        1042,
        "bpchar",
        ("character",),
        _text("padded with spaces to its length, as the server prints it", Loss.LOSSLESS),
    ),
    LedgerRow(18, "char", ('"char"',), _SAME_TEXT),
    LedgerRow(19, "name", (), _SAME_TEXT),
    LedgerRow(1082, "date", (), ColumnType("date", Family.DATE, Loss.LOSSLESS, held=_INFINITE)),
    LedgerRow(
        1114,
        "timestamp",
        ("timestamp without time zone",),
        ColumnType("timestamp_ntz", Family.TIMESTAMP, Loss.LOSSLESS, "microseconds", _INFINITE),
    ),
    LedgerRow(
        1184,
        "timestamptz",
        ("timestamp with time zone",),
        ColumnType("timestamp", Family.TIMESTAMPTZ, Loss.LOSSLESS, "microseconds, the same instant", _INFINITE),
    ),
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
)
"""The mapping. Bounded numerics are worked out from their modifier by `column_type`."""

_BY_OID: Mapping[int, ColumnType] = MappingProxyType({row.oid: row.type for row in LEDGER})
_BY_NAME: Mapping[str, ColumnType] = MappingProxyType(
    {name: row.type for row in LEDGER for name in (row.name, *row.aliases)}
)
_NUMERIC = 1700
_NUMERIC_NAMES = frozenset({"numeric", "decimal"})


def numeric_modifier(modifier: int) -> tuple[int, int] | None:
    """Precision and scale of a numeric's modifier (scale is 11 bit signed since PostgreSQL 15); None for none."""
    if modifier < _VARHDRSZ:
        return None
    packed = modifier - _VARHDRSZ
    return (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400


def column_type(column: Column) -> ColumnType:
    """The silver type of a source column. Total: what is not known stays text, and says so."""
    if column.type_oid == _NUMERIC or (column.type_oid == 0 and column.type_name in _NUMERIC_NAMES):
        return _numeric(column.modifier)
    known = _BY_OID.get(column.type_oid) if column.type_oid else _BY_NAME.get(column.type_name)
    return known or _AS_TEXT


def _numeric(modifier: int) -> ColumnType:
    given = numeric_modifier(modifier)
    if given is None:
        return _text("numeric without precision: any number of digits, NaN and infinities")
    precision, scale = given
    if precision > SPARK_MAX_PRECISION:
        return _text(f"more digits than the {SPARK_MAX_PRECISION} a decimal holds")
    if not 0 <= scale <= precision:
        return _text("a scale that a decimal cannot have")
    return ColumnType(f"decimal({precision},{scale})", Family.DECIMAL, Loss.LOSSLESS, held="NaN")


def cast_sql(text: str, column: Column) -> str:
    """A Spark SQL expression of the column's silver type over `text`, an expression of type string.

    It never raises; NULL stays NULL. Where `fits_sql` is false its value means nothing.
    """
    kind = column_type(column)
    match kind.family:
        case Family.TEXT:
            return text
        case Family.BOOLEAN:
            return f"CASE {text} WHEN 't' THEN true WHEN 'f' THEN false END"
        case Family.BINARY:
            return f"unhex(substr({text}, 3))"
        case Family.INTEGER | Family.DECIMAL | Family.FLOAT | Family.DATE | Family.TIMESTAMP | Family.TIMESTAMPTZ:
            return f"try_cast({text} AS {kind.sql})"


# the GaussDB family prints numbers without a leading zero: .5 and -.5
_FLOAT = "^-?([0-9]+([.][0-9]+)?|[.][0-9]+)(e[+-][0-9]+)?$"
# behind the seconds, not the end of a date: Spark raises for a zone that cannot be; servers have up to 15:59:59
_ZONE = ":[0-9][0-9]([.][0-9]+)?([+-](0[0-9]|1[0-5])(:[0-5][0-9])*)$"
_BARE_POINT = "^(?=[.])|(?<=^-)(?=[.])"


def fits_sql(text: str, column: Column) -> str:
    """A Spark SQL boolean over `text`, never NULL: true for NULL and where `cast_sql` gives exactly the value."""
    typed = cast_sql(text, column)
    match column_type(column).family:  # a year before 1 is printed with a minus by Spark, with BC by PostgreSQL
        case Family.TEXT:
            return "true"
        case Family.BOOLEAN:
            fits = f"{text} IN ('t', 'f')"
        case Family.BINARY:
            # lower case, even length, nothing but digits: the only text whose bytes print as it
            fits = f"concat(char(92), 'x', lower(hex({typed}))) = {text}"
        case Family.FLOAT:
            # Spark prints floats in its own way, so the grammar is checked; Java reads what is too large as infinity.
            number = f"({text} RLIKE '{_FLOAT}' AND abs({typed}) < double('Infinity'))"
            fits = f"{number} OR {text} IN ('NaN', 'Infinity', '-Infinity')"
        case Family.TIMESTAMPTZ:
            # parallel decoders of the GaussDB family print in the zone of the database
            zone = f"nullif(regexp_extract({text}, '{_ZONE}', 2), '')"
            local = f"concat(cast(from_utc_timestamp({typed}, {zone}) AS string), {zone})"
            fits = f"{local} = {text} AND left({text}, 1) <> '-'"
        case Family.INTEGER:
            fits = f"cast({typed} AS string) = {text}"
        case Family.DECIMAL:
            fits = f"cast({typed} AS string) = regexp_replace({text}, '{_BARE_POINT}', '0')"
        case Family.DATE | Family.TIMESTAMP:
            fits = f"cast({typed} AS string) = {text} AND left({text}, 1) <> '-'"
    return f"({text} IS NULL OR coalesce({fits}, false))"
