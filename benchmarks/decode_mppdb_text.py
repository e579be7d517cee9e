"""Decoding speed of the GaussDB family's styles t and j: from payloads to Arrow columns, on one core, in one process.

    python benchmarks/decode_mppdb_text.py [--rows 100000] [--seconds 20] [--save]

The workload of `decode_mppdb.py` in the other styles, in batches of 1 MiB, 1,000 rows a transaction. Decoding is
assembling transactions and making columns of their values; digests are measured on top. The runs of all decoders are
interleaved and of each message the best one counts, as the machine is noisy; the ratio is what to compare.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import measured
from decode_mppdb import COLUMNS, MESSAGE, catalog, no_digests, records
from steps import Steps

from cdc_lake.decode import hashing
from cdc_lake.decode.gaussdb import columnar, text_columnar
from cdc_lake.decode.gaussdb import columnar as tuple_lists
from cdc_lake.decode.gaussdb.assembler import GaussDbAssembler
from cdc_lake.decode.gaussdb.batches import tabulate_plain
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.records import Field, Record, Row, Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.model.position import OrderDomain
from cdc_lake_testing.gaussdb.encode import Print, framed

END = bytes(4)
PRINTED = {
    "int8": "bigint",
    "varchar": "character varying",
    "numeric": "numeric",
    "bpchar": "character",
    "timestamptz": "timestamp with time zone",
    "text": "text",
}


def named(record: Record) -> Record:
    """The record with its types by name."""
    if not isinstance(record, Row):
        return record
    return replace(record, new=_named(record.new), old=_named(record.old))


def _named(fields: tuple[Field, ...] | None) -> tuple[Field, ...] | None:
    if fields is None:
        return None
    return tuple(replace(f, type_oid=None, type_name=PRINTED[COLUMNS[f.name][0]]) for f in fields)


def payloads(rows: int, style: Style) -> Iterator[bytes]:
    """Messages of about a megabyte, as the server closes them."""
    how, part, size = Print(style), [], 0
    for record in records(rows, 1_000):
        part.append(framed(named(record), how))
        size += len(part[-1])
        if size > MESSAGE:
            yield b"".join([*part, END])
            part, size = [], 0
    yield b"".join([*part, END])


def decode(messages: list[bytes], style: Style, make: Callable[..., object]) -> Iterator[float]:
    """Seconds of CPU for each message: its transactions assembled, and columns made of those it completes."""
    feed = GaussDbAssembler(style, batch=True, domain=OrderDomain.CSN).feed
    layouts = RelationResolver(catalog)
    for payload in messages:
        before = time.process_time()
        if raws := feed(payload, 1):
            make(raws, layouts)
        yield time.process_time() - before


WORKS: dict[str, tuple[Callable[..., object], bool]] = {
    "assemble": (lambda _raws, _layouts: None, True),
    "columnar": (tabulate, False),
    "columnar and digests": (tabulate, True),
    "plain and digests": (tabulate_plain, True),
}


def measure(rows: int, style: Style, budget: float) -> tuple[dict[str, Any], list[list[str]]]:
    messages = list(payloads(rows, style))
    size = sum(map(len, messages))
    times = {name: [float("inf")] * len(messages) for name in WORKS}
    end = time.perf_counter() + budget
    while time.perf_counter() < end or times["plain and digests"][-1] == float("inf"):
        for name, (make, digests) in WORKS.items():
            for _ in range(1 if make is tabulate_plain else 8):
                with nullcontext() if digests else no_digests():
                    times[name] = list(map(min, times[name], decode(messages, style, make)))
    best = {name: sum(took) for name, took in times.items()}
    best_steps = profile(messages, style)
    ratio = best["plain and digests"] / best["columnar and digests"]
    run: dict[str, Any] = {"style": style.value, "rows": rows, "bytes": size, "ratio": round(ratio, 1)}
    run |= {f"{name} seconds": round(took, 4) for name, took in best.items()}
    shown = [
        [name, f"{rows / took:,.0f}", f"{size / took / 1e6:,.0f}", f"{took / rows * 1e6:.2f}"]
        for name, took in best.items()
    ]
    run["steps"] = {step: round(took, 4) for step, took in best_steps.items()}
    return run, [*shown, ["columnar to plain, with digests", "", f"{ratio:.1f} x", ""]]


def profile(messages: list[bytes], style: Style) -> dict[str, float]:
    """CPU seconds of each step, digests included: of ten passes the best of each."""
    best: dict[str, float] = {}
    for _ in range(10):
        with Steps(
            [
                (GaussDbAssembler, "feed", "assemble"),
                (columnar, "Statements", "one chunk of statements"),
                (text_columnar, "text_rows", "find literals"),
                (text_columnar, "json_rows", "find literals"),
                (text_columnar, "regular_chunk", "what literals stand for"),
                (tuple_lists, "_tuple_lists", "lists of values"),
                (columnar, "canonical_rows", "digests"),
                (hashing, "_digests", "digests"),
                (columnar, "in_rows", "digests"),
                (columnar, "_tabulate", "everything else"),
            ]
        ) as steps:
            for _ in decode(messages, style, tabulate):
                pass
        best = {step: min(took, best.get(step, took)) for step, took in steps.seconds.items()}
    return best


def step_table(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Where a row's time goes in each style."""
    steps: list[dict[str, float]] = [run["steps"] for run in runs]
    rows = [
        [step, *(f"{each[step] / run['rows'] * 1e6:.2f}" for run, each in zip(runs, steps, strict=True))]
        for step in steps[0]
    ]
    return measured.table("Where the time goes, µs a row", ["step", *(f"style {run['style']}" for run in runs)], rows)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--seconds", type=float, default=20.0, help="time for both styles together")
    options.add_argument("--save", action="store_true", help="write benchmarks/results/decode_mppdb_text.json")
    chosen = options.parse_args()
    runs, tables = [], []
    for style in (Style.TEXT, Style.JSON):
        run, rows = measure(chosen.rows, style, chosen.seconds / 2)
        runs.append(run)
        title = f"Style {style.value}, {run['bytes'] / chosen.rows:.0f} bytes a row on the wire"
        tables.append(measured.table(title, ["what", "rows/s", "MB/s of wire", "µs a row"], rows))
    tables.append(step_table(runs))
    measured.conclude("decode_mppdb_text", parameters={"rows": chosen.rows}, runs=runs, tables=tables, keep=chosen.save)


if __name__ == "__main__":
    main()
