"""Rows as JSON: serial mppdb_decoding and style j, which write the same bytes.

One object with eight keys, always all, in this order and without blanks: `table_name` (quoted, joined by a dot),
`op_type`, then `columns_name`, `columns_type`, `columns_val`, `old_keys_name`, `old_keys_type`, `old_keys_val`, which
are arrays of strings. Names are identifiers, values SQL literals. A tuple that was not sent has empty arrays.

The part before the values is the same for all rows of one layout and operation and is parsed once. Strings are escaped
bytewise in the encoding of the database, and the second byte of a GBK character may be a backslash, which is then
doubled: for such encodings, escapes are undone in bytes and the result is decoded. Source: openGauss 1.0 to 7.0, and
recordings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb import text as identifiers
from cdc_lake.decode.gaussdb.records import Cells, Operation, RowCells
from cdc_lake.decode.gaussdb.text import NotALiteral, value_of, value_of_bytes
from cdc_lake.errors import DecodeError, MalformedMessage
from cdc_lake.model.change import Value
from cdc_lake.model.relation import TableName

START: Final = b'{"table_name":"'
"""The beginning of a row."""

# none of these can occur inside a string, where a quote follows a backslash
_VALUES: Final = b'],"columns_val":['
_OLD: Final = b'],"old_keys_name":['
_OLD_VALUES: Final = b'],"old_keys_val":['
_NO_OLD: Final = b'],"old_keys_name":[],"old_keys_type":[],"old_keys_val":[]}'
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


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a duplicate key")
    return members


_DECODER: Final = json.JSONDecoder(strict=False, object_pairs_hook=_object)
"""A control character in a string is accepted; a duplicate key is an error, because it is ambiguous."""


T = TypeVar("T")


class _Head(NamedTuple):
    table: TableName
    operation: Operation
    names: tuple[str, ...]
    types: tuple[str, ...]


def json_row(statement: bytes, codec: Codec, offset: int = 0) -> RowCells:
    """Parse the row of a JSON object at byte `offset`. Raises DecodeError."""
    values = statement.find(_VALUES)
    if values < 0 or not statement.startswith(START):
        return _any_row(statement, codec, offset)
    head = _with_location(_read_head, statement[:values], codec, offset)
    if statement.endswith(_NO_OLD):
        begin = values + len(_VALUES)
        new = _cells(head.names, head.types, statement[begin : -len(_NO_OLD)], codec, offset + begin)
        return RowCells(head.operation, head.table, new, None)
    old = statement.find(_OLD, values)
    old_values = statement.find(_OLD_VALUES, old)
    if old < 0 or old_values < 0 or not statement.endswith(_END):
        return _any_row(statement, codec, offset)
    names, types = _with_location(_read_old_head, statement[old + len(_OLD) : old_values], codec, offset + old)
    begin, old_begin = values + len(_VALUES), old_values + len(_OLD_VALUES)
    return RowCells(
        head.operation,
        head.table,
        _cells(head.names, head.types, statement[begin:old], codec, offset + begin),
        _cells(names, types, statement[old_begin : -len(_END)], codec, offset + old_begin),
    )


@dataclass(frozen=True, slots=True)
class JsonRowTemplate:
    """The parts of a row before, between and after the values of its tuples, and the number of these values."""

    before: bytes
    between: bytes
    after: bytes
    new: int
    old: int


def shape_of(statement: bytes, codec: Codec) -> tuple[RowCells, JsonRowTemplate | None]:
    """A row, and the template around its values; None if it is not formatted as by servers. Raises DecodeError."""
    row = json_row(statement, codec)
    values = statement.find(_VALUES) + len(_VALUES)
    old = statement.find(_OLD, values - 1)
    old_values = statement.find(_OLD_VALUES, old) + len(_OLD_VALUES)
    new_count, old_count = (0 if part is None else len(part.names) for part in (row.new, row.old))
    complete = values >= len(_VALUES) and old >= 0 and old_values >= len(_OLD_VALUES)
    if not complete or not statement.startswith(START) or not statement.endswith(_END):
        return row, None
    return row, JsonRowTemplate(statement[:values], statement[old:old_values], _END, new_count, old_count)


def _with_location(read: Callable[..., T], data: bytes, codec: Codec, offset: int) -> T:
    """The result of a cached reader; an error names the location, which is no part of the cache's key."""
    try:
        return read(data, codec)
    except DecodeError:
        return read(data, codec, offset)


@lru_cache(maxsize=2048)
def _read_head(statement: bytes, codec: Codec, offset: int = 0) -> _Head:
    """The part before the values of the new row."""
    return _head_of(_parse_keyed_object(_KEYS[:4], statement + b"]}", offset), codec, offset)


