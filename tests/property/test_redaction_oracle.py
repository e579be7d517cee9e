"""Redaction: columns redacted at once are the changes redacted one by one, in any batching and with any values."""

from __future__ import annotations

import hashlib
import hmac
import os
import random
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.decode.pgoutput.columnar import columns_of, tabulate
from cdc_lake.decode.redaction import Redaction, Strategy
from cdc_lake.model.change import (
    UNCHANGED,
    Change,
    Delete,
    Insert,
    Message,
    OldKind,
    Transaction,
    Truncate,
    Tuple,
    Update,
)
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.decoded_columns import assert_same
from tests.seeds import seeds

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
SEEDS = seeds(15 * BUDGET)
KEY = b"a key of more than 16 bytes"

TABLES = (
    table("public.users", id="int8", email="varchar", phone="text", note="text", ssn="text"),
    table(
        "public.users", id="int8", email="varchar", phone="text", note="text", ssn="int8"
    ),  # one layout when redacted
    table("public.users", id="int8", email="varchar", phone="text", note="text", ssn="text", more="text"),
    table("public.full", identity=ReplicaIdentity.FULL, id="int8", email="text", ssn="text", note="text"),
    table("public.keyed", key=["email", "id"], email="text", id="int8", phone="text"),
    table("public.plain", id="int8", note="text"),
    table("public.bare", key=[], identity=ReplicaIdentity.NOTHING, ssn="text"),
)
STRATEGIES = {"email": Strategy.SHA256, "phone": Strategy.NULL, "ssn": Strategy.DROP, "more": Strategy.SHA256}


def rules(table: TableName, column: str) -> Strategy | None:
    return None if table.name == "plain" else STRATEGIES.get(column)


# ── the oracle: one change at a time, with the standard library ──────────────────────────────────────────────


def hashed(text: str) -> str:
    return hmac.new(KEY, text.encode(), hashlib.sha256).hexdigest()


def layout(relation: Relation) -> Relation:
    columns: list[Column] = []
    for column in relation.columns:
        match rules(relation.table, column.name):
            case Strategy.DROP:
                pass
            case Strategy.SHA256:
                columns.append(Column(column.name, "text", 25, -1, column.key, "sha256"))
            case Strategy.NULL:
                columns.append(replace(column, redacted="null"))
            case None:
                columns.append(column)
    return replace(relation, columns=tuple(columns))


def values(relation: Relation, given: Tuple) -> Tuple:
    out: list[object] = []
    for column, value in zip(relation.columns, given, strict=True):
        match rules(relation.table, column.name):
            case Strategy.DROP:
                pass
            case Strategy.NULL:
                out.append(None)
            case Strategy.SHA256 if isinstance(value, str):
                out.append(hashed(value))
            case _:
                out.append(value)
    return tuple(out)  # type: ignore[arg-type]


def redacted(change: Change) -> Change | None:
    match change:
        case Insert(relation=relation, new=new):
            return Insert(layout(relation), values(relation, new))
        case Update(relation=relation, new=new, old=old, old_kind=kind):
            return Update(layout(relation), values(relation, new), None if old is None else values(relation, old), kind)
        case Delete(relation=relation, old=old, old_kind=kind):
            return Delete(layout(relation), None if old is None else values(relation, old), kind)
        case Truncate(relation=relation):
            return replace(change, relation=layout(relation))
        case Message():
            return None


# ── histories ────────────────────────────────────────────────────────────────────────────────────────────────

TEXTS = (None, "", "a", "a@example.com", "b@example.com", "é'\\", "n", "unchanged-toast-datum", "x" * 3000)


def some(chance: random.Random, relation: Relation, *, old: bool = False) -> Tuple:
    pool = (*TEXTS,) if old else (*TEXTS, UNCHANGED)
    return tuple(chance.choice(pool) for _ in relation.columns)


def change(chance: random.Random) -> Change:
    relation = chance.choice(TABLES)
    kind = OldKind.FULL if relation.identity is ReplicaIdentity.FULL else OldKind.KEY
    match chance.randrange(8):
        case 0 | 1:
            return Insert(relation, some(chance, relation))
        case 2:
            return Update(relation, some(chance, relation))
        case 3 | 4:
            return Update(relation, some(chance, relation), some(chance, relation, old=True), kind)
        case 5:
            return Delete(relation, some(chance, relation, old=True), kind)
        case 6:
            return Truncate(relation, cascade=chance.random() < 0.5)
        case _:
            return Message("app", b"canary")


