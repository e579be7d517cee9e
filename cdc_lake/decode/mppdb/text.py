"""Rows as text: style t of parallel decoding and test_decoding of the family.

::

    row   := "table " head ": " …                     test_decoding: head is schema.table, each quoted where needed
           | "table " schema " " table " " …          style t: both raw
    …     := "INSERT:" tuple | "UPDATE:" [ " old-key:" cols " new-tuple:" ] tuple | "DELETE:" tuple
    tuple := cols | " (no-tuple-data)"
    cols  := { " " name "[" type "]:" literal }

Values hold line feeds, ` new-tuple:` and anything else in their quotes, so quotes are followed. A statement is decoded
first and then scanned, so that no half of a character is taken for a quote; where it cannot be decoded it is scanned
byte by byte, as it was written, and its pieces are decoded one by one.

The head of style t is ambiguous where a name has a blank. With the tables known (`TableHeads`), the longest known head
that leads to a readable row is taken; without, or if none does, the reading with the shortest schema, then table. Two
known tables with the same head are an error. Source: openGauss 3.0 to 7.0, and recordings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from cdc_lake.decode.mppdb.cells import Cells, RowCells
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.identifiers import NAME, QUOTED, unquote
from cdc_lake.decode.mppdb.literals import NotALiteral, value_of, value_of_bytes
from cdc_lake.decode.mppdb.records import Operation
from cdc_lake.errors import MalformedMessage
from cdc_lake.model.relation import TableName

# The group gives back what it took: Python before 3.11.5 does not find what a possessive one should find here.
_TYPE: Final = rf'[^\]"]*+(?:(?:\](?!:)|{QUOTED})[^\]"]*+)*'
_LITERAL: Final = r"'[^']*+(?:''[^']*+)*+'|B'[01]*+'|[^ \t\r\n']++"
# what cannot be read is caught as a whole: no place is tried twice, so no input takes more than linear time
_COLUMN: Final = re.compile(rf" ({NAME})\[({_TYPE})\]:({_LITERAL})(?= |\Z)|((?s:.+))")
_DOTTED: Final = re.compile(rf"table ({NAME})\.({NAME}): (INSERT|UPDATE|DELETE):(?= |\Z)")
_OPERATION: Final = re.compile(r" (INSERT|UPDATE|DELETE):(?= |\Z)")

_TABLE: Final = "table "
_OLD: Final = " old-key:"
_NEW: Final = " new-tuple:"
_NO_TUPLE: Final = " (no-tuple-data)"
_LONGEST_HEAD: Final = 280
"""Characters in which the operation begins: a name of a table has at most 63 bytes, of some products 127."""

_Columns: TypeAlias = list[tuple[str, str, str, str]]


class TableHeads:
    """How the known tables begin their rows in style t. Build one per stream with `heads`, which remembers them."""

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
                continue  # no such name can stand in this database
            self._bytewise[bytewise] = None if bytewise in self._bytewise else table

    def __bool__(self) -> bool:
        return bool(self._decoded)

    def find(self, head: str, *, bytewise: bool) -> TableName | None:
        """The table that begins its rows with `head`; raises MalformedMessage if there are two."""
        known = self._bytewise if bytewise else self._decoded
        if head not in known:
            return None
        table = known[head]
        if table is None:
            hint = "use `decode-style` b or j, which keep schema and table apart"
            raise MalformedMessage("two known tables begin their rows alike: a schema or table has a blank", hint=hint)
        return table


@lru_cache(maxsize=16)
def heads(tables: frozenset[TableName], codec: Codec) -> TableHeads:
    """The heads of these tables; the same set gives the same object."""
    return TableHeads(tables, codec)


class _Unreadable(Exception):  # noqa: N818, RUF100
    """What stands at `at`, counted in what was scanned, is not of the grammar; never leaves this module."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.message = message
        self.at = at


class _Part(NamedTuple):
    """A tuple as it was scanned: where its first column begins, and its columns."""

    at: int
    columns: _Columns


class _Scanned(NamedTuple):
    """A row as it was scanned; its table by names without quotes, if it was not among the known ones."""

    operation: str
    table: TableName | tuple[str, str]
    new: _Part | None
    old: _Part | None


def serial_row(statement: bytes, codec: Codec, at: int = 0) -> RowCells:
    """The row of test_decoding that stands at byte `at`. Raises DecodeError."""
    return _row(statement, codec, at, lambda text, _: _scan_dotted(text))


