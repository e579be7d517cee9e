"""Converts silver values and source texts to one canonical text, equal exactly if the values are equal.

This checks `tables.types` and `tables.casts` independently and without Spark: it starts from an Arrow column of silver
and writes it as PostgreSQL prints it (DateStyle ISO, TimeZone UTC, bytea_output hex), so an error in the projection
shows as a difference. Nothing here may call a cast of those modules. Floats have no unique text, so both sides become
their bits, with one pattern for NaN: -0 and 0 differ. Numbers are padded with zeros to the scale of silver's decimal.
Arrays become JSON lists of canonical elements, parsed character by character as array_in of arrayfuncs.c does.

Texts from the server become Arrow columns of the silver types by the mapping of `tables.types`;
`tests/spark/test_bronze_change_reader_spark.py` compares the two ways. A text either has a value or is reported:
nothing is clipped, rounded or guessed. Each kind of value is checked against a grammar first, because Arrow's casts are
lenient ('0x10' is an integer to them).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.model.relation import Column
from cdc_lake.tables.types import ColumnType, Family, column_type

_BLANK = " \t\n\r\v\f"


def elements_of(text: str) -> list[str | None] | None:
    """The texts of the elements of a one-dimensional array with lower bound 1; None for any other text."""
    if text == "{}":
        return []
    if len(text) < 3 or text[0] != "{" or text[-1] != "}":
        return None
    elements: list[str | None] = []
    characters = iter(text[1:-1])
    while True:
        element, separator = _element(characters)
        if separator is None:
            return None
        elements.append(element)
        if separator == "":
            return elements


def _element(characters: Iterator[str]) -> tuple[str | None, str | None]:
    """One element and what follows it: a comma, nothing, or None if the text is not an array."""
    first = next(characters, "")
    if first == '"':
        inner = _read_quoted(characters)
        separator = next(characters, "")
        return (inner, separator) if inner is not None and separator in {",", ""} else (None, None)
    parts: list[str] = []
    while first not in {",", ""}:
        if first in '{}"\\' or first in _BLANK:
            return None, None
        parts.append(first)
        first = next(characters, "")
    element = "".join(parts)
    if not element:
        return None, None
    return (None if element == "NULL" else element), first


def _read_quoted(characters: Iterator[str]) -> str | None:
    """The rest of a quoted element; None if the closing quote is missing."""
    parts: list[str] = []
    for character in characters:
        if character == '"':
            return "".join(parts)
        if character == "\\":
            escaped = next(characters, "")
            if escaped not in {'"', "\\"}:
                return None
            parts.append(escaped)
        else:
            parts.append(character)
    return None


_TEXT = pa.large_string()
_WIDEST = pa.decimal128(38, 0)
_PLAIN_SCALE = 6
"""Decimals of at most this scale are never small enough for Arrow's scientific notation."""
_NUMBER = re.compile(r"-?([0-9]+)(?:[.]([0-9]+))?")


def from_silver(values: Any) -> Any:
    """A silver column (pyarrow Array or ChunkedArray) in canonical form, a large_string of the same length.

    Raises TypeError for an Arrow type that no silver column has.
    """
    return _by_chunk(values, _render_values)


def from_source(text: Any, silver_type: pa.DataType) -> Any:
    """Source text in canonical form, comparable to a silver column of `silver_type`.

    Raises pyarrow.ArrowInvalid if silver's type is a float and the text is not one.
    """
    if pa.types.is_floating(silver_type):
        return _by_chunk(text, lambda chunk: _bits(pc.cast(chunk, silver_type)))
    if pa.types.is_decimal(silver_type):
        return _by_chunk(text, lambda chunk: _scale_numbers(pc.cast(chunk, _TEXT), silver_type.scale))
    if _is_list(silver_type):
        return _by_chunk(text, lambda chunk: _list_text(pc.cast(chunk, _TEXT), silver_type.value_type))
    if pa.types.is_large_binary(silver_type) or pa.types.is_binary(silver_type):
        return _by_chunk(text, lambda chunk: _hexadecimal(pc.cast(chunk, _TEXT)))
    return _by_chunk(text, lambda chunk: pc.cast(chunk, _TEXT))


def readable(text: str | None, silver_type: pa.DataType | None) -> str | None:
    """A canonical text for display: floats, whose canonical form is their bits, are printed as numbers."""
    if text is None or text == "NaN" or silver_type is None or not pa.types.is_floating(silver_type):
        return text
    integer_format, part = ("<q", "<d") if silver_type == pa.float64() else ("<i", "<f")
    return repr(struct.unpack(part, struct.pack(integer_format, int(text)))[0])


def companion_decimals(text: Any, decimal_type: pa.DataType) -> Any:
    """The canonical values of a companion decimal of a text column: NULL if the text is not a number."""

    def fitting_number(value: str | None) -> str | None:
        number = None if value is None else _NUMBER.fullmatch(value)
        if number is None or len(number[1].lstrip("0")) > integer_digits or len(number[2] or "") != scale:
            return None
        return value

    def fitting_numbers(chunk: Any) -> Any:
        return pa.array(map(fitting_number, _scale_numbers(pc.cast(chunk, _TEXT), scale).to_pylist()), _TEXT)

    scale, integer_digits = decimal_type.scale, decimal_type.precision - decimal_type.scale
    return _by_chunk(text, fitting_numbers)


