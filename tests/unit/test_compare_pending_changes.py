"""What a snapshot shows, and what that makes of silver; folding of held changes; matching; without a server."""

from __future__ import annotations

import random
import struct

import numpy as np
import pyarrow as pa
import pytest

from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import DeltaBronze
from cdc_lake.comparison.columns import match
from cdc_lake.comparison.pending_changes import PendingChange, fold_changes
from cdc_lake.errors import StreamProtocol
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.model.relation import TableName
from cdc_lake.runtime.apply.snapshot_alignment import AlignmentPoint, SnapshotTransaction, point
from cdc_lake.source.base import PendingTransaction
from cdc_lake.source.postgres.slot_peek import transactions
from cdc_lake.source.postgres.snapshot_visibility import SnapshotPredicate
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.seeds import one_seed

A, B = TableName("public", "a"), TableName("public", "b")


def touch(position: int, xid: int, *tables: TableName, landed: bool = True) -> SnapshotTransaction:
    return SnapshotTransaction(position, xid, frozenset(tables), landed)


def test_what_was_running_is_not_shown():
    seen = SnapshotPredicate.parse("10:20:12,15", 0, 5)
    assert [xid for xid in range(5, 25) if seen.shows(xid, 0)] == [*range(5, 12), 13, 14, *range(16, 20)]
    assert not seen.shows(5, 1)  # its commit lies behind the snapshot
    assert SnapshotPredicate.parse("10:10:", 0).in_progress == frozenset()


def test_ids_are_read_around_the_turn_of_32_bits():
    turn = 7 << 32
    seen = SnapshotPredicate.parse(f"{turn - 2}:{turn + 3}:{turn + 1}", 0, 1)
    assert seen.full_xid(2**32 - 1) == turn - 1
    assert [seen.shows(x, 0) for x in (2**32 - 1, 0, 1, 2, 3)] == [True, True, False, True, False]


def test_a_snapshot_shows_what_it_does_however_many_ids_ago_it_committed():
    """Against a server that gives ids out over several turns of 32 bits; a table may rest as long as it likes."""
    seed = one_seed()
    draw = random.Random(seed)
    given_out, commits, running = 100, [], []
    for position in range(1000, 1200):
        given_out += draw.choice((1, 3, 1000, draw.randrange(2**32)))
        running.append(given_out)
        if draw.random() < 0.9:
            commits.append((position, running.pop(draw.randrange(len(running)))))
        running = [xid for xid in running if given_out - xid < 2**31]  # older ones a server does not leave open
    if given_out in running:  # on a server few ids are above the newest that ended, not billions
        running.remove(given_out)
        commits.append((1200, given_out))
    done = {xid for _, xid in commits}
    xmax = max(done) + 1
    hidden = [xid for xid in running if xid < xmax]
    last = commits[-1][0]
    snapshot = SnapshotPredicate.parse(
        f"{min(hidden, default=xmax)}:{xmax}:{','.join(map(str, hidden))}", last, given_out - xmax + 1
    )
    later = [(last + at, xid) for at, xid in enumerate([*running, given_out + 1, given_out + 2**31], 1)]
    for position, xid in (*commits, *later):
        shown = snapshot.shows(xid % 2**32, position)
        assert shown == (position <= last), (seed, position, xid)
        near = snapshot.may_be_hidden(np.array([xid % 2**32]), np.array([position]))
        assert near[0] or shown, (seed, position, xid)


def test_a_table_is_compared_only_where_silver_holds_what_is_shown():
    seen = SnapshotPredicate.parse("10:20:12", 500)
    where = AlignmentPoint(seen, (touch(100, 11, A), touch(200, 12, A), touch(150, 13, B)), complete=True)
    assert "1 landed" in where.gap(A, 99).reason  # 11 is shown, not applied
    assert where.gap(A, 100) is None  # 12 still runs for the snapshot and is not applied
    assert "ahead" in where.gap(A, 200).reason
    assert where.gap(B, 150) is None


