"""A real browser, without a network, shows the report on a desk and on a phone, in light and dark."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Literal

import pytest

from cdc_lake.config.rules import Thresholds
from cdc_lake.quality.report import (
    DifferingKey,
    Judged,
    Lag,
    QuarantineSummary,
    ReportData,
    RuleState,
    RunState,
    TableState,
    Verdict,
    render_html,
)
from tests.browser import fits, look

pytestmark = pytest.mark.live

NOW = dt.datetime(2026, 1, 31, 18, 5, tzinfo=dt.UTC)


def history(*failed: int) -> tuple[Judged, ...]:
    return tuple(Judged(12_000 + 37 * at, number) for at, number in enumerate(failed))


DIFFERING = (
    DifferingKey("silver.orders", "changed", "84 112, eu-central", (("amount", "12.50", "NULL"), ("a_column_with_quite_a_long_name", "shipped", "new")), (("0/5F1B220", "I", "2026-03-01T11:02:10.120+00:00"), ("0/5F3A9C8", "U", "2026-03-01T11:57:41.003+00:00")), 9),
    DifferingKey("silver.prices", "missing", "7", (), (), 0),
)  # fmt: skip
SAMPLE = ReportData(
    pipeline="shop",
    generated=NOW,
    source="postgres · db1.example:5432/shop",
    verdict=Verdict("equal but for quarantined keys", NOW - dt.timedelta(minutes=3), "0/5F3A9C8", 5, 3, differing=DIFFERING, values=True),
    lags=(Lag("received", 0.12, 0, 0), Lag("landed", 0.4, 2 << 20, 14), Lag("applied", 184.0, 41 << 20, 1204)),
    tables=(
        TableState("silver.customers", "public.customers", "delta", "live", 48_210, "0/5F3A9C8", NOW),
        TableState("silver.notes", "public.notes", "delta", "live", 9_004, "0/5F3A9C8", NOW),
        TableState(
            "silver.orders", "public.orders", "delta", "quarantined", 1_204_377, "0/5F3A9C8", NOW, 4, "3 keys wait for a correction"
        ),
        TableState("silver.payments", "public.payments", "iceberg", "live", 998_120, "0/5F3A9C8", NOW),
        TableState("silver.prices", "public.prices", "iceberg", "catching-up", 310, "0/5F1B220", NOW),
    ),
    rules=(
        RuleState("silver.customers", "regex_email", "regex", "email", "warn", history(31, 24, 25, 12, 9, 9, 4, 2), Judged(48_210, 116), written="pipelines/shop.yaml:31", keys=(("84112", "eu-central"), ("84113", "a part of a key that is quite long, as names and addresses are"), ("9", None))),
        RuleState("silver.orders", "amount_within_reason", "between", "amount", "quarantine", history(0, 0, 1, 0, 0, 3, 0, 1), Judged(1_204_377, 0), written="pipelines/shop.yaml:22"),
        RuleState("silver.orders", "not_null_customer_id", "not_null", "customer_id", "stop", history(0, 0, 0, 0, 0, 0, 0, 0), Judged(1_204_377, 0), written="pipelines/shop.yaml:21"),
        RuleState("silver.orders", "foreign_key_customer_id", "foreign_key", "customer_id", "warn", (), Judged(1_204_377, 19_004), written="pipelines/shop.yaml:26", thresholds=Thresholds(warn=0.001, error=0.01), past=history(0, 3, 8, 15)),
        RuleState("silver.orders", "freshness_updated_at", "freshness", "updated_at", "warn", (), Judged(1, 1), written="pipelines/shop.yaml:27", observed="2 d 4 h old", past=(Judged(1, 0), Judged(1, 1))),
        RuleState("silver.payments", "in_set_currency", "in_set", "currency", "warn", history(0, 0, 0), None, "not checked: 998 120 rows", written="pipelines/shop.yaml:44"),
        RuleState("silver.prices", "length_a_column_with_quite_a_long_name", "length", "a_column_with_quite_a_long_name", "warn", (), None, broken="there is no column of that name", written="pipelines/shop.yaml:58"),
    ),
    quarantined=(QuarantineSummary("silver.orders", "amount_within_reason", "amount is not between 0 and 1000000", 4, 3, NOW),),
    runs=tuple(RunState(NOW - dt.timedelta(hours=at), 8.4 + at, 1204 - at, 12_259 - 37 * at, "0/5F3A9C8", "done") for at in range(8)),
    suites={"silver.customers": "gx/silver.customers.json", "silver.orders": "gx/silver.orders.json"},
    notes=("silver.payments has more rows than this report judges (500 000).",),
)  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_fits_desk_and_phone_and_fetches_nothing(
    chromium: str, tmp_path: Path, scheme: Literal["light", "dark"]
) -> None:
    seen = look(chromium, tmp_path, render_html(SAMPLE), "report", scheme, 3500)
    fits(seen, scheme)
    assert {one.drawings for one in seen.values()} == {6}
