"""A comparison's sample (how it is written, how many buckets it takes), and what is offered for a table that differs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cdc_lake.comparison import compare
from cdc_lake.comparison.columns import Sample
from cdc_lake.model.position import Csn, Lsn
from cdc_lake.source.base import Kind, StreamIdentity
from cdc_lake.tables.row_hash import BUCKETS


@pytest.mark.parametrize(("text", "rows", "share"), [("5%", 10, 0.05), ("0.5 %", 10, 0.005), ("100%", 10, 1), ("50", 1000, 0.05), ("99", 9, 1), ("1", 10**9, 1 / BUCKETS)])  # fmt: skip
def test_a_sample_is_a_part_of_the_buckets(text: str, rows: int, share: float) -> None:
    assert Sample.parse(text).buckets(rows).mean() == pytest.approx(share, abs=1 / BUCKETS)


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "-1", "5 per cent", "1e3", "%"])
def test_what_is_no_sample_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither a percentage"):
        Sample.parse(text)


@pytest.mark.parametrize(
    ("stream", "offered"),
    [
        (StreamIdentity("7", "db", "slot", Lsn(10)), True),
        (StreamIdentity("7", "db", "slot", Lsn(10), Csn(2021), Kind.GAUSS), True),
        (StreamIdentity("7", "db", "slot", Lsn(10), None, Kind.GAUSS, snapshot_csn=Csn(2020)), False),
    ],
    ids=["PostgreSQL", "in CSN order", "in LSN order"],
)
def test_a_different_table_is_offered_a_new_copy_only_if_its_stream_takes_one(
    stream: StreamIdentity, offered: bool
) -> None:
    pinned = SimpleNamespace(target=SimpleNamespace(source="public.loans"))
    asked = SimpleNamespace(repairs=False, now=True)
    job: Any = SimpleNamespace(state=SimpleNamespace(stream=str(stream)), pinned=pinned, asked=asked)
    assert ("cdc-lake resync public.loans" in compare._remedy_text(job)) is offered
    assert "cdc-lake compare public.loans --repair" in compare._remedy_text(job)
