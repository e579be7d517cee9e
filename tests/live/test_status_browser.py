"""A real browser, without a network, shows the status page on a desk and on a phone, in light and dark."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Literal

import pytest

from cdc_lake.ops.html_pages import PastCut, PastError, PastRun, StatusPage, render
from cdc_lake.runtime.receive.lag import Lag, QuarantinedRows, SlotStatus, Status, TableStatus
from tests.browser import fits, look

pytestmark = pytest.mark.live

NOW = dt.datetime(2026, 1, 31, 18, 5, tzinfo=dt.UTC)
AT = "0/5F3A9C8"


def before(minutes: float) -> dt.datetime:
    return NOW - dt.timedelta(minutes=minutes)


STATUS = Status(
    pipeline="shop",
    at=NOW,
    source="db1.example:5432/shop",
    reachable=True,
    unreachable_because="",
    stream="pg:7:shop:cdc:0/64",
    epoch=1,
    source_position="0/5F3AA00",
    bronze_position=AT,
    silver_position=AT,
    last_commit=before(0.1),
    received=Lag(0, 0.0),
    landed=Lag(2 << 20, 0.4, 14),
    applied=Lag(41 << 20, 184.0, 1204),
    slot=SlotStatus("shop", "active", "read by process 4711", 43 << 20, "0/5F3A000"),
    tables=(
        TableStatus("public.customers", "silver.customers", "delta", "live", "everything received is applied", AT, 412, 0, AT, before(14)),
        TableStatus("public.orders", "silver.orders", "delta", "quarantined", "4 changes wait in quarantine", AT, 1377, 4, AT, before(14)),
        TableStatus("public.order_lines_of_a_long_name", "silver.order_lines_of_a_long_name", "iceberg", "catching-up", "1204 transactions to apply", "0/5F1B220", 88, 0),
        TableStatus("public.payments", "silver.payments", "iceberg", "live", "everything received is applied", AT, 902, 0),
        TableStatus("public.prices", "silver.prices", "delta", "failed", "it could not continue at its last span; the next run reports why and tries again", "0/5E00000", 17, 0),
    ),
    quarantined=(QuarantinedRows("silver.orders", "amount_within_reason", 3), QuarantinedRows("silver.orders", "waiting", 1)),
)  # fmt: skip
AGES = tuple(2.0 + (at * 7 % 11) * 0.4 + (14 if 31 <= at <= 34 else 0) for at in range(60))
PAGE = StatusPage(
    status=STATUS,
    cuts=tuple(PastCut(f"0/5F3A9{at}8", before(at), AGES[-1 - at], 5, 4, 3) for at in range(8)),
    runs=(
        PastRun("aa", "apply", before(2), 61.0, "done", 12_204, ()),
        PastRun("ab", "run", before(40), 4.1, "failed", None, ("SRC201",)),
        *(PastRun(f"b{at}", "apply", before(60 * at), 12.5 + at, "done", 9_100 - 301 * at, ("LAK410",) if at == 2 else ()) for at in range(1, 7)),
    ),
    errors=(PastError("SRC201", 2, before(40)), PastError("LAK410", 1, before(120))),
    ages=AGES,
    changes=tuple(900 + at * at % 37 * 210 for at in range(40)),
)  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_status_page_fits_desk_and_phone_and_fetches_nothing(
    chromium: str, tmp_path: Path, scheme: Literal["light", "dark"]
) -> None:
    seen = look(chromium, tmp_path, render(PAGE), "status", scheme, 4400)
    fits(seen, scheme)
    assert {one.drawings for one in seen.values()} == {2}
