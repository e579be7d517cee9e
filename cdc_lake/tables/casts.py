"""Spark SQL that converts source text to its silver type (`tables.types`), or detects that it does not fit.

`cast_sql` never raises and is right only if `fits_sql` is true. `fits_sql` is mostly a round trip: Spark's casts are
lenient ('0044-03-15 BC' casts to a date of our era), so a value fits if its typed form prints as exactly the text that
the server sent. Text that does not fit is held under the rule `type_<column>`: never clipped, never NULL.

Text is what PostgreSQL prints with DateStyle ISO, TimeZone UTC, extra_float_digits >= 1 and bytea_output hex; the Spark
session is in ANSI mode and UTC (`tables.spark_session`). With other settings on either side, values do not fit: an
error, never a wrong value.

After an ALTER TYPE, conversions compute the new value from the old one if the result is certain to be the server's;
also for source types that share a silver type but whose old rows may get other values (`rewriting`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, assert_never

from cdc_lake.errors import Unconvertible
from cdc_lake.model.relation import Column, numeric_modifier
from cdc_lake.tables.types import ColumnType, Family, column_type, element_of, literal, source_type, type_name


def cast_sql(text: str, kind: ColumnType) -> str:  # noqa: PLR0911 - one line a family
    """A Spark SQL expression of the silver type over `text`, an expression of type string.

    It never raises; NULL stays NULL. The result is meaningless if `fits_sql` is false.
    """
    match kind.family:
        case Family.TEXT:
            return text
        case Family.NUMBER_TEXT:
            return _with_zero(text)
        case Family.BOOLEAN:
            return f"CASE {text} WHEN 't' THEN true WHEN 'f' THEN false END"
        case Family.BINARY:
            return f"unhex(substr({text}, 3))"
        case Family.HEX:
            return f"unhex({text})"
        case Family.ARRAY:
            return _values(text, kind)
        case Family.NUMBER_OR_NULL:
            return f"CASE WHEN {_same_number(text, kind.sql)} THEN try_cast({text} AS {kind.sql}) END"
        case (
            Family.INTEGER
            | Family.DECIMAL
            | Family.NUMBER
            | Family.FLOAT
            | Family.DATE
            | Family.TIMESTAMP
            | Family.TIMESTAMPTZ
        ):
            return f"try_cast({text} AS {kind.sql})"
        case other:
            assert_never(other)


# the GaussDB family prints .5 and -.5; Java's $ also matches before a final line feed
_FLOAT = "^-?([0-9]+([.][0-9]+)?|[.][0-9]+)(e[+-][0-9]+)?\\\\z"
# after the seconds, not the end of a date: Spark raises for an impossible zone; servers have up to 15:59:59
_ZONE = ":[0-9][0-9]([.][0-9]+)?([+-](0[0-9]|1[0-5])(:[0-5][0-9])*)$"
# Spark has a year 0, and prints a sign before negative years and years after 9999; a server prints BC
_YEAR = "left({text}, 4) BETWEEN '0001' AND '9999'"
_BARE_POINT = "^(?=[.])|(?<=^-)(?=[.])"


def fits_sql(text: str, kind: ColumnType) -> str:
    """A Spark SQL boolean over `text`, never NULL: true for NULL and if `cast_sql` returns exactly the value."""
    typed = cast_sql(text, kind)
    match kind.family:
        case Family.TEXT | Family.NUMBER_TEXT | Family.NUMBER_OR_NULL:
            return "true"
        case Family.BOOLEAN:
            fits = f"{text} IN ('t', 'f')"
        case Family.BINARY:
            # lower case, even length, only hex digits: the only text that equals its printed bytes
            fits = f"concat(char(92), 'x', lower(hex({typed}))) = {text}"
        case Family.HEX:
            fits = f"hex({typed}) = {text}"
        case Family.FLOAT:
            # Spark prints floats differently, so the grammar is checked; Java reads too large values as infinity.
            number = f"({text} RLIKE '{_FLOAT}' AND abs({typed}) < double('Infinity'))"
            fits = f"{number} OR {text} IN ('NaN', 'Infinity', '-Infinity')"
        case Family.TIMESTAMPTZ:
            # parallel decoders of the GaussDB family print in the time zone of the database
            zone = f"nullif(regexp_extract({text}, '{_ZONE}', 2), '')"
            local = f"concat(cast(from_utc_timestamp({typed}, {zone}) AS string), {zone})"
            fits = f"{local} = {text} AND {_YEAR.format(text=text)} AND year({typed}) BETWEEN 1 AND 9999"
        case Family.INTEGER:
            fits = f"cast({typed} AS string) = {text}"
        case Family.DECIMAL:
            fits = f"cast({typed} AS string) = regexp_replace({text}, '{_BARE_POINT}', '0')"
        case Family.NUMBER:
            fits = _same_number(text, kind.sql)
        case Family.DATE | Family.TIMESTAMP:
            fits = f"cast({typed} AS string) = {text} AND {_YEAR.format(text=text)}"
        case Family.ARRAY:
            fits = _is_array(text, kind)
        case other:
            assert_never(other)
    return f"({text} IS NULL OR coalesce({fits}, false))"


def key_sql(text: str, kind: ColumnType) -> str:
    """A Spark SQL expression of one normalized text per key value: `text` itself for most types.

    Text that does not fit is unchanged.
    """
    match kind.family:
        case Family.NUMBER_TEXT | Family.DECIMAL | Family.FLOAT:
            return _with_zero(text)
        case Family.NUMBER:
            return f"CASE WHEN {fits_sql(text, kind)} THEN CAST({cast_sql(text, kind)} AS STRING) ELSE {text} END"
        case Family.TIMESTAMPTZ:
            instant = f"concat(CAST({cast_sql(text, kind)} AS STRING), '+00')"
            return f"CASE WHEN right({text}, 3) <> '+00' AND {fits_sql(text, kind)} THEN {instant} ELSE {text} END"
        case _:
            return text


def key_text(text: str | None, kind: ColumnType) -> str | None:
    """Computes `key_sql` without Spark, for recorded keys."""
    if text is None:
        return None
    match kind.family:
        case Family.NUMBER_TEXT | Family.DECIMAL | Family.FLOAT:
            return re.sub(r"^(-?)[.]", r"\g<1>0.", text)
        case Family.NUMBER:
            return _pad_fraction(text, kind.sql)
        case Family.TIMESTAMPTZ:
            return _in_utc(text)
        case _:
            return text


def _pad_fraction(text: str, sql: str) -> str:
    """A number with as many decimal digits as its decimal's scale."""
    precision, scale = map(int, re.findall(r"[0-9]+", sql))
    number = re.fullmatch(r"(-?)([0-9]*)(?:[.]([0-9]+))?", text)
    if number is None or not (number[2] or number[3]):
        return text
    digits, fraction = number[2] or "0", (number[3] or "").rstrip("0")
    if len(fraction) > scale or len(digits.lstrip("0")) > precision - scale:
        return text
    sign = number[1] if digits.strip("0") or fraction else ""  # a decimal has no -0
    return f"{sign}{digits}.{fraction.ljust(scale, '0')}" if scale else f"{sign}{digits}"


