"""Values that are odd in one place: line breaks of Unicode in statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_lake.lake.read import silver_version
from cdc_lake.lake.written import written
from cdc_lake.model.change import Update
from cdc_lake.testing.histories import AT_LIMITS, LINE_BREAKS

from .formats import FORMATS
from .test_apply_cases import Lake, T, insert, row

pytestmark = pytest.mark.spark


@FORMATS
def test_texts_with_every_line_break_or_at_a_limit_of_statistics_arrive_and_do_not_stop_what_follows(
    spark: Any, lake_root: Path, fmt: str
) -> None:
    lake = Lake(lake_root, spark, "breaks", fmt)
    lake.land(insert("0", "0"))
    lake.advance()
    texts = [*(f"a{one}b" for one in LINE_BREAKS), "".join(LINE_BREAKS), *AT_LIMITS]
    for number, text in enumerate(texts):
        lake.land(insert(str(number + 1), "1", text))
        lake.advance()
        assert written(lake.project, lake.target(), silver_version(lake.project, lake.target())).files
    lake.land(*(Update(T, (str(number + 1), "2", text)) for number, text in enumerate(texts)))
    lake.advance()
    assert lake.rows() == [row(0, 0), *(row(number + 1, 2, text) for number, text in enumerate(texts))]
