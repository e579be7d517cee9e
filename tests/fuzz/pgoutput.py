"""Targets of pgoutput: single messages by both decoders, and whole streams of every protocol version."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import cache, cached_property
from unittest import mock

from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.encoding import PREFIX, InHex
from cdc_lake.decode.pgoutput import columnar
from cdc_lake.decode.pgoutput.assembler import Assembler, TableFacts
from cdc_lake.decode.pgoutput.columnar import columns_of, tabulate, tabulate_plain
from cdc_lake.decode.pgoutput.parser import changes
from cdc_lake.decode.pgoutput.relations import DdlMessages
from cdc_lake.decode.pgoutput.spooled import SpooledTransaction
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import CdcLakeError, DecodeError
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, Message, OldKind, Transaction, Truncate, Update
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake_testing import messages
from cdc_lake_testing.messages import boundaries, catalog_of, encode_change, encode_stream, table
from cdc_lake_testing.streaming import StreamingServer
from cdc_lake_testing.two_phase import TwoPhaseLog
from tests.decoded_columns import assert_same
from tests.fuzz.parking import InMemory
from tests.fuzz.target import REFUSED_ALONE, Finding, Judged, Target, of_records, records_of, refused, storable

LAYOUTS = (
    table("public.a", id="int8", note="text"),
    table("public.wide", **{f"c{n}": "text" for n in range(12)}),
    table("my\\.sch.ü", identity=ReplicaIdentity.FULL, k="int4", v="jsonb"),
    table("public.kinds", k="int4", b="bool", n="numeric", t="timestamptz", y="bytea", u="uuid", f="float8"),
    Relation(TableName("public", "empty"), (), ReplicaIdentity.DEFAULT),
    Relation(TableName("public", "odd"), (Column("a", "some", 16_999),), ReplicaIdentity.FULL),
)
TEXTS = ("", "a", "é", "日本", "𝄞", "x" * 40, "17", "t", "2026-01-01 00:00:00+00", "\\x00ff", '{1,"b",NULL}')
BINARY = (b"", b"\0\0\0\x07", b"\x01", b"\0\0\0\0\0\0\0\0", b"\0\x01\0\0\0\0\0\0\0\x05", b"\xff" * 16)
WORDS = (
    PREFIX.encode(),
    b"n",
    b"t\0\0\0\x01x",
    b"u",
    b"b\0\0\0\x04\0\0\0\x07",
    b"b\0\0\0\0",
    b"N",
    b"K",
    b"O",
    b"I",
    b"U",
    b"D",
    b"T",
    b"M",
)
"""Parts of messages."""
BORDERS = (b"B", b"C", b"S", b"E", b"c", b"A", b"P", b"p", b"K", b"r", b"R", b"Y", b"O", b"\0\0\0\x64", b"\0\x05")


def a_change(dice: random.Random) -> Change:
    layout = dice.choice(LAYOUTS)
    new = tuple(dice.choice((None, UNCHANGED, *TEXTS)) for _ in layout.columns)
    old = tuple(dice.choice((None, *TEXTS)) for _ in layout.columns)
    kind = OldKind.FULL if layout.identity is ReplicaIdentity.FULL else OldKind.KEY
    return dice.choice(
        [
            Insert(layout, new), Insert(layout, new), Update(layout, new), Update(layout, new, old, kind),
            Delete(layout, old, kind), Truncate(layout, dice.random() < 0.5), Message("p", dice.randbytes(3)),
        ]
    )  # fmt: skip


def in_binary(dice: random.Random, frame: bytes) -> bytes:
    """A row of which some text is a binary value instead."""
    at = frame.find(b"t\0\0\0")
    if at < 0:
        return frame
    value = dice.choice(BINARY)
    size = int.from_bytes(frame[at + 1 : at + 5], "big")
    return frame[:at] + b"b" + len(value).to_bytes(4, "big") + value + frame[at + 5 + size :]


def some_frames() -> list[bytes]:
    dice = random.Random(1)
    found = [encode_change(a_change(dice)) for _ in range(200)]
    found += [in_binary(dice, one) for one in found if one[:1] in (b"I", b"U", b"D") and dice.random() < 0.3]
    return [*dict.fromkeys(found), messages.truncate(LAYOUTS[:3], cascade=True)]


class PgoutputFrames:
    """One data message of a transaction; its tables are known."""

    name = "pgoutput"

    @cached_property
    def target(self) -> Target:
        return Target(self.name, self._one, some_frames, WORDS)

    @cached_property
    def _opened(self) -> Assembler:
        assembler = Assembler(catalog_of(*LAYOUTS))
        assembler.feed(messages.begin(1), 0)
        for layout in LAYOUTS:
            assembler.feed(messages.relation(layout), 0)
        assembler.feed(messages.commit(1, 1), 0)
        return assembler

    def _raw(self, frame: bytes) -> BufferedTransaction | None:
        """The transaction of this frame alone; None where it begins or ends something."""
        if frame[:1] in (b"B", b"C", b"R", b"Y", b"S", b"c", b"A", b"E", b"b", b"P", b"p", b"K", b"r"):
            return None
        assembler = self._opened
        assembler.feed(messages.begin(1), 0)
        try:
            assembler.feed(frame, 7)
        finally:
            done = assembler.feed(messages.commit(1, 1), 0)
        assert isinstance(done[-1], BufferedTransaction)
        return done[-1]

    def _one(self, data: bytes) -> bool:
        try:
            raw = self._raw(data)
        except DecodeError as error:
            return refused(error, data)
        return raw is not None and alike([raw])

    def many(self, frames: Sequence[bytes]) -> Judged:
        good, bad = list[BufferedTransaction](), list[BufferedTransaction]()
        found = []
        for frame in frames:
            raw = None
            try:
                if (raw := self._raw(frame)) is not None:
                    found += [(len(good), 7, change) for _, change in list(changes(raw))]
                    good.append(raw)
            except DecodeError as error:
                refused(error, frame)
                bad += [] if raw is None else [raw]
        for one in bad[::REFUSED_ALONE]:
            alike([one])
        if not good:
            return Judged(0, 0)
        plain, vouched = columns_of(found), mock.Mock(side_effect=tabulate_plain)
        with mock.patch.object(columnar, "SMALL", 1), mock.patch.object(columnar, "tabulate_plain", vouched):
            assert_same(tabulate(good), plain)
        return Judged(len(good), 0 if vouched.called else len(good))


def alike(raws: Sequence[BufferedTransaction]) -> bool:
    """Whether both decoders take the transactions; they do the same, also where text may be bytes of any kind."""
    lenient = _alike(raws, lambda _table, _column: True)
    return _alike(raws, None) and lenient


def _alike(raws: Sequence[BufferedTransaction], in_hex: InHex | None) -> bool:
    results: list[object] = []
    with mock.patch.object(columnar, "SMALL", 1):
        for decode in (tabulate_plain, tabulate):
            try:
                results.append(decode(raws, in_hex))
            except DecodeError as error:
                refused(error, max((frame for raw in raws for frame in raw.frames), key=len, default=b""))
                results.append((type(error), str(error), error.offset, error.where))
    plain, fast = results
    if isinstance(plain, ChangeColumns) and isinstance(fast, ChangeColumns):
        assert_same(fast, plain)
        return True
    if plain != fast:
        raise Finding(f"in hex: {in_hex is not None}, plain: {plain!r}, fast: {fast!r}")
    return False


# ── streams ──


KNOWN = catalog_of(*LAYOUTS)
TYPES = {oid: name for facts in KNOWN.values() for oid, name in facts.type_names.items()}


def catalog(_oid: int, name: TableName) -> TableFacts:
    """What a server says of the tables of this module, and of others that it has no key for them."""
    return KNOWN.get(name) or TableFacts((), TYPES)


def some_streams() -> list[bytes]:
    """Streams of all versions: the first byte says what the assembler is told, the rest are messages."""
    dice = random.Random(2)
    found = []
    for nth in range(24):
        transactions = [
            Transaction(boundaries(1000 * (n + 1), origin=dice.choice((None, "o"))), tuple(a_change(dice) for _ in range(dice.randrange(5))))
            for n in range(dice.randrange(1, 4))
        ]  # fmt: skip
        match nth % 3:
            case 0:
                sent = encode_stream(transactions)
            case 1:
                sent = StreamingServer(transactions, nth).messages
            case _:
                sent = list(TwoPhaseLog([one.changes for one in transactions], dice).messages(0))
        found.append(bytes([nth % 8 | 8 * (nth % 3)]) + of_records([payload for _, payload in sent]))
    return found


def a_stream(data: bytes) -> bool:
    told, records = data[:1] or b"\0", records_of(data[1:])
    keeps, outside, parks = (bool(told[0] & bit) for bit in (1, 2, 16))
    assembler = Assembler(
        catalog,
        keeps=keeps,
        messages=outside,
        ddl_messages=DdlMessages(),
        prepared_storage=InMemory() if parks else None,
    )
    raws, whole = [], True
    for number, payload in enumerate(records, 1):
        try:
            raws += assembler.feed(payload, number)
        except CdcLakeError as error:
            # a message that had waited may be wrong as well
            whole = refused(error, max(records[:number], key=len))
            break
        if assembler.open_bytes < 0 or assembler.open_bytes > len(data):
            raise Finding(f"{assembler.open_bytes} bytes are open of {len(data)}")
    assembler.reset()
    if assembler.in_transaction or assembler.open_bytes:
        raise Finding("something is open behind a reset")
    for one in raws:
        storable(one.bounds)
    of_rows = [one.to_raw_transaction() if isinstance(one, SpooledTransaction) else one for one in raws]
    decodable = [one for one in of_rows if one.count and one.fault is None]
    return all(itertools.starmap(alike, [([one],) for one in decodable])) and whole


@cache
def pgoutput_stream() -> Target:
    return Target("pgoutput_stream", a_stream, some_streams, (*WORDS, *BORDERS))
