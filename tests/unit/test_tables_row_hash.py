"""Row hashes: different rows have different ones, the server's functions worked out here, and sums that tell buckets apart."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pyarrow as pa
import pytest

from cdc_lake.tables import row_hash
from cdc_lake.tables.canonical_values import from_silver
from cdc_lake.tables.row_hash import BUCKETS, EXACT, LONG, BucketSums, Hashes, HashStrategy, RowForm
from tests.seeds import seeds

FORM = RowForm(("n", "a", "b"), ("n",), numbered=True)
FORMS = [FORM, RowForm(("n", "a", "b"), ("a", "n")), RowForm(tuple("nab"), tuple("nab"))]
TYPES = {
    HashStrategy.INT4: pa.int32(), HashStrategy.INT8: pa.int64(), HashStrategy.BOOL: pa.bool_(), HashStrategy.INSTANT: pa.timestamp("us", tz="UTC"),
    HashStrategy.TEXT: pa.large_string(), HashStrategy.DIGEST: pa.large_string(),
}  # fmt: skip


def table(*rows):
    columns = zip(*rows, strict=True) if rows else [[], [], []]
    return pa.table({name: pa.array(texts, pa.large_string()) for name, texts in zip("nab", columns, strict=True)})


def numbers(form, rows):
    return form.numbers(rows, {}, {})


def hashes(values, way):
    """The hash of each row of one column."""
    return RowForm(("a",), ("a",), numbered=True).hashes(pa.table({"a": values}), {"a": way}).tolist()


def test_a_bucket_is_the_last_bits_of_a_number():
    assert FORM.buckets(table(("-1", "a", None), ("16385", "", "x|y"), (None, "", ""))).tolist() == [BUCKETS - 1, 1, 0]


@pytest.mark.parametrize("seed", seeds(3))
def test_different_rows_have_different_hashes_and_their_keys_different_texts(seed):
    dice = random.Random(seed)

    def value():
        return dice.choice([None, "", *("".join(dice.choices("|:1", k=n)) for n in (1, 2, 3))])

    rows = {(dice.choice([None, "1", "2"]), value(), value()) for _ in range(3000)}
    for form in FORMS:
        assert len({*numbers(form, table(*rows))[1].tolist()}) == len(rows)
    assert len({*FORMS[2].text(table(*rows)).to_pylist()}) == len(rows)


def test_of_many_columns_each_may_be_null():
    names = tuple(f"c{n}" for n in range(70))
    rows = [[None if n == one else "" for n in range(70)] for one in range(71)]
    columns = zip(*rows, strict=True)
    given = pa.table({n: pa.array(texts, pa.large_string()) for n, texts in zip(names, columns, strict=True)})
    assert len({*RowForm(names, names[:1]).hashes(given, {}).tolist()}) == 71


EDGES = {
    HashStrategy.INT4: [None, 0, 1, -1, 2**31 - 1, -(2**31)],
    HashStrategy.INT8: [None, 0, 1, -1, 2**32, 2**32 + 1, -(2**32), 2**33 + 2, 2**63 - 1, -(2**63)],
    HashStrategy.BOOL: [None, False, True],
    HashStrategy.INSTANT: [None, 0, 1, -1, 2**32, 2**33 + 2, 250 * 10**15, *(s * EXACT + d for s in (-1, 1) for d in (-1, 0, 1))],
    HashStrategy.TEXT: [None, "", "a", "größe", "x" * LONG, "x" * (LONG + 1), "x" * LONG + "y", "ß" * 128],
    HashStrategy.DIGEST: [None, "", "a", "größe", "x" * 1000],
}  # fmt: skip


@pytest.mark.parametrize("way", list(HashStrategy))
def test_a_value_has_one_hash_as_silver_holds_it_and_as_text_and_no_other_value_has_it(way):
    silver = pa.array(EDGES[way], TYPES[way])
    found = hashes(silver, way)
    assert len({*found}) == len(found)
    form, rows = RowForm(("a",), ("a",), numbered=True), pa.table({"a": from_silver(silver)})
    _, texts = RowForm(("a",), ("b",)).numbers(rows.append_column("b", rows["a"]), {"a": way}, {"a": TYPES[way]})
    assert texts.tolist() == found
    assert form.hashes(pa.table({"a": pa.chunked_array([silver[:2], silver[2:]])}), {"a": way}).tolist() == found


def test_a_long_text_is_hashed_by_its_digest():
    long = "ß" * 200
    assert hashes(pa.array([long], pa.large_string()), HashStrategy.TEXT) == hashes(
        pa.array(["md5:" + hashlib.md5(long.encode()).hexdigest()], pa.large_string()), HashStrategy.TEXT
    )


@pytest.mark.parametrize(("way", "odd"), [(HashStrategy.INSTANT, "infinity"), (HashStrategy.INSTANT, "0044-03-15 00:00:00 BC"), (HashStrategy.INT4, "4294967296"), (HashStrategy.BOOL, "2")])  # fmt: skip
def test_what_silver_cannot_hold_is_like_nothing_it_holds(way, odd):
    text = pa.table({"a": pa.array([odd, None], pa.large_string())})
    _, (one, null) = RowForm(("a",), ("a",)).numbers(text, {"a": way}, {"a": TYPES[way]})
    assert one != null
    assert null == hashes(pa.array([None], TYPES[way]), way)[0]
    assert one not in hashes(pa.array(EDGES[way], TYPES[way]), way)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", seeds(3))
def test_sums_are_alike_where_buckets_hold_the_same_rows_as_often(form, seed):
    dice = random.Random(seed)
    rows = [(str(n), dice.choice([None, "x"]), "y") for n in range(500)]
    one, other = BucketSums(), BucketSums()
    one.add(*numbers(form, table(*rows)))
    dice.shuffle(rows)
    for at in range(0, 500, 100):
        other.add(*numbers(form, table(*rows[at : at + 100])))
    assert not one.unlike(other).any()
    assert one.rows == 500
    changed = table((rows[0][0], "z", "y"))
    other.add(*numbers(form, table(rows[0])), times=-1)
    other.add(*numbers(form, changed))
    gone = {*form.buckets(table(rows[0])).tolist(), *form.buckets(changed).tolist()}
    assert {*one.unlike(other).nonzero()[0].tolist()} == gone


def test_a_servers_exact_sum_of_signed_numbers_is_ours():
    rows = table(*((str(n * BUCKETS), "a", None) for n in range(50)))
    one, other = BucketSums(), BucketSums()
    buckets, found = numbers(FORM, rows)
    one.add(buckets, found)
    other.put([0], [50], [sum(found.view(np.int64).tolist())])
    assert not one.unlike(other).any()


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
