"""Applying a span of 100,000 net changes to a silver table of 5 million rows, beside others' merges of the same rows.

    python benchmarks/apply_span.py [--rows 5000000] [--changes 100000] [--rounds 5] [--warm 8] [--formats delta]

See `span_pair.py` for what is timed. Each format twice: with row marks (Delta's deletion vectors, merge-on-read on
Iceberg), and rewriting whole files. Beside it the plain MERGE on a table like ours, delta-rs's merge and pyiceberg's
upsert and delete, which need no Spark and rewrite files. Targets: with marks at most 1.5 times delta-rs, rewriting at
most 1.2 times the plain MERGE. Java compiles what runs often, and a MERGE of Delta runs little of its planning often:
the rounds with marks warm up for long, as a session that stays open has done.
"""

from __future__ import annotations

from typing import Any

from measured import median, save, show, table
from span_pair import Pair
from spans import counted, labels, options, phases, ratios, rounds_of, session

MARKED_TARGET, REWRITTEN_TARGET = 1.5, 1.2
REWRITTEN = "whole files"


def main() -> None:
    given = options(__doc__, rows=5_000_000, changes=100_000, rounds=5, warm=8).parse_args()
    runs: list[dict[str, Any]] = []
    with session(given.folder, given.heap) as (spark, root):
        for fmt in given.formats:
            for marks in (True, False):

                def pair(fmt: str = fmt, marks: bool = marks) -> Pair:
                    name = f"large_{'marked' if marks else 'whole'}"
                    return Pair(
                        spark, root, fmt, name, tables=1, rows=given.rows, changes=given.changes, files=10,
                        marks=marks, peer=True,
                    )  # fmt: skip

                runs += rounds_of(
                    pair, f"{fmt}, {'row marks' if marks else REWRITTEN}", given.rounds, given.warm if marks else 1
                )
    tables = [
        ratios(f"{given.changes:,} net changes into {given.rows:,} rows", runs),
        phases("Where a span's time goes", runs),
        table("Targets", ("", "measured", "target", ""), [_verdict(runs, label) for label in labels(runs)]),
    ]
    if given.no_save:
        show(tables)
    else:
        names = ("rows", "changes", "rounds", "warm")
        parameters = {**{name: getattr(given, name) for name in names}, "heap_mib": given.heap}
        save("apply_span", parameters=parameters, runs=runs, tables=tables)


def _verdict(runs: list[dict[str, Any]], label: str) -> tuple[str, ...]:
    whole = label.endswith(REWRITTEN)
    beside, target = ("plain", REWRITTEN_TARGET) if whole else ("delta-rs", MARKED_TARGET)
    ratio = median(run["ours"] / run[beside] for run in counted(runs, label))
    name = "plain MERGE" if whole else "delta-rs merge"
    return f"span / {name}, {label}", f"{ratio:.2f}", f"{target:.1f}", "reached" if ratio <= target else "missed"


if __name__ == "__main__":
    main()
