"""A comparison as people read it."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from cdc_lake.cli.render_compare import comparison_text
from cdc_lake.pipeline.comparison import Comparison, Repair, TableComparison, Verdict

AT = dt.datetime(2026, 11, 22, 15, 0, tzinfo=dt.UTC)


def text_of(*tables: TableComparison, width: int = 80) -> list[str]:
    return comparison_text(Comparison("shop", AT, "0/16B3748", tables, 1.25), width).splitlines()


EQUAL = TableComparison("public.orders", "silver.orders", Verdict.EQUAL, 1200, 1200)
DIFFERENT = TableComparison(
    "public.books",
    "silver.books",
    Verdict.DIFFERENT,
    12,
    12,
    missing=1,
    changed=2,
    columns=(("price", 2),),
    samples=(("missing", (("7",),)), ("changed", (("8",), ("9",)))),
)
FOUND = [
    "table          silver         source  silver rows  verdict",
    "public.books   silver.books       12           12  different",
    "  1 key missing",
    "  2 keys changed",
    "  missing: (7)",
    "  changed: (8), (9)",
    "  column price differs in 2 rows",
]
END = ["public.orders  silver.orders   1,200        1,200  equal", "", "different: 2 tables at 0/16B3748, 1.2 s"]


def repaired(repair: Repair | None) -> TableComparison:
    return replace(DIFFERENT, repair=repair)


def test_what_differs_is_below_its_table():
    assert text_of(DIFFERENT, EQUAL) == [*FOUND, *END]
    assert text_of(DIFFERENT, EQUAL, width=40)[:2] == [
        "table  silver rows  verdict",
        "public.books  12 rows  different",
    ]


def test_a_repair_says_what_it_does_and_what_it_leaves():
    asked, done, left = (
        text_of(repaired(one), EQUAL)[len(FOUND) : -len(END)]
        for one in (
            Repair(3),
            Repair(2, "0/16B3749", 1, "later transactions change them", landed=True),
            Repair(left=3, reason="its key is redacted"),
        )
    )
    assert asked == ["  repair: 3 keys can be brought from the source: add --yes"]
    assert done == [
        "  repair: 2 keys landed at 0/16B3749, the next run merges them",
        "  not repaired: 1 key: later transactions change them",
    ]
    assert left == ["  not repaired: 3 keys: its key is redacted"]