def _in_utc(text: str) -> str:
    if text.endswith("+00") or not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]{8,15}[+-][0-9:]{2,8}", text):
        return text
    try:
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return text
    fraction = f".{moment.microsecond:06}".rstrip("0") if moment.microsecond else ""
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction}+00" if moment.year > 999 else text


def _with_zero(text: str) -> str:
    """A number with a digit before its decimal point: the GaussDB family prints .5 and -.5."""
    bare = f"left({text}, 1) = '.' OR left({text}, 2) = '-.'"
    return f"CASE WHEN {bare} THEN regexp_replace({text}, '{_BARE_POINT}', '0') ELSE {text} END"


def _same_number(text: str, sql: str) -> str:
    """Ignores trailing zeros of a fraction; an exponent, a plus sign or blanks do not count as a number."""
    bare = f"regexp_replace({text}, '{_BARE_POINT}', '0')"
    same = f"{_without_zeros(f'cast(try_cast({text} AS {sql}) AS string)')} = {_without_zeros(bare)}"
    return f"({same} AND right({text}, 1) <> '.')"


def _without_zeros(text: str) -> str:
    trimmed = f"trim(TRAILING '.' FROM trim(TRAILING '0' FROM {text}))"
    return f"CASE WHEN instr({text}, '.') > 0 THEN {trimmed} ELSE {text} END"


