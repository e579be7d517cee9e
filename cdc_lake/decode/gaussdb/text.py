"""Rows as text: style t of parallel decoding and test_decoding of the family, with their SQL literals and identifiers.

::

    row   := "table " head ": " …                     test_decoding: head is schema.table, each quoted where needed
           | "table " schema " " table " " …          style t: both raw
    …     := "INSERT:" tuple | "UPDATE:" [ " old-key:" cols " new-tuple:" ] tuple | "DELETE:" tuple
    tuple := cols | " (no-tuple-data)"
    cols  := { " " name "[" type "]:" literal }

In literals, numbers are bare and without a leading zero (`.5`), as are `NaN` and `Infinity`; booleans are `true` and
`false`, bit strings `B'101'`, NULL is `null`; everything else is in single quotes, with quotes doubled and backslashes
unchanged. A bare `unchanged-toast-datum` is an unchanged value; in quotes it is an ordinary text. Which words need
quotes in identifiers differs between releases, so names are always unquoted.

Quoted values may contain line feeds, ` new-tuple:` and anything else, so quotes are tracked. A statement is decoded
first and then scanned, so that no half of a character is mistaken for a quote; if it cannot be decoded, it is scanned
bytewise, and its pieces are decoded one by one.

The head of style t is ambiguous if a name contains a blank. If the tables are known (`TableHeads`), the longest known
head that leads to a readable row is used; otherwise, or if none does, the reading with the shortest schema, then table.
Two known tables with the same head are an error. Source: openGauss 3.0 to 7.0, PrintLiteral of parallel_decode.cpp, and
recordings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.records import Cells, Operation, RowCells
from cdc_lake.errors import MalformedMessage
from cdc_lake.model.change import UNCHANGED, Value
from cdc_lake.model.relation import TableName

_WORDS: Final[dict[str, Value]] = {"null": None, "true": "t", "false": "f", "unchanged-toast-datum": UNCHANGED}
NUMBER: Final = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?Infinity|NaN"
"""Pattern of a number, without groups and backtracking."""
BITS: Final = "[01]*"
"""Pattern of the content of a bit string."""

_NUMBER: Final = re.compile(NUMBER)
_BITS: Final = re.compile(f"B'({BITS})'")
_QUOTE: Final = "'"


class NotALiteral(ValueError):
    """Not a literal; never leaves this package."""


def value_of(literal: str) -> Value:
    """The value of a literal. Raises NotALiteral."""
    if literal[:1] == _QUOTE:
        inner = literal[1:-1]
        if literal[-1] == _QUOTE and len(literal) > 1:
            if _QUOTE not in inner:
                return inner
            if _QUOTE not in inner.replace("''", ""):
                return inner.replace("''", _QUOTE)
        raise NotALiteral
    if literal in _WORDS:
        return _WORDS[literal]
    if _NUMBER.fullmatch(literal):
        return literal
    bits = _BITS.fullmatch(literal)
    if bits is None:
        raise NotALiteral
    return bits[1]


def value_of_bytes(literal: str, codec: Codec, offset: int) -> Value:
    """The value of a literal in bytes (as latin-1), at byte `offset`. Raises DecodeError."""
    try:
        value = value_of(literal)
    except NotALiteral:
        raise MalformedMessage("not a literal", offset=offset) from None
    return codec.text(value.encode("latin-1"), offset + (literal[0] == _QUOTE)) if isinstance(value, str) else value


QUOTED: Final = r'"[^"]*+(?:""[^"]*+)*+"'
"""Pattern of a quoted identifier."""
NAME: Final = rf'(?:{QUOTED}|[^ \t\r\n"\'\[\]:.,(){{}}]++)'
"""Pattern of an identifier: quoted, or without any character that could end it."""

_QUALIFIED: Final = re.compile(rf"({NAME})\.({NAME})")


def unquote(name: str, offset: int = 0) -> str:
    """The name of an identifier. `offset` is its byte position, for the error."""
    if not name.startswith('"'):
        if not name:
            raise MalformedMessage("an empty name", offset=offset)
        return name
    inner = name[1:-1]
    if not inner or name[-1] != '"' or '"' in inner.replace('""', ""):
        raise MalformedMessage("a name with unbalanced quotes", offset=offset)
    return inner.replace('""', '"')


def table_name(text: str, offset: int = 0) -> TableName:
    """A schema and a table joined by a dot; a dot inside quotes belongs to the name."""
    parts = _QUALIFIED.fullmatch(text)
    if parts is None:
        raise MalformedMessage("a name that is not `schema.table`", offset=offset)
    return TableName(unquote(parts[1], offset), unquote(parts[2], offset))


# The group is not possessive: Python before 3.11.5 would not find a match here.
_TYPE: Final = rf'[^\]"]*+(?:(?:\](?!:)|{QUOTED})[^\]"]*+)*'
_LITERAL: Final = r"'[^']*+(?:''[^']*+)*+'|B'[01]*+'|[^ \t\r\n']++"
# the unreadable rest is matched as a whole: no position is tried twice, so matching takes linear time
_COLUMN: Final = re.compile(rf" ({NAME})\[({_TYPE})\]:({_LITERAL})(?= |\Z)|((?s:.+))")
_DOTTED: Final = re.compile(rf"table ({NAME})\.({NAME}): (INSERT|UPDATE|DELETE):(?= |\Z)")
_OPERATION: Final = re.compile(r" (INSERT|UPDATE|DELETE):(?= |\Z)")

_TABLE: Final = "table "
_OLD: Final = " old-key:"
_NEW: Final = " new-tuple:"
_LONGEST_HEAD: Final = 280
"""Characters within which the operation begins: a table's name has at most 63 bytes, in some products 127."""


