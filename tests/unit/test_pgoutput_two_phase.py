"""Prepared transactions, case by case: what is parked and where, when it goes, and what a failover makes of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.config.model import ObjectAddress
from cdc_lake.connectors.prepared_transactions import (
    PreparedTransactions,
    file_name,
    forget,
    prepared_files,
    waiting_files,
)
from cdc_lake.connectors.spool import Spool
from cdc_lake.decode.pgoutput.assembler import Assembler, TableFacts
from cdc_lake.decode.pgoutput.parser import Prepared
from cdc_lake.decode.pgoutput.spooled import Announcement, PreparedContent
from cdc_lake.decode.pgoutput.two_phase import MAGIC, encode_prepared, read_back
from cdc_lake.decode.transaction import BufferedTransaction, MemoryFrames
from cdc_lake.errors import (
    DecodeError,
    MalformedMessage,
    OutOfSequence,
    PreparedDamaged,
    PreparedNotKept,
    PreparedUnknown,
    SpoolFull,
    UnexpectedMessage,
    UnknownRelation,
)
from cdc_lake.model.relation import TableName
from cdc_lake.tables.control_files import ControlFiles, LocalControlFiles, StoredControlFiles
from cdc_lake.tables.object_store import ObjectStore
from cdc_lake_testing import messages
from cdc_lake_testing.messages import catalog_of, insert, relation, table
from cdc_lake_testing.object_store import LocalStore, storage_at
from cdc_lake_testing.streaming import inside, stream_start
from cdc_lake_testing.two_phase import (
    RECORD,
    begin_prepare,
    commit_prepared,
    prepare,
    rollback_prepared,
    stream_prepare,
)
from tests.bronze_object_stores import BUCKET
from tests.pipeline_file import make_project

A = table("public.a", id="int8", note="text")
ROW = ("1", "x")
STATE = StreamCheckpoint("pg:1:d:s:0/0", 3, 50, 50, b"")
INSERT, ANNOUNCED = messages.insert(A, ROW), messages.relation(A)
WHOLE = [messages.begin(100), ANNOUNCED, INSERT, messages.commit(100, 140)]
PREPARED = [begin_prepare(7, "g", 200), ANNOUNCED, INSERT, prepare(7, "g", 200)]


class Counting(LocalControlFiles):
    """The folder, and what was written to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, durable=True)
        self.puts: list[str] = []

    def put(self, name: str, blocks: object) -> None:
        self.puts.append(name)
        super().put(name, blocks)  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path) -> Counting:
    return Counting(tmp_path / "prepared")


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with Spool(tmp_path / "spool", 10_000, 1 << 20) as made:
        yield made


def parking(
    place: LocalControlFiles,
    spool: Spool,
    state: StreamCheckpoint = STATE,
    highest: int | None = None,
    *,
    changed: bool = True,
) -> PreparedTransactions:
    return PreparedTransactions(place, spool, state, highest=lambda: highest, changed=lambda *_: changed)


def assembler(parked: PreparedTransactions, **given: object) -> Assembler:
    return Assembler(catalog_of(A), prepared_storage=parked, landed=STATE.upto, **given)  # type: ignore[arg-type]


def fed(to: Assembler, payloads: Iterable[bytes]) -> list[BufferedTransaction]:
    return [raw for nth, payload in enumerate(payloads) for raw in to.feed(payload, nth)]  # type: ignore[misc]


def test_it_comes_back_at_its_commit_on_another_connection(place: Counting, spool: Spool) -> None:
    to = assembler(parking(place, spool))
    fed(to, [*WHOLE[:2], WHOLE[3], begin_prepare(7, "g", 200), messages.origin("far"), INSERT])
    assert to.in_transaction
    assert to.open_bytes > 0
    assert fed(to, [prepare(7, "g", 200)]) == []
    assert not to.in_transaction
    assert to.open_bytes == 0
    again = assembler(parking(place, spool, replace(STATE, upto=300, confirm=300)))
    [raw] = fed(again, [commit_prepared(7, "g", 400)])
    assert (raw.bounds.position, raw.bounds.commit_lsn, raw.bounds.xid) == (400 + RECORD, 400, 7)
    assert (raw.frames, raw.layouts, raw.bounds.origin) == ([INSERT], [A], "far"), "announced before it, on another one"