@lru_cache(maxsize=2048)
def _read_old_head(arrays: bytes, codec: Codec, offset: int = 0) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names and types of an old row."""
    names, _, types = arrays.partition(b'],"old_keys_type":[')
    members = _parse_keyed_object(("names", "types"), b'{"names":[' + names + b'],"types":[' + types + b"]}", offset)
    return _names(members["names"], codec, offset), _types(members["types"], codec, offset)


def _any_row(statement: bytes, codec: Codec, offset: int) -> RowCells:
    """The same for an object with another order of keys, or with blanks between them."""
    members = _parse_object(statement, offset)
    if set(members) != set(_KEYS):
        raise MalformedMessage("a row whose keys do not match the format", offset=offset)
    head = _head_of(members, codec, offset)
    old_names = _names(members["old_keys_name"], codec, offset)
    old_types = _types(members["old_keys_type"], codec, offset)
    new, old = (
        [value_of_bytes(text, codec, offset) for text in _strings(members[key], offset)]
        for key in ("columns_val", "old_keys_val")
    )
    return RowCells(
        head.operation,
        head.table,
        _check_cells(head.names, head.types, tuple(new), offset),
        _check_cells(old_names, old_types, tuple(old), offset),
    )


def _parse_keyed_object(keys: tuple[str, ...], data: bytes, offset: int) -> dict[str, Any]:
    """Parse an object with these keys in this order."""
    members = _parse_object(data, offset)
    if tuple(members) != keys:
        raise MalformedMessage("a row whose keys do not match the format", offset=offset)
    return members


def _parse_object(data: bytes, offset: int) -> dict[str, Any]:
    """Parse an object, with its strings bytewise (as latin-1)."""
    try:
        members = _DECODER.decode(data.decode("latin-1"))
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict):
        raise MalformedMessage("a row that is not a JSON object with unique keys", offset=offset)
    return members


def _strings(array: object, offset: int) -> list[str]:
    if not isinstance(array, list) or not all(isinstance(text, str) for text in array):
        raise MalformedMessage("a row with a value that is not an array of strings", offset=offset)
    if any(max(text, default="") > "\xff" for text in array):
        raise MalformedMessage("an escape of a character that does not fit into one byte", offset=offset)
    return array


def _head_of(members: dict[str, Any], codec: Codec, offset: int) -> _Head:
    operation = Operation.__members__.get(str(members["op_type"]))
    if operation is None:
        raise MalformedMessage("a row whose op_type is not INSERT, UPDATE or DELETE", offset=offset)
    (name,) = _strings([members["table_name"]], offset)
    table = identifiers.table_name(codec.name(name.encode("latin-1"), offset), offset)
    names, types = members["columns_name"], members["columns_type"]
    return _Head(table, operation, _names(names, codec, offset), _types(types, codec, offset))


def _names(array: object, codec: Codec, offset: int) -> tuple[str, ...]:
    return tuple(identifiers.unquote(text, offset) for text in _types(array, codec, offset))


def _types(array: object, codec: Codec, offset: int) -> tuple[str, ...]:
    return tuple(codec.name(text.encode("latin-1"), offset) for text in _strings(array, offset))


def _cells(names: tuple[str, ...], types: tuple[str, ...], values: bytes, codec: Codec, offset: int) -> Cells | None:
    return _check_cells(names, types, _values(values, codec, offset), offset)


def _check_cells(
    names: tuple[str, ...], types: tuple[str, ...], values: tuple[Value, ...], offset: int
) -> Cells | None:
    if not len(names) == len(types) == len(values):
        raise MalformedMessage(f"{len(names)} names, {len(types)} types, {len(values)} values of a row", offset=offset)
    return Cells(names, types, values) if names else None


def _values(array: bytes, codec: Codec, offset: int) -> tuple[Value, ...]:
    """The values in `array`, the content of its brackets."""
    if not array:
        return ()
    try:
        literals = _decoded_strings(array, codec)
        if literals is not None:
            return tuple(map(value_of, literals))
    except (UnicodeDecodeError, NotALiteral):
        pass
    # bytewise: the encoding has backslashes inside characters, or an error needs its location
    strings = _strings(_parse_keyed_object(("",), b'{"":[' + array + b"]}", offset)[""], offset)
    return tuple([value_of_bytes(text, codec, offset) for text in strings])


def _decoded_strings(array: bytes, codec: Codec) -> list[str] | None:
    """Decode an array first and then split its strings; None if that is impossible."""
    if b"\\" not in array:
        text = codec.strict(array)
        strings = text[1:-1].split('","')
        plain = text[0] == text[-1] == '"' and text.count('"') == 2 * len(strings)
        return strings if plain else None
    if not codec.ascii_apart or b"\\u" in array:
        return None
    try:
        strings_list: list[str] = _DECODER.decode(f"[{codec.strict(array)}]")
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError):
        return None
    return strings_list if all(type(text) is str for text in strings_list) else None