_MARKS = ("char(1)", "char(2)")
"""Placeholders for an escaped backslash and quote while an array is parsed; a text that contains them is held."""


def _plain(text: str, body: str) -> str:
    """`body` over `plain`, which is the array's text with quotes only around elements; computed once."""
    slash, quote = _MARKS
    plain = f"replace(replace({text}, concat(char(92), char(92)), {slash}), concat(char(92), '\"'), {quote})"
    return f"transform(array({plain}), plain -> {body})[0]"


_TOKENS = """regexp_extract_all(plain, '"[^"]*"|[^{}",\\\\s\\\\x01\\\\x02]+', 0)"""
"""The elements as written, including quotes; escaped characters occur only between quotes."""


def _elements() -> str:
    """The texts of the elements in `plain`; meaningless if it is not an array.

    An element is quoted if it is empty, reads NULL or contains a blank, comma, brace, quote or backslash (array_out of
    arrayfuncs.c).
    """
    slash, quote = _MARKS
    inner = f"replace(replace(substr(token, 2, length(token) - 2), {quote}, '\"'), {slash}, char(92))"
    return (
        f"transform({_TOKENS}, token -> CASE WHEN token = 'NULL' THEN CAST(NULL AS STRING) "
        f"WHEN left(token, 1) = '\"' THEN {inner} ELSE token END)"
    )


def _values(text: str, kind: ColumnType) -> str:
    assert kind.element is not None
    return _plain(text, f"transform({_elements()}, element -> {cast_sql('element', kind.element)})")


def _is_array(text: str, kind: ColumnType) -> str:
    """Whether the text is a one-dimensional array from 1 on: its elements joined give the whole text, and each fits."""
    assert kind.element is not None
    slash, quote = _MARKS
    unmarked = f"instr({text}, {slash}) = 0 AND instr({text}, {quote}) = 0"
    round_trips = f"instr(plain, char(92)) = 0 AND concat('{{', array_join({_TOKENS}, ','), '}}') = plain"
    elements = f"forall({_elements()}, element -> {fits_sql('element', kind.element)})"
    return f"{unmarked} AND {_plain(text, f'{round_trips} AND {elements}')}"


UNREADABLE = "cdc_lake: a text of an old row is no"
"""How Spark's error begins if a conversion meets a value that the new type cannot represent."""

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_DIGITS = {"smallint": 5, "int": 10, "bigint": 19}
_WIDER = {
    ("smallint", "int"),
    ("smallint", "bigint"),
    ("int", "bigint"),
    ("float", "double"),
    ("date", "timestamp_ntz"),
}
_PRINTED = {"smallint", "int", "bigint", "boolean", "date", "timestamp_ntz"}
"""Types that Spark casts to the same text as the server; decimals too."""
_READ = {"smallint", "int", "bigint", "date", "timestamp_ntz"}
"""Types that Spark reads from text as the server does, or not at all; decimals too, timestamps only from server output.
"""
_PRINTED_ALIKE = {"date": Column("", "date", 1082), "timestamp_ntz": Column("", "timestamp", 1114)}