def _by_chunk(values: Any, form: Any) -> Any:
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([form(chunk) for chunk in values.chunks], _TEXT)
    return form(values)


def _render_values(values: Any) -> Any:  # noqa: PLR0911 - one line a type
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        return pc.cast(values, _TEXT)
    if pa.types.is_integer(kind) or pa.types.is_date32(kind):
        return pc.cast(values, _TEXT)
    if pa.types.is_boolean(kind):
        return pc.if_else(values, pa.scalar("t", _TEXT), pa.scalar("f", _TEXT))
    if pa.types.is_floating(kind):
        return _bits(values)
    if pa.types.is_decimal128(kind):
        return _decimal(values)
    if pa.types.is_timestamp(kind):
        return _timestamp(values)
    if _is_list(kind):
        lists = values.to_pylist()
        return _lists(lists, lists, from_silver(values.flatten()).to_pylist())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return pa.array((None if v is None else "\\x" + v.hex() for v in values.to_pylist()), _TEXT)
    msg = f"Arrow type {kind} has no silver column"
    raise TypeError(msg)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def with_zero(text: Any) -> Any:
    """Numbers with a digit before the decimal point: the GaussDB family prints .5 and -.5."""
    return pc.replace_substring_regex(text, r"^(-?)\.", r"\1" "0.")


def _scale_numbers(text: Any, scale: int) -> Any:
    """Numbers with exactly `scale` decimal digits; texts with more digits and other texts are unchanged."""
    text = with_zero(text)
    as_it_is = rf"\.[0-9]{{{scale}}}$" if scale else "^-?[0-9]+$"
    if pc.all(pc.match_substring_regex(text, as_it_is)).as_py() is not False:
        return text
    return pa.array([None if value is None else _pad_fraction(value, scale) for value in text.to_pylist()], _TEXT)


def _pad_fraction(text: str, scale: int) -> str:
    integer_part, _, fraction = text.partition(".")
    if _NUMBER.fullmatch(text) is None or len(digits := fraction.rstrip("0")) > scale:
        return text
    return f"{integer_part}.{digits.ljust(scale, '0')}" if scale else integer_part


def _hexadecimal(text: Any) -> Any:
    """Bytes as bytea prints them, also from the GaussDB family's blob and raw: upper case, without a prefix."""
    bare = pc.match_substring_regex(text, "^([0-9A-F]{2})*$")
    marked = pc.binary_join_element_wise(pa.scalar("\\x", _TEXT), pc.utf8_lower(text), pa.scalar("", _TEXT))
    return pc.if_else(bare, marked, text)


def _list_text(text: Any, element: pa.DataType) -> Any:
    """Texts of arrays as lists of canonical elements; texts that are not one-dimensional arrays are unchanged."""
    lists = [None if item is None else elements_of(item) for item in text.to_pylist()]
    inner = from_source(pa.array([e for item in lists for e in item or ()], _TEXT), element).to_pylist()
    return _lists(text.to_pylist(), lists, inner)


def _lists(texts: list[Any], lists: list[Any], elements: list[str | None]) -> Any:
    """Each list with its share of `elements`, as JSON; the original text if there is no list."""
    json_texts, offset = [], 0
    for text, items in zip(texts, lists, strict=True):
        if items is None:
            json_texts.append(text)
            continue
        json_texts.append(json.dumps(elements[offset : offset + len(items)], ensure_ascii=False))
        offset += len(items)
    return pa.array(json_texts, _TEXT)


def _bits(values: Any) -> Any:
    integer_type = pa.int64() if values.type == pa.float64() else pa.int32()
    bits = pc.cast(values.view(integer_type), _TEXT)
    return pc.if_else(pc.is_nan(values), pa.scalar("NaN", _TEXT), bits)


def _decimal(values: Any) -> Any:
    """`-12.50`: Arrow prints small decimals in scientific notation, so the unscaled digits get the point."""
    scale = values.type.scale
    if 0 <= scale <= _PLAIN_SCALE:
        return pc.cast(values, _TEXT)
    digits = pa.Array.from_buffers(
        _WIDEST, len(values), values.buffers(), null_count=values.null_count, offset=values.offset
    )
    text = pc.cast(digits, _TEXT)
    if scale == 0:
        return text
    sign = pc.if_else(pc.starts_with(text, "-"), pa.scalar("-", _TEXT), pa.scalar("", _TEXT))
    plain = pc.utf8_lpad(pc.utf8_ltrim(text, "-"), scale + 1, "0")
    integer_part = pc.utf8_slice_codeunits(plain, 0, -scale)
    fraction = pc.utf8_slice_codeunits(plain, -scale)
    return pc.binary_join_element_wise(
        pc.binary_join_element_wise(sign, integer_part, pa.scalar("", _TEXT)), fraction, pa.scalar(".", _TEXT)
    )