def test_a_prepare_that_comes_again_is_not_kept_twice(place: Counting, spool: Spool) -> None:
    parked = parking(place, spool)
    fed(assembler(parked), PREPARED)
    again = parking(place, spool)
    fed(assembler(again), PREPARED)
    assert len(place.puts) == 1
    assert [one.gid for one in again.waiting] == ["g"]
    assert spool.used == 2 * len(INSERT), "of both"


def test_one_of_another_log_with_the_same_name_takes_its_place(place: Counting, spool: Spool) -> None:
    fed(assembler(parking(place, spool)), PREPARED)
    parked = parking(place, spool)
    other = messages.insert(A, ("2", "y"))
    to = assembler(parked)
    fed(to, [begin_prepare(7, "g", 200, at=1), ANNOUNCED, other, prepare(7, "g", 200, at=1)])
    [raw] = fed(to, [commit_prepared(7, "g", 300)])
    assert raw.frames == [other]


def test_what_was_prepared_behind_the_start_counts_only_once_it_is_sent_again(place: Counting, spool: Spool) -> None:
    fed(assembler(parking(place, spool)), PREPARED)
    parked = parking(place, spool)  # the server went back to 50, where another log begins
    parked.clean(0, 200)
    assert len(place.sizes()) == 1
    parked.clean(0, 400)
    assert place.sizes() == {}


@pytest.mark.parametrize("end", [commit_prepared(7, "g", 300), rollback_prepared(7, "g", 200, 300)])
def test_it_goes_once_bronze_holds_a_transaction_behind_its_end(place: Counting, spool: Spool, end: bytes) -> None:
    parked = parking(place, spool)
    fed(assembler(parked), [*PREPARED, end])
    assert parked.waiting == []
    parked.clean(300, 9_999)
    assert len(place.sizes()) == 2, "what was only announced behind it may be taken back"
    parked.clean(300 + RECORD, 9_999)
    assert place.sizes() == {}
    assert spool.used == 0


def test_what_landed_before_a_crash_is_cleaned_at_the_next_start(place: Counting, spool: Spool) -> None:
    fed(assembler(parking(place, spool)), [*PREPARED, commit_prepared(7, "g", 300)])
    landed = replace(STATE, upto=340, confirm=340)
    assert parking(place, spool, landed, highest=140).waiting == []
    assert len(place.sizes()) == 2
    parking(place, spool, landed, highest=340)
    assert place.sizes() == {}


def test_an_end_that_did_not_land_is_forgotten(place: Counting, spool: Spool) -> None:
    fed(assembler(parking(place, spool)), [*PREPARED, rollback_prepared(7, "g", 200, 300)])
    turned_back = parking(place, spool, replace(STATE, upto=250, confirm=250), highest=140)
    assert [one.gid for one in turned_back.waiting] == ["g"]
    [raw] = fed(assembler(turned_back), [commit_prepared(7, "g", 320)])
    assert raw.frames == [INSERT], "the new primary never had the rollback"


def test_of_streams_before_nothing_is_left(place: Counting, spool: Spool) -> None:
    fed(assembler(parking(place, spool)), PREPARED)
    assert parking(place, spool, replace(STATE, epoch=2)).waiting == []
    assert len(place.sizes()) == 1, "a later stream's is left alone"
    assert parking(place, spool, replace(STATE, epoch=4)).waiting == []
    assert place.sizes() == {}


