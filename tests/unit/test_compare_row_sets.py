"""A shelf gives back what was put on it, rows of one bucket together, whether it spilled or not."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from cdc_lake.comparison.row_sets import PARTS, BucketStore, pair_shelves
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(4))
@pytest.mark.parametrize("at_most", [10, 1000])
def test_what_was_put_on_two_shelves_comes_together_by_bucket(seed, at_most, tmp_path):
    dice = random.Random(seed)
    shelves = [BucketStore(tmp_path / "spilled", "one", at_most), BucketStore(tmp_path / "spilled", "other", 1000)]
    put: list[list[str]] = [[], []]
    for side, shelf in enumerate(shelves):
        for _ in range(dice.randrange(6)):
            texts = [str(dice.randrange(10**6)) for _ in range(dice.randrange(12))]
            put[side] += texts
            shelf.add(
                pa.table({"k": pa.array(texts, pa.large_string())}), np.array([int(t) % 997 for t in texts], np.int64)
            )
    parts = [[[] if one is None else one["k"].to_pylist() for one in pair] for pair in pair_shelves(*shelves)]
    for side in (0, 1):
        assert sorted(text for part in parts for text in part[side]) == sorted(put[side])
    spilled = shelves[0].is_spilled
    assert len(parts) == (PARTS if spilled else 1)
    if spilled:
        for number, part in enumerate(parts):
            assert {int(text) % 997 % PARTS for side in part for text in side} <= {number}
    assert (tmp_path / "spilled").exists() == spilled
