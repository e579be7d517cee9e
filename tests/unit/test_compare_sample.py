"""A sample of a comparison: how it is written, and how many buckets it takes."""

from __future__ import annotations

import pytest

from cdc_lake.comparison.columns import Sample
from cdc_lake.tables.row_hash import BUCKETS


@pytest.mark.parametrize(("text", "rows", "share"), [("5%", 10, 0.05), ("0.5 %", 10, 0.005), ("100%", 10, 1), ("50", 1000, 0.05), ("99", 9, 1), ("1", 10**9, 1 / BUCKETS)])  # fmt: skip
def test_a_sample_is_a_part_of_the_buckets(text: str, rows: int, share: float) -> None:
    assert Sample.parse(text).buckets(rows).mean() == pytest.approx(share, abs=1 / BUCKETS)


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "-1", "5 per cent", "1e3", "%"])
def test_what_is_no_sample_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither a part"):
        Sample.parse(text)
