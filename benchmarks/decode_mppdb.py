"""Decoding speed of the GaussDB family's style b: from payloads to Arrow columns, on one core, in one process.

    python benchmarks/decode_mppdb.py [--rows 50000] [--seconds 40] [--save]

Workload: 10 columns, about 390 bytes a row on the wire, 80/15/5 insert/update/delete, updates with the old key as the
servers send them, batches of 1 MiB (`sending-batch` 1). Two shapes: 1,000 rows a transaction and 10. Decoding is
assembling transactions and making columns of their values; digests (what bronze's hash chain is made of) are measured
on top. Time is the processor's. The machine is noisy, so the runs of all decoders are interleaved and of each message
the best time is taken; the ratio is what to compare.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import measured

from cdc_lake.decode.gaussdb import columnar
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import RecordTransaction, tabulate_plain
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.records import Begin, Commit, Field, Operation, Record, Row, Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.hashing import Digests
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake_testing.gaussdb.encode import Ending, Framing, Print, encode_payload

SEED = 7
MESSAGE = 1 << 20
ORDERS = TableName("public", "orders")
COLUMNS = {
    "id": ("int8", 20),
    "customer_id": ("int8", 20),
    "status": ("varchar", 1043),
    "amount": ("numeric", 1700),
    "currency": ("bpchar", 1042),
    "created_at": ("timestamptz", 1184),
    "updated_at": ("timestamptz", 1184),
    "city": ("text", 25),
    "reference": ("text", 25),
    "note": ("text", 25),
}


def catalog(_: TableName) -> GaussDbTableMetadata:
    columns = tuple(GaussDbColumn(name, kind, oid) for name, (kind, oid) in COLUMNS.items())
    return GaussDbTableMetadata(columns, ("id",), identity_columns=("id",))


def some_row(rng: random.Random, nth: int, lsn: int) -> Row:
    values = (
        str(10_000_000 + nth),
        str(rng.randrange(10**9)),
        rng.choice(("new", "paid", "shipped")),
        f"{rng.randrange(10**6)}.{rng.randrange(100):02}",
        "EUR",
        f"2026-01-{1 + nth % 28:02} 12:00:{nth % 60:02}.{rng.randrange(10**6):06}+00",
        f"2026-02-{1 + nth % 28:02} 08:30:{nth % 60:02}.{rng.randrange(10**6):06}+00",
        rng.choice(("Dortmund", "Münster", "Kraków", "Wuhan")),
        f"{rng.getrandbits(128):032x}",
        f"order {nth} " + "x" * rng.randrange(110),
    )
    new = tuple(
        Field(name, value, type_oid=oid) for (name, (_, oid)), value in zip(COLUMNS.items(), values, strict=True)
    )
    draw = rng.random()
    if draw < 0.80:
        return Row(Operation.INSERT, ORDERS, new, None, lsn)
    if draw < 0.95:
        return Row(Operation.UPDATE, ORDERS, new, new[:1], lsn)
    return Row(Operation.DELETE, ORDERS, None, new[:1], lsn)


def records(rows: int, per_transaction: int) -> Iterator[Record]:
    rng = random.Random(SEED)
    for nth, first in enumerate(range(0, rows, per_transaction)):
        lsn = 1_000_000 + first * 500
        yield Begin(lsn=lsn, csn=2_000 + nth, first_lsn=lsn, xid=5_000 + nth)
        for at in range(first, first + per_transaction):
            yield some_row(rng, at, 1_000_000 + at * 500)
        yield Commit(lsn=lsn + per_transaction * 500, xid=5_000 + nth)


def payloads(rows: int, per_transaction: int) -> list[bytes]:
    """Messages of about a megabyte, as the server closes them."""
    how, framing = Print(Style.BINARY), Framing(batch=True, ending=Ending.SIZE)
    out, part, size = [], [], 0
    for record in records(rows, per_transaction):
        part.append(record)
        size += len(encode_payload([record], how, framing))
        if size > MESSAGE:
            out.append(encode_payload(part, how, framing))
            part, size = [], 0
    return [*out, encode_payload(part, how, framing)]


def decode(
    messages: Sequence[bytes], make: Callable[[Sequence[RecordTransaction], RelationResolver], object]
) -> Iterator[float]:
    """Seconds for each message: its transactions assembled, and columns made of those it completes."""
    feed = GaussDbAssembler(Style.BINARY, batch=True, domain=OrderDomain.CSN).feed
    layouts = RelationResolver(catalog)
    for payload in messages:
        before = time.process_time()
        if raws := feed(payload, 1):
            make(raws, layouts)
        yield time.process_time() - before


def _nothing(_: object) -> bytes:
    return b""


def _no_rows(*_: object) -> list[Any]:
    return []


def _no_digests(*_: object) -> Digests:
    return Digests(b"")


@contextmanager
def no_digests() -> Iterator[None]:
    """By functions: a `Mock` keeps what it is called with, so each chunk got memory of its own (9 %, measured)."""
    with (
        mock.patch.object(columnar, "canonical_rows", _no_rows),
        mock.patch.object(columnar, "in_rows", _no_digests),
        mock.patch("cdc_lake.decode.pgoutput.columnar.canonical_of", _nothing),
        mock.patch("cdc_lake.decode.pgoutput.columnar.digest_of", _nothing),
    ):
        yield


WORKS: dict[str, tuple[Callable[[Sequence[RecordTransaction], RelationResolver], object], bool]] = {
    "assemble": (lambda _raws, _layouts: None, False),
    "columnar": (tabulate, False),
    "columnar and digests": (tabulate, True),
    "plain": (tabulate_plain, False),
    "plain and digests": (tabulate_plain, True),
}


def measure(rows: int, per_transaction: int, budget: float) -> tuple[dict[str, Any], list[list[str]]]:
    messages = payloads(rows, per_transaction)
    size = sum(map(len, messages))
    times = {name: [float("inf")] * len(messages) for name in WORKS}
    end = time.perf_counter() + budget
    while time.perf_counter() < end or times["plain and digests"][-1] == float("inf"):
        for name, (make, digests) in WORKS.items():
            for _ in range(1 if name.startswith("plain") else 8):
                with nullcontext() if digests else no_digests():
                    took = list(decode(messages, make))
                times[name] = list(map(min, times[name], took))
    best = {name: sum(took) for name, took in times.items()}
    ratio = best["plain"] / best["columnar"]
    run: dict[str, Any] = {"per_transaction": per_transaction, "rows": rows, "bytes": size, "ratio": round(ratio, 1)}
    run |= {f"{name} seconds": round(took, 4) for name, took in best.items()}
    shown = [
        [name, f"{rows / took:,.0f}", f"{size / took / 1e6:,.0f}", f"{took / rows * 1e6:.2f}"]
        for name, took in best.items()
    ]
    shown.append(["columnar to plain", "", f"{ratio:.1f} x", ""])
    both = best["plain and digests"] / best["columnar and digests"]
    shown.append(["the same, with digests", "", f"{both:.1f} x", ""])
    return run, shown


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=50_000)
    options.add_argument("--seconds", type=float, default=40.0, help="time for both shapes together")
    options.add_argument("--save", action="store_true", help="write benchmarks/results/decode_mppdb.json")
    chosen = options.parse_args()
    runs, tables = [], []
    for per_transaction in (1_000, 10):
        run, rows = measure(chosen.rows, per_transaction, chosen.seconds / 2)
        runs.append(run)
        size = run["bytes"] / chosen.rows
        title = f"Style b, {per_transaction:,} rows a transaction, {size:.0f} bytes a row on the wire"
        tables.append(measured.table(title, ["what", "rows/s", "MB/s of wire", "µs a row"], rows))
    measured.conclude("decode_mppdb", parameters={"rows": chosen.rows}, runs=runs, tables=tables, keep=chosen.save)


if __name__ == "__main__":
    main()
