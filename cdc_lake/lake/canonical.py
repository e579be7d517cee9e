"""Canonical: values of silver and text of the source in one form, equal exactly where the values are equal.

This is the second opinion on `lake.types`: it starts from what silver *holds*, an Arrow column, and writes it as
PostgreSQL prints it (DateStyle ISO, TimeZone UTC, bytea_output hex), so that an error in the projection shows as a
difference. Nothing here may call a cast of that module. Floats have no single text, so both sides become their bits,
with one pattern for NaN: -0 and 0 differ. Numbers are filled up with zeros to the scale of silver's decimal. Arrays
become lists of canonical elements in JSON.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.lake.array_text import elements_of

_TEXT = pa.large_string()
_WIDEST = pa.decimal128(38, 0)
_PLAIN_SCALE = 6
"""Decimals of at most that scale are never small enough for Arrow's scientific text."""
_NUMBER = re.compile(r"-?([0-9]+)(?:[.]([0-9]+))?")


def from_silver(values: Any) -> Any:
    """A silver column (pyarrow Array or ChunkedArray) in canonical form, a large_string of the same length.

    Raises TypeError for an Arrow type that no silver column has.
    """
    return _by_chunk(values, _rendered)


def from_source(text: Any, silver_type: pa.DataType) -> Any:
    """Text of the source in canonical form beside a silver column of `silver_type`.

    Raises pyarrow.ArrowInvalid where silver is a float and the text is none.
    """
    if pa.types.is_floating(silver_type):
        return _by_chunk(text, lambda chunk: _bits(pc.cast(chunk, silver_type)))
    if pa.types.is_decimal(silver_type):
        return _by_chunk(text, lambda chunk: _scaled(pc.cast(chunk, _TEXT), silver_type.scale))
    if _is_list(silver_type):
        return _by_chunk(text, lambda chunk: _list_text(pc.cast(chunk, _TEXT), silver_type.value_type))
    if pa.types.is_large_binary(silver_type) or pa.types.is_binary(silver_type):
        return _by_chunk(text, lambda chunk: _hexadecimal(pc.cast(chunk, _TEXT)))
    return _by_chunk(text, lambda chunk: pc.cast(chunk, _TEXT))


def readable(text: str | None, silver_type: pa.DataType | None) -> str | None:
    """A canonical text as people read it: that of a float is its bits, of anything else as it is."""
    if text is None or text == "NaN" or silver_type is None or not pa.types.is_floating(silver_type):
        return text
    whole, part = ("<q", "<d") if silver_type == pa.float64() else ("<i", "<f")
    return repr(struct.unpack(part, struct.pack(whole, int(text)))[0])


def beside(text: Any, decimal_type: pa.DataType) -> Any:
    """What a decimal that stands beside text of numbers must be, in canonical form: NULL where the number is none."""

    def only(one: str | None) -> str | None:
        number = None if one is None else _NUMBER.fullmatch(one)
        if number is None or len(number[1].lstrip("0")) > whole or len(number[2] or "") != scale:
            return None
        return one

    scale, whole = decimal_type.scale, decimal_type.precision - decimal_type.scale
    return _by_chunk(
        text, lambda chunk: pa.array([only(one) for one in _scaled(pc.cast(chunk, _TEXT), scale).to_pylist()], _TEXT)
    )


def _by_chunk(values: Any, form: Any) -> Any:
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([form(chunk) for chunk in values.chunks], _TEXT)
    return form(values)


def _rendered(values: Any) -> Any:  # noqa: PLR0911 - one line a type
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
        return _list_values(values)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return pa.array((None if v is None else "\\x" + v.hex() for v in values.to_pylist()), _TEXT)
    msg = f"no silver column is of Arrow type {kind}"
    raise TypeError(msg)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def with_zero(text: Any) -> Any:
    """Numbers with a digit before the point: the GaussDB family prints .5 and -.5."""
    return pc.replace_substring_regex(text, r"^(-?)\.", r"\1" "0.")


def _scaled(text: Any, scale: int) -> Any:
    """Numbers with exactly `scale` digits behind the point; one that has more, and what is no number, stays."""
    text = with_zero(text)
    as_it_is = rf"\.[0-9]{{{scale}}}$" if scale else "^-?[0-9]+$"
    if pc.all(pc.match_substring_regex(text, as_it_is)).as_py() is not False:
        return text
    return pa.array([None if one is None else _filled(one, scale) for one in text.to_pylist()], _TEXT)


def _filled(text: str, scale: int) -> str:
    whole, _, fraction = text.partition(".")
    if _NUMBER.fullmatch(text) is None or len(digits := fraction.rstrip("0")) > scale:
        return text
    return f"{whole}.{digits.ljust(scale, '0')}" if scale else whole


def _hexadecimal(text: Any) -> Any:
    """Bytes as bytea prints them, also those that the GaussDB family prints for blob and raw: in capitals, unmarked."""
    bare = pc.match_substring_regex(text, "^([0-9A-F]{2})*$")
    marked = pc.binary_join_element_wise(pa.scalar("\\x", _TEXT), pc.utf8_lower(text), pa.scalar("", _TEXT))
    return pc.if_else(bare, marked, text)


def _list_text(text: Any, element: pa.DataType) -> Any:
    """Texts of arrays as lists of canonical elements; what is no array of one dimension stays."""
    found = [None if one is None else elements_of(one) for one in text.to_pylist()]
    inner = from_source(pa.array([e for one in found for e in one or ()], _TEXT), element).to_pylist()
    return _lists(text.to_pylist(), found, inner)


def _list_values(values: Any) -> Any:
    lists = values.to_pylist()
    inner = from_silver(values.flatten()).to_pylist()
    return _lists(lists, lists, inner)


def _lists(given: list[Any], lists: list[Any], elements: list[str | None]) -> Any:
    """Each list with its share of `elements`, as JSON; `given` where there is no list."""
    out, at = [], 0
    for one, found in zip(given, lists, strict=True):
        if found is None:
            out.append(one)
            continue
        out.append(json.dumps(elements[at : at + len(found)], ensure_ascii=False))
        at += len(found)
    return pa.array(out, _TEXT)


def _bits(values: Any) -> Any:
    whole = pa.int64() if values.type == pa.float64() else pa.int32()
    bits = pc.cast(values.view(whole), _TEXT)
    return pc.if_else(pc.is_nan(values), pa.scalar("NaN", _TEXT), bits)


def _decimal(values: Any) -> Any:
    """`-12.50`: Arrow's own text of small decimals is scientific, so the point is set into the unscaled digits."""
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
    whole = pc.utf8_slice_codeunits(plain, 0, -scale)
    fraction = pc.utf8_slice_codeunits(plain, -scale)
    return pc.binary_join_element_wise(
        pc.binary_join_element_wise(sign, whole, pa.scalar("", _TEXT)), fraction, pa.scalar(".", _TEXT)
    )


def _timestamp(values: Any) -> Any:
    """`2024-01-01 00:00:00.5`, with `+00` where it is an instant; Arrow writes six digits, PostgreSQL drops zeros."""
    zoned = values.type.tz is not None
    if zoned and values.type.tz not in {"UTC", "Etc/UTC", "+00:00"}:
        msg = f"an instant in silver is in UTC, not {values.type.tz}"
        raise TypeError(msg)
    text = pc.cast(pc.cast(values, pa.timestamp("us")), _TEXT)
    text = pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")
    return pc.binary_join_element_wise(text, pa.scalar("+00" if zoned else "", _TEXT), pa.scalar("", _TEXT))