def widens(old_sql: str, new_sql: str) -> bool:
    """Whether every value of one Spark SQL type is the same value in the other."""
    old, new = _DECIMAL.fullmatch(old_sql), _DECIMAL.fullmatch(new_sql)
    if new:
        q, t = int(new[1]), int(new[2])
        if old:
            p, s = int(old[1]), int(old[2])
            return t >= s and q - t >= p - s
        return old_sql in _DIGITS and q - t >= _DIGITS[old_sql]
    return old_sql == new_sql or (old_sql, new_sql) in _WIDER


def conversion(value: str, old_sql: str, new_sql: str) -> str | None:
    """SQL that converts a value to another type as the server's own cast does; None if no such SQL is known.

    It fails rather than return a value that differs from the server's.
    """
    if old_sql == new_sql:
        return value
    old_decimal, new_decimal = _DECIMAL.fullmatch(old_sql), _DECIMAL.fullmatch(new_sql)
    printed = old_sql in _PRINTED or old_decimal is not None
    narrower = old_sql in _DIGITS and new_sql in {*_DIGITS, "float", "double"}
    if widens(old_sql, new_sql) or narrower or (new_sql == "string" and printed):
        return f"CAST({value} AS {new_sql})"
    if old_sql == "string" and (new_sql in _READ or new_decimal is not None):
        failed = f"raise_error({literal(f'{UNREADABLE} {new_sql}')})"
        if new_sql in _PRINTED_ALIKE:  # Spark reads dates and times leniently, '0044-03-15 BC' as a date of our era
            kind = column_type(_PRINTED_ALIKE[new_sql])
            return f"CASE WHEN {fits_sql(value, kind)} THEN {cast_sql(value, kind)} ELSE {failed} END"
        return f"CASE WHEN {value} IS NOT NULL THEN coalesce(try_cast({value} AS {new_sql}), {failed}) END"
    return None


def require_conversion(value: str, name: str, old_sql: str, new_sql: str) -> str:
    """SQL of a value in another type. Raises Unconvertible if no conversion equals the server's."""
    sql = conversion(value, old_sql, new_sql)
    if sql is None:
        raise Unconvertible(f"column `{name}` changed from {old_sql} to {new_sql}")
    return sql


@dataclass(frozen=True, slots=True)
class TypeRewrite:
    """A change of the source type within one silver type, whose ALTER TYPE gave old rows other values.

    `old`, `new`: the types for display; `sql`: converts a value over `{value}` as the server's own cast does; None if
    unknown.
    """

    old: str
    new: str
    sql: str | None = None

    def rewrite_sql(self, value: str, name: str) -> str:
        """SQL of the value of column `name` after the change. Raises Unconvertible."""
        if self.sql is None:
            raise Unconvertible(f"column `{name}` changed from {self.old} to {self.new}")
        return self.sql.format(value=value)


def rewriting(before: Column, after: Column, old_sql: str, new_sql: str) -> TypeRewrite | None:
    """How the server rewrites old values of a column beyond the conversion of silver's type; None if it does not.

    The change counts as a rewrite unless it is known to leave all values alone. A `USING` expression of the ALTER TYPE
    may still give other values, and leaves no trace in the layout if the type stays the same.
    """
    sql = (
        _rewrite_sql(before, after, old_sql)
        if old_sql == new_sql
        else _residual_cast_sql(before, after, old_sql, new_sql)
    )
    if sql == _SAME:
        return None
    if "sha256" in {before.redacted, after.redacted}:
        sql = None  # silver has hashes of the original values
    elif "null" in {before.redacted, after.redacted}:
        return None
    return TypeRewrite(source_type(before), source_type(after), sql)


