"""Values that no target type holds, one of every kind in every column: kept back with their place, and the rest applied.

By the policy `stop` nothing of the transaction is applied, nor anything behind it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_lake.errors import RuleStopped
from cdc_lake.model.change import Insert
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake.tables.open_silver_table import table_log
from cdc_lake_testing.messages import TYPE_OIDS
from tests.tally import tally

from .formats import drawn
from .test_apply_cases import Lake

pytestmark = pytest.mark.spark

NUMERIC_10_2 = ((10 << 16) | 2) + 4
TYPES: dict[str, tuple[str, int | None, str, tuple[str, ...]]] = {
    "i2": ("int2", None, "1", ("32768", "-32769", "1.0", "one", "")),
    "i4": ("int4", None, "1", ("2147483648", " 1", "0x1", "NaN")),
    "i8": ("int8", None, "1", ("9223372036854775808", "1e3", "1L")),
    "n": ("numeric", NUMERIC_10_2, "1.50", ("NaN", "Infinity", "123456789.00", "1.005", "abc")),
    "f4": ("float4", None, "1.5", ("inf", "1f", "0x1p3", "")),
    "f8": ("float8", None, "1.5", ("1d", "1_0", "+", "nan")),
    "b": ("bool", None, "t", ("T", "yes", "1", "true ")),
    "y": ("bytea", None, "\\x00", ("\\xa", "\\xzz", "ab")),
    "d": ("date", None, "2026-01-01", ("infinity", "0044-03-15 BC", "10000-01-01", "2026-13-01", "2026-1-1")),
    "ts": ("timestamp", None, "2026-01-01 00:00:00", ("infinity", "10000-01-01 00:00:00", "2026-02-30 00:00:00", "x")),
    "tz": (
        "timestamptz",
        None,
        "2026-01-01 00:00:00+00",
        ("-infinity", "2026-01-01 00:00:00", "10000-01-01 00:00:00+00"),
    ),
}
"""Columns by name: the server's type, its modifier, a value that fits, and values that do not."""
CASTS = [(name, text) for name, (*_, misfits) in TYPES.items() for text in misfits]
T = Relation(
    TableName("public", "t"),
    (Column("id", "int4", 23, key=True), *(Column(n, k, TYPE_OIDS[k], m or -1) for n, (k, m, *_) in TYPES.items())),
    ReplicaIdentity.DEFAULT,
    ("id",),
)


def row_with(number: int, **misfits: str) -> Insert:
    """A row that fits but for these columns."""
    return Insert(T, (str(number), *(misfits.get(name, fitting) for name, (_, _, fitting, _) in TYPES.items())))


def ids(lake: Lake) -> list[int]:
    return sorted(table_log(lake.project, lake.target(T)).read().column("id").to_pylist())


@drawn
def test_every_value_that_cannot_hold_is_kept_back_with_its_place_and_the_rest_is_applied(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = Lake(lake_root, spark, "misfits", fmt)
    places = {}
    for number, (name, text) in enumerate(CASTS):
        at = lake.land(row_with(1000 + number), row_with(number, **{name: text}), row_with(2000 + number))
        places[at] = f"type_{name}"
    lake.advance()
    quarantined = ControlTables(lake.project.control).read("quarantine").to_pylist()
    assert {(row["position"], row["ordinal"]): row["rules"] for row in quarantined} == {
        (at, 2): [rule] for at, rule in places.items()
    }
    fitting = range(len(CASTS))
    assert ids(lake) == [*(1000 + n for n in fitting), *(2000 + n for n in fitting)]
    tally("R15", {TYPES[name][0] for name, _ in CASTS}, casts=len(CASTS))


def test_by_the_policy_stop_nothing_behind_it_is_applied_until_it_is_changed(spark: Any, lake_root: Path) -> None:
    lake = Lake(lake_root, spark, "misfit_stops", "delta", table={"types": {"misfit": "stop"}})
    before = lake.land(row_with(1))
    lake.advance()
    lake.land(row_with(2), row_with(3, d="infinity"))
    lake.land(row_with(4))
    for _ in range(2):
        with pytest.raises(RuleStopped):
            lake.advance()
        assert ids(lake) == [1]
        assert lake.marker().position == before
    given = lake.project.pipeline.model_dump(mode="json", by_alias=True)
    given["silver"]["tables"][0]["types"]["misfit"] = "quarantine"
    lake.project = replace(lake.project, pipeline=type(lake.project.pipeline).model_validate(given))
    lake.advance()
    assert ids(lake) == [1, 2, 4]
    tally("R15", {"policy stop"}, stops=1)