def test_a_transaction_that_could_not_be_decoded_may_have_changed_any_table():
    seen = SnapshotPredicate.parse("12:20:12", 500)
    odd = SnapshotTransaction(150, 13, frozenset(), landed=True, undecoded=True)
    gap = AlignmentPoint(seen, (touch(100, 11, A), odd), complete=True).gap(B, 100)
    assert "could not be decoded" in gap.reason
    later = SnapshotTransaction(150, 12, frozenset(), landed=True, undecoded=True)  # still runs for the snapshot
    assert AlignmentPoint(seen, (touch(100, 11, A), later), complete=True).gap(A, 100) is None


def test_commit_order_that_differs_from_snapshot_order_is_seen():
    seen = SnapshotPredicate.parse("12:20:12", 500)
    where = AlignmentPoint(seen, (touch(100, 12, A), touch(200, 13, A)), complete=True)
    assert where.gap(A, 50) is not None
    assert where.gap(A, 100) is not None
    assert where.gap(A, 200) is not None


def test_unlanded_transactions_count_where_they_are_shown():
    seen = SnapshotPredicate.parse("12:20:12", 500)
    assert AlignmentPoint(seen, (touch(300, 12, A, landed=False),), complete=True).gap(A, 200) is None
    gap = AlignmentPoint(seen, (touch(300, 13, A, landed=False),), complete=True).gap(A, 200)
    assert "bronze does not" in gap.reason
    assert "run --once" in gap.hint
    assert AlignmentPoint(seen, (), complete=False).gap(A, 200) is not None


def test_what_lands_between_the_look_at_bronze_and_the_look_into_the_slot_is_not_missed(tmp_path):
    relation, bronze = table("public.a", id="int4"), DeltaBronze(tmp_path / "bronze", durability="os")
    bronze.begin_stream("test", 50)

    def lands(position, xid):
        one = Transaction(boundaries(position, xid=xid), (Insert(relation, (str(xid),)),), (position,))
        bronze.append([raw_transaction(one)])

    lands(100, 12)
    slot = [PendingTransaction(200, 13, frozenset({A})), PendingTransaction(300, 14, frozenset({A}))]
    looks = []

    def ahead(after):
        if not looks:  # a receiver lands the first of them and confirms it
            lands(200, 13)
            del slot[0]
        looks.append(after)
        return list(slot)

    found = point(BronzeReader(tmp_path / "bronze"), SnapshotPredicate.parse("12:20:", 300), 100, ahead)
    assert looks == [100, 200]
    assert [(one.position, one.landed) for one in found.find_unapplied(A, 100)] == [(200, True)]
    assert [one.position for one in found.touches if not one.landed] == [300]


def test_a_slot_whose_reader_has_just_ended_is_looked_at_again(tmp_path, monkeypatch):
    monkeypatch.setattr("cdc_lake.runtime.apply.snapshot_alignment.LOOK_AGAIN_SECONDS", 0.01)
    relation, bronze = table("public.a", id="int4"), DeltaBronze(tmp_path / "bronze", durability="os")
    bronze.begin_stream("test", 50)
    one = Transaction(boundaries(100, xid=12), (Insert(relation, ("1",)),), (100,))
    bronze.append([raw_transaction(one)])
    looks = iter([None, None, [PendingTransaction(200, 13, frozenset({A}))]])
    found = point(BronzeReader(tmp_path / "bronze"), SnapshotPredicate.parse("12:20:", 300), 100, lambda _: next(looks))
    assert found.complete
    assert [one.position for one in found.touches if not one.landed] == [200]