def test_a_prepare_without_a_beginning_is_of_a_transaction_that_changed_nothing(place: Counting, spool: Spool) -> None:
    to = assembler(parking(place, spool))
    [raw] = fed(to, [prepare(7, "g", 200), commit_prepared(7, "g", 300)])
    assert (raw.bounds.position, raw.frames) == (300 + RECORD, [])


def test_a_commit_of_what_is_not_kept_is_an_error_unless_it_landed(place: Counting, spool: Spool) -> None:
    to = assembler(parking(place, spool))
    assert fed(to, [commit_prepared(7, "g", STATE.upto - RECORD), rollback_prepared(8, "h", 10, 20)]) == []
    with pytest.raises(PreparedUnknown) as unknown:
        fed(to, [commit_prepared(7, "it's", STATE.upto)])
    assert "`it's` (xid 7)" in unknown.value.message


def test_a_commit_alone_of_what_the_server_says_changed_nothing_moves_the_position_on(
    place: Counting, spool: Spool
) -> None:
    [raw] = fed(assembler(parking(place, spool, changed=False)), [commit_prepared(7, "g", 300)])
    assert (raw.bounds.position, raw.frames, raw.layouts) == (300 + RECORD, [], [])


def test_where_nothing_is_parked_any_more_all_files_go(place: Counting, spool: Spool) -> None:
    fed(assembler(parking(place, spool)), [*PREPARED, commit_prepared(7, "g", 300)])
    forget(place)
    assert place.sizes() == {}


def test_a_table_that_it_announces_is_looked_up_when_a_whole_transaction_needs_it(
    place: Counting, spool: Spool
) -> None:
    asked: list[TableName] = []

    def catalog(_oid: int, name: TableName) -> TableFacts:
        asked.append(name)
        return catalog_of(A)[name]

    to = Assembler(catalog, prepared_storage=parking(place, spool))
    fed(to, PREPARED)
    assert asked == [], "the catalog shows nobody else what it made"
    truncate = messages.truncate([A])
    [whole] = fed(to, [messages.begin(300), truncate, INSERT, messages.commit(300, 340)])
    assert (whole.layouts, whole.frames, asked) == ([A, A], [truncate, INSERT], [A.table])
    [raw] = fed(to, [commit_prepared(7, "g", 400)])
    assert raw.layouts == [A]
    assert len(asked) == 2


def test_a_message_that_cannot_be_taken_in_is_kept_with_its_fault(place: Counting, spool: Spool) -> None:
    to = assembler(parking(place, spool), keeps=True)
    wrong = b"M\x07"
    fed(to, [*PREPARED[:3], wrong, PREPARED[3]])
    again = assembler(parking(place, spool, replace(STATE, confirm=300)), keeps=True)
    [raw] = fed(again, [commit_prepared(7, "g", 400)])
    assert raw.frames == [INSERT, wrong]
    assert isinstance(raw.fault, MalformedMessage)
    assert raw.fault.where == "the message at 0/3"


def test_a_prepared_transaction_counts_in_the_budget_of_the_spool(place: Counting, spool: Spool) -> None:
    to = assembler(parking(place, spool))
    large = messages.insert(A, ("1", "x" * 6_000))
    fed(to, [begin_prepare(7, "g", 200), ANNOUNCED, large, prepare(7, "g", 200)])
    with pytest.raises(SpoolFull) as full:
        fed(to, [begin_prepare(8, "h", 300), large, prepare(8, "h", 300)])
    assert "of them prepared transactions" in full.value.message
    assert len(place.sizes()) == 1


def test_a_folder_that_cannot_be_written_is_a_typed_error(tmp_path: Path, spool: Spool) -> None:
    (tmp_path / "lake").write_text("in the way")
    with pytest.raises(PreparedNotKept):
        fed(assembler(parking(prepared_files(make_project(tmp_path)), spool)), PREPARED)


