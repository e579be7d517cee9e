"""What silver has against what the source has now: columns that were added, and what makes a table wait."""

from __future__ import annotations

import pytest

from cdc_lake.errors import DestructiveChange
from cdc_lake.lake.store import SilverColumn
from cdc_lake.silver.shape import check_evolution


def test_a_small_integer_is_held_by_icebergs_int_and_by_nothing_smaller() -> None:
    assert check_evolution([SilverColumn("n", "int")], [SilverColumn("n", "smallint")], "t") == ()
    for have, wanted in (("smallint", "int"), ("int", "bigint"), ("bigint", "int")):
        with pytest.raises(DestructiveChange, match=f"`n` of t changed to {wanted}"):
            check_evolution([SilverColumn("n", have)], [SilverColumn("n", wanted)], "t")


def test_a_new_column_is_what_silver_lacks() -> None:
    new = SilverColumn("more", "string")
    assert check_evolution([SilverColumn("n", "int")], [SilverColumn("n", "int"), new], "t") == (new,)
