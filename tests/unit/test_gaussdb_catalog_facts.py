"""By which transaction a table got its name."""

from __future__ import annotations

import pytest

from cdc_lake.decode.gaussdb.catalog_facts import named_anew, named_by


@pytest.mark.parametrize(
    ("now", "expected"),
    [("700 10", False), ("800 10", True), ("800 11", False), ("2 10", False), ("9000000000 10", True)],
    ids=["as it was", "renamed", "another owner", "frozen", "of 64 bits"],
)
def test_a_name_is_anew_where_the_row_type_is_written_and_has_its_owner(now: str, *, expected: bool) -> None:
    assert named_anew("700 10", named_by(f"16500 900 16500 5 3500 1 700 {now}")) is expected