_SAME: Final = "{value}"
_MICROSECONDS: Final = 6
_LENGTH_WORD: Final = 4  # a length's modifier is offset by the length word of a varlena (VARHDRSZ)
_TEXTS: Final = frozenset({"text", "varchar", "nvarchar2", "clob"})
_INTEGERS: Final = frozenset({"int1", "int2", "int4", "int8", "oid"})
_BYTES: Final = frozenset({"bytea", "blob", "raw"})
_SAME_VALUES: Final = frozenset(
    {("jsonb", "json"), ("smalldatetime", "timestamp")} | {(text, kind) for text in _TEXTS for kind in ("json", "xml")}
)
"""Pairs of types whose values have the same text."""
_OTHER_AS_TEXT: Final = frozenset({"bool", "bpchar", "inet"})
"""Types whose cast to text on the server differs from their output."""
_TOO_LONG: Final = f"raise_error({literal(f'{UNREADABLE} text of that length')})"
_EPOCH: Final = 946_684_800_000_000
"""Microseconds from 1970 to 2000, the epoch of PostgreSQL's timestamps and rounding (AdjustTimestampForTypmod)."""
_YEAR_10000: Final = 253_402_300_800_000_000
"""Microseconds from 1970 to the first year that silver cannot represent (`tables.casts`)."""


def _rewrite_sql(before: Column, after: Column, silver: str) -> str | None:
    """SQL of the value that the server made of `{value}`; `_SAME` if it is unchanged, None if unknown."""
    old, new = type_name(before), type_name(after)
    if old == new or (before.type_oid and before.type_oid == after.type_oid):
        return _SAME if before.modifier == after.modifier else _modifier_change_sql(before, after, old, silver)
    if (old_element := element_of(before)) is not None and (new_element := element_of(after)) is not None:
        return _SAME if _rewrite_sql(old_element, new_element, "string") == _SAME else None
    if new in _TEXTS:
        return _as_text(before, after, old)
    if new == "bpchar" and old in _TEXTS:
        return _pad_sql(after)
    numbers = old in _INTEGERS and new == "numeric" and (silver != "string" or _scale(after) in {None, 0})
    same = {old, new} <= _INTEGERS or {old, new} <= _BYTES or (old, new) in _SAME_VALUES
    return _SAME if same or numbers else None


def _residual_cast_sql(before: Column, after: Column, old_sql: str, new_sql: str) -> str | None:
    """The same if silver's type changes, over the value already converted to the new type."""
    old, new = type_name(before), type_name(after)
    minutes = new == "smalldatetime" and old_sql != "date"
    if minutes or (old_sql == "string" != new_sql and old not in _TEXTS | {"bpchar", "numeric"}):
        return None  # output and cast may differ: bits print as they are, but are cast as a number
    if new_sql in {"timestamp", "timestamp_ntz"} and old_sql != "date" and 0 <= after.modifier < _MICROSECONDS:
        return _round_sql(after.modifier, new_sql)
    if new_sql != "string":
        return _SAME
    if old == new and before.modifier == after.modifier:  # it is declared as text
        return "left({value}, 1)" if old_sql == "boolean" else _SAME
    if new in _TEXTS or new == "bpchar":
        return _rewrite_sql(replace(after, type_name="text", type_oid=0, modifier=-1), after, "string")
    is_integer = old in _INTEGERS and _scale(after) in {None, 0}
    return (
        _SAME if new == "numeric" and (is_integer or (old == new and _keeps_numbers(before, after, "string"))) else None
    )


def _modifier_change_sql(before: Column, after: Column, name: str, silver: str) -> str | None:  # noqa: PLR0911 - one line a type
    """SQL for the same type with another length, precision or scale."""
    old, new = before.modifier, after.modifier
    if (old_element := element_of(before)) is not None and (new_element := element_of(after)) is not None:
        return _SAME if _rewrite_sql(old_element, new_element, "string") == _SAME else None
    match name:
        case "bpchar":
            return _SAME if new < 0 else _pad_sql(after)
        case "varchar" | "nvarchar2":
            return _length_change_sql(before, after)
        case "numeric":
            return _SAME if _keeps_numbers(before, after, silver) else None
        case "time" | "timetz" | "timestamp" | "timestamptz" if new < 0 or 0 <= old <= new:
            return _SAME
        case "timestamp" | "timestamptz":
            return _round_sql(new, silver)
        case "varbit" if 0 <= old <= new:
            return _SAME
        case _:
            return _SAME if new < 0 or silver != "string" else None