class TableHeads:
    """How the known tables begin their rows in style t. Create one per stream with `heads`, which caches them."""

    __slots__ = ("_bytewise", "_decoded")

    def __init__(self, tables: Collection[TableName], codec: Codec) -> None:
        self._decoded: dict[str, TableName | None] = {}
        self._bytewise: dict[str, TableName | None] = {}
        for table in tables:
            head = f"{table.schema} {table.name}"
            self._decoded[head] = None if head in self._decoded else table
            try:
                bytewise = head.encode(codec.python).decode("latin-1")
            except UnicodeEncodeError:
                continue  # this database cannot have such a name
            self._bytewise[bytewise] = None if bytewise in self._bytewise else table

    def __bool__(self) -> bool:
        return bool(self._decoded)

    def find(self, head: str, *, bytewise: bool) -> TableName | None:
        """The table whose rows begin with `head`; raises MalformedMessage if there are two."""
        tables = self._bytewise if bytewise else self._decoded
        if head not in tables:
            return None
        table = tables[head]
        if table is None:
            hint = "use `decode-style` b or j, which separate schema and table"
            text = "the rows of two known tables begin identically: a schema or table name contains a space"
            raise MalformedMessage(text, hint=hint)
        return table


@lru_cache(maxsize=16)
def heads(tables: frozenset[TableName], codec: Codec) -> TableHeads:
    """The heads of these tables; the same set gives the same object."""
    return TableHeads(tables, codec)


