"""Rows as JSON: serial mppdb_decoding and style j, which write the same bytes.

One object with eight keys, always all, always in this order and without blanks: `table_name` (quoted, joined by a dot),
`op_type`, then `columns_name`, `columns_type`, `columns_val`, `old_keys_name`, `old_keys_type`, `old_keys_val`, which
are arrays of strings. Names are identifiers, values SQL literals. A tuple the server did not send has empty arrays.

The part before the values is the same for all rows of one layout and operation and is read once. Strings are escaped
byte by byte in the encoding of the database, and the second byte of a GBK character may be a backslash, which is then
doubled: there, escapes are undone on bytes and the result is decoded. Source: openGauss 1.0 to 7.0, and recordings.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from cdc_lake.decode.mppdb import identifiers
from cdc_lake.decode.mppdb.cells import Cells, RowCells
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.literals import NotALiteral, value_of, value_of_bytes
from cdc_lake.decode.mppdb.records import Operation
from cdc_lake.errors import DecodeError, MalformedMessage
from cdc_lake.model.change import Value
from cdc_lake.model.relation import TableName

START: Final = b'{"table_name":"'
"""How a row begins."""

# none of these can occur inside a string, where a quote has a backslash before it
_VALUES: Final = b'],"columns_val":['
_OLD: Final = b'],"old_keys_name":['
_OLD_VALUES: Final = b'],"old_keys_val":['
_NO_OLD: Final = b'],"old_keys_name":[],"old_keys_type":[],"old_keys_val":[]}'
_OLD_TYPES: Final = b'],"old_keys_type":['
_END: Final = b"]}"
_KEYS: Final = (
    "table_name",
    "op_type",
    "columns_name",
    "columns_type",
    "columns_val",
    "old_keys_name",
    "old_keys_type",
    "old_keys_val",
)
_OPERATIONS: Final = {"INSERT": Operation.INSERT, "UPDATE": Operation.UPDATE, "DELETE": Operation.DELETE}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice")
    return found


_DECODER: Final = json.JSONDecoder(strict=False, object_pairs_hook=_object)
"""A control character in a string is no reason to stop; a key that stands twice is: nobody knows which one counts."""


class _Head(NamedTuple):
    table: TableName
    operation: Operation
    names: tuple[str, ...]
    types: tuple[str, ...]


def json_row(statement: bytes, codec: Codec, at: int = 0) -> RowCells:
    """The row of a JSON object that stands at byte `at`. Raises DecodeError."""
    values = statement.find(_VALUES)
    if values < 0 or not statement.startswith(START):
        return _any_row(statement, codec, at)
    head = _head(statement[:values], codec, at)
    if statement.endswith(_NO_OLD):
        begin = values + len(_VALUES)
        new = _cells(head.names, head.types, statement[begin : -len(_NO_OLD)], codec, at + begin)
        return RowCells(head.operation, head.table, new, None)
    old = statement.find(_OLD, values)
    old_values = statement.find(_OLD_VALUES, old)
    if old < 0 or old_values < 0 or not statement.endswith(_END):
        return _any_row(statement, codec, at)
    names, types = _old_head(statement[old + len(_OLD) : old_values], codec, at + old)
    begin, old_begin = values + len(_VALUES), old_values + len(_OLD_VALUES)
    return RowCells(
        head.operation,
        head.table,
        _cells(head.names, head.types, statement[begin:old], codec, at + begin),
        _cells(names, types, statement[old_begin : -len(_END)], codec, at + old_begin),
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a row stands before, between and after the values of its tuples, and how many values these have."""

    before: bytes
    between: bytes
    after: bytes
    new: int
    old: int


def shape_of(statement: bytes, codec: Codec) -> tuple[RowCells, Shape | None]:
    """A row, and what stands around its values; None if it is not written as servers write it. Raises DecodeError."""
    row = json_row(statement, codec)
    values = statement.find(_VALUES) + len(_VALUES)
    old = statement.find(_OLD, values - 1)
    old_values = statement.find(_OLD_VALUES, old) + len(_OLD_VALUES)
    new_count, old_count = (0 if part is None else len(part.names) for part in (row.new, row.old))
    found = values >= len(_VALUES) and old >= 0 and old_values >= len(_OLD_VALUES)
    if not found or not statement.startswith(START) or not statement.endswith(_END):
        return row, None
    return row, Shape(statement[:values], statement[old:old_values], _END, new_count, old_count)


def _head(statement: bytes, codec: Codec, at: int) -> _Head:
    """What stands before the values of the new row."""
    try:
        return _remembered_head(statement, codec)
    except DecodeError:
        return _read_head(statement, codec, at)  # raises it with its place


@lru_cache(maxsize=2048)
def _remembered_head(statement: bytes, codec: Codec) -> _Head:
    return _read_head(statement, codec, 0)


def _read_head(statement: bytes, codec: Codec, at: int) -> _Head:
    return _head_of(_keyed(_KEYS[:4], statement + b"]}", at), codec, at)


