"""pgoutput: what goes in comes out, and both decoders agree. `test_fuzz` is about bytes that nobody should send."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_lake.decode.pgoutput import columnar
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.pgoutput.columnar import tabulate, tabulate_plain
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import DecodeError
from cdc_lake.model.change import UNCHANGED, Delete, Insert, Message, OldKind, Transaction, Truncate, Update
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName
from cdc_lake_testing.decoded import of_messages
from cdc_lake_testing.messages import (
    boundaries,
    catalog_of,
    encode_stream,
    insert,
    raw_transaction,
    table,
    truncate,
)
from tests.decoded_columns import assert_same

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
EXAMPLES = settings(max_examples=100 * BUDGET, derandomize=True, deadline=None)

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=6)
TEXTS = st.one_of(st.just(""), st.text(st.characters(exclude_categories=("Cs",)), max_size=12), st.just("x" * 300))
LAYOUTS = [  # two layouts of one table, so that a relation changes in mid transaction
    table("public.a", id="int8", note="text"),
    table("public.a", id="int8", note="text", more="text"),
    table("public.wide", **{f"c{n}": "text" for n in range(12)}),
    table("my\\.sch.ü", identity=ReplicaIdentity.FULL, k="int4", v="jsonb"),
    Relation(TableName("public", "empty"), (), ReplicaIdentity.DEFAULT),
]


def tuples(layout: Relation, *, old: bool):
    value = st.one_of(TEXTS, st.none()) if old else st.one_of(TEXTS, st.none(), st.just(UNCHANGED))
    return st.tuples(*[value] * len(layout.columns))


@st.composite
def row_changes(draw):
    layout = draw(st.sampled_from(LAYOUTS))
    kind = draw(st.sampled_from([OldKind.KEY, OldKind.FULL]))
    new, old = draw(tuples(layout, old=False)), draw(tuples(layout, old=True))
    return draw(
        st.sampled_from(
            [Insert(layout, new), Update(layout, new), Update(layout, new, old, kind), Delete(layout, old, kind)]
        )
    )


CHANGES = st.one_of(
    row_changes(),
    row_changes(),
    row_changes(),
    st.builds(Truncate, st.sampled_from(LAYOUTS), st.booleans(), st.booleans()),
    st.builds(Message, NAMES, st.binary(max_size=9)),
)


@st.composite
def streams(draw):
    contents = draw(st.lists(st.lists(CHANGES, max_size=12), max_size=5))
    out = []
    for nth, changes in enumerate(contents):
        lsns = tuple(range(nth * 1000, nth * 1000 + len(changes)))
        origin = draw(st.one_of(st.none(), NAMES))
        out.append(Transaction(boundaries((nth + 1) * 1000, origin=origin), tuple(changes), lsns))
    return out


@pytest.fixture(autouse=True, scope="module")
def columnar_from_the_first_change():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnar, "SMALL", 1)  # none at all is the plain decoder's
        yield


def assemble(transactions):
    assembler = Assembler(catalog_of(*LAYOUTS))
    fed = [raw for lsn, payload in encode_stream(transactions) for raw in assembler.feed(payload, lsn)]
    assert assembler.open_bytes == 0
    return fed


@given(streams())
@EXAMPLES
def test_a_stream_decodes_to_the_transactions_it_was_made_of(transactions):
    raws = assemble(transactions)
    assert [of_messages(raw) for raw in raws] == transactions
    assert raws == [raw_transaction(one) for one in transactions]


COLUMNS = st.lists(st.tuples(NAMES, NAMES, st.booleans()), max_size=5, unique_by=lambda column: column[0])


@given(COLUMNS, NAMES, NAMES, st.sampled_from(ReplicaIdentity))
@EXAMPLES
def test_a_layout_survives_its_announcement(columns, schema, name, identity):
    layout = Relation(
        TableName(schema, name),
        tuple(Column(c, kind, 20_000 + at, at - 1, key) for at, (c, kind, key) in enumerate(columns)),
        identity,
        tuple(c for c, _, key in columns if key),
    )
    one = Transaction(boundaries(99), (Insert(layout, (None,) * len(columns)),), (7,))
    assembler = Assembler(catalog_of(layout))
    [raw] = [assembler.feed(payload, lsn) for lsn, payload in encode_stream([one])][-1]
    assert raw is not None
    assert raw.layouts == [layout]


@given(streams(), st.sampled_from([1, 40, 1 << 20]))
@EXAMPLES
def test_the_columnar_decoder_equals_the_plain_one(transactions, chunk_bytes):
    raws = assemble(transactions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnar, "CHUNK_BYTES", chunk_bytes)
        assert_same(tabulate(raws), tabulate_plain(raws))


def test_the_columnar_decoder_vouches_for_regular_streams_itself(monkeypatch):
    """No regular stream takes the way back: else the comparison above would compare the plain decoder with itself."""

    def refuse(_batch):
        raise AssertionError("fell back")

    monkeypatch.setattr(columnar, "tabulate_plain", refuse)
    rng = random.Random(1)
    for _ in range(20):
        assert len(tabulate([random_transaction(rng, 60)])) >= 60


def random_value(rng: random.Random, *, old: bool):
    pick = rng.randrange(8)
    if pick == 0:
        return None
    if pick == 1 and not old:
        return UNCHANGED
    return ("", "a", "é", "日本", "𝄞", "x" * 40)[rng.randrange(6)]


def random_change(rng: random.Random):
    layout = rng.choice(LAYOUTS)
    new = tuple(random_value(rng, old=False) for _ in layout.columns)
    old = tuple(random_value(rng, old=True) for _ in layout.columns)
    kind = rng.choice([OldKind.KEY, OldKind.FULL])
    pick = rng.randrange(12)
    if pick < 4:
        return Insert(layout, new)
    if pick < 6:
        return Update(layout, new)
    if pick < 8:
        return Update(layout, new, old, kind)
    if pick < 10:
        return Delete(layout, old, kind)
    if pick < 11:
        return Message("p", bytes(rng.randrange(256) for _ in range(rng.randrange(4))))
    return Truncate(layout, rng.random() < 0.5, rng.random() < 0.5)


def random_transaction(rng: random.Random, size: int) -> BufferedTransaction:
    raw = raw_transaction(Transaction(boundaries(5000), tuple(random_change(rng) for _ in range(size))))
    both = (LAYOUTS[0], LAYOUTS[2])
    raw.truncated[len(raw.frames)] = both
    raw.frames.append(truncate(both, cascade=True))
    raw.lsns.append(7)
    raw.layouts.append(both[0])
    return raw


def test_values_of_insert_frames_are_not_in_the_error():
    raw = raw_transaction(Transaction(boundaries(9), (Insert(LAYOUTS[0], ("1", "secret")),) * 60))
    raw.frames[30] = insert(LAYOUTS[0], ("1", "secret")).replace(b"ret", b"r\xfft")
    with pytest.raises(DecodeError) as caught:
        tabulate([raw])
    assert "sec" not in str(caught.value)
    assert caught.value.__cause__ is None
