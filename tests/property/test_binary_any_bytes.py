"""Binary values of any bytes: a text or a DecodeError, and the same from both decoders."""

from __future__ import annotations

import random
import struct

import pytest

from cdc_lake.decode import columnar
from cdc_lake.decode.binary import READERS
from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.columnar import tabulate
from cdc_lake.decode.plain import tabulate_plain
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.errors import DecodeError
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake.testing.messages import boundaries, oid_of
from tests.columns import assert_same
from tests.seeds import seeds

SIZES = (0, 1, 2, 4, 5, 6, 8, 12, 16, 20, 24, 32)
TELLING = bytes(range(4)) + b"\x10\x7f\x80\xff" + b"ab"


def value(dice: random.Random) -> bytes:
    """Bytes of which some are what types begin with: small counts, flags, signs."""
    size = dice.choice(SIZES)
    some = dice.randbytes(size) if dice.random() < 0.4 else bytes(dice.choice(TELLING) for _ in range(size))
    return some if dice.random() < 0.5 else struct.pack(">I", dice.randrange(3)) + some


def transaction(dice: random.Random, oid: int, rows: int) -> RawTransaction:
    layout = Relation(
        TableName("public", "t"),
        (Column("a", "some", oid), Column("b", "text", 25), Column("c", "some", oid)),
        ReplicaIdentity.FULL,
    )

    def sent() -> bytes:
        kind = dice.choice("bbntnn")
        data = value(dice) if kind == "b" else b"x"
        return kind.encode() + (b"" if kind == "n" else struct.pack(">I", len(data)) + data)

    def row() -> bytes:
        return struct.pack(">H", 3) + sent() + b"t\0\0\0\1y" + sent()

    head = struct.pack(">I", oid_of(layout.table))
    frames = [
        dice.choice([b"I" + head + b"N" + row(), b"U" + head + b"O" + row() + b"N" + row(), b"D" + head + b"O" + row()])
        for _ in range(rows)
    ]
    return RawTransaction(boundaries(500), frames, [7] * rows, [layout] * rows, {}, sum(map(len, frames)))


@pytest.mark.parametrize("seed", seeds(1))
def test_any_bytes_are_a_text_or_a_decode_error_in_both_decoders(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"seed {seed}")
    monkeypatch.setattr(columnar, "SMALL", 1)
    dice, whole, refused = random.Random(seed), 0, 0
    for oid in [*READERS, 16_999]:
        for rows in (1, 1, 1, 2, 3, 5):
            raw = transaction(dice, oid, rows)
            results = []
            for decode in (tabulate_plain, tabulate):
                try:
                    results.append(decode([raw]))
                except DecodeError as error:
                    results.append((type(error), str(error), error.offset, error.where))  # type: ignore[arg-type]
            plain, vector = results
            if isinstance(plain, ChangeColumns) and isinstance(vector, ChangeColumns):
                assert_same(vector, plain)
                whole += 1
            else:
                assert vector == plain
                refused += 1
    assert min(whole, refused) > 20
