"""The fixed cost of a span: 1,000 changes into 200,000 rows, and ten small tables in one span.

    python benchmarks/small_spans.py [--rounds 7] [--warm 8] [--formats delta iceberg]

See `span_pair.py` for what is timed. Ten tables: 20,000 rows and 100 changes each; the plain MERGEs run one after the
other, apply runs several tables at a time.
"""

from __future__ import annotations

from measured import conclude
from span_pair import Pair
from spans import options, phases, ratios, rounds_of, session


def main() -> None:
    given = options(__doc__, rounds=7, warm=8).parse_args()
    small, many = [], []
    with session(given.folder, given.heap) as (spark, root):
        for fmt in given.formats:
            pair = lambda: Pair(spark, root, fmt, "small", tables=1, rows=200_000, changes=1_000, files=2)  # noqa: E731, B023
            small += rounds_of(pair, fmt, given.rounds, given.warm)
            pair = lambda: Pair(spark, root, fmt, "many", tables=10, rows=20_000, changes=100, files=1)  # noqa: E731, B023
            many += rounds_of(pair, f"{fmt}, 10 tables", max(1, given.rounds // 2), given.warm // 2)
    tables = [
        ratios("1,000 changes into 200,000 rows; 100 into each of ten tables of 20,000", [*small, *many]),
        phases("Where a small span's time goes", small),
    ]
    parameters = {"rounds": given.rounds, "warm": given.warm, "heap_mib": given.heap}
    conclude("small_spans", parameters=parameters, runs=[*small, *many], tables=tables, keep=not given.no_save)


if __name__ == "__main__":
    main()
