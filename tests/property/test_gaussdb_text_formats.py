"""The text formats of the GaussDB family: what is printed is read back."""

from __future__ import annotations

import os
import random

import pytest

from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.records import (
    Begin,
    Commit,
    Ddl,
    Field,
    Heartbeat,
    Operation,
    Other,
    Row,
    Style,
    TransactionEnd,
    Truncated,
)
from cdc_lake.decode.gaussdb.serial import records
from cdc_lake.model.change import UNCHANGED
from cdc_lake.model.relation import TableName
from cdc_lake_testing.gaussdb.encode import Ending, Framing, Print, encode_payload
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
                TransactionEnd(self.random.choice(("ABORT", "PREPARE")), self.lsn(), self.maybe(99), self.time()),
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
