"""Casts: Spark SQL that reads a text of the source as a value of its silver type (`lake.types`), or says it is none.

`cast_sql` never raises and is right only where `fits_sql` is true. `fits_sql` is mostly a round trip: Spark's casts are
lenient ('0044-03-15 BC' casts to a date of our era), so a value fits where its typed form prints as the very text the
server sent. A text that does not fit is held under the rule `type_<column>`: never clipped, never NULL.

Text is what PostgreSQL prints with DateStyle ISO, TimeZone UTC, extra_float_digits >= 1 and bytea_output hex; the Spark
session is in ANSI mode and UTC (`lake.session`). Other settings on either side make values not fit: loud, not wrong.
"""

from __future__ import annotations

from typing import assert_never

from cdc_lake.lake.types import ColumnType, Family


def cast_sql(text: str, kind: ColumnType) -> str:  # noqa: PLR0911 - one line a family
    """A Spark SQL expression of the silver type over `text`, an expression of type string.

    It never raises; NULL stays NULL. Where `fits_sql` is false its value means nothing.
    """
    match kind.family:
        case Family.TEXT:
            return text
        case Family.BOOLEAN:
            return f"CASE {text} WHEN 't' THEN true WHEN 'f' THEN false END"
        case Family.BINARY:
            return f"unhex(substr({text}, 3))"
        case Family.HEX:
            return f"unhex({text})"
        case Family.ARRAY:
            assert kind.element is not None
            return f"transform({elements_sql(text)}, element -> {cast_sql('element', kind.element)})"
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
_BARE_POINT = "^(?=[.])|(?<=^-)(?=[.])"


def fits_sql(text: str, kind: ColumnType) -> str:
    """A Spark SQL boolean over `text`, never NULL: true for NULL and where `cast_sql` gives exactly the value."""
    typed = cast_sql(text, kind)
    match kind.family:  # a year before 1 is printed with a minus by Spark, with BC by PostgreSQL
        case Family.TEXT | Family.NUMBER_OR_NULL:
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
            fits = f"{local} = {text} AND left({text}, 1) <> '-'"
        case Family.INTEGER:
            fits = f"cast({typed} AS string) = {text}"
        case Family.DECIMAL:
            fits = f"cast({typed} AS string) = regexp_replace({text}, '{_BARE_POINT}', '0')"
        case Family.NUMBER:
            fits = _same_number(text, kind.sql)
        case Family.DATE | Family.TIMESTAMP:
            fits = f"cast({typed} AS string) = {text} AND left({text}, 1) <> '-'"
        case Family.ARRAY:
            fits = _is_array(text, kind)
        case other:
            assert_never(other)
    return f"({text} IS NULL OR coalesce({fits}, false))"


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


def _neutral(text: str) -> str:
    """An array's text in which a quote always opens or closes an element."""
    slash, quote = _MARKS
    return f"replace(replace({text}, concat(char(92), char(92)), {slash}), concat(char(92), '\"'), {quote})"


def _tokens(text: str) -> str:
    """The elements of an array as they are written, quotes included."""
    return f"""regexp_extract_all({_neutral(text)}, '"[^"]*"|[^{{}}",\\\\s]+', 0)"""


def elements_sql(text: str) -> str:
    """The texts of the elements of an array's text, as a Spark SQL array; means nothing where it is no array.

    An element is quoted where it is empty, reads NULL or holds a blank, comma, brace, quote or backslash (array_out of
    arrayfuncs.c).
    """
    slash, quote = _MARKS
    inner = f"replace(replace(substr(token, 2, length(token) - 2), {quote}, '\"'), {slash}, char(92))"
    return (
        f"transform({_tokens(text)}, token -> CASE WHEN token = 'NULL' THEN CAST(NULL AS STRING) "
        f"WHEN left(token, 1) = '\"' THEN {inner} ELSE token END)"
    )


def _is_array(text: str, kind: ColumnType) -> str:
    """One dimension from 1 on: what is found, put together again, is the whole text; each element fits."""
    assert kind.element is not None
    slash, quote = _MARKS
    whole = f"concat('{{', array_join({_tokens(text)}, ','), '}}') = {_neutral(text)}"
    elements = f"forall({elements_sql(text)}, element -> {fits_sql('element', kind.element)})"
    plain = f"instr({text}, {slash}) = 0 AND instr({text}, {quote}) = 0 AND instr({_neutral(text)}, char(92)) = 0"
    return f"{plain} AND {whole} AND {elements}"