def _old_head(arrays: bytes, codec: Codec, at: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names and types of an old row."""
    try:
        return _remembered_old_head(arrays, codec)
    except DecodeError:
        return _read_old_head(arrays, codec, at)


@lru_cache(maxsize=2048)
def _remembered_old_head(arrays: bytes, codec: Codec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return _read_old_head(arrays, codec, 0)


def _read_old_head(arrays: bytes, codec: Codec, at: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names, _, types = arrays.partition(_OLD_TYPES)
    found = _keyed(("names", "types"), b'{"names":[' + names + b'],"types":[' + types + b"]}", at)
    return _names(found["names"], codec, at), _types(found["types"], codec, at)


def _any_row(statement: bytes, codec: Codec, at: int) -> RowCells:
    """The same for an object whose keys stand in another order or with blanks between them."""
    found = _loaded(statement, at)
    if set(found) != set(_KEYS):
        raise MalformedMessage("a row whose keys are not those of the format", offset=at)
    head = _head_of(found, codec, at)
    old_names, old_types = _names(found["old_keys_name"], codec, at), _types(found["old_keys_type"], codec, at)
    new, old = (
        [value_of_bytes(text, codec, at) for text in _strings(found[key], at)]
        for key in ("columns_val", "old_keys_val")
    )
    return RowCells(
        head.operation,
        head.table,
        _checked(head.names, head.types, tuple(new), at),
        _checked(old_names, old_types, tuple(old), at),
    )


def _keyed(keys: tuple[str, ...], data: bytes, at: int) -> dict[str, Any]:
    """The object `data` is, which has these keys in this order."""
    found = _loaded(data, at)
    if tuple(found) != keys:
        raise MalformedMessage("a row whose keys are not those of the format", offset=at)
    return found


def _loaded(data: bytes, at: int) -> dict[str, Any]:
    """The object `data` is, its strings byte by byte (as latin-1)."""
    try:
        found = _DECODER.decode(data.decode("latin-1"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise MalformedMessage("a row that is not a JSON object with each key once", offset=at)
    return found


def _strings(array: object, at: int) -> list[str]:
    if not isinstance(array, list) or not all(isinstance(text, str) for text in array):
        raise MalformedMessage("a row with something else than an array of strings", offset=at)
    if any(max(text, default="") > "\xff" for text in array):
        raise MalformedMessage("an escape of a character that is not of one byte", offset=at)
    return array


def _head_of(found: dict[str, Any], codec: Codec, at: int) -> _Head:
    operation = _OPERATIONS.get(str(found["op_type"]))
    if operation is None:
        raise MalformedMessage("a row whose op_type is none of INSERT, UPDATE and DELETE", offset=at)
    (name,) = _strings([found["table_name"]], at)
    table = identifiers.table_name(codec.name(name.encode("latin-1"), at), at)
    return _Head(table, operation, _names(found["columns_name"], codec, at), _types(found["columns_type"], codec, at))


def _names(array: object, codec: Codec, at: int) -> tuple[str, ...]:
    return tuple(identifiers.unquote(codec.name(text.encode("latin-1"), at), at) for text in _strings(array, at))


def _types(array: object, codec: Codec, at: int) -> tuple[str, ...]:
    return tuple(codec.name(text.encode("latin-1"), at) for text in _strings(array, at))


def _cells(names: tuple[str, ...], types: tuple[str, ...], values: bytes, codec: Codec, at: int) -> Cells | None:
    return _checked(names, types, _values(values, codec, at), at)


def _checked(names: tuple[str, ...], types: tuple[str, ...], values: tuple[Value, ...], at: int) -> Cells | None:
    if not len(names) == len(types) == len(values):
        raise MalformedMessage(f"{len(names)} names, {len(types)} types, {len(values)} values of a row", offset=at)
    return Cells(names, types, values) if names else None


def _values(array: bytes, codec: Codec, at: int) -> tuple[Value, ...]:
    """The values in `array`, what stands between its brackets."""
    if not array:
        return ()
    try:
        literals = _decoded_strings(array, codec)
        if literals is not None:
            return tuple(map(value_of, literals))
    except (UnicodeDecodeError, NotALiteral):
        pass
    # by bytes: the encoding has backslashes inside characters, or something is wrong and its place wanted
    strings = _strings(_keyed(("",), b'{"":[' + array + b"]}", at)[""], at)
    return tuple([value_of_bytes(text, codec, at) for text in strings])


def _decoded_strings(array: bytes, codec: Codec) -> list[str] | None:
    """The strings of an array decoded first and taken apart then; None where that is not possible."""
    if b"\\" not in array:
        text = codec.strict(array)
        strings = text[1:-1].split('","')
        plain = text[0] == text[-1] == '"' and text.count('"') == 2 * len(strings)
        return strings if plain else None
    if not codec.ascii_apart or b"\\u" in array:
        return None
    try:
        found: list[str] = _DECODER.decode(f"[{codec.strict(array)}]")
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError):
        return None
    return found if all(type(text) is str for text in found) else None
