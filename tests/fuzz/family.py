"""Targets of the GaussDB family and of test_decoding: single records by both decoders, and whole payloads."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from unittest import mock

from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.encoding import PREFIX, Codec, Policy
from cdc_lake.decode.gaussdb import columnar, framing, literal_columnar, row_templates
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import RecordTransaction, changes, tabulate_plain
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.records import Begin, Commit, Field, Operation, Record, Row, Style, Truncated
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.gaussdb.serial import records
from cdc_lake.decode.test_decoding import LineAssembler
from cdc_lake.errors import CdcLakeError, DecodeError
from cdc_lake.model.change import UNCHANGED, Boundaries
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import ReplicaIdentity, TableName
from cdc_lake_testing.gaussdb.encode import Ending, Framing, Print, binary_record, encode_payload, statement
from tests.decoded_columns import assert_same
from tests.fuzz.parking import InMemory
from tests.fuzz.target import REFUSED_ALONE, Finding, Judged, Target, of_records, records_of, refused, storable

TABLES = {
    TableName("public", "orders"): {"id": "bigint", "paid": "boolean", "flags": "bit varying", "n": "numeric", "note": "text"},
    TableName("public", "Wide one"): {f'c"{n}': "text" for n in range(7)},
    TableName("s", "t"): {"id": "integer"},
    TableName("public", "ü"): {"id": "integer", "ö": "text"},
}  # fmt: skip
OIDS = {"bigint": 20, "boolean": 16, "bit varying": 1562, "numeric": 1700, "text": 25, "integer": 23}
SHORT = {"bigint": "int8", "boolean": "bool", "bit varying": "varbit"}
WHOLE = TableName("s", "t")
PIECES = 8
TEXTS = (
    "",
    "x",
    "it's",
    "''",
    "a\\b",
    '"',
    "],",
    " new-tuple: id[bigint]:1",
    "null",
    "B'1'",
    "\n\t\x01",
    "中😀",
    "x" * 90,
)
NUMBERS = ("0", "7", "-1", ".5", "1e+100", "NaN", "12345678", "-1234567890123456", "9" * 60)
WORDS = (
    PREFIX.encode(),
    b"'",
    b"''",
    b'"',
    b"\\",
    b'\\"',
    b"\\u0041",
    b"[",
    b"]:",
    b",",
    b"null",
    b"true",
    b"B'1'",
    b" old-key: ",
    b" new-tuple: ",
)
WORDS += (
    b"table ",
    b": INSERT: ",
    b": UPDATE: ",
    b": DELETE: ",
    b"unchanged-toast-datum",
    b"(no-tuple-data)",
    b'"columns_name":[',
)
WORDS += (
    b"BEGIN ",
    b"COMMIT ",
    b"CSN: 5",
    b"xid: 7",
    b"first_lsn: 0/1",
    b"commit_time: 2024-02-06 07:17:19.45874+08",
    b": TRUNCATE: ",
)
BINARY_WORDS = (
    PREFIX.encode(),
    b"N",
    b"O",
    b"I",
    b"U",
    b"D",
    b"B",
    b"C",
    b"P",
    b"F",
    b"X",
    b"T",
    b"\xff\xff\xff\xff",
    b"\0\0\0\x19",
    b"\0\x01",
    b"\0\x02id",
)


def facts(table: TableName) -> GaussDbTableMetadata | None:
    columns = TABLES.get(table)
    if columns is None:
        return None
    found = tuple(GaussDbColumn(name, SHORT.get(kind, kind), OIDS[kind]) for name, kind in columns.items())
    key = tuple(columns)[:1]
    if table == WHOLE:
        return GaussDbTableMetadata(found, identity=ReplicaIdentity.FULL)
    return GaussDbTableMetadata(found, key, identity_columns=key)


def some_row(dice: random.Random) -> Row:
    table = dice.choice(list(TABLES))
    columns = TABLES[table]

    def value(kind: str) -> object:
        if dice.random() < 0.15:
            return None if dice.random() < 0.8 else UNCHANGED
        match kind:
            case "boolean":
                return dice.choice("tf")
            case "bit varying":
                return f"{dice.randrange(9):b}"
            case "text":
                return dice.choice(TEXTS)
        return dice.choice(NUMBERS)

    new = tuple(Field(name, value(kind), kind, OIDS[kind]) for name, kind in columns.items())  # type: ignore[arg-type]
    key = tuple(Field(f.name, "1" if f.type_name != "text" else "k'", f.type_name, f.type_oid) for f in new[:1])
    match dice.choice("IIUUD"):
        case "I":
            return Row(Operation.INSERT, table, new)
        case "U":
            return Row(Operation.UPDATE, table, new, dice.choice((None, key)))
    return Row(Operation.DELETE, table, None, key)


def without_unchanged(row: Row) -> Row:
    """As style b has it, which sends every value."""
    new = None if row.new is None else tuple(Field(f.name, None if f.value is UNCHANGED else f.value, f.type_name, f.type_oid) for f in row.new)  # fmt: skip
    return Row(row.operation, row.table, new, row.old)


class LeftOver(Exception):
    """The fast decoder leaves something to the plain one."""


@dataclass(frozen=True)
class FamilyRecords:
    """One record of a transaction. `lines`: of PostgreSQL's test_decoding, which takes nothing back."""

    name: str
    how: Print
    lines: bool = False

    def seeds(self) -> list[bytes]:
        dice = random.Random(3)
        rows = [some_row(dice) for _ in range(150)]
        if self.how.style is Style.BINARY:
            return [binary_record(without_unchanged(row), "utf-8")[12:] for row in rows]
        found = [statement(row, self.how) for row in rows]
        if self.how.style is Style.SERIAL:
            found.append(statement(Truncated(tuple(TABLES)[:2], cascade=True), self.how))
        return found

    @cached_property
    def target(self) -> Target:
        words = BINARY_WORDS if self.how.style is Style.BINARY else WORDS
        return Target(self.name, lambda data: self._alike([self._raw(data)]), self.seeds, words)

    def _layouts(self) -> RelationResolver:
        return RelationResolver(facts, tables=frozenset(TABLES), takes_back=not self.lines)

    def _raw(self, record: bytes) -> RecordTransaction:
        return RecordTransaction(Boundaries(1, 1, commit_lsn=1), self.how.style, [record], [7], len(record))

    def many(self, frames: Sequence[bytes]) -> Judged:
        good, bad = self._parted(frames)
        try:
            plain = tabulate_plain(good, self._layouts())
        except DecodeError:  # what a refused one had taught made another one readable
            good, bad = self._parted(frames, exactly=True)
            plain = tabulate_plain(good, self._layouts())
        for one in bad[::REFUSED_ALONE]:
            self._alike([one])
        if not good:
            return Judged(0, 0)
        with any_number_of_shapes(), mock.patch.object(columnar, "SMALL", 1):
            left = self._left_over(good, plain)
            if left:  # one that is odd leaves all of them to the plain decoder
                size = max(1, len(good) // PIECES)
                pieces = [good[at : at + size] for at in range(0, len(good), size)]
                left = sum(len(piece) for piece in pieces if not self._vouched(piece))
        return Judged(len(good), len(good) - left)

    def _parted(
        self, frames: Sequence[bytes], *, exactly: bool = False
    ) -> tuple[list[RecordTransaction], list[RecordTransaction]]:
        """Those that the plain decoder takes, one behind the other, and those that it refuses. `exactly`: a refused
        one teaches nothing.
        """
        layouts, good, bad = self._layouts(), list[RecordTransaction](), list[RecordTransaction]()
        for frame in frames:
            raw = self._raw(frame)
            mark = layouts.mark() if exactly else None
            try:
                changes(raw, layouts)
                good.append(raw)
            except DecodeError as error:
                if mark is not None:
                    layouts.restore(mark)
                refused(error, frame)
                bad.append(raw)
        return good, bad

    def _left_over(self, good: Sequence[RecordTransaction], plain: ChangeColumns | None = None) -> int:
        """Hold both decoders against each other; how many transactions the fast one left to the plain one."""
        fell_back = mock.Mock(side_effect=tabulate_plain)
        with mock.patch.object(columnar, "tabulate_plain", fell_back):
            alike(good, self._layouts(), self._layouts(), plain)
        return sum(len(call.args[0]) for call in fell_back.call_args_list)

    def _vouched(self, good: Sequence[RecordTransaction]) -> bool:
        """Whether the fast decoder takes all of them itself; then the plain one does the same."""
        first, second = self._layouts(), self._layouts()
        try:
            with mock.patch.object(columnar, "tabulate_plain", side_effect=LeftOver):
                fast = tabulate(good, first)
        except LeftOver:
            return False
        assert_same(fast, tabulate_plain(good, second))
        if first.latest() != second.latest():
            raise Finding("the decoders learned different layouts")
        return True

    def _alike(self, raws: Sequence[RecordTransaction]) -> bool:
        return alike(raws, self._layouts(), self._layouts())


@contextmanager
def any_number_of_shapes() -> Iterator[None]:
    """Damage makes many, and a batch of many is left to the plain decoder."""
    with mock.patch.object(row_templates, "SOME", 1 << 30), mock.patch.object(literal_columnar, "_SOME", 1 << 30):
        yield


def alike(
    raws: Sequence[RecordTransaction],
    first: RelationResolver,
    second: RelationResolver,
    known: ChangeColumns | None = None,
) -> bool:
    """Whether both decoders take the transactions; they do the same, and learn the same. `known`: what the plain one
    gives, where it was asked already.
    """
    results: list[object] = [] if known is None else [known]
    with mock.patch.object(columnar, "SMALL", 1):
        for decode, layouts in ((tabulate_plain, first), (tabulate, second))[len(results) :]:
            try:
                results.append(decode(raws, layouts))
            except DecodeError as error:
                refused(error, max((record for raw in raws for record in raw.records), key=len, default=b""))
                results.append((type(error), str(error), error.offset, error.where))
    plain, fast = results
    if isinstance(plain, ChangeColumns) and isinstance(fast, ChangeColumns):
        assert_same(fast, plain)
        if known is None and first.latest() != second.latest():
            raise Finding("the decoders learned different layouts")
        return True
    if plain != fast:
        raise Finding(f"plain: {plain!r}, fast: {fast!r}")
    return False


FORMS = (
    FamilyRecords("mppdb_binary", Print(Style.BINARY)),
    FamilyRecords("mppdb_text", Print(Style.TEXT)),
    FamilyRecords("mppdb_json", Print(Style.JSON)),
    FamilyRecords("test_decoding", Print(Style.SERIAL, plugin="test_decoding"), lines=True),
    FamilyRecords("mppdb_serial", Print(Style.SERIAL)),
)

# ── payloads ──

ENCODINGS = ("UTF8", "GBK", "LATIN1", "SQL_ASCII")
PRINTS = (Print(Style.BINARY), Print(Style.TEXT), Print(Style.JSON), Print(Style.SERIAL))
LONGEST_PAYLOADS = 6


def whole_transaction(dice: random.Random, at: int) -> list[Record]:
    rows = [without_unchanged(some_row(dice)) for _ in range(dice.randrange(6))]
    begin = Begin(at, at, at - 1 if at else None, 7, dice.choice((None, "2024-02-06 07:17:19.45874+08")), None)
    return [begin, *rows, Commit(at + 90, None, 7, begin.time)]


def some_payloads() -> list[bytes]:
    """Payloads of every style: the first byte says how they are read (`how_read`), the rest are payloads."""
    dice = random.Random(4)
    found = []
    for nth in range(48):
        how = PRINTS[nth % 4]
        batch = bool(nth & 4) and how.style is not Style.SERIAL
        sent = [one for n in range(3) for one in whole_transaction(dice, 1000 * (n + 1))]
        if batch:
            payloads = [encode_payload(sent, how, Framing(True, Ending.TIMER if nth & 8 else Ending.SIZE))]
        else:
            payloads = [encode_payload([one], how, Framing(False, Ending.SIZE)) for one in sent]
        found.append(bytes([nth % 4 | 4 * batch]) + of_records(payloads))
    return found


def how_read(told: int) -> tuple[Style, bool, Codec, bool]:
    """Style, batches, codec, and whether what cannot be read is kept."""
    codec = Codec(ENCODINGS[(told >> 3) & 3], Policy.HEX if told & 32 else Policy.STOP)
    return PRINTS[told & 3].style, bool(told & 4), codec, bool(told & 64)


def a_family_stream(data: bytes) -> bool:
    style, batch, codec, keeps = how_read(data[0] if data else 0)
    payloads = records_of(data[1:])[:LONGEST_PAYLOADS]
    whole = all(_as_plain(one, style, batch=batch, codec=codec) for one in payloads)
    fed = [_fed(payloads, style, batch, codec, keeps, least) for least in (1 << 60, 0)]
    if fed[0][1:] != fed[1][1:] or [_said(raw) for raw in fed[0][0]] != [_said(raw) for raw in fed[1][0]]:
        raise Finding(f"rows one by one: {fed[0]!r}, in runs: {fed[1]!r}")
    for slow, fast in zip(fed[0][0], fed[1][0], strict=True):
        storable(slow.bounds)
        first, second = (RelationResolver(facts, codec, tables=frozenset(TABLES)) for _ in "12")
        whole = alike([slow], first, second) and whole
        alike([fast], first, second)
    return whole and fed[0][1] is None


def _said(raw: RecordTransaction) -> object:
    return raw.bounds, list(raw.records), list(raw.lsns)


def _as_plain(payload: bytes, style: Style, *, batch: bool, codec: Codec) -> bool:
    """Whether the plain decoder takes the payload."""
    try:
        records(payload, style, batch=batch, codec=codec, header_lsn=7, tables=frozenset(TABLES))
    except DecodeError as error:
        return refused(error, payload)
    return True


def _fed(payloads: Sequence[bytes], style: Style, batch: bool, codec: Codec, keeps: bool, least: int):
    """What the assembler makes of them: transactions with rows, the error that ended it, what is open."""
    one = GaussDbAssembler(style, batch=batch, domain=OrderDomain.CSN, codec=codec, keeps=keeps)
    raws, error = [], None
    with mock.patch.object(framing, "SMALL", least), mock.patch.object(framing, "LONG", 2):
        for number, payload in enumerate(payloads, 1):
            try:
                raws += one.feed(payload, number)
            except CdcLakeError as wrong:
                refused(wrong, payload)
                raws += one.completed_transactions
                error = type(wrong), str(wrong)
                break
    return [raw for raw in raws if raw.count], error, one.open_bytes, one.open_csn


@cache
def mppdb_stream() -> Target:
    return Target("mppdb_stream", a_family_stream, some_payloads, (*WORDS, *BINARY_WORDS))


# ── lines ──


def some_lines() -> list[bytes]:
    dice = random.Random(5)
    how = Print(Style.SERIAL, plugin="test_decoding")
    found = []
    for nth in range(20):
        lines = [
            b"BEGIN 7" if nth % 2 else b"BEGIN",
            *(statement(some_row(dice), how) for _ in range(dice.randrange(5))),
        ]
        lines += [b"message: transactional: 1 prefix: a, sz: 3 content:abc"] if nth % 5 == 0 else []
        lines += [statement(Truncated(tuple(TABLES)[:2], cascade=True), how)] if nth % 4 == 0 else []
        lines += [b"COMMIT 7 (at 2024-02-06 07:17:19.45874+08)" if nth % 3 else b"COMMIT 7"]
        lines += [b"PREPARE TRANSACTION 'it''s', txid 7"] if nth % 7 == 0 else []
        found.append(bytes([nth % 2]) + of_records(lines))
        found.append(bytes([nth % 2 | 2]) + of_records(prepared(lines[1:-1], nth)))
    return found


def prepared(rows: Sequence[bytes], nth: int) -> list[bytes]:
    """The lines of a transaction that is prepared, and of one whose PREPARE did not come."""
    at, gid = b" (at 2024-02-06 07:17:19.45874+08)", (b"'it''s'", rb"E'a\\b'", b"''")[nth % 3]
    begun = [b"BEGIN 7"] if nth % 4 else []
    ends = (b"COMMIT" if nth % 3 else b"ROLLBACK") + b" PREPARED " + gid + b", txid 7" + at
    alone = b"COMMIT PREPARED 'alone', txid %d" % (8 + nth % 2)
    return [*begun, *(rows if begun else ()), b"PREPARE TRANSACTION " + gid + b", txid 7" + at, ends, alone]


def a_line_stream(data: bytes) -> bool:
    told = (data[:1] or b"\0")[0]
    parking = InMemory() if told & 2 else None
    assembler = LineAssembler(Codec(), TABLES.__contains__, keeps=bool(told & 1), prepared_storage=parking)
    raws, whole = [], True
    for number, payload in enumerate(records_of(data[1:]), 1):
        try:
            raws += assembler.feed(payload, number)
        except CdcLakeError as error:
            whole = refused(error, payload)
            break
    assembler.reset()
    if assembler.in_transaction or assembler.open_bytes:
        raise Finding("something is open behind a reset")
    for raw in raws:
        storable(raw.bounds)
    first, second = (RelationResolver(facts, takes_back=False) for _ in "12")
    return all(alike([raw], first, second) for raw in raws if raw.count) and whole


@cache
def line_stream() -> Target:
    return Target("line_stream", a_line_stream, some_lines, WORDS)
