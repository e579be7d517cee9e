"""Applying a span of 100,000 net changes to a silver table of 5 million rows, beside a plain MERGE of the same rows.

    python benchmarks/apply_span.py [--rows 5000000] [--changes 100000] [--rounds 3] [--formats delta iceberg]

See `span_pair.py` for what is timed. The target: at most twice the plain MERGE.
"""

from __future__ import annotations

from measured import median, save, show, table
from span_pair import Pair
from spans import counted, labels, options, phases, ratios, rounds_of, session

TARGET = 2.0


def main() -> None:
    given = options(__doc__, rows=5_000_000, changes=100_000, rounds=3).parse_args()
    runs = []
    with session(given.folder, given.heap) as (spark, root):
        for fmt in given.formats:
            pair = lambda: Pair(spark, root, fmt, "large", tables=1, rows=given.rows, changes=given.changes, files=10)  # noqa: E731, B023
            runs += rounds_of(pair, fmt, given.rounds)
    verdicts = []
    for label in labels(runs):
        ratio = median(run["ratio"] for run in counted(runs, label))
        verdicts.append(
            (
                f"span / plain MERGE, {label}",
                f"{ratio:.2f}",
                f"{TARGET:.1f}",
                "reached" if ratio <= TARGET else "missed",
            )
        )
    tables = [
        ratios(f"{given.changes:,} net changes into {given.rows:,} rows", runs),
        phases("Where a span's time goes", runs),
        table("Targets", ("", "measured", "target", ""), verdicts),
    ]
    if given.no_save:
        show(tables)
    else:
        parameters = {"rows": given.rows, "changes": given.changes, "rounds": given.rounds, "heap_mib": given.heap}
        save("apply_span", parameters=parameters, runs=runs, tables=tables)


if __name__ == "__main__":
    main()
