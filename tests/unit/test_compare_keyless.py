"""Tables without a key, compared: by their rows as a whole and how often each is there."""

from __future__ import annotations

import pyarrow as pa

from cdc_lake.comparison.columns import COPIES, count_copies, match
from cdc_lake.comparison.pending_changes import QuarantinedChange, folded_copies


def side(*rows: tuple[str | None, str | None]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table({name: pa.array(values, pa.large_string()) for name, values in zip("ab", columns, strict=True)})


def test_the_same_rows_as_often_in_another_order_are_equal():
    one = count_copies(side(("1", None), ("2", "x"), ("1", None)))
    other = count_copies(side(("2", "x"), ("1", None), ("1", None)))
    assert not match(one, other, ("a", "b")).keys
    assert {(row["a"], row["b"]): row[COPIES] for row in one.to_pylist()} == {("1", None): "2", ("2", "x"): "1"}


def test_a_row_that_is_there_once_too_often_is_a_difference():
    one, other = count_copies(side(("1", None), ("2", "x"))), count_copies(side(("1", None), ("1", None), ("3", "x")))
    found = match(one, other, ("a", "b"))
    assert (found.changed, found.missing, found.extra) == ((("1", None),), (("2", "x"),), (("3", "x"),))
    assert found.columns == ((COPIES, 1),)


def test_held_changes_say_how_often_a_row_is_to_be_there():
    def change(ordinal: int, op: str, new: str | None, old: str | None) -> QuarantinedChange:
        rows = [None if value is None else {"a": value} for value in (new, old)]
        return QuarantinedChange((1, 10, ordinal), op, rows[0], rows[1], frozenset())

    held = [change(1, "I", "1", None), change(2, "U", "2", "1"), change(3, "D", None, "9")]
    left, odd = folded_copies(held, ("a",), {("1",): 1})
    assert left == {("1",): 1, ("2",): 1, ("9",): -1}
    assert odd == {("9",)}, "silver does not contain the row that goes"
