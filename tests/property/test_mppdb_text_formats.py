"""The text formats of the GaussDB family: what is printed is read back, and no bytes make a decoder fail otherwise than
by a DecodeError."""

from __future__ import annotations

import os
import random
import struct
from dataclasses import replace

import pytest

from cdc_lake.decode.mppdb.codec import Codec, Policy
from cdc_lake.decode.mppdb.payload import records
from cdc_lake.decode.mppdb.records import (
    Begin,
    Commit,
    Ddl,
    Ended,
    Field,
    Heartbeat,
    Operation,
    Other,
    Record,
    Row,
    Style,
    Truncated,
)
from cdc_lake.errors import DecodeError
from cdc_lake.model.change import UNCHANGED
from cdc_lake.model.relation import TableName
from cdc_lake.testing.gaussdb.encode import Ending, Framing, Print, encode_payload
from tests.seeds import one_seed

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
SEED = one_seed()

FORMATS = {
    "text": (Print(Style.TEXT), False),
    "text in batches": (Print(Style.TEXT, label="commit_lsn", upper_commit=True), True),
    "json": (Print(Style.JSON, upper_commit=True), False),
    "json in batches": (Print(Style.JSON), True),
    "serial json": (Print(Style.SERIAL), False),
    "serial text": (Print(Style.SERIAL, plugin="test_decoding"), False),
}
DAMAGED = FORMATS | {
    "binary": (Print(Style.BINARY), False),
    "binary in batches": (Print(Style.BINARY), True),
}
"""What is damaged: the text formats, and binary beside them."""

ENCODINGS = {
    "UTF8": "a'\"\\.,:[]{} \n\tÄ中😀\x01",
    "GBK": "a'\"\\.,:[]{} \n乗乕乚亄中",
    "LATIN1": "a'\"\\ ,]:é\xa0\x85",
}
NUMBERS = ("0", "1", "-1", ".5", "-.000001", "1e+100", "NaN", "Infinity", "-Infinity", "12345678901234567890.10")
TIMES = ("2024-02-06 07:17:19.45874+08", "0099-12-31 23:59:59+08:05:43 BC", "12024-01-01 00:00:00-03:30")


class Making:
    """Random records of one format, whose characters are of one alphabet."""

    def __init__(self, seed: str, alphabet: str, how: Print, *, batch: bool) -> None:
        self.random = random.Random(seed)
        self.alphabet = alphabet
        self.how = how
        self.batch = batch
        self.tables = [TableName(self.name(), self.name()) for _ in range(3)] + [TableName("public", "t")]

    def text(self, longest: int) -> str:
        return "".join(self.random.choices(self.alphabet, k=self.random.randrange(longest)))

    def name(self) -> str:
        return self.random.choice(("id", "Name", "select")) + self.text(6)

    def maybe(self, number: int):
        return self.random.randrange(number) if self.random.random() < 0.5 else None

    def time(self):
        return self.random.choice((None, *TIMES))

    def field(self) -> Field:
        kind = self.random.choice(("integer", "boolean", "bit varying", "text", "character varying[]", '"My]:Type"'))
        if (odd := self.random.random()) < 0.15:
            return Field(self.name(), None if odd < 0.1 else UNCHANGED, kind)
        match kind:
            case "integer":
                value = self.random.choice(NUMBERS)
            case "boolean":
                value = self.random.choice("tf")
            case "bit varying":
                value = f"{self.random.randrange(64):b}"
            case _:
                value = self.random.choice((self.text(12), "null", "true", "unchanged-toast-datum", "B'1'"))
        return Field(self.name(), value, kind)

    def tuple(self) -> tuple[Field, ...]:
        return tuple(self.field() for _ in range(self.random.randrange(1, 5)))

    def row(self) -> Row:
        table, lsn = self.random.choice(self.tables), self.lsn()
        match self.random.choice("IUUD"):
            case "I":
                return Row(Operation.INSERT, table, new=self.tuple(), lsn=lsn)
            case "U":
                return Row(Operation.UPDATE, table, self.tuple(), self.random.choice((None, self.tuple())), lsn)
        return Row(Operation.DELETE, table, old=self.random.choice((None, self.tuple())), lsn=lsn)

    def lsn(self) -> int:
        return self.random.randrange(1, 1 << 40)

    def boundary(self):
        serial = self.how.style is Style.SERIAL
        if self.random.random() < 0.5:
            if serial:
                return Begin(lsn=self.lsn(), xid=self.maybe(1 << 63), origin_id=self.maybe(9))
            first, csn = self.random.randrange(1 << 64), self.random.randrange(1 << 63)
            return Begin(self.lsn(), csn, first, self.maybe(1 << 63), self.time(), self.maybe(9))
        lsn = self.lsn() if serial or self.batch else None
        return Commit(lsn, self.maybe(1 << 63) if serial else None, self.maybe(1 << 63), self.time())

    def line(self):
        content = '{"fmt": "' + self.text(20) + '"}'
        tables = tuple(self.random.sample(self.tables, 2))
        flags = [self.random.random() < 0.5 for _ in "ab"]
        return self.random.choice(
            (
                Truncated(tables, *flags, lsn=self.lsn()),
                Ddl("deparse", "Drop Table End", content + "\ndecode to: drop", 7, self.lsn()),
                Ended(self.random.choice(("ABORT", "PREPARE")), self.lsn(), self.maybe(99), self.time()),
                Other("notice: " + self.text(9), self.lsn()),
            )
        )

    def record(self):
        kind = self.random.random()
        if kind < 0.6:
            return self.row()
        if kind < 0.9:
            return self.boundary()
        return self.line() if self.how.style is Style.SERIAL else Heartbeat(1, 2, 1707203839458000, self.lsn())

    def records(self):
        return [self.record() for _ in range(self.random.randrange(6) if self.batch else 1)]


