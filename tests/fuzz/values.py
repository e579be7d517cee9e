"""Targets of values: COPY's formats, arrays, times, and values that pgoutput sends in binary."""

from __future__ import annotations

import datetime as dt
import itertools
import random
import struct
from collections.abc import Sequence
from functools import cache

from cdc_lake.decode.encoding import Codec, Policy
from cdc_lake.decode.gaussdb.serial import micros
from cdc_lake.decode.pgoutput.binary_values import READERS
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import CdcLakeError, MalformedPosition, UnreadableTime
from cdc_lake.model.position import Csn, Lsn
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake.source.base import StreamIdentity
from cdc_lake.source.copy_format import chunks_of, csv_chunks, fields_of, parse_line
from cdc_lake.tables.canonical_values import elements_of
from cdc_lake_testing.messages import boundaries, oid_of, table
from tests.fuzz.pgoutput import alike
from tests.fuzz.target import Finding, Target, refused

WIDTHS = (0, 1, 2, 5)
LAYOUTS = tuple(table("public.t", **{f"c{n}": "text" for n in range(width)}) for width in WIDTHS[1:])
NOTHING = Relation(TableName("public", "t"), (), ReplicaIdentity.DEFAULT)
CODECS = (Codec(), Codec("SQL_ASCII", Policy.HEX), Codec("SQL_ASCII"))

# ── COPY ──


def some_copies() -> list[bytes]:
    r"""COPY's text format; the first byte: columns and codec."""
    dice = random.Random(9)
    pieces = ("a", "\\N", "\\\\", "\\t", "\\n", "é", "日", "\\b\\v", "", "\\\\N", "0x", "\\xff")
    found = []
    for nth in range(60):
        width = WIDTHS[nth % 4]
        rows = [
            "\t".join("".join(dice.choices(pieces, k=dice.randrange(3))) for _ in range(width))
            for _ in range(dice.randrange(1, 6))
        ]
        found.append(bytes([nth % 4 | (nth % 3) << 2]) + "".join(f"{row}\n" for row in rows).encode())
    return found


def how_copied(data: bytes) -> tuple[Relation, Codec, list[bytes]]:
    told = data[0] if data else 0
    relation = (NOTHING, *LAYOUTS)[told & 3]
    rows = data[1:].split(b"\n")
    return relation, CODECS[(told >> 2) % 3], [row + b"\n" for row in rows[:-1]]


def a_copy(data: bytes) -> bool:
    relation, codec, rows = how_copied(data)
    width = len(relation.columns)
    if any(row.count(b"\t") + 1 != width for row in rows) and width:
        return False  # a server that answers with another table than it was asked for
    if any(_escaped_end(row) or _escaped_byte(row) for row in rows):
        return False
    try:
        whole = [row for chunk in chunks_of(rows, relation, 3, codec) for row in chunk.to_pylist()]
        alone = [row for one in rows for chunk in chunks_of([one], relation, 3, codec) for row in chunk.to_pylist()]
    except CdcLakeError as error:
        return refused(error)
    if whole != alone:
        raise Finding(f"rows together: {whole!r}, alone: {alone!r}")
    joined = b"".join(rows)
    if width and codec is CODECS[0]:
        lines = [parse_line(row[:-1].decode(), width) for row in rows]
        if fields_of(joined).to_pylist() != list(itertools.chain.from_iterable(lines)) or whole != lines:
            raise Finding(f"as columns: {whole!r}, line by line: {lines!r}")
    return True


def _escaped_end(row: bytes) -> bool:
    """A delimiter behind a backslash: COPY writes none."""
    return any(len(field) - len(field.rstrip(b"\\")) & 1 for field in row[:-1].split(b"\t"))


def _escaped_byte(row: bytes) -> bool:
    """A byte of a longer character behind a backslash: COPY writes none, and takes none."""
    return any(one >= 0x80 and before == ord("\\") for before, one in itertools.pairwise(row))


def some_csv() -> list[bytes]:
    dice = random.Random(10)
    pieces = ('"a"', '""', "", '"it""s"', '"\n"', '"é,"', '"\\N"', '"\t"')
    found = []
    for nth in range(40):
        rows = [",".join(dice.choice(pieces) for _ in range(WIDTHS[nth % 4])) for _ in range(dice.randrange(1, 5))]
        found.append(bytes([nth % 4]) + "\0".join(f"{row}\n" for row in rows).encode())
    return found


def a_csv(data: bytes) -> bool:
    """Rows as messages, which a zero byte parts here: no text of a server has one."""
    relation = (NOTHING, *LAYOUTS)[(data[0] if data else 0) & 3]
    rows = data[1:].split(b"\0")
    if not relation.columns or not all(_written_by_copy(row, len(relation.columns)) for row in rows):
        return False
    try:
        found = [row for chunk in csv_chunks(rows, relation, Codec()) for row in chunk.to_pylist()]
    except CdcLakeError as error:
        return refused(error)
    except UnicodeDecodeError:
        return False  # the server converts to UTF-8
    expected = [_csv_values(row) for row in rows]
    if found != expected:
        raise Finding(f"{found!r} of {expected!r}")
    return True


def _fields(row: bytes) -> list[bytes]:
    """The fields of a row as they are written."""
    out, quoted, begin = [], False, 0
    for at, one in enumerate(row[:-1]):
        quoted ^= one == ord('"')
        if one == ord(",") and not quoted:
            out.append(row[begin:at])
            begin = at + 1
    return [*out, row[begin:-1]]


