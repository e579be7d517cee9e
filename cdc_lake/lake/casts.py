"""Casts: Spark SQL that reads a text of the source as a value of its silver type (`lake.types`), or says it is none.

`cast_sql` never raises and is right only where `fits_sql` is true. `fits_sql` is mostly a round trip: Spark's casts are
lenient ('0044-03-15 BC' casts to a date of our era), so a value fits where its typed form prints as the very text the
server sent. A text that does not fit is held under the rule `type_<column>`: never clipped, never NULL.

Text is what PostgreSQL prints with DateStyle ISO, TimeZone UTC, extra_float_digits >= 1 and bytea_output hex; the Spark
session is in ANSI mode and UTC (`lake.session`). Other settings on either side make values not fit: loud, not wrong.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import assert_never

from cdc_lake.lake.types import ColumnType, Family


def cast_sql(text: str, kind: ColumnType) -> str:  # noqa: PLR0911 - one line a family
    """A Spark SQL expression of the silver type over `text`, an expression of type string.

    It never raises; NULL stays NULL. Where `fits_sql` is false its value means nothing.
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


# the GaussDB family prints numbers without a leading zero: .5 and -.5; Java's $ also stands before a last line feed
_FLOAT = "^-?([0-9]+([.][0-9]+)?|[.][0-9]+)(e[+-][0-9]+)?\\\\z"
# behind the seconds, not the end of a date: Spark raises for a zone that cannot be; servers have up to 15:59:59
_ZONE = ":[0-9][0-9]([.][0-9]+)?([+-](0[0-9]|1[0-5])(:[0-5][0-9])*)$"
# Spark has a year 0, prints those before it with a minus and those after 9999 with a plus; a server prints BC
_YEAR = "left({text}, 4) BETWEEN '0001' AND '9999'"
_BARE_POINT = "^(?=[.])|(?<=^-)(?=[.])"


def fits_sql(text: str, kind: ColumnType) -> str:
    """A Spark SQL boolean over `text`, never NULL: true for NULL and where `cast_sql` gives exactly the value."""
    typed = cast_sql(text, kind)
    match kind.family:
        case Family.TEXT | Family.NUMBER_TEXT | Family.NUMBER_OR_NULL:
            return "true"
        case Family.BOOLEAN:
            fits = f"{text} IN ('t', 'f')"
        case Family.BINARY:
            # lower case, even length, nothing but digits: the only text whose bytes print as it
            fits = f"concat(char(92), 'x', lower(hex({typed}))) = {text}"
        case Family.HEX:
            fits = f"hex({typed}) = {text}"
        case Family.FLOAT:
            # Spark prints floats in its own way, so the grammar is checked; Java reads what is too large as infinity.
            number = f"({text} RLIKE '{_FLOAT}' AND abs({typed}) < double('Infinity'))"
            fits = f"{number} OR {text} IN ('NaN', 'Infinity', '-Infinity')"
        case Family.TIMESTAMPTZ:
            # parallel decoders of the GaussDB family print in the zone of the database
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
    """A Spark SQL expression of the text that all texts of one value of a key share: `text` for most types.

    What does not fit stays as it is.
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
    """The same without Spark, of keys that were recorded."""
    if text is None:
        return None
    match kind.family:
        case Family.NUMBER_TEXT | Family.DECIMAL | Family.FLOAT:
            return re.sub(r"^(-?)[.]", r"\g<1>0.", text)
        case Family.NUMBER:
            return _filled(text, kind.sql)
        case Family.TIMESTAMPTZ:
            return _in_utc(text)
        case _:
            return text


def _filled(text: str, sql: str) -> str:
    """A number with as many digits behind the point as its decimal has."""
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
    """A number with a digit before its point: the GaussDB family prints .5 and -.5."""
    bare = f"left({text}, 1) = '.' OR left({text}, 2) = '-.'"
    return f"CASE WHEN {bare} THEN regexp_replace({text}, '{_BARE_POINT}', '0') ELSE {text} END"


def _same_number(text: str, sql: str) -> str:
    """Zeros at the end of a fraction are no digits of the value; an exponent, a sign + or blanks are no number here."""
    bare = f"regexp_replace({text}, '{_BARE_POINT}', '0')"
    same = f"{_without_zeros(f'cast(try_cast({text} AS {sql}) AS string)')} = {_without_zeros(bare)}"
    return f"({same} AND right({text}, 1) <> '.')"


def _without_zeros(text: str) -> str:
    trimmed = f"trim(TRAILING '.' FROM trim(TRAILING '0' FROM {text}))"
    return f"CASE WHEN instr({text}, '.') > 0 THEN {trimmed} ELSE {text} END"


_MARKS = ("char(1)", "char(2)")
"""Stand for an escaped backslash and an escaped quote while an array is taken apart; a text with them is held."""


def _plain(text: str, body: str) -> str:
    """`body` over `plain`: an array's text in which a quote always opens or closes an element; made once."""
    slash, quote = _MARKS
    plain = f"replace(replace({text}, concat(char(92), char(92)), {slash}), concat(char(92), '\"'), {quote})"
    return f"transform(array({plain}), plain -> {body})[0]"


_TOKENS = """regexp_extract_all(plain, '"[^"]*"|[^{}",\\\\s\\\\x01\\\\x02]+', 0)"""
"""The elements as they are written, quotes included; what is escaped stands only between quotes."""


def _elements() -> str:
    """The texts of the elements in `plain`; means nothing where it is no array.

    An element is quoted where it is empty, reads NULL or holds a blank, comma, brace, quote or backslash (array_out of
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
    """One dimension from 1 on: what is found, put together again, is the whole text; each element fits."""
    assert kind.element is not None
    slash, quote = _MARKS
    unmarked = f"instr({text}, {slash}) = 0 AND instr({text}, {quote}) = 0"
    whole = f"instr(plain, char(92)) = 0 AND concat('{{', array_join({_TOKENS}, ','), '}}') = plain"
    elements = f"forall({_elements()}, element -> {fits_sql('element', kind.element)})"
    return f"{unmarked} AND {_plain(text, f'{whole} AND {elements}')}"
