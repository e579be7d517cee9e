"""What redaction costs: processor time of landing rows with and without it, from the wire's bytes to a committed file.

    python benchmarks/redaction.py [--rows 100000] [--rounds 5]

Rows of ten columns in transactions of 100, of about 250 bytes. The best round of each counts; kinds take turns, so that
a machine that is busy meanwhile is so for all of them. The quotients are what matters.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from cdc_lake.bronze.contract import Tabulate
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.connectors.redaction import with_redaction
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.redaction import Redaction, Strategy
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.model.change import Insert, Transaction
from cdc_lake_testing.messages import boundaries, raw_transaction, table

USERS = table("public.users", id="int8", email="text", **{f"c{n}": "text" for n in range(8)})
HASH, DROP, NULL = Strategy.SHA256, Strategy.DROP, Strategy.NULL
KINDS = {
    "nothing": {},
    "another table's": {"elsewhere": HASH},
    "one column hashed": {"email": HASH},
    "three columns hashed": {"id": HASH, "email": HASH, "c1": HASH},
    "one column dropped": {"email": DROP},
    "one column nulled": {"email": NULL},
}
SIZE = 100


def transactions(rows: int) -> list[BufferedTransaction]:
    return [
        raw_transaction(Transaction(boundaries(start + 100), tuple(map(insert, range(start, start + SIZE)))))
        for start in range(0, rows, SIZE)
    ]


def insert(number: int) -> Insert:
    text = f"some text value {number * 7919 % 100_003}"
    return Insert(USERS, (str(number), f"user{number}@example.com", *[text] * 8))


def seconds(raws: list[BufferedTransaction], by: Tabulate) -> float:
    with tempfile.TemporaryDirectory() as folder:
        bronze = DeltaBronze(Path(folder), durability="os")
        bronze.begin_stream("benchmark", 50)
        began = time.process_time()
        bronze.append(raws, by)
        return time.process_time() - began


def redaction_by(rules: Mapping[str, Strategy]) -> Redaction:
    return Redaction(lambda _, name: rules.get(name), key=b"k" * 32)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    raws = transactions(given.rows)
    best = dict.fromkeys(KINDS, float("inf"))
    for _ in range(given.rounds):
        for kind, rules in KINDS.items():
            best[kind] = min(best[kind], seconds(raws, with_redaction(tabulate, redaction_by(rules))))
    size = sum(raw.size for raw in raws) / 1e6
    print(f"{given.rows} rows, {size:.1f} MB")
    for kind, took in best.items():
        print(f"{kind:>22}: {took:.3f} s of processor time, {took / best['nothing']:.2f} times, {size / took:.0f} MB/s")


if __name__ == "__main__":
    main()