@pytest.mark.parametrize("lands", [False, True])
def test_a_slot_that_is_being_read_is_waited_for_and_not_for_ever(tmp_path, monkeypatch, lands):
    monkeypatch.setattr("cdc_lake.runtime.apply.snapshot_alignment.LOOK_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("cdc_lake.runtime.apply.snapshot_alignment.WAIT_SECONDS", 0.1)
    relation, bronze = table("public.a", id="int4"), DeltaBronze(tmp_path / "bronze", durability="os")
    bronze.begin_stream("test", 50)
    later = iter([raw_transaction(Transaction(boundaries(300, xid=12), (Insert(relation, ("1",)),), (300,)))])

    def ahead(_):
        bronze.append([one for one in later if lands])

    found = point(BronzeReader(tmp_path / "bronze"), SnapshotPredicate.parse("12:20:", 300), 100, ahead)
    assert found.complete == lands


def test_peeked_messages_become_transactions_above_a_position():
    def relation(oid, name):
        return b"R" + struct.pack(">I", oid) + b"public\0" + name + b"\0d\0\0"

    def commit(end):
        return b"C" + struct.pack(">BQQq", 0, end - 8, end, 0)

    both = b"T" + struct.pack(">IBII", 2, 0, 1, 2)
    messages = [
        (7, relation(1, b"a")), (7, b"I" + struct.pack(">I", 1)), (7, commit(100)),
        (8, commit(150)),
        (9, relation(2, b"b")), (9, both), (9, commit(200)),
        (10, b"U" + struct.pack(">I", 2)), (10, commit(300)),
    ]  # fmt: skip
    found = transactions(messages, 100)
    assert [(t.position, t.number, t.tables) for t in found] == [(200, 9, {A, B}), (300, 10, {B})]
    with pytest.raises(StreamProtocol):
        transactions([(1, b"D" + struct.pack(">I", 9))], 0)


def change(ordinal, op, new=None, old=None, unchanged=()):
    return PendingChange((1, 1, ordinal), op, new, old, frozenset(unchanged))


def test_held_changes_fold_with_moves_deletes_and_unsent_values():
    silver = {("1",): [{"k": "1", "v": "a", "w": "big"}], ("2",): [{"k": "2", "v": "b", "w": "x"}]}
    changes = [
        change(1, "U", {"k": "1", "v": "a2", "w": None}, unchanged=["w"]),
        change(2, "U", {"k": "9", "v": "a3", "w": None}, {"k": "1", "v": None, "w": None}, ["w"]),
        change(3, "D", old={"k": "2", "v": None, "w": None}),
        change(4, "I", {"k": "1", "v": "new", "w": ""}),
    ]
    found = fold_changes(changes, ["k"], ["k", "v", "w"], silver)
    assert not found.odd
    assert found.rows == {
        ("9",): ({"k": "9", "v": "a3", "w": "big"},),
        ("1",): ({"k": "1", "v": "new", "w": ""},),
        ("2",): (),
    }


def test_held_changes_that_apply_to_nothing_are_odd():
    found = fold_changes([change(1, "U", {"k": "1"}), change(2, "I", {"k": "2"})], ["k"], ["k"], {("2",): [{"k": "2"}]})
    assert (found.odd, found.shared) == ({("1",)}, {("2",)})


def test_matching_agrees_with_dictionaries():
    seed = one_seed()
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(60):
        sides = []
        for _ in range(2):
            keys = {(rng.choice(["", "a", "b", None]), rng.choice("xyz")) for _ in range(rng.randrange(8))}
            sides.append({key: (rng.choice(["", None, "1"]), rng.choice(["2", "3"])) for key in keys})
        twice = [{key for key in side if rng.random() < 0.2} for side in sides]
        schema = pa.schema([(n, pa.large_string()) for n in "abcd"])
        source, silver = (
            pa.Table.from_pylist(
                [dict(zip("abcd", (*k, *v), strict=True)) for k, v in rng.sample([*some.items()], len(some))]
                + [dict(zip("abcd", (*k, "again", "1"), strict=True)) for k in again],
                schema,
            )
            for some, again in zip(sides, twice, strict=True)
        )
        found = match(source, silver, ["a", "b"])
        (left, right), both = sides, sides[0].keys() & sides[1].keys()
        assert sorted(found.missing, key=repr) == sorted(left.keys() - right.keys(), key=repr)
        assert set(found.extra) == right.keys() - left.keys()
        assert set(found.repeated) == both & {*twice[0], *twice[1]}
        assert set(found.shared) == twice[0]
        assert set(found.changed) == {k for k in both - set(found.repeated) if left[k] != right[k]}
