"""Applying a span of 100,000 net changes to a silver table of 5 million rows, beside others' merges of the same rows.

    python benchmarks/apply_span.py [--rows 5000000] [--changes 100000] [--rounds 5] [--warm 8] [--formats delta]

    python benchmarks/apply_span.py --keys recent new --marks only

See `span_pair.py` for what is timed. Each format twice: with row marks (Delta's deletion vectors, merge-on-read on
Iceberg), and rewriting whole files. Beside it the plain MERGE on a table like ours, delta-rs's merge and pyiceberg's
upsert and delete, which need no Spark and rewrite files. Targets: with marks at most 1.5 times delta-rs, rewriting at
most 1.2 times the plain MERGE. Java compiles what runs often, and a MERGE of Delta runs little of its planning often:
the rounds with marks warm up for long, as a session that stays open has done. With `--keys` the rows that change are of
the last quarter of the table, or all are new; these are a result of their own.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from measured import conclude
from span_pair import Pair
from spans import options, phases, ratios, rounds_of, session
from workload_spans import NEW, RECENT, SPREAD

REWRITTEN = "whole files"


def main() -> None:
    parser = options(__doc__, rows=5_000_000, changes=100_000, rounds=5, warm=8)
    parser.add_argument("--keys", nargs="+", choices=(SPREAD, RECENT, NEW), default=[SPREAD])
    parser.add_argument("--marks", choices=("both", "only"), default="both", help="only: no rewriting of whole files")
    given = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with session(given.folder, given.heap) as (spark, root):
        for fmt, keys in product(given.formats, given.keys):
            for marks in (True, False) if given.marks == "both" else (True,):

                def pair(fmt: str = fmt, marks: bool = marks, keys: str = keys) -> Pair:
                    name = f"{keys}_{'marked' if marks else 'whole'}"
                    return Pair(
                        spark, root, fmt, name, tables=1, rows=given.rows, changes=given.changes, files=10,
                        marks=marks, peer=True, keys=keys,
                    )  # fmt: skip

                label = f"{fmt}, {'row marks' if marks else REWRITTEN}" + (f", {keys} keys" if keys != SPREAD else "")
                runs += rounds_of(pair, label, given.rounds, given.warm if marks else 1)
    tables = [
        ratios(f"{given.changes:,} net changes into {given.rows:,} rows", runs),
        phases("Where a span's time goes", runs),
    ]
    names = ("rows", "changes", "rounds", "warm")
    parameters = {**{name: getattr(given, name) for name in names}, "heap_mib": given.heap}
    name = "apply_span" if given.keys == [SPREAD] else "apply_span_keys"
    conclude(name, parameters=parameters, runs=runs, tables=tables, keep=not given.no_save)


if __name__ == "__main__":
    main()