def _timestamp(values: Any) -> Any:
    """`2024-01-01 00:00:00.5`, with `+00` for an instant; Arrow writes six digits, PostgreSQL drops trailing zeros."""
    zoned = values.type.tz is not None
    if zoned and values.type.tz not in {"UTC", "Etc/UTC", "+00:00"}:
        msg = f"an instant in silver is in UTC, not {values.type.tz}"
        raise TypeError(msg)
    text = pc.cast(pc.cast(values, pa.timestamp("us")), _TEXT)
    text = pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")
    return pc.binary_join_element_wise(text, pa.scalar("+00" if zoned else "", _TEXT), pa.scalar("", _TEXT))


_NAMED: Final = {
    "string": pa.string(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")

_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?"
_ZONE = r"[+-](0[0-9]|1[0-5])(:[0-5][0-9](:[0-5][0-9])?)?"
_GRAMMAR: Final = {
    Family.INTEGER: r"^(0|-?[1-9][0-9]*)$",
    Family.DECIMAL: r"^-?((0|[1-9][0-9]*)([.][0-9]+)?|[.][0-9]+)$",  # the GaussDB family prints .5 and -.5
    Family.FLOAT: r"^(-?([0-9]+([.][0-9]+)?|[.][0-9]+)(e[+-][0-9]+)?|NaN|-?Infinity)$",
    Family.BOOLEAN: r"^[tf]$",
    Family.BINARY: r"^\\x([0-9a-f]{2})*$",
    Family.HEX: "^([0-9A-F]{2})*$",
    Family.DATE: f"^{_DATE}$",
    Family.TIMESTAMP: f"^{_DATE} {_TIME}$",
    Family.TIMESTAMPTZ: f"^{_DATE} {_TIME}{_ZONE}$",
}
_NEVER: Final = {  # values that the grammar cannot exclude
    Family.DECIMAL: "^-[0.]+$",
    Family.DATE: "^0000",
    Family.TIMESTAMP: "^0000",
    Family.TIMESTAMPTZ: "^0000",
}


def arrow_type(column: Column) -> pa.DataType:
    """The Arrow type that Delta and Iceberg give the column's silver type."""
    return _arrow(column_type(column))


def read_texts(texts: Any, column: Column) -> tuple[Any, Any | None]:
    """The values of a string array, and a boolean array that marks texts without a value (None if there are none).

    NULL stays NULL; a text without a value becomes NULL and is marked.
    """
    kind = column_type(column)
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    if kind.family is Family.TEXT:
        return texts, None
    fits = pc.match_substring_regex(texts, _GRAMMAR[kind.family])
    if kind.family in _NEVER:
        fits = pc.and_not(fits, pc.match_substring_regex(texts, _NEVER[kind.family]))
    wrong = np.asarray(pc.fill_null(pc.invert(fits), fill_value=False))
    values, failed = _read(pc.if_else(fits, texts, None) if wrong.any() else texts, kind)
    wrong |= failed
    return values, pa.array(wrong) if wrong.any() else None


def _read(texts: Any, kind: ColumnType) -> tuple[Any, Any]:
    """Values, and which texts failed, by bisection: a few unreadable texts cost the others next to nothing."""
    try:
        values = _cast(texts, kind)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return pa.nulls(1, _arrow(kind)), np.ones(1, bool)
        middle = len(texts) // 2
        parts = [_read(half, kind) for half in (texts[:middle], texts[middle:])]
        return pa.concat_arrays([values for values, _ in parts]), np.concatenate([failed for _, failed in parts])
    failed = np.zeros(len(texts), bool)
    if kind.family is Family.FLOAT:  # values that are too large are read as infinity
        is_infinity = pc.is_in(texts, pa.array(["Infinity", "-Infinity"]))
        failed = np.asarray(pc.fill_null(pc.and_not(pc.is_inf(values), is_infinity), fill_value=False))
        if failed.any():
            values = pc.if_else(pa.array(failed), None, values)
    return values, failed


def _cast(texts: Any, kind: ColumnType) -> Any:
    """The values of texts that follow the grammar; raises ArrowInvalid if one is out of range."""
    match kind.family:
        case Family.BOOLEAN:
            return pc.equal(texts, "t")
        case Family.BINARY | Family.HEX:
            digits = (None if text is None else text.removeprefix("\\x") for text in texts.to_pylist())
            return pa.array([None if text is None else bytes.fromhex(text) for text in digits], pa.binary())
        case Family.TIMESTAMPTZ if len(texts) == 1 and texts[0].is_valid:
            # Arrow reads zones of hours and minutes; before standard time they also had seconds
            try:
                return pa.array([datetime.fromisoformat(texts[0].as_py())], _arrow(kind))
            except (ValueError, OverflowError) as cause:
                raise pa.ArrowInvalid("an instant outside the years 1 to 9999") from cause
        case _:
            return pc.cast(texts, _arrow(kind))


def _arrow(kind: ColumnType) -> pa.DataType:
    decimal_match = _DECIMAL.fullmatch(kind.sql)
    return pa.decimal128(int(decimal_match[1]), int(decimal_match[2])) if decimal_match else _NAMED[kind.sql]