def parallel_row(statement: bytes, codec: Codec, known: TableHeads | None = None, at: int = 0) -> RowCells:
    """The row of style t that stands at byte `at`. Raises DecodeError."""
    return _row(statement, codec, at, lambda text, bytewise: _scan_raw(text, known, bytewise=bytewise))


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a row stands around its literals: `between` has one part more than there are literals.

    The first `old` literals are of the old row, the others of the new one.
    """

    between: tuple[bytes, ...]
    old: int


def shape_of(statement: bytes, codec: Codec, known: TableHeads | None, *, serial: bool) -> tuple[RowCells, Shape]:
    """A row, and what stands around its literals. Raises DecodeError."""
    row = serial_row(statement, codec) if serial else parallel_row(statement, codec, known)
    scanned = _scanned(statement.decode("latin-1"), known, serial=serial)
    between, done = [], 0
    for part in (scanned.old, scanned.new):
        at = 0 if part is None else part.at
        for name, type_name, literal, _ in part.columns if part is not None else ():
            at += len(name) + len(type_name) + 4  # ` `, `[`, `]:`
            between.append(statement[done:at])
            at = done = at + len(literal)
    return row, Shape((*between, statement[done:]), 0 if scanned.old is None else len(scanned.old.columns))


def _scanned(text: str, known: TableHeads | None, *, serial: bool) -> _Scanned:
    """The parts of a row by bytes. Raises MalformedMessage where it is readable as text only, as damage makes it."""
    try:
        return _scan_dotted(text) if serial else _scan_raw(text, known, bytewise=True)
    except _Unreadable as unreadable:
        message, wrong = unreadable.message, unreadable.at
    raise MalformedMessage(message, offset=wrong)


def _row(statement: bytes, codec: Codec, at: int, scan: Callable[[str, bool], _Scanned]) -> RowCells:
    try:
        return _decoded(scan(codec.strict(statement), False))
    except (UnicodeDecodeError, MalformedMessage, _Unreadable):
        pass
    # once more by bytes: some do not decode, or the place of the mistake is wanted in bytes
    try:
        return _bytewise(scan(statement.decode("latin-1"), True), codec, at)
    except _Unreadable as unreadable:
        message, wrong = unreadable.message, at + unreadable.at
    raise MalformedMessage(message, offset=wrong)


def _scan_dotted(text: str) -> _Scanned:
    head = _DOTTED.match(text)
    if head is None:
        raise _Unreadable("a row that does not begin with `table`, `schema.table:` and its operation", 0)
    return _scan_tuples(text, head[3], head.end(), (unquote(head[1]), unquote(head[2])))


def _scan_raw(text: str, known: TableHeads | None, *, bytewise: bool) -> _Scanned:
    if not text.startswith(_TABLE):
        raise _Unreadable("a row that does not begin with `table`", 0)
    first: _Unreadable | None = None
    for operation, table, end in _readings(text, known, bytewise=bytewise):
        try:
            return _scan_tuples(text, operation, end, table)
        except _Unreadable as unreadable:
            first = first or unreadable
    raise first or _Unreadable("a row that does not begin with `table`, a schema, a table and its operation", 0)


def _readings(
    text: str, known: TableHeads | None, *, bytewise: bool
) -> Iterator[tuple[str, TableName | tuple[str, str], int]]:
    """Operation, table, and where the tuples begin: each way to read the head, the best one first."""
    start = len(_TABLE)
    if known:
        for found in reversed(list(_OPERATION.finditer(text, start, _LONGEST_HEAD))):
            table = known.find(text[start : found.start()], bytewise=bytewise)
            if table is not None:
                yield found[1], table, found.end()
    for found in _OPERATION.finditer(text, start, _LONGEST_HEAD):
        schema, _, table_name = text[start + 1 : found.start()].partition(" ")
        if table_name:
            yield found[1], (text[start] + schema, table_name), found.end()


def _scan_tuples(text: str, operation: str, at: int, table: TableName | tuple[str, str]) -> _Scanned:
    if operation == "UPDATE" and text.startswith(_OLD, at):
        begin = at + len(_OLD)
        columns = _COLUMN.findall(text, begin)
        rest = columns.pop()[3] if columns else ""
        if not rest.startswith(_NEW):
            raise _Unreadable("neither a column nor ` new-tuple:`", len(text) - len(rest))
        new = _scan_tuple(text, len(text) - len(rest) + len(_NEW))
        return _Scanned(operation, table, new, _Part(begin, columns))
    part = _scan_tuple(text, at)
    if operation == "DELETE":
        return _Scanned(operation, table, None, part)
    return _Scanned(operation, table, part, None)


def _scan_tuple(text: str, at: int) -> _Part | None:
    columns = _COLUMN.findall(text, at)
    if columns and (rest := columns[-1][3]):
        if rest == _NO_TUPLE and len(columns) == 1:
            return None
        raise _Unreadable("not a column: expected ` name[type]:literal`", len(text) - len(rest))
    return _Part(at, columns)


def _decoded(row: _Scanned) -> RowCells:
    table = row.table if isinstance(row.table, TableName) else _table(*row.table)
    new = None if row.new is None else _cells(row.new)
    return RowCells(Operation(row.operation[0]), table, new, None if row.old is None else _cells(row.old))


@lru_cache(maxsize=4096)
def _table(schema: str, name: str) -> TableName:
    return TableName(schema, name)


def _cells(part: _Part) -> Cells:
    if not part.columns:
        return Cells((), (), ())
    names, types, literals, _ = zip(*part.columns, strict=True)
    try:
        values = tuple(map(value_of, literals))
    except NotALiteral:
        raise _Unreadable("not a literal", part.at) from None
    return Cells(*_header(names, types), values)


@lru_cache(maxsize=4096)
def _header(names: tuple[str, ...], types: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(map(unquote, names)), types


def _bytewise(row: _Scanned, codec: Codec, at: int) -> RowCells:
    if isinstance(row.table, TableName):
        table = row.table
    else:
        schema, name = (codec.name(part.encode("latin-1"), at) for part in row.table)
        table = TableName(schema, name)
    new = None if row.new is None else _cells_of_bytes(row.new, codec, at)
    old = None if row.old is None else _cells_of_bytes(row.old, codec, at)
    return RowCells(Operation(row.operation[0]), table, new, old)


def _cells_of_bytes(part: _Part, codec: Codec, at: int) -> Cells:
    names, types, values = [], [], []
    here = at + part.at
    for name, type_name, literal, _ in part.columns:
        names.append(unquote(codec.name(name.encode("latin-1"), here + 1), here + 1))
        types.append(codec.name(type_name.encode("latin-1"), here + len(name) + 2))
        here += len(name) + len(type_name) + 4  # ` `, `[`, `]:`
        values.append(value_of_bytes(literal, codec, here))
        here += len(literal)
    return Cells(tuple(names), tuple(types), tuple(values))
