"""Undecodable transactions among good ones: whatever cannot be decoded is kept, by both decoders alike, and comes back.

The fault is in the decoder: it refuses records with a marker, and is mended afterwards. Then the transactions that were
kept are what they would have been.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cdc_lake.decode import undecodable as pgoutput_kept
from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb import columnar, undecodable
from cdc_lake.decode.gaussdb.batches import RecordTransaction, tabulate_plain
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.records import Field, Operation, Row, Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.gaussdb.undecodable import GaussDbFormat
from cdc_lake.decode.pgoutput import columnar as pgoutput_columnar
from cdc_lake.decode.pgoutput.columnar import tabulate_plain as pgoutput_plain
from cdc_lake.decode.undecodable import Frame, PgoutputFormat, StoreUndecodable
from cdc_lake.errors import MalformedMessage
from cdc_lake.model.change import Boundaries, Delete, Insert, OldKind, Transaction, Truncate, Update
from cdc_lake.model.relation import TableName
from cdc_lake_testing.gaussdb.encode import Print, binary_record, statement
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.decoded_columns import assert_same
from tests.seeds import one_seed

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
SEED = one_seed()
MARK = "MARK"
STYLES = {
    "b": Print(Style.BINARY),
    "t": Print(Style.TEXT),
    "j": Print(Style.JSON),
    "serial json": Print(Style.SERIAL),
    "serial text": Print(Style.SERIAL, plugin="test_decoding"),
}
NAMES = {TableName("public", "a"): ("id", "note"), TableName("s", "Wide one"): ("k", "x", "y")}


@pytest.fixture(autouse=True)
def _say_the_seed(monkeypatch):
    print(f"CDC_LAKE_SEED={SEED}")
    monkeypatch.setattr(columnar, "SMALL", 1)
    monkeypatch.setattr(pgoutput_columnar, "SMALL", 1)


def refusing(decode: Callable[..., ChangeColumns]) -> Callable[..., ChangeColumns]:
    """A decoder with a fault: it cannot read the marker."""

    def faulty(batch: Sequence[Any], *more: Any) -> ChangeColumns:
        for raw in batch:
            for nth, data in enumerate(getattr(raw, "frames", None) or getattr(raw, "records", ())):
                if MARK.encode() in data:
                    raise MalformedMessage("a fault", offset=nth)
        return decode(batch, *more)

    return faulty


def parts(columns: ChangeColumns, transactions: int) -> list[dict[str, list[Any]]]:
    """What each transaction is, whatever stands around it."""
    out = []
    for nth in range(transactions):
        at = [row for row, of in enumerate(columns.transaction.tolist()) if of == nth]
        found: dict[str, list[Any]] = {
            name: getattr(columns, name).take(at).to_pylist() for name in ("new", "old", "info")
        }
        found["op"], found["lsn"] = columns.op[at].tolist(), columns.lsn[at].tolist()
        found["relation"] = [columns.relations[n] if n >= 0 else None for n in columns.relation[at].tolist()]
        found["digests"] = [columns.digests[row] for row in at]
        out.append(found)
    return out


def frames_of(columns: ChangeColumns, nth: int) -> list[Frame]:
    rows = [row for row, of in enumerate(columns.transaction.tolist()) if of == nth]
    out = []
    for row in rows:
        number, info = columns.relation[row], columns.info[row].as_py()
        relation = None if number < 0 else columns.relations[number]
        out.append(Frame(columns.raw[row].as_py(), int(columns.lsn[row]), relation, json.loads(info or "{}")))
    return out


def check(good: ChangeColumns, plain: ChangeColumns, fast: ChangeColumns, marked: set[int], count: int) -> None:
    """Both are alike; what was not marked is what it is without a fault."""
    assert_same(plain, fast)
    assert (plain.raw is None) == (fast.raw is None) == (not marked)
    assert plain.undecoded == fast.undecoded
    assert set(plain.undecoded) == marked
    wanted, found = parts(good, count), parts_or_none(plain, count)
    assert [f for nth, f in enumerate(found) if nth not in marked] == [
        w for nth, w in enumerate(wanted) if nth not in marked
    ]


def parts_or_none(columns: ChangeColumns, count: int) -> list[dict[str, list[Any]] | None]:
    return [None if nth in columns.undecoded else part for nth, part in enumerate(parts(columns, count))]


# ── the family ──


def layouts() -> RelationResolver:
    facts = {
        name: GaussDbTableMetadata(
            tuple(GaussDbColumn(c, "text", 25) for c in columns), columns[:1], identity_columns=columns[:1]
        )
        for name, columns in NAMES.items()
    }
    return RelationResolver(facts.get, Codec(), tables=frozenset(NAMES))


def family_row(rng: random.Random, text: str) -> Row:
    name = rng.choice(list(NAMES))

    def fields(names: Sequence[str], style_text: str) -> tuple[Field, ...]:
        return tuple(Field(one, rng.choice([style_text, "é", None]), "text", 25) for one in names)

    columns = NAMES[name]
    key = (Field(columns[0], str(rng.randrange(9)), "text", 25),)
    match rng.randrange(3):
        case 0:
            return Row(Operation.INSERT, name, (*key, *fields(columns[1:], text)))
        case 1:
            return Row(Operation.UPDATE, name, (*key, *fields(columns[1:], text)), key)
    return Row(Operation.DELETE, name, None, key)


def family_batch(rng: random.Random, how: Print, count: int) -> tuple[list[RecordTransaction], set[int]]:
    out, marked = [], set()
    for nth in range(count):
        rows = [family_row(rng, MARK if rng.random() < 0.02 else "x") for _ in range(1 + rng.randrange(12))]
        encoded = [
            binary_record(row, "utf-8")[12:] if how.style is Style.BINARY else statement(row, how) for row in rows
        ]
        if any(MARK.encode() in one for one in encoded):
            marked.add(nth)
        at = 1000 * (nth + 1)
        lsns = list(range(at, at + len(encoded)))
        out.append(RecordTransaction(Boundaries(at, at), how.style, encoded, lsns, sum(map(len, encoded))))
    return out, marked


@pytest.mark.parametrize("name", STYLES)
def test_the_family_keeps_what_it_cannot_decode_and_decodes_it_later(name: str):
    how, rng = STYLES[name], random.Random(f"{SEED} {name}")
    seen = 0
    for _ in range(12 * BUDGET):
        batch, marked = family_batch(rng, how, 24)
        good = columnar.tabulate(batch, layouts())
        plain, fast = (
            StoreUndecodable(GaussDbFormat(layouts(), "mppdb_decoding", refusing(decode)))(batch)
            for decode in (tabulate_plain, columnar.tabulate)
        )
        check(good, plain, fast, marked, len(batch))
        wanted = parts(good, len(batch))
        for nth in sorted(marked):
            frames = frames_of(plain, nth)
            raw = undecodable.raw_of(batch[nth].bounds, frames)
            mended = undecodable.layouts_of(frames, plain.relations, Codec, lambda _: None, lambda _: True)
            assert parts(columnar.tabulate([raw], mended), 1) == [wanted[nth]]
        seen += len(marked)
    assert seen


# ── pgoutput ──

LAYOUTS = (table("public.a", id="int8", note="text"), table("s.wide", k="int8", x="text", y="text"))


def pgoutput_batch(rng: random.Random, count: int) -> tuple[list[Any], set[int]]:
    out, marked = [], set()
    for nth in range(count):
        changes: list[Any] = []
        for _ in range(1 + rng.randrange(12)):
            layout = rng.choice(LAYOUTS)
            text = MARK if rng.random() < 0.02 else "é"
            row = (str(rng.randrange(9)), *(rng.choice([text, None]) for _ in layout.columns[1:]))
            key = (row[0], *(None for _ in layout.columns[1:]))
            changes.append(
                rng.choice(
                    [
                        Insert(layout, row),
                        Update(layout, row, key, OldKind.KEY),
                        Delete(layout, key, OldKind.KEY),
                        Truncate(layout, cascade=True),
                    ]
                )
            )
        raw = raw_transaction(Transaction(boundaries(1000 * (nth + 1)), tuple(changes)))
        if any(MARK.encode() in frame for frame in raw.frames):
            marked.add(nth)
        out.append(raw)
    return out, marked


def test_pgoutput_keeps_what_it_cannot_decode_and_decodes_it_later():
    rng, seen = random.Random(SEED), 0
    for _ in range(20 * BUDGET):
        batch, marked = pgoutput_batch(rng, 24)
        good = pgoutput_columnar.tabulate(batch)
        plain, fast = (
            StoreUndecodable(PgoutputFormat(refusing(decode)))(batch)
            for decode in (pgoutput_plain, pgoutput_columnar.tabulate)
        )
        check(good, plain, fast, marked, len(batch))
        wanted = parts(good, len(batch))
        by_name = {relation.table: relation for relation in plain.relations}
        for nth in sorted(marked):
            raw = pgoutput_kept.raw_of(batch[nth].bounds, frames_of(plain, nth), by_name, {})
            assert parts(pgoutput_columnar.tabulate([raw]), 1) == [wanted[nth]]
        seen += len(marked)
    assert seen


def test_damaged_bytes_are_kept_by_both_decoders_alike():
    """Rows whose own bytes are wrong: nothing raises, and no neighbour is touched.

    A row that can still be decoded says something else, and what it says of its columns counts for a DELETE after it.
    """
    rng, how, seen = random.Random(SEED), STYLES["b"], 0
    for _ in range(40 * BUDGET):
        batch, _ = family_batch(rng, how, 6)
        nth = rng.randrange(len(batch))
        good = columnar.tabulate(batch, layouts())
        data = batch[nth].records[0]
        at = rng.randrange(1, len(data))
        batch[nth].records[0] = data[:at] + rng.randbytes(1) + data[at + 1 :]  # type: ignore[index]
        plain, fast = (
            StoreUndecodable(GaussDbFormat(layouts(), "mppdb_decoding", decode))(batch)
            for decode in (tabulate_plain, columnar.tabulate)
        )
        assert_same(plain, fast)
        assert set(plain.undecoded) == set(fast.undecoded) <= {nth}
        wanted, found = parts(good, len(batch)), parts_or_none(plain, len(batch))
        touched = {nth} if plain.undecoded else set(range(nth, len(batch)))
        assert all(f == w for other, (f, w) in enumerate(zip(found, wanted, strict=True)) if other not in touched)
        seen += len(plain.undecoded)
    assert seen
