"""What goes to the spool is decoded ahead where that can be done, and comes as frames where it cannot."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.columnar import tabulate
from cdc_lake.decode.frames import Decoded
from cdc_lake.decode.large import DecodedPart, Growing, LargeTransaction
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.decode.redaction import Redaction, Strategy
from cdc_lake.errors import HashingDied
from cdc_lake.model.change import Change, Insert, Truncate
from cdc_lake.model.relation import Relation
from cdc_lake.model.transaction import Transaction
from cdc_lake.pipeline import ahead
from cdc_lake.pipeline.spool import Spool
from cdc_lake.pipeline.spooled import SpooledFrames
from cdc_lake.testing.messages import boundaries, insert, raw_transaction, relation, table
from tests.open_files import open_in

A = table("public.a", id="int8", note="text")
WIDER = table("public.a", id="int8", note="text", more="text")
OTHER = table("public.a", id="int8", other="text")
OID = relation(A)[1:5]
ROWS: tuple[Change, ...] = tuple(Insert(A, (str(n), "x" * 50)) for n in range(40))


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with Spool(tmp_path, 1 << 20, 500) as opened:
        opened.decode_ahead(tabulate)
        yield opened
        assert opened.used == 0
    assert open_in(tmp_path) == 0


def large(spool: Spool, changes: Sequence[Change], damage: int | None = None) -> LargeTransaction:
    raw = raw_transaction(Transaction(boundaries(100), tuple(changes), tuple(range(len(changes)))))
    growing = Growing(spool())
    frames = [frame.replace(b"x", b"\xff") if at == damage else frame for at, frame in enumerate(raw.frames)]
    growing.extend(frames, raw.lsns, raw.layouts, raw.truncated)
    growing.frames.seal()
    return LargeTransaction(raw.bounds, growing.frames, growing.marks)


def fill(store: SpooledFrames, layout: Relation, rows: int) -> None:
    """So many rows of this layout."""
    store.follow(OID, layout)
    for nth in range(rows):
        store.append(insert(layout, (str(nth), "x" * 60)), nth)


def as_columns(store: SpooledFrames) -> list[bool]:
    """Of its pieces, in order: whether they were decoded ahead; it is closed."""
    found = [isinstance(piece, Decoded) for piece in store.pieces()]
    store.close()
    return found


def kinds(whole: LargeTransaction) -> list[type]:
    """Of its parts, in order; it is released."""
    found: list[type] = [type(part) for part in whole.parts()]
    whole.release()
    return found


def test_all_of_it_is_columns(spool: Spool) -> None:
    found = kinds(large(spool, ROWS))
    assert len(found) > 4
    assert set(found) == {DecodedPart}


def test_chunks_that_land_as_one_file_can_be_redacted(spool: Spool) -> None:
    store, beside = spool(), spool()
    for one in (store, beside, store):
        fill(one, A, 4)
    store.spill()
    store.seal()
    pieces = [piece for piece in store.pieces() if isinstance(piece, Decoded)]
    assert [piece.count for piece in pieces] == [8], "of two chunks, as memory was full in between"
    [dropped] = (
        Redaction(lambda _, column: Strategy.DROP if column == "note" else None).changes(pieces[0].columns).relations
    )
    assert dropped.names == ("id",)
    store.close()
    beside.close()


def test_a_chunk_in_which_a_layout_changes_comes_as_frames(spool: Spool) -> None:
    changed = [*ROWS[:20], *(Insert(WIDER, (str(n), "x" * 50, None)) for n in range(20))]
    found = kinds(large(spool, changed))
    assert found.count(RawTransaction) == 1
    assert found.count(DecodedPart) == len(found) - 1 > 3


def test_a_truncate_comes_as_a_frame(spool: Spool) -> None:
    assert kinds(large(spool, [*ROWS[:20], Truncate(A), *ROWS[20:]])).count(RawTransaction) == 1


def test_bytes_that_are_wrong_come_as_frames(spool: Spool) -> None:
    assert kinds(large(spool, ROWS, damage=20)).count(RawTransaction) == 1


def test_a_chunk_that_is_one_large_row_comes_as_a_frame(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_MOST_BYTES", 5_000)
    assert kinds(large(spool, [*ROWS[:20], Insert(A, ("1", "y" * 5_000)), *ROWS[20:]])).count(RawTransaction) == 1


def test_columns_take_an_eighth_of_the_disk_at_most(tmp_path: Path) -> None:
    with Spool(tmp_path, 60_000, 500) as spool:
        spool.decode_ahead(tabulate)
        whole = large(spool, ROWS * 8)
        found = [type(part) for part in whole.parts()]
        assert 60_000 // 8 >= spool.used - spool.written > 0
        assert set(found) == {DecodedPart, RawTransaction}
        whole.release()
        assert spool.used == 0
        assert DecodedPart in kinds(large(spool, ROWS))


class Troubled(Spool):
    """The file with this number, from 1 on, is a device, or cannot be made."""

    def __init__(self, folder: Path, number: int, device: str | None) -> None:
        super().__init__(folder, 1 << 20, 500)
        self.decode_ahead(tabulate)
        self.files = 0
        self._number, self._device = number, device

    def open(self) -> int:
        self.files += 1
        if self.files != self._number:
            return super().open()
        if self._device is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.open(self._device, os.O_RDWR)


@pytest.mark.parametrize("device", ["/dev/full", "/dev/null", None], ids=["full", "unreadable", "no-file"])
def test_what_finds_no_room_or_is_lost_comes_as_frames(tmp_path: Path, device: str | None) -> None:
    with Troubled(tmp_path, 2, device) as spool:
        whole = large(spool, ROWS)
        assert {type(part) for part in whole.parts()} == {RawTransaction}
        assert [part.frames for part in whole.parts()] == [part.frames for part in whole.in_frames()]
        assert spool.files == 2, "once is enough"
        whole.release()
        assert spool.used == 0


def test_columns_make_room_for_frames(tmp_path: Path) -> None:
    with Spool(tmp_path, 60_000, 500) as spool:
        spool.decode_ahead(tabulate)
        waits, whole = large(spool, ROWS), large(spool, ROWS * 16)
        assert 60_000 >= spool.used == spool.written > 60_000 * 7 // 8
        for one in (waits, whole):
            assert set(kinds(one)) == {RawTransaction}
        assert spool.used == 0
        assert DecodedPart in kinds(large(spool, ROWS)), "there is room again"


def test_so_they_do_where_the_disk_is_full_before_its_budget(tmp_path: Path) -> None:
    with Troubled(tmp_path, 3, None) as spool:
        first, second = large(spool, ROWS), large(spool, ROWS)
        for one in (first, second):
            assert set(kinds(one)) == {RawTransaction}
        assert spool.files == 4, "one in vain, and none for columns of the second"
        assert set(kinds(large(spool, ROWS))) == {DecodedPart}


def test_what_is_rolled_back_takes_its_columns_with_it(spool: Spool) -> None:
    store = spool()
    fill(store, A, 12)
    store.spill()
    sizes = []
    for _ in range(3):
        fill(store, A, 24)
        store.spill()
        store.truncate(12)
        sizes.append(spool.used)
    assert len(set(sizes)) == 1
    store.seal()
    assert all(isinstance(piece, Decoded) for piece in store.pieces())
    store.close()


def test_an_error_of_decoding_that_is_none_of_the_bytes_is_raised(tmp_path: Path) -> None:
    def dies(_batch: object) -> ChangeColumns:
        raise HashingDied("the process that hashes rows died")

    with Spool(tmp_path, 1 << 20, 500) as spool:
        spool.decode_ahead(dies)
        with pytest.raises(HashingDied):
            kinds(large(spool, ROWS))


def test_frames_left_of_a_chunk_in_which_a_layout_changed_come_as_frames(spool: Spool) -> None:
    store = spool()
    fill(store, A, 2)
    fill(store, OTHER, 3)
    store.spill()
    store.truncate(4)
    fill(store, OTHER, 1)
    store.spill()
    store.seal()
    assert as_columns(store) == [False]


def test_so_do_those_that_go_to_disk_before_their_layout_is_followed_again(spool: Spool) -> None:
    store, beside = spool(), spool()
    fill(store, A, 5)
    store.spill()
    fill(store, OTHER, 1)
    store.spill()
    fill(beside, A, 3)
    store.truncate(4)
    assert not store.held, "memory is full"
    store.follow(OID, A)
    store.seal()
    assert as_columns(store) == [False]
    beside.close()


def test_what_is_rolled_back_or_given_up_leaves_nothing(spool: Spool) -> None:
    store = spool()
    growing = Growing(store)
    raw = raw_transaction(Transaction(boundaries(100), ROWS, tuple(range(len(ROWS)))))
    growing.extend(raw.frames, raw.lsns, raw.layouts, {})
    store.truncate(13)
    store.append(raw.frames[0], 1)
    store.seal()
    assert [frame for frames, _ in store.parts() for frame in frames] == [*raw.frames[:13], raw.frames[0]]
    assert sum(len(p[0]) if isinstance(p, tuple) else p.count for p in store.pieces()) == 14
    store.close()