BLOCK = [stream_start(7, first=True), inside(ANNOUNCED, 7), inside(INSERT, 7)]
COMMIT = commit_prepared(7, "g", 300)
WRONG: dict[str, tuple[list[bytes], type[DecodeError]]] = {
    "a BEGIN inside": ([*PREPARED[:2], messages.begin(100)], OutOfSequence),
    "a block inside": ([*PREPARED[:2], stream_start(9, first=True)], OutOfSequence),
    "one inside another": ([*PREPARED[:2], begin_prepare(8, "h", 300)], OutOfSequence),
    "a COMMIT PREPARED inside": ([*PREPARED[:2], commit_prepared(8, "h", 300)], OutOfSequence),
    "a ROLLBACK PREPARED inside": ([*PREPARED[:2], rollback_prepared(8, "h", 200, 300)], OutOfSequence),
    "a Stream Prepare inside": ([*PREPARED[:2], stream_prepare(8, "h", 300)], OutOfSequence),
    "a PREPARE of another one": ([*PREPARED[:3], prepare(7, "h", 200)], MalformedMessage),
    "a Stream Prepare of nothing": ([stream_prepare(7, "g", 200)], OutOfSequence),
    "a PREPARE in a block": ([*BLOCK, stream_prepare(7, "g", 200)], OutOfSequence),
    "a change of an unknown table": ([PREPARED[0], INSERT], UnknownRelation),
    "a truncate of an unknown table": ([PREPARED[0], messages.truncate([A])], UnknownRelation),
    "a commit that ends before it begins": ([*PREPARED, COMMIT[:10] + bytes(8) + COMMIT[18:]], MalformedMessage),
    "flags that nobody knows": ([b"K\1" + COMMIT[2:]], MalformedMessage),
    "one inside a whole transaction": ([*WHOLE[:2], *PREPARED], UnexpectedMessage),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_messages_out_of_place(place: Counting, spool: Spool, case: str) -> None:
    payloads, kind = WRONG[case]
    to = assembler(parking(place, spool))
    with pytest.raises(kind):
        fed(to, payloads)
    to.reset()
    assert (to.open_bytes, to.in_transaction) == (0, False)


def test_without_a_place_to_park_they_are_no_messages_that_were_asked_for() -> None:
    with pytest.raises(UnexpectedMessage):
        fed(Assembler(catalog_of(A)), PREPARED)


def test_a_file_that_is_cut_off_or_changed_anywhere_is_noticed() -> None:
    frames = MemoryFrames()
    for nth in range(3):
        frames.append(bytes([nth]) * 5, nth)
    fault = OutOfSequence("odd", offset=3, where="here")
    content = PreparedContent(frames, [Announcement(0, b"R....", 9)], [b"told"], "far", fault)
    prepared = Prepared(7, "g 'ü'", 200, 240, 5)
    whole = b"".join(encode_prepared(prepared, content))

    def read(data: bytes) -> tuple[Prepared, PreparedContent, list[object]]:
        said, parked = read_back(lambda at, size: data[at : at + size], 1 << 20, "place")
        return said, parked, list(parked.frames.parts())

    said, parked, parts = read(whole)
    assert (said, parts) == (prepared, list(frames.parts()))
    assert (parked.announcements, parked.ddl_messages, parked.origin) == (content.announcements, [b"told"], "far")
    assert isinstance(parked.fault, OutOfSequence)
    assert (parked.fault.message, parked.fault.offset, parked.fault.where) == (fault.message, 3, "here")
    assert whole.startswith(MAGIC)
    for at in range(len(whole)):
        with pytest.raises(PreparedDamaged):
            read(whole[:at])
        with pytest.raises(PreparedDamaged):
            read(whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :])


