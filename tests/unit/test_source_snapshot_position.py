"""Where a slot is moved so that it begins behind a snapshot: for every way in which transactions may be shown."""

from __future__ import annotations

from itertools import product

from cdc_lake.model.position import Lsn
from cdc_lake.source.postgres.snapshot import _visible_end
from cdc_lake.source.postgres.snapshot_visibility import SnapshotPredicate


def test_the_slot_is_moved_behind_what_is_shown_or_not_at_all():
    for shown in product((True, False), repeat=5):
        hidden = frozenset(7 + at for at, one in enumerate(shown) if not one)
        snapshot = SnapshotPredicate(7, 100, hidden, 60, 100)
        commits = [(Lsn(50 + at), 7 + at) for at in range(5)]
        upto = _visible_end(Lsn(40), snapshot, commits)
        if upto is None:
            assert sorted(shown, reverse=True) != list(shown)
            continue
        # what the slot sends from there, and what it does not, is what the snapshot does not show, and what it does
        assert [lsn > upto for lsn, _ in commits] == [not one for one in shown]
    assert _visible_end(Lsn(40), SnapshotPredicate(7, 100, frozenset(), 60, 100), []) == Lsn(40)
