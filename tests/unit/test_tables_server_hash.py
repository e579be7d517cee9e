"""The server's hash functions worked out here: what PostgreSQL 18 answered, and that rows do not meddle with others."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from cdc_lake.tables import row_hash
from cdc_lake.tables.row_hash import Hashes
from tests.seeds import seeds

SEED = 7_654_321
INT4 = {0: -6697334783491175824, -1: 4756206686187503019, 2**31 - 1: 7439475460084221181}
INT8 = {
    0: -6697334783491175824, -1: 4756206686187503019,
    -4_321_098_765: -304750606001446537, 2**63 - 1: -989806525527027853,
}  # fmt: skip
FLOAT8 = {0.0: SEED, -1.5: -6071963117741032902, 4102444799.999999: -7253276006371681830}
TEXT = {
    "": 2008225438669201240,
    "a": -8360064632643393391,
    "größe": -837915512761259637,
    "twelve bytes": 8358191721875188323,
    "twelve bytes.": -82567857856594829,
    "x" * 96: -4822931201068092055,
    "漢字" * 40: -7862034769799009178,
}


def signed(hashes):
    return hashes.numbers.view(np.int64).tolist()


def test_hashes_are_those_of_the_server():
    for values, kind, given in ((INT4, np.int32, "int4"), (INT8, np.int64, "int8"), (FLOAT8, np.float64, "float8")):
        found = getattr(Hashes.first(SEED, len(values)), given)(np.array([*values], kind))
        assert signed(found) == [*values.values()]
    assert signed(Hashes.first(SEED, len(TEXT)).text(pa.array([*TEXT], pa.large_string()))) == [*TEXT.values()]


@pytest.mark.parametrize("at_most", [10, 1 << 20])
@pytest.mark.parametrize("seed", seeds(3))
def test_a_text_has_its_hash_whatever_stands_beside_it(seed, at_most, monkeypatch):
    monkeypatch.setattr(row_hash, "_WORDS_AT_MOST", at_most)
    dice = random.Random(seed)
    texts = ["".join(dice.choices("aß漢", k=dice.choice([0, 3, 12, 24, dice.randrange(200)]))) for _ in range(50)]
    one_by_one = [signed(Hashes.first(SEED, 1).text(pa.array([text], pa.large_string())))[0] for text in texts]
    whole = pa.array(["before", *texts], pa.large_string())
    assert signed(Hashes.first(SEED, 50).text(whole[1:])) == one_by_one


def test_of_no_rows_there_are_no_hashes():
    assert signed(Hashes.first(SEED, 0).text(pa.array([], pa.large_string())).int4(np.array([], np.int32))) == []