def _as_text(before: Column, after: Column, old: str) -> str | None:
    """A cast to text equals the server's output, which is what silver has, except for a few types."""
    if old in _TEXTS:
        return _length_change_sql(before, after)
    if old == "bpchar":
        return _cut("rtrim({value})", after)
    if old == "inet":
        bits = "CASE WHEN instr({value}, '/') > 0 THEN '' WHEN instr({value}, ':') > 0 THEN '/128' ELSE '/32' END"
        return _cut(f"concat({{value}}, {bits})", after)
    return None if old in _OTHER_AS_TEXT else _cut(_SAME, after)


def _length_change_sql(before: Column, after: Column) -> str | None:
    old, new = _length(before), _length(after)
    return _SAME if new is None or (old is not None and old <= new) else _cut(_SAME, after)


def _cut(value: str, column: Column) -> str:
    """SQL that fits a text into a column of bounded length: only trailing blanks may be cut."""
    length = _length(column)
    if length is None:
        return value
    rest = f"rtrim(substr({value}, {length + 1}))"
    fits = f"octet_length({value}) <= {length} OR (char_length({value}) <= {length} AND {value} = rtrim({value}))"
    return (
        f"CASE WHEN {{value}} IS NULL OR {fits} THEN {value} "
        f"WHEN {_counted_alike(value)} AND {rest} = '' THEN left({value}, {length}) ELSE {_TOO_LONG} END"
    )


def _pad_sql(column: Column) -> str:
    """SQL that pads a text to a column of fixed length."""
    length = _length(column)
    bare = "rtrim({value})"
    if length is None:
        return _SAME
    fits = f"{_counted_alike(bare)} AND char_length({bare}) <= {length}"
    return f"CASE WHEN {{value}} IS NULL OR ({fits}) THEN rpad({bare}, {length}, ' ') ELSE {_TOO_LONG} END"


def _counted_alike(text: str) -> str:
    """SQL: whether a text has as many bytes as characters, because GaussDB family databases may count either."""
    return f"octet_length({text}) = char_length({text})"


def _round_sql(precision: int, silver: str) -> str | None:
    """A timestamp with fewer fractional digits, rounded as the server does: halves away from the year 2000."""
    if silver not in {"timestamp", "timestamp_ntz"}:
        return None
    unit = 10 ** (6 - precision)
    since = f"(unix_micros(CAST({{value}} AS TIMESTAMP)) - {_EPOCH}L)"
    rounded = f"CAST(sign({since}) AS BIGINT) * ((abs({since}) + {unit // 2}L) div {unit}L) * {unit}L + {_EPOCH}L"
    moment = f"CAST(timestamp_micros({rounded}) AS {silver})"
    return (
        f"CASE WHEN {rounded} >= {_YEAR_10000}L THEN raise_error({literal(f'{UNREADABLE} {silver}')}) ELSE {moment} END"
    )


def _keeps_numbers(before: Column, after: Column, silver: str) -> bool:
    """Whether numbers are unchanged and, if silver has their texts, the texts too."""
    old, new = _scale(before), _scale(after)
    if new is None:
        return True
    return old == new or (silver != "string" and old is not None and old < new)


def _scale(column: Column) -> int | None:
    precision_scale = numeric_modifier(column.modifier)
    return None if precision_scale is None else precision_scale[1]


def _length(column: Column) -> int | None:
    """The maximum length in characters; None if unbounded."""
    bounded = column.modifier >= _LENGTH_WORD and type_name(column) in {"bpchar", "varchar", "nvarchar2"}
    return column.modifier - _LENGTH_WORD if bounded else None
