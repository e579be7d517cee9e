"""Any one edit of bronze's files is found, and the first place that is wrong is named; without an edit the chain holds.

A random history is landed in random batches, in several epochs and layouts, then one data file is rewritten in place
while the log keeps saying what it said. The edits do not know how the chain is checked, the verdict not what was edited.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_lake.bronze.contract import SCHEMA
from cdc_lake.bronze.hash_chain import ChainVerdict, EpochFacts
from cdc_lake.bronze.hash_chain_verify import verify
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.model.change import Change, Message, Transaction, Truncate
from cdc_lake.model.relation import ReplicaIdentity
from cdc_lake_testing.histories import History
from cdc_lake_testing.messages import raw_transaction, table, transaction_at
from tests.seeds import one_seed

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
SEED = one_seed()
HISTORIES = 1 if BUDGET == 1 else 3 * BUDGET
EDITS = 30

A = table("public.a", id="int4", body="text", amount="int8")
WIDER = table("public.a", id="int4", body="text", amount="int8", more="text")
B = table("public.b", identity=ReplicaIdentity.FULL, id="int4", body="text", amount="int8")

Row = dict[str, Any]
Rows = list[Row]
Place = tuple[int, int]


def land(folder: Path, chance: random.Random) -> dict[int, EpochFacts]:
    """Two epochs; the first has a copied row and a table that gets a column. What is known beside of the first."""
    writer = DeltaBronze(folder, durability="os")
    history = History(chance.randrange(1 << 30), [A, B], truncates=60)
    beside: dict[int, EpochFacts] = {}
    for epoch, start in ((1, 1000), (2, 500)):
        if (before := writer.state()) is not None:
            beside[1] = EpochFacts(before.stream, 1000, before.head)
        writer.begin_stream(f"pg:{epoch}:d:s:0/0", start)
        if epoch == 1:
            writer.append_snapshot("i", 0, A, pa.array([["77", "x", None]]), 0, start)
        position, batch = start, []
        for number in range(chance.randint(6, 14)):
            position += chance.randint(1, 9)
            if (epoch, number) == (1, 4):
                history.add_column(WIDER)
            batch.append(raw_transaction(_with_more(history.transaction(position), chance)))
            if chance.random() < 0.4:
                writer.append(batch)
                batch = []
        if batch:
            writer.append(batch)
        if chance.random() < 0.3:
            writer.advance(position + 5, position + 5)
    return beside


def _with_more(transaction: Transaction, chance: random.Random) -> Transaction:
    more: list[Change] = []
    if chance.random() < 0.3:
        more.append(Message("app", chance.randbytes(3)))
    if chance.random() < 0.1:
        more.append(Truncate(B, cascade=chance.random() < 0.5))
    changes = () if chance.random() < 0.1 else (*transaction.changes, *more)
    position = transaction.bounds.position
    return transaction_at(position, changes, origin="o")


# ── edits: each returns the first place that is wrong, or None where it found nothing to edit ────────────────────────


def change_value(rows: Rows, chance: random.Random) -> Place | None:
    """Another value, NULL for a value, a value for NULL, in some tuple."""
    some = [(r, tuple_) for r in rows for tuple_ in ("new", "old") if r["op"] in "IUD" and r[tuple_]]
    if not some:
        return None
    row, tuple_ = chance.choice(some)
    at = chance.randrange(len(row[tuple_]))
    old = row[tuple_][at]
    values = [v for v in ("", "zz", None, f"{old}x") if v != old]
    row[tuple_] = [*row[tuple_][:at], chance.choice(values), *row[tuple_][at + 1 :]]
    return place(row)


def change_column(rows: Rows, chance: random.Random) -> Place | None:
    """Some other column of a row of a transaction."""
    some = [r for r in rows if r["op"] in "BIUDTMC"]
    row = chance.choice(some)
    found = place(row)
    edits: list[tuple[str, Any]] = [
        ("ordinal", row["ordinal"] + chance.choice([1, 5])),
        ("op", chance.choice([op for op in "BIUDTMCX" if op != row["op"]])),
        ("epoch", 3),
        ("stream", "pg:9:d:s:0/0"),
        ("csn", 7),
        ("xid", 1 << 40),
        ("commit_lsn", 3),
        ("raw", b"x"),
        ("relation", "public.c"),
        ("layout", 5),
        ("old_kind", "full" if row["old_kind"] == "key" else "key"),
        ("unchanged", [0] if row["unchanged"] != [0] else [1]),
    ]
    name, value = chance.choice(edits)
    if len([r for r in rows if place(r) == found]) == 1 and name in ("csn", "xid", "commit_lsn", "stream"):
        return None
    print(f"{name} of {row['op']} at {found}: {row[name]!r} becomes {value!r}")
    row[name] = value
    return found


def change_said(rows: Rows, chance: random.Random) -> Place | None:
    """What a COMMIT row says of its transaction."""
    row = chance.choice([r for r in rows if r["op"] == "C"])
    said = json.loads(row["info"])
    name = chance.choice(["counts", "content", "hash"])
    said[name] = {"public.a": {"I": 99}} if name == "counts" else "0" * 64
    row["info"] = json.dumps(said)
    return place(row)


def remove_row(rows: Rows, chance: random.Random) -> Place | None:
    row = chance.choice([r for r in rows if r["op"] in "BIUDTMC"])
    rows.remove(row)
    return place(row)


def double_row(rows: Rows, chance: random.Random) -> Place | None:
    at = chance.choice([n for n, r in enumerate(rows) if r["op"] in "BIUDTMC"])
    rows.insert(at, dict(rows[at]))
    return place(rows[at])


def swap_rows(rows: Rows, chance: random.Random) -> Place | None:
    """Two changes of one transaction change places, ordinals stay."""
    some = [(x, y) for x in rows for y in rows if x["op"] in "IUDTM" and place(x) == place(y) and y["op"] in "IUDTM"]
    some = [(x, y) for x, y in some if x["ordinal"] < y["ordinal"] and without(x) != without(y)]
    if not some:
        return None
    x, y = chance.choice(some)
    x["ordinal"], y["ordinal"] = y["ordinal"], x["ordinal"]
    rows.sort(key=lambda r: (r["position"], -1 if r["ordinal"] is None else r["ordinal"]))
    return place(x)


def remove_transaction(rows: Rows, chance: random.Random) -> Place | None:
    gone = place(chance.choice([r for r in rows if r["op"] == "C"]))
    rows[:] = [r for r in rows if place(r) != gone or r["op"] in "RS"]
    return gone


def double_transaction(rows: Rows, chance: random.Random) -> Place | None:
    again = place(chance.choice([r for r in rows if r["op"] == "C"]))
    rows += [dict(r) for r in rows if place(r) == again and r["op"] not in "RS"]
    return again


def swap_transactions(rows: Rows, chance: random.Random) -> Place | None:
    """Two transactions change positions, each with its own COMMIT row."""
    places = sorted({place(r) for r in rows if r["op"] == "C"})
    if len(places) < 2:
        return None
    x, y = sorted(chance.sample(places, 2))
    for row in [r for r in rows if r["op"] not in "RS"]:
        row["position"] = {x: y, y: x}.get(place(row), place(row))[1]
    rows.sort(key=lambda r: (r["position"], -1 if r["ordinal"] is None else r["ordinal"]))
    return x


def move_transaction(rows: Rows, chance: random.Random) -> Place | None:
    moved = place(chance.choice([r for r in rows if r["op"] == "C"]))
    for row in [r for r in rows if place(r) == moved and r["op"] not in "RS"]:
        row["position"] += 1
    return moved


def forge_layout(rows: Rows, chance: random.Random) -> Place | None:
    some = [r for r in rows if r["op"] == "R" and any(x["layout"] == r["layout"] and x["op"] != "R" for x in rows)]
    if not some:
        return None
    row = chance.choice(some)
    row["info"] = row["info"].replace('"amount"', '"amounts"')
    return place(row)


ALL = [change_value, change_column, change_said, remove_row, double_row, swap_rows]
ALL += [remove_transaction, double_transaction, swap_transactions, move_transaction, forge_layout]


def place(row: Row) -> Place:
    return (row["epoch"], row["position"])


def without(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in ("ordinal", "lsn")}


@pytest.mark.parametrize("number", range(HISTORIES))
def test_one_edit_is_found_where_it_is(tmp_path: Path, number: int) -> None:
    print(f"CDC_LAKE_SEED={SEED} history {number}")
    chance = random.Random(f"{SEED}:{number}")
    folder = tmp_path / "b"
    beside = land(folder, chance)
    sound = verify(BronzeReader(folder), load_epoch_facts=lambda: beside)
    assert sound.holds, sound.reason
    places = sorted(place(r) for file in folder.glob("*.parquet") for r in rows_of(file) if r["op"] == "C")
    assert sound.transactions == len(places)
    files = sorted(((r[0], f) for f in folder.glob("*.parquet") if (r := rows_of(f))[-1]["op"] == "C"), key=first)
    done = 0
    while done < EDITS:
        edit, (_, file) = chance.choice(ALL), chance.choice(files)
        rows = rows_of(file)
        before = json.dumps(rows, default=repr)
        wrong = edit(rows, chance)
        if wrong is None or json.dumps(rows, default=repr) == before:
            continue
        kept = file.with_suffix(".kept")
        shutil.copy(file, kept)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), file)
        verdict = verify(BronzeReader(folder), load_epoch_facts=lambda: beside)
        shutil.move(kept, file)
        check(verdict, wrong, places, edit.__name__)
        done += 1


def check(verdict: ChainVerdict, wrong: Place, places: list[Place], edit: str) -> None:
    assert not verdict.holds, edit
    # what is gone is missed at the next transaction, or behind the last one; what moved is named where it came to stand
    mine = [p for p in places if p[0] == wrong[0]]
    before = [p for p in mine if p < wrong] or [(wrong[0], 0), (wrong[0], 1000)]
    after = [p for p in mine if p > wrong]
    allowed = {wrong, (wrong[0], wrong[1] + 1), (3, wrong[1]), *(after[:1] or before[-2:])}
    assert verdict.broken_at in allowed, (edit, wrong, verdict)
    if edit != "forge_layout":  # layouts are read first
        assert verdict.transactions >= len([p for p in places if p < wrong]), "what stands before it was verified"


def rows_of(file: Path) -> Rows:
    return list(pq.read_table(file, schema=SCHEMA).to_pylist())


def first(found: tuple[Row, Path]) -> Place:
    """Files have random names, their rows an order."""
    return place(found[0])
