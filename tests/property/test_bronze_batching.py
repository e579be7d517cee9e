"""Any cut of a stream into batches, with any repeats, lands the same rows and the same chain."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from cdc_lake.bronze.contract import SCHEMA
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.model.change import (
    UNCHANGED,
    Change,
    Delete,
    Insert,
    Message,
    OldKind,
    Transaction,
    Truncate,
    Update,
    Value,
)
from cdc_lake.model.relation import Relation, ReplicaIdentity
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.bronze_formats import FORMATS, Place
from tests.seeds import seeds
from tests.tally import tally

SEEDS = seeds(12)

TABLES = (
    table("public.orders", id="int8", note="text"),
    table("public.orders", id="int8", note="text", extra="text"),
    table("shop.full", identity=ReplicaIdentity.FULL, id="int8", note="text", more="text"),
    table(r"odd\.schema.one", id="int8"),
)

COLUMNS = [name for name in SCHEMA.names if name != "ingest_ts"]


def stream(chance: random.Random) -> list[Transaction]:
    position, out = 100, []
    for _ in range(chance.randint(1, 60)):
        position += chance.randint(1, 1000)
        size = chance.choice((0, 1, 1, 1, 2, 5, 80))
        out.append(Transaction(boundaries(position), tuple(change(chance) for _ in range(size))))
    return out


def change(chance: random.Random) -> Change:
    relation = chance.choice(TABLES)
    kind = chance.choice("IIIUUUDTM")
    old_kind = OldKind.FULL if relation.identity is ReplicaIdentity.FULL else OldKind.KEY
    match kind:
        case "I":
            return Insert(relation, values(chance, relation))
        case "U" if chance.random() < 0.5 and old_kind is OldKind.KEY:
            return Update(relation, values(chance, relation, unchanged=True))
        case "U":
            return Update(relation, values(chance, relation, unchanged=True), values(chance, relation), old_kind)
        case "D":
            return Delete(relation, values(chance, relation), old_kind)
        case "T":
            return Truncate(relation, cascade=chance.random() < 0.5)
        case _:
            return Message("app", chance.randbytes(chance.randint(0, 5)))


def values(chance: random.Random, relation: Relation, *, unchanged: bool = False) -> tuple[Value, ...]:
    pool: tuple[Value, ...] = (None, "", "x", "unchanged-toast-datum", 'é"\\', *((UNCHANGED,) if unchanged else ()))
    return (str(chance.randint(0, 9)), *(chance.choice(pool) for _ in relation.columns[1:]))


def batches(chance: random.Random, transactions: list[Transaction]) -> Iterator[list[Transaction]]:
    """A cut into batches; some begin with transactions that were already sent."""
    at = 0
    while at < len(transactions):
        end = min(len(transactions), at + chance.choice((1, 2, 3, 10, 100)))
        yield transactions[max(0, at - chance.choice((0, 0, 1, 5))) : end]
        at = end


def landed(place: Place, chance: random.Random, transactions: list[Transaction]) -> tuple[list[dict[str, Any]], bytes]:
    writer = place.writer()
    writer.begin_stream("s", 50)
    for batch in batches(chance, transactions):
        if chance.random() < 0.2:
            writer = place.writer()
        writer.append([raw_transaction(t) for t in batch])
    reader = place.reader()
    verdict = verify(reader)
    assert verdict.holds, verdict.reason
    files = reader.files()
    rows = files.read(files.select(), COLUMNS, pc.field("op") != "R")
    state = writer.state()
    assert state is not None
    return rows.to_pylist(), state.head

    return [field for field in SCHEMA if field.name != "ingest_ts"]


@pytest.mark.parametrize("seed", SEEDS)
def test_any_batching_and_any_repeat_land_the_same(seed: int):
    print("CDC_LAKE_SEED =", seed)
    chance = random.Random(seed)
    transactions = stream(chance)
    with tempfile.TemporaryDirectory() as folder:
        first = landed(Place("delta", Path(folder, "a")), chance, transactions)
        second = landed(Place(chance.choice(FORMATS), Path(folder, "b")), chance, transactions)
    assert first == second
    assert len(first[0]) == sum(len(t.changes) + 2 for t in transactions)
    tally("R4", histories=1, transactions=len(transactions))
