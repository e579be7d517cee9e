"""Two results of decoding, held against each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from cdc_lake.decode.change_batch import ChangeColumns
from cdc_lake.errors import DecodeError

Outcome: TypeAlias = ChangeColumns | tuple[str, str, str]
"""What was decoded, or of the error code, message and place."""


def outcome(decode: Callable[[], ChangeColumns]) -> Outcome:
    try:
        return decode()
    except DecodeError as error:
        return error.code, error.message, error.where


def assert_same_outcome(one: Outcome, other: Outcome) -> None:
    if isinstance(one, ChangeColumns) and isinstance(other, ChangeColumns):
        assert_same(one, other)
    else:
        assert one == other


def assert_same(left: ChangeColumns, right: ChangeColumns) -> None:
    assert left.relations == right.relations
    for name in ("transaction", "op", "relation", "lsn"):
        a, b = getattr(left, name), getattr(right, name)
        assert a.dtype == b.dtype, name
        assert np.array_equal(a, b), name
    for name in ("new", "old", "old_kind", "unchanged", "info"):
        a, b = getattr(left, name), getattr(right, name)
        a.validate(full=True)
        assert a.type == b.type, name
        assert a.equals(b), name
    assert left.digests == right.digests
    assert (left.raw is None) == (right.raw is None)
    assert left.raw is None or left.raw.equals(right.raw)
    assert left.undecoded == right.undecoded