class _Unreadable(Exception):  # noqa: N818, RUF100
    """The text at `offset`, counted in the scanned text, does not match the grammar; never leaves this module."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


class _Part(NamedTuple):
    """A scanned tuple: the position of its first column, and its columns."""

    offset: int
    columns: list[tuple[str, str, str, str]]


class _Scanned(NamedTuple):
    """A scanned row; its table by unquoted names, if it is not a known one."""

    operation: str
    table: TableName | tuple[str, str]
    new: _Part | None
    old: _Part | None


def serial_row(statement: bytes, codec: Codec, offset: int = 0) -> RowCells:
    """Parse the row of test_decoding at byte `offset`. Raises DecodeError."""
    return _row(statement, codec, offset, lambda text, _: _scan_dotted(text))


def parallel_row(statement: bytes, codec: Codec, table_heads: TableHeads | None = None, offset: int = 0) -> RowCells:
    """Parse the row of style t at byte `offset`. Raises DecodeError."""
    return _row(statement, codec, offset, lambda text, bytewise: _scan_raw(text, table_heads, bytewise=bytewise))


@dataclass(frozen=True, slots=True)
class TextRowTemplate:
    """The parts of a row around its literals: `between` has one part more than there are literals.

    The first `old` literals belong to the old row, the others to the new one.
    """

    between: tuple[bytes, ...]
    old: int


def shape_of(
    statement: bytes, codec: Codec, table_heads: TableHeads | None, *, serial: bool
) -> tuple[RowCells, TextRowTemplate]:
    """A row, and the parts around its literals. Raises DecodeError."""
    row = serial_row(statement, codec) if serial else parallel_row(statement, codec, table_heads)
    text = statement.decode("latin-1")
    try:
        scanned = _scan_dotted(text) if serial else _scan_raw(text, table_heads, bytewise=True)
    except _Unreadable as unreadable:  # only its text is readable, as after damage
        raise MalformedMessage(unreadable.message, offset=unreadable.offset) from None
    between, covered = [], 0
    for part in (scanned.old, scanned.new):
        offset = 0 if part is None else part.offset
        for name, type_name, literal, _ in part.columns if part is not None else ():
            offset += len(name) + len(type_name) + 4  # ` `, `[`, `]:`
            between.append(statement[covered:offset])
            offset = covered = offset + len(literal)
    return row, TextRowTemplate((*between, statement[covered:]), 0 if scanned.old is None else len(scanned.old.columns))


def _row(statement: bytes, codec: Codec, offset: int, scan: Callable[[str, bool], _Scanned]) -> RowCells:
    try:
        row = scan(codec.strict(statement), False)
        table = row.table if isinstance(row.table, TableName) else _table(*row.table)
        new = None if row.new is None else _cells(row.new)
        return RowCells(Operation(row.operation[0]), table, new, None if row.old is None else _cells(row.old))
    except (UnicodeDecodeError, MalformedMessage, _Unreadable):
        pass
    # again bytewise: some parts do not decode, or the error needs its byte position
    try:
        return _bytewise(scan(statement.decode("latin-1"), True), codec, offset)
    except _Unreadable as unreadable:
        raise MalformedMessage(unreadable.message, offset=offset + unreadable.offset) from None


def _scan_dotted(text: str) -> _Scanned:
    head = _DOTTED.match(text)
    if head is None:
        raise _Unreadable("a row that does not begin with `table`, `schema.table:` and its operation", 0)
    return _scan_tuples(text, head[3], head.end(), (unquote(head[1]), unquote(head[2])))


def _scan_raw(text: str, table_heads: TableHeads | None, *, bytewise: bool) -> _Scanned:
    if not text.startswith(_TABLE):
        raise _Unreadable("a row that does not begin with `table`", 0)
    first: _Unreadable | None = None
    for operation, table, end in _readings(text, table_heads, bytewise=bytewise):
        try:
            return _scan_tuples(text, operation, end, table)
        except _Unreadable as unreadable:
            first = first or unreadable
    raise first or _Unreadable("a row that does not begin with `table`, a schema, a table and its operation", 0)


def _readings(
    text: str, table_heads: TableHeads | None, *, bytewise: bool
) -> Iterator[tuple[str, TableName | tuple[str, str], int]]:
    """Operation, table, and start of the tuples: each possible reading of the head, the best one first."""
    start = len(_TABLE)
    if table_heads:
        for match in reversed(list(_OPERATION.finditer(text, start, _LONGEST_HEAD))):
            table = table_heads.find(text[start : match.start()], bytewise=bytewise)
            if table is not None:
                yield match[1], table, match.end()
    for match in _OPERATION.finditer(text, start, _LONGEST_HEAD):
        schema, _, table_name = text[start + 1 : match.start()].partition(" ")
        if table_name:
            yield match[1], (text[start] + schema, table_name), match.end()


def _scan_tuples(text: str, operation: str, offset: int, table: TableName | tuple[str, str]) -> _Scanned:
    if operation == "UPDATE" and text.startswith(_OLD, offset):
        begin = offset + len(_OLD)
        columns = _COLUMN.findall(text, begin)
        rest = columns.pop()[3] if columns else ""
        if not rest.startswith(_NEW):
            raise _Unreadable("neither a column nor ` new-tuple:`", len(text) - len(rest))
        new = _scan_tuple(text, len(text) - len(rest) + len(_NEW))
        return _Scanned(operation, table, new, _Part(begin, columns))
    part = _scan_tuple(text, offset)
    if operation == "DELETE":
        return _Scanned(operation, table, None, part)
    return _Scanned(operation, table, part, None)


def _scan_tuple(text: str, offset: int) -> _Part | None:
    columns = _COLUMN.findall(text, offset)
    if columns and (rest := columns[-1][3]):
        if rest == " (no-tuple-data)" and len(columns) == 1:
            return None
        raise _Unreadable("not a column: expected ` name[type]:literal`", len(text) - len(rest))
    return _Part(offset, columns)


_table: Final = lru_cache(maxsize=4096)(TableName)


def _cells(part: _Part) -> Cells:
    if not part.columns:
        return Cells((), (), ())
    names, types, literals, _ = zip(*part.columns, strict=True)
    try:
        values = tuple(map(value_of, literals))
    except NotALiteral:
        raise _Unreadable("not a literal", part.offset) from None
    return Cells(*_header(names, types), values)


@lru_cache(maxsize=4096)
def _header(names: tuple[str, ...], types: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(map(unquote, names)), types


def _bytewise(row: _Scanned, codec: Codec, offset: int) -> RowCells:
    if isinstance(row.table, TableName):
        table = row.table
    else:
        schema, name = (codec.name(part.encode("latin-1"), offset) for part in row.table)
        table = TableName(schema, name)
    new = None if row.new is None else _cells_of_bytes(row.new, codec, offset)
    old = None if row.old is None else _cells_of_bytes(row.old, codec, offset)
    return RowCells(Operation(row.operation[0]), table, new, old)


def _cells_of_bytes(part: _Part, codec: Codec, offset: int) -> Cells:
    names, types, values = [], [], []
    here = offset + part.offset
    for name, type_name, literal, _ in part.columns:
        names.append(unquote(codec.name(name.encode("latin-1"), here + 1), here + 1))
        types.append(codec.name(type_name.encode("latin-1"), here + len(name) + 2))
        here += len(name) + len(type_name) + 4  # ` `, `[`, `]:`
        values.append(value_of_bytes(literal, codec, here))
        here += len(literal)
    return Cells(tuple(names), tuple(types), tuple(values))