def _written_by_copy(row: bytes, width: int) -> bool:
    """With every value quoted; an unquoted field is NULL."""
    if not row.endswith(b"\n"):
        return False
    fields = _fields(row)
    whole = all(not field or (len(field) > 1 and field[:1] == field[-1:] == b'"' and b'"' not in field[1:-1].replace(b'""', b"")) for field in fields)  # fmt: skip
    return whole and len(fields) == width


def _csv_values(row: bytes) -> list[str | None]:
    return [field[1:-1].replace(b'""', b'"').decode() if field else None for field in _fields(row)]


# ── texts ──


def some_texts() -> list[bytes]:
    texts = ["{}", "{1,2,NULL}", '{"a b","c\\"d","\\\\"}', "{{1},{2}}", "[2:3]={1,2}", "2024-02-06 07:17:19.45874+08"]
    texts += [
        "0099-12-31 23:59:59+08:05:43 BC",
        "12024-01-01 00:00:00-03:30",
        "0/16B3748",
        "FFFFFFFF/FFFFFFFF",
        "951909",
    ]
    texts += ["pg:7:d:s:0/1", "gauss:7:a:b:s:lsn:5@0/1", "gauss:7:d:s:csn:5@0/1", "public.orders", "a\\.b.c\\\\"]
    return [text.encode() for text in texts]


def a_text(data: bytes) -> bool:
    """A text as all readers of short texts see it; what one takes, it writes again."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return any([_array(text), _time(text), _position(text), _identity(text), _name(text)])


def _array(text: str) -> bool:
    found = elements_of(text)
    if found is None:
        return False
    quoted = ("NULL" if one is None else '"' + one.replace("\\", "\\\\").replace('"', '\\"') + '"' for one in found)
    if elements_of("{" + ",".join(quoted) + "}") != found:
        raise Finding(f"the array {found!r} is another one when it is read again")
    return True


def _time(text: str) -> bool:
    try:
        found = micros(text)
    except UnreadableTime:
        return False
    if not -(1 << 63) <= found < 1 << 63:
        raise Finding(f"{text}: {found} is a time that bronze has no room for")
    try:
        meant = dt.datetime.fromisoformat(text)
    except ValueError:
        return True  # a year or a leap second that Python does not have
    since = meant - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    if since // dt.timedelta(microseconds=1) != found:
        raise Finding(f"{text}: {found}, not {since}")
    return True


def _position(text: str) -> bool:
    for kind in (Lsn, Csn):
        try:
            one = kind.parse(text)
        except MalformedPosition as error:
            refused(error)
            continue
        if kind.parse(str(one)) != one or not 0 <= one.value < 1 << 64:
            raise Finding(f"{text} is {one}")
        return True
    return False


def _identity(text: str) -> bool:
    try:
        one = StreamIdentity.parse(text)
    except CdcLakeError as error:
        return refused(error)
    if StreamIdentity.parse(str(one)) != one:
        raise Finding(f"{text} is {one}")
    return True


def _name(text: str) -> bool:
    try:
        one = TableName.parse(text)
    except ValueError:
        return False
    if TableName.parse(str(one)) != one:
        raise Finding(f"{text} is {one}")
    return True


# ── values in binary ──

SIZES = (0, 1, 2, 4, 5, 6, 8, 12, 16, 20, 24, 32)
TELLING = bytes(range(4)) + b"\x10\x7f\x80\xff" + b"ab"
TYPES = (*READERS, 16_999)


def some_binaries() -> list[bytes]:
    """Two bytes say the type; then a value, of which some bytes are what types begin with: counts, flags, signs."""
    dice = random.Random(11)
    found = []
    for number in range(len(TYPES)):
        for _ in range(4):
            size = dice.choice(SIZES)
            some = dice.randbytes(size) if dice.random() < 0.4 else bytes(dice.choice(TELLING) for _ in range(size))
            some = some if dice.random() < 0.5 else struct.pack(">I", dice.randrange(3)) + some
            found.append(number.to_bytes(2, "big") + some)
    return found


def a_binary(data: bytes) -> bool:
    oid = TYPES[int.from_bytes(data[:2], "big") % len(TYPES)]
    layout = Relation(
        TableName("public", "t"), (Column("a", "some", oid), Column("b", "text", 25)), ReplicaIdentity.FULL
    )
    head = struct.pack(">I", oid_of(layout.table))
    row = struct.pack(">H", 2) + b"b" + struct.pack(">I", len(data[2:])) + data[2:] + b"t\0\0\0\1y"
    frames: Sequence[bytes] = [
        b"I" + head + b"N" + row,
        b"U" + head + b"O" + row + b"N" + row,
        b"D" + head + b"O" + row,
    ]
    raw = BufferedTransaction(boundaries(500), list(frames), [7] * 3, [layout] * 3, {}, sum(map(len, frames)))
    return alike([raw])


@cache
def targets() -> tuple[Target, ...]:
    return (
        Target("copy_text", a_copy, some_copies, (b"\t", b"\n", b"\\", b"\\N", b"\\\\", b"0x")),
        Target("copy_csv", a_csv, some_csv, (b'"', b'""', b",", b"\n\0", b"\r", b'"\n"')),
        Target(
            "text",
            a_text,
            some_texts,
            (b"{", b"}", b'"', b"\\", b",", b"NULL", b"/", b":", b"@", b" BC", b"+08", b".", b"-02-29"),
        ),
        Target("binary_value", a_binary, some_binaries, (b"\0\0\0\1", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\xc0\0")),
    )
