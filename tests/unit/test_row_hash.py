"""Row hashes: what they are, that different rows have different texts, and that sums tell buckets apart."""

from __future__ import annotations

import hashlib
import random

import pyarrow as pa
import pytest

from cdc_lake.lake.row_hash import BUCKETS, RowForm, Sums
from tests.seeds import seeds

FORM = RowForm(("n", "a", "b"), ("n",), frozenset({"n"}), numbered=True)


def table(*rows):
    columns = zip(*rows, strict=True) if rows else [[], [], []]
    return pa.table({name: pa.array(texts, pa.large_string()) for name, texts in zip("nab", columns, strict=True)})


def test_a_hash_is_the_first_half_of_md5_and_a_bucket_the_last_bits_of_a_number():
    buckets, hashes = FORM.numbers(table(("-1", "größe", None), ("16385", "", "x|y")))
    assert buckets.tolist() == [BUCKETS - 1, 1]
    texts = ["-1|7:größe:", "16385|0:3:x|y"]
    assert hashes.tolist() == [int.from_bytes(hashlib.md5(text.encode()).digest()[:8], "big") for text in texts]


@pytest.mark.parametrize("seed", seeds(3))
def test_different_rows_have_different_texts(seed):
    dice = random.Random(seed)

    def value():
        return dice.choice([None, "", *("".join(dice.choices("|:1", k=n)) for n in (1, 2, 3))])

    rows = {(dice.choice([None, "1", "2"]), value(), value()) for _ in range(3000)}
    texts = FORM.text(table(*rows), FORM.columns).to_pylist()
    assert len(set(texts)) == len(rows)


@pytest.mark.parametrize("form", [FORM, RowForm(("n", "a", "b"), ("a", "n"), frozenset()), RowForm(tuple("nab"), tuple("nab"), frozenset("n"))])  # fmt: skip
@pytest.mark.parametrize("seed", seeds(3))
def test_sums_are_alike_where_buckets_hold_the_same_rows_as_often(form, seed):
    dice = random.Random(seed)
    rows = [(str(n), dice.choice([None, "x"]), "y") for n in range(500)]
    one, other = Sums(), Sums()
    one.add(*form.numbers(table(*rows)))
    dice.shuffle(rows)
    for at in range(0, 500, 100):
        other.add(*form.numbers(table(*rows[at : at + 100])))
    assert not one.unlike(other).any()
    assert one.rows == 500
    changed = table((rows[0][0], "z", "y"))
    other.add(*form.numbers(table(rows[0])), times=-1)
    other.add(*form.numbers(changed))
    gone = {*form.buckets(table(rows[0])).tolist(), *form.buckets(changed).tolist()}
    assert {*one.unlike(other).nonzero()[0].tolist()} == gone


def test_a_servers_exact_sum_of_signed_numbers_is_ours():
    rows = table(*((str(n * BUCKETS), "a", None) for n in range(50)))
    one, other = Sums(), Sums()
    buckets, hashes = FORM.numbers(rows)
    one.add(buckets, hashes)
    signed = [int(h) - (1 << 64) if h >= 1 << 63 else int(h) for h in hashes]
    other.put([0], [50], [sum(signed)])
    assert not one.unlike(other).any()