def printed(making: Making, found, encoding: str) -> bytes:
    how = Print(
        **{**{k: getattr(making.how, k) for k in ("style", "plugin", "label", "upper_commit")}, "encoding": encoding}
    )
    return encode_payload(found, how, Framing(making.batch, Ending.BARE))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("form", FORMATS)
def test_what_is_printed_is_read_back(form, encoding):
    how, batch = FORMATS[form]
    codec = Codec(encoding)
    seed = f"{SEED} {form} {encoding}"
    making = Making(seed, ENCODINGS[encoding], how, batch=batch)
    for _ in range(300 * BUDGET):
        expected = making.records()
        payload = printed(making, expected, codec.python)
        header = None if batch else expected[0].lsn
        if expected and isinstance(expected[0], Heartbeat) and not batch:
            expected = [Heartbeat(1, 2, 1707203839458000)]  # a bare one has no LSN
        found = records(payload, how.style, batch=batch, codec=codec, header_lsn=header, tables=making.tables)
        assert found == expected, f"CDC_LAKE_SEED={SEED}"


def mutated(source: random.Random, payload: bytes, other: bytes) -> bytes:
    """The payload with one to three of its parts altered."""
    data = bytearray(payload)
    for _ in range(source.randrange(1, 4)):
        at = source.randrange(len(data) + 1)
        match source.randrange(6):
            case 0:
                data[at : at + 1] = bytes([source.randrange(256)])
            case 1:
                del data[at : at + source.randrange(1, 9)]
            case 2:
                data[at:at] = bytes(source.choices(b"'\"\\[]:,{} \0Ih\xff", k=source.randrange(1, 4)))
            case 3:
                data[at:at] = data[at : at + source.randrange(40)]
            case 4:
                cut = source.randrange(len(other) + 1)
                data[at:] = other[cut:]
            case 5:
                number = source.choice((0, 1, 7, 8, 9, 1 << 31, (1 << 32) - 1))
                data[at : at + 4] = struct.pack(">I", number)
    return bytes(data)


def readable(value: object) -> bool:
    return value is None or value is UNCHANGED or (isinstance(value, str) and bool(value.encode() or True))


def binary_too(making: Making) -> list[Record]:
    """Records that style b has as well, their types by OID."""
    out: list[Record] = []
    for record in making.records():
        if isinstance(record, Row):
            new, old = (
                [replace(f, type_oid=25, value=None if f.value is UNCHANGED else f.value) for f in part or ()]
                for part in (record.new, record.old)
            )
            out.append(replace(record, new=tuple(new), old=tuple(old)))
        elif isinstance(record, Begin | Commit):
            out.append(replace(record, lsn=record.lsn or 1))
    return out or [Commit(lsn=1)]


@pytest.mark.parametrize("form", DAMAGED)
def test_mutated_payloads_raise_nothing_but_decode_errors(form):
    how, batch = DAMAGED[form]
    source = random.Random(f"{SEED} {form}")
    refused = 0
    for encoding, alphabet in ENCODINGS.items():
        codecs = Codec(encoding), Codec(encoding, Policy.HEX)
        making = Making(f"{SEED} {form} {encoding}", alphabet, how, batch=batch)
        make = (lambda: binary_too(making)) if how.style is Style.BINARY else making.records  # noqa: B023
        pool = [printed(making, make(), codecs[0].python) for _ in range(50)]
        for nth in range(100_000 * BUDGET**2 // len(ENCODINGS) + 1):
            payload = mutated(source, source.choice(pool), source.choice(pool))
            try:
                found = records(payload, how.style, batch=batch, codec=codecs[nth % 2], tables=making.tables)
            except DecodeError as error:
                refused += 1
                found = []
                outside = not 0 <= error.offset <= len(payload)
            else:
                outside = False
            assert not outside, f"CDC_LAKE_SEED={SEED}: {payload!r}"
            rows = [record for record in found if isinstance(record, Row)]
            fields = [field for row in rows for part in (row.new, row.old) for field in part or ()]
            assert all(readable(field.value) for field in fields), f"CDC_LAKE_SEED={SEED}: {payload!r}"
    assert refused