@pytest.mark.parametrize("note", [b"", b"-5", b"4 0", b"\xff", b"four"])
def test_a_note_of_an_end_that_is_no_number_is_damage(place: Counting, spool: Spool, note: bytes) -> None:
    fed(assembler(parking(place, spool)), [*PREPARED, commit_prepared(7, "g", 400)])
    [end] = [name for name in place.sizes() if name.endswith(".end")]
    place.put(end, lambda: [note])
    with pytest.raises(PreparedDamaged, match="where a prepared transaction ended"):
        parking(place, spool)


def test_what_others_put_into_the_folder_is_let_be(place: Counting, spool: Spool, tmp_path: Path) -> None:
    fed(assembler(parking(place, spool)), PREPARED)
    for name in (".nfs0000beef", "README", "3-x", "-1", "2-7-of somebody"):
        (tmp_path / "prepared" / name).write_bytes(b"?")
    again = parking(place, spool)
    assert [one.gid for one in again.waiting] == ["g"]
    assert len(place.sizes()) == 6
    assert waiting_files(place, STATE.epoch) == [file_name(STATE.epoch, 7, "g")]


_NUMBERS = itertools.count()


def never(xid: int, end_lsn: int) -> bool:
    raise AssertionError((xid, end_lsn))


@pytest.fixture(params=["folder", "store"])
def parked_at(request: pytest.FixtureRequest, store: LocalStore, tmp_path: Path) -> ControlFiles:
    if request.param == "folder":
        return LocalControlFiles(tmp_path / "control" / "prepared")
    objects = ObjectStore(storage_at(store.endpoint, patience=2_000))
    return StoredControlFiles(objects, ObjectAddress(BUCKET, f"parked/{next(_NUMBERS)}/prepared"))


def test_a_file_is_there_whole_is_replaced_and_goes(parked_at: ControlFiles) -> None:
    assert (parked_at.sizes(), parked_at.read("one", 0, 10)) == ({}, None)
    parked_at.put("one", lambda: [b"some", b"thing"])
    parked_at.put("one.end", list)
    assert parked_at.sizes() == {"one": 9, "one.end": 0}
    assert [parked_at.read("one", at, 6) for at in (0, 6, 9, 20)] == [b"someth", b"ing", b"", b""]
    parked_at.put("one", lambda: [b"other"])
    parked_at.remove("one.end")
    parked_at.remove("one.end")
    assert (parked_at.sizes(), parked_at.read("one", 0, 10)) == ({"one": 5}, b"other")


def test_more_than_a_file_has_asks_for_no_memory(parked_at: ControlFiles) -> None:
    parked_at.put("one", lambda: [b"something"])
    assert [parked_at.read("one", at, (1 << 64) - 1) for at in (0, 4, 99)] == [b"something", b"thing", b""]


def test_what_one_machine_parked_another_one_lands(parked_at: ControlFiles, tmp_path: Path) -> None:
    layout, state = table("public.a", id="int8", note="text"), StreamCheckpoint("pg:1:d:s:0/0", 1, 50, 50, b"")
    rows = [insert(layout, (str(n), "x" * 100)) for n in range(100)]
    with Spool(tmp_path / "one", 1 << 20, 1_000) as spool:
        assembler = Assembler(
            catalog_of(layout),
            frames=spool,
            prepared_storage=PreparedTransactions(parked_at, spool, state, highest=lambda: 0, changed=never),
        )
        for payload in [begin_prepare(7, "g", 200), relation(layout), *rows, prepare(7, "g", 200)]:
            assert assembler.feed(payload, 200) == ()
    with Spool(tmp_path / "other", 1 << 20, 1_000) as spool:
        parked = PreparedTransactions(parked_at, spool, state, highest=lambda: 0, changed=never)
        [large] = Assembler(catalog_of(layout), frames=spool, prepared_storage=parked).feed(
            commit_prepared(7, "g", 300), 300
        )
        parts = list(large.parts())  # type: ignore[union-attr]
        assert len(parts) > 5
        assert [frame for part in parts for frame in part.frames] == rows
        parked.clean(340, 340)
    assert parked_at.sizes() == {}