def stream(chance: random.Random) -> list[Transaction]:
    sizes = [chance.choice((0, 1, 1, 2, 7, 60)) for _ in range(chance.randint(1, 20))]
    return [
        Transaction(boundaries(100 * (at + 1)), tuple(change(chance) for _ in range(size)))
        for at, size in enumerate(sizes)
    ]


def redaction() -> Redaction:
    return Redaction(rules, key=KEY, configuration=7)


@pytest.mark.parametrize("seed", SEEDS)
def test_redacted_columns_are_the_columns_of_redacted_changes(seed: int):
    print("CDC_LAKE_SEED =", seed)
    transactions = stream(random.Random(seed))
    raws = [raw_transaction(one) for one in transactions]
    wanted = [
        (at, raw.lsns[nth], kept)
        for at, (raw, one) in enumerate(zip(raws, transactions, strict=True))
        for nth, change in enumerate(one.changes)
        if (kept := redacted(change)) is not None
    ]
    found = redaction().changes(tabulate(raws))
    assert found.configuration == 7
    assert_same(replace(found, configuration=1), columns_of(wanted))


def test_deletes_that_name_no_row_and_empty_batches_pass():
    given = [(0, 7, Delete(TABLES[0], None, None)), (1, 8, Insert(TABLES[0], ("1", "a", "b", "c", "d")))]
    wanted = [(at, lsn, kept) for at, lsn, one in given if (kept := redacted(one)) is not None]
    assert_same(replace(redaction().changes(columns_of(given)), configuration=1), columns_of(wanted))
    assert_same(replace(redaction().changes(columns_of([])), configuration=1), columns_of([]))


def test_tables_without_rules_are_not_touched():
    plain = TABLES[5]
    raws = [raw_transaction(Transaction(boundaries(100), (Insert(plain, ("1", "a")),)))]
    columns = tabulate(raws)
    found = redaction().changes(columns)
    assert found.new is columns.new
    assert found.digests is columns.digests
    assert found.relations is columns.relations


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_without_rules_everything_is_as_it_was_messages_too(seed: int):
    print("CDC_LAKE_SEED =", seed)
    raws = [raw_transaction(one) for one in stream(random.Random(seed))]
    found = Redaction(None, configuration=7).changes(tabulate(raws))
    assert found.configuration == 7
    assert_same(found, tabulate(raws))


@pytest.mark.parametrize("seed", SEEDS[:6])
def test_any_batching_lands_the_same_redacted_chain(seed: int):
    print("CDC_LAKE_SEED =", seed)
    chance = random.Random(seed)
    transactions = stream(chance)
    heads, texts = set(), set()
    with tempfile.TemporaryDirectory() as folder:
        for name in "ab":
            path = Path(folder, name)
            writer, one = DeltaBronze(path, durability="os"), redaction()
            writer.begin_stream("s", 50)
            at = 0
            while at < len(transactions):
                end = min(len(transactions), at + chance.choice((1, 2, 5, 50)))
                batch = [raw_transaction(t) for t in transactions[at:end]]
                writer.append(batch, partial(lambda raws, by: by.changes(tabulate(raws)), by=one))
                at = end
            verdict = verify(BronzeReader(path))
            assert verdict.holds, verdict.reason
            state = writer.state()
            assert state is not None
            heads.add(state.head)
            texts |= {b"example.com" in file.read_bytes() for file in path.rglob("*.json")}
    assert len(heads) == 1
    assert texts == {False}


def test_snapshot_rows_and_compared_rows_get_the_values_of_the_stream():
    users = TABLES[0]
    rows = [("1", "a@example.com", "5", "n", "7"), ("2", None, None, None, None), ("3", "a@example.com", "", "", "")]
    relation, found = redaction().rows(users, pa.array(rows, pa.list_(pa.string())))
    assert relation == layout(users)
    assert found.to_pylist() == [list(values(users, row)) for row in rows]
    by_name = pa.table(
        {name: pa.chunked_array([[row[at] for row in rows]], pa.large_string()) for at, name in enumerate(users.names)}
    )
    compared = redaction().table(users, by_name)
    assert compared.column_names == list(relation.names)
    assert list(zip(*(compared[name].to_pylist() for name in relation.names), strict=True)) == [
        values(users, row) for row in rows
    ]
    assert {field.type for field in compared.schema} == {pa.large_string()}


def test_a_redacted_layout_redacts_to_itself():
    """Layouts that bronze had are what a resumed stream of the GaussDB family starts from."""
    for relation in TABLES:
        assert redaction().relation(layout(relation)) == layout(relation)
