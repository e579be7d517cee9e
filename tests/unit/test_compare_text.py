"""A comparison as people and programs read it."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace

import pytest

from cdc_lake.cli.app import app
from cdc_lake.cli.commands.compare import comparison_text
from cdc_lake.cli.process import run_command
from cdc_lake.control.verdicts import Comparison, DifferingKey, KeyChange, Repair, TableComparison, Verdict

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
        "table          silver rows  verdict",
        "public.books            12  different",
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


TOUCHED = (
    KeyChange("0/16B3000", "S"),
    KeyChange("0/16B3700", "I", "2026-11-22T14:59:00.000+00:00"),
    KeyChange("812", "U", "2026-11-22T14:59:30.000+00:00", csn=812),
    KeyChange("0/16B3740", "U", "2026-11-22T15:00:00.000+00:00", csn=77),
    KeyChange("0/16B3749", "S", note="read again at the source by compare --repair"),
)
CHANGED = DifferingKey("changed", ("8",), ("price", "note"), TOUCHED, 12)
EXTRA = DifferingKey("extra", ("9", None))


def details(*found: DifferingKey) -> list[str]:
    return text_of(replace(DIFFERENT, differing=found), EQUAL)[len(FOUND) : -len(END)]


def test_keys_are_told_with_columns_and_the_last_transactions_that_touched_them():
    assert details(CHANGED, EXTRA) == [
        "  changed (8): price, note",
        "    … 9 earlier changes in bronze (`cdc-lake inspect row`)",
        "    812  U  2026-11-22T14:59:30.000+00:00",
        "    0/16B3740  U  2026-11-22T15:00:00.000+00:00  csn 77",
        "    0/16B3749  S  read again at the source by compare --repair",
        "  extra (9, NULL)",
        "    bronze has no change of it",
    ]


def test_values_stand_column_by_column_where_they_were_asked_for():
    row = {"id": "8", "price": "1.50", "note": None}
    one = replace(
        CHANGED, changes=(), touched=0, source=row, silver={**row, "price": "2.50", "note": "it's\n" + "x" * 99}
    )
    assert details(one) == [
        "  changed (8)",
        "    price: source '1.50', silver '2.50'",
        f"    note: source NULL, silver 'it''s\\n{'x' * 52}… [104 characters]'",
        "    bronze has no change of it",
    ]
    assert details(replace(EXTRA, silver=row)) == [
        "  extra (9, NULL)",
        "    silver: id '8'",
        "    silver: price '1.50'",
        "    silver: note NULL",
        "    bronze has no change of it",
    ]


def test_the_document_says_all_that_the_text_says():
    one = replace(
        DIFFERENT, repair=Repair(3), differing=(EXTRA, replace(CHANGED, changes=TOUCHED[3:4])), watermark="0/16B3740"
    )
    found = json.loads(json.dumps(Comparison("shop", AT, "0/16B3748", (one,), 1.25).document()))
    (table,) = found.pop("tables")
    assert found == {
        "schema": "cdc-lake/compare/1",
        "pipeline": "shop",
        "at": "2026-11-22T15:00:00+00:00",
        "position": "0/16B3748",
        "verdict": "different",
        "text": "different",
        "quarantined_keys": 0,
        "discarded_keys": 0,
        "values": False,
        "different": ["public.books"],
        "seconds": 1.25,
    }
    assert {name: table[name] for name in ("verdict", "watermark", "columns", "samples", "repair", "differing")} == {
        "verdict": "different",
        "watermark": "0/16B3740",
        "columns": {"price": 2},
        "samples": {"missing": [["7"]], "changed": [["8"], ["9"]]},
        "repair": {"keys": 3, "position": "", "left": 0, "reason": "", "landed": False},
        "differing": [
            {
                "kind": "extra",
                "key": ["9", None],
                "columns": [],
                "changes": [],
                "touched": 0,
                "source": None,
                "silver": None,
            },
            {
                "kind": "changed",
                "key": ["8"],
                "columns": ["price", "note"],
                "changes": [
                    {
                        "position": "0/16B3740",
                        "op": "U",
                        "committed": "2026-11-22T15:00:00.000+00:00",
                        "csn": 77,
                        "commit_lsn": None,
                        "note": "",
                    }
                ],
                "touched": 12,
                "source": None,
                "silver": None,
            },
        ],
    }


def test_there_is_nothing_to_agree_to_without_a_repair(capsys: pytest.CaptureFixture[str]):
    assert run_command(app, ["compare", "--yes"]) == 2
    assert "requires --repair" in capsys.readouterr().err
