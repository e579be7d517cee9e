"""Verified: what counts of former comparisons, and where it is shown."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pytest

from cdc_lake.cli.commands.status import status_text
from cdc_lake.control.verdicts import Comparison, Judged, TableComparison, Verdict, Verified, record, verified_state
from cdc_lake.runtime.receive.lag import Lag, SlotStatus, Status, TableStatus
from cdc_lake.tables.control_schema import VerifiedRow, schema_of
from cdc_lake.tables.control_tables import ControlTables

NOW = dt.datetime(2026, 11, 22, 15, 0, tzinfo=dt.UTC)
T = "public.t"
EQUAL, BUT_HELD, DIFFERENT = Verdict.EQUAL, Verdict.EQUAL_BUT_QUARANTINED, Verdict.DIFFERENT


def minute(n: int) -> dt.datetime:
    return NOW + dt.timedelta(minutes=n)


def rows(*found: tuple[Verdict, int], generation: int = 1, stream: str = "s1", relation: str = T) -> pa.Table:
    """Verdicts with silver's positions, a minute apart."""
    table = [
        VerifiedRow(stream, 1, generation, relation, "silver.t", position, verdict.value, 2, minute(at))
        for at, (verdict, position) in enumerate(found)
    ]
    return pa.Table.from_pylist([asdict(one) for one in table], schema_of("verified"))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], Verified()),
        ([(EQUAL, 10)], Verified(10, minute(0), 2)),
        ([(EQUAL, 10), (BUT_HELD, 20)], Verified(20, minute(1), 2)),
        ([(EQUAL, 10), (EQUAL, 10)], Verified(10, minute(1), 2)),
        ([(DIFFERENT, 10)], Verified(different_at=minute(0))),
        ([(EQUAL, 10), (DIFFERENT, 20)], Verified(10, minute(0), 2, minute(1))),
        ([(EQUAL, 10), (DIFFERENT, 20), (EQUAL, 20)], Verified(20, minute(2), 2)),
        ([(EQUAL, 30), (EQUAL, 10)], Verified(30, minute(0), 2)),
        ([(EQUAL, 10), (DIFFERENT, 30), (EQUAL, 20)], Verified(20, minute(2), 2, minute(1))),
    ],
)
def test_the_highest_position_found_equal_counts_and_what_differs_until_it_is_proven_again(
    found: list[tuple[Verdict, int]], expected: Verified
) -> None:
    assert verified_state(rows(*found), T, "s1", 1) == expected


def test_another_generation_stream_or_table_has_proven_nothing() -> None:
    found = rows((EQUAL, 10))
    assert (
        verified_state(found, T, "s1", 2)
        == verified_state(found, T, "s2", 1)
        == verified_state(found, "public.u", "s1", 1)
    )
    assert verified_state(found, T, "s1", 2) == Verified()


def test_what_a_comparison_finds_is_recorded_and_what_it_cannot_judge_verifies_nothing(tmp_path: Path) -> None:
    tables = (
        TableComparison(T, "silver.t", EQUAL, 3, 3, watermark="0/A"),
        TableComparison("public.u", "silver.u", DIFFERENT, 3, 3, missing=1, changed=1, watermark="0/B"),
        TableComparison("public.v", "silver.v", Verdict.INCONCLUSIVE, reason="bronze is behind"),
    )
    control = ControlTables(tmp_path / "control", durability="os")
    record(control, Comparison("shop", NOW, "0/C", tables, 1.0), [Judged("s1", 1, 3, n) for n in (10, 11, 12)])
    found = control.read("verified")
    assert verified_state(found, T, "s1", 3) == Verified(10, NOW)
    assert verified_state(found, "public.u", "s1", 3) == Verified(different_at=NOW)
    assert verified_state(found, "public.v", "s1", 3) == Verified()
    quality = control.read("quality").select(["table", "rule", "evaluated", "failed", "level", "observed", "error"])
    assert [tuple(row.values()) for row in quality.to_pylist()] == [
        ("silver.t", "equal_to_source", 3, 0, "none", "equal at 0/A", ""),
        ("silver.u", "equal_to_source", 3, 2, "critical", "different at 0/B", ""),
        ("silver.v", "equal_to_source", 0, 0, "none", "", "bronze is behind"),
    ]


def test_status_says_how_far_tables_are_verified_and_since_when_they_differ() -> None:
    slot, none = SlotStatus("shop", "idle", "not being read"), Lag()
    t = TableStatus(T, "silver.t", "delta", "live", "", "0/1F", 1, 0, "0/1E", minute(0))
    u = replace(t, table="silver.u", verified_at=None, verified_through=None, different_at=minute(1))
    w = replace(t, table="silver.w", different_at=minute(2))
    v = replace(u, table="silver.v", different_at=None)
    status = Status(
        "shop", NOW, "db", True, "", "s1", 1, "0/1F", "0/1F", "0/1F", NOW, none, none, none, slot, (t, u, v, w), ()
    )
    said = status_text(status, 60).splitlines()
    assert said[said.index("verified") :] == [
        "verified",
        "  silver.t  through 0/1E  2026-11-22T15:00Z",
        "  silver.u  never                            different 2026-11-22T15:01Z",
        "  silver.w  through 0/1E  2026-11-22T15:00Z  different 2026-11-22T15:02Z",
    ]
    assert "verified" not in status_text(replace(status, tables=(v,)), 60).splitlines()
