"""Decoding speed of pgoutput: the columnar decoder beside the plain one, in one process, digests included.

    python benchmarks/decode_pgoutput.py [--changes 200000] [--seconds 20]

Workload: 10 text columns, about 270 bytes a change on the wire, 80/15/5 insert/update/delete, updates under the
default identity (no old tuple), deletes with the key. Two shapes: 1,000 changes a transaction and 1. The machine is
noisy, so the runs of all decoders are interleaved and the best of each is shown; the ratio is what to compare.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence

from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.pgoutput.columnar import tabulate, tabulate_plain
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.model.change import Change, Delete, Insert, OldKind, Transaction, Update
from cdc_lake.model.relation import Relation
from cdc_lake_testing.messages import boundaries, catalog_of, encode_stream, table

SEED = 7
BATCH = 50_000


def orders() -> Relation:
    return table("public.orders", id="int8", **{f"c{n}": "text" for n in range(1, 10)})


def some_change(rng: random.Random, layout: Relation, nth: int) -> Change:
    row = (str(nth), *(f"{rng.getrandbits(64):016x}{nth:06d}" for _ in range(9)))
    draw = rng.random()
    if draw < 0.80:
        return Insert(layout, row)
    if draw < 0.95:
        return Update(layout, row)
    key = (str(nth), *([None] * 9))
    return Delete(layout, key, OldKind.KEY)


def stream(changes: int, per_transaction: int) -> list[tuple[int, bytes]]:
    rng, layout = random.Random(SEED), orders()
    return encode_stream(
        Transaction(
            boundaries(1_000_000 + first * 400 + 1),
            tuple(some_change(rng, layout, first + n) for n in range(per_transaction)),
        )
        for first in range(0, changes, per_transaction)
    )


def assemble(messages: Sequence[tuple[int, bytes]]) -> list[BufferedTransaction]:
    feed = Assembler(catalog_of(orders())).feed
    return [raw for lsn, payload in messages for raw in feed(payload, lsn)]


def batches(transactions: list[BufferedTransaction]) -> list[list[BufferedTransaction]]:
    size = max(1, BATCH // len(transactions[0].frames))
    return [transactions[at : at + size] for at in range(0, len(transactions), size)]


def seconds_of(work: Callable[[], object]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def measure(changes: int, per_transaction: int, budget: float) -> None:
    messages = stream(changes, per_transaction)
    transactions = assemble(messages)
    cut = batches(transactions)
    size = sum(raw.size for raw in transactions)
    works: dict[str, Callable[[], object]] = {
        "assemble": lambda: assemble(messages),
        "columnar": lambda: [len(tabulate(batch)) for batch in cut],
        "plain": lambda: [len(tabulate_plain(batch)) for batch in cut],
    }
    best = dict.fromkeys(works, float("inf"))
    end = time.perf_counter() + budget
    while time.perf_counter() < end or best["plain"] == float("inf"):
        for name, work in works.items():
            repeat = 1 if name == "plain" else 4
            best[name] = min(best[name], *(seconds_of(work) for _ in range(repeat)), float("inf"))
    print(f"{per_transaction} changes a transaction, {size / changes:.0f} bytes a change, {changes} changes")
    for name, took in best.items():
        print(f"  {name:9} {changes / took:12,.0f} changes/s {size / took / 1e6:9,.1f} MB/s")
    print(f"  columnar is {best['plain'] / best['columnar']:.1f} times as fast as plain")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--changes", type=int, default=200_000)
    options.add_argument("--seconds", type=float, default=20.0, help="time for both shapes together")
    chosen = options.parse_args()
    for per_transaction in (1_000, 1):
        measure(chosen.changes, per_transaction, chosen.seconds / 2)


if __name__ == "__main__":
    main()
