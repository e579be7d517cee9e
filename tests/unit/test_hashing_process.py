"""Rows hashed in a process beside the receiver: the same digests, its errors, and that it never outlives the receiver."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, cast

import numpy as np
import psutil
import pytest

from cdc_lake.connectors import hashing_process
from cdc_lake.connectors.hashing_process import WORTH, HashingProcess
from cdc_lake.decode.gaussdb.batches import RecordTransaction, tabulate_plain
from cdc_lake.decode.gaussdb.catalog_facts import GaussDbColumn, GaussDbTableMetadata
from cdc_lake.decode.gaussdb.columnar import tabulate
from cdc_lake.decode.gaussdb.records import Field, Operation, Row, Style
from cdc_lake.decode.gaussdb.relations import RelationResolver
from cdc_lake.decode.hashing import Canonical, ask, digest_of, hashed_here, read_answer, serve
from cdc_lake.decode.pgoutput.columnar import tabulate as tabulate_messages
from cdc_lake.decode.pgoutput.columnar import tabulate_plain as tabulate_messages_plain
from cdc_lake.errors import DecodeError, HashingDied, Retry
from cdc_lake.model.change import Delete, Insert, Message, OldKind, Transaction, Update
from cdc_lake.model.relation import TableName
from cdc_lake_testing.gaussdb.encode import binary_record
from cdc_lake_testing.messages import boundaries, raw_transaction, table
from tests.decoded_columns import assert_same

PREFIX = b"I the beginning of every row"
T = TableName("public", "t")


def part(rows: int, size: int = 300, prefix: bytes = PREFIX, head: int = 0) -> Canonical:
    data = np.random.default_rng(rows).bytes(rows * size)
    return Canonical(prefix, np.arange(0, (rows + 1) * size, size, dtype=np.int32), data, head)


def large() -> list[Canonical]:
    return [part(1000), part(7, prefix=b"D", head=5), part(0), Canonical(b"nothing", np.zeros(4, np.int32), b"")]


@pytest.fixture
def hashing() -> Iterator[HashingProcess]:
    with HashingProcess() as process:
        process._alone = False  # whatever machine this is
        yield process


def gone(pid: int) -> bool:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_digests_are_those_of_the_definition() -> None:
    rows = part(3)
    for head in (0, 5):
        wanted = b"".join(digest_of(PREFIX + rows.data[at + head : at + 300]) for at in (0, 300, 600))
        assert hashed_here([replace(rows, head=head)])() == [wanted]


def test_the_process_answers_what_hashing_here_gives(hashing: HashingProcess) -> None:
    assert sum(len(one.data) for one in large()) >= WORTH
    for _ in range(3):
        assert hashing(large())() == hashed_here(large())()
    assert hashing.pid is not None


def test_a_question_and_its_answer_are_read_back() -> None:
    question, answer = io.BytesIO(), io.BytesIO()
    for _ in range(2):
        ask(question, large())
    question.seek(0)
    serve(cast("IO[bytes]", question), answer)
    answer.seek(0)
    for _ in range(2):
        assert read_answer(answer, large()) == hashed_here(large())()


def test_small_chunks_need_no_process(hashing: HashingProcess) -> None:
    few = [part(10)]
    assert hashing(few)() == hashed_here(few)()
    assert hashing.pid is None


def test_one_processor_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    with HashingProcess() as alone:
        assert alone(large())() == hashed_here(large())()
        assert alone.pid is None


def test_an_answer_that_nobody_waited_for_is_not_the_next_ones(hashing: HashingProcess) -> None:
    hashing([part(2000)])
    assert hashing(large())() == hashed_here(large())()


def test_while_one_thread_uses_it_others_hash_where_they_are(hashing: HashingProcess) -> None:
    def hashed(parts: list[Canonical]) -> list[bytes]:
        begun = hashing(parts)
        return begun()

    small, wanted = [part(2000)], (hashed_here([part(2000)])(), hashed_here(large())())
    waiting = hashing(large())
    with ThreadPoolExecutor(1) as other:
        assert other.submit(hashed, small).result() == wanted[0]
        assert waiting() == wanted[1]
        for _ in range(50):  # and now they take turns
            theirs = other.submit(hashed, small)
            mine = hashed(large())
            assert (theirs.result(), mine) == wanted


@pytest.mark.obeys("SRC228")
def test_where_it_dies_the_receiver_says_so_and_may_begin_again(hashing: HashingProcess) -> None:
    hashing(large())()
    assert hashing.pid is not None
    os.kill(hashing.pid, signal.SIGKILL)
    with pytest.raises(HashingDied, match="signal 9") as raised:
        hashing(large())()
    assert raised.value.retry is Retry.LATER
    hashing.close()
    assert hashing(large())() == hashed_here(large())()


def test_where_it_cannot_start_the_receiver_says_so(monkeypatch: pytest.MonkeyPatch, hashing: HashingProcess) -> None:
    monkeypatch.setattr(hashing_process, "_PACKAGES", "/nowhere")
    with pytest.raises(HashingDied, match="exit code 1"):
        hashing(large())()


def test_it_ends_with_the_stream(hashing: HashingProcess) -> None:
    hashing(large())()
    pid = hashing.pid
    assert pid is not None
    hashing.close()
    assert gone(pid)
    hashing.close()


def test_it_is_of_its_own_session(hashing: HashingProcess) -> None:
    hashing(large())()
    assert hashing.pid is not None
    assert os.getsid(hashing.pid) == hashing.pid  # Ctrl-C goes to the receiver's


RECEIVER = """
import sys, time, numpy as np
from cdc_lake.decode.hashing import Canonical
from cdc_lake.connectors.hashing_process import HashingProcess
with HashingProcess() as hashing:
    hashing._alone = False
    rows = Canonical(b"I", np.arange(0, 1001 * 300, 300, dtype=np.int32), bytes(300_000))
    hashing([rows])()
    if sys.argv[1] == "asked":
        hashing([rows])
    print(hashing.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("when", ["idle", "asked"])
def test_it_does_not_outlive_a_receiver_that_is_killed(when: str) -> None:
    command = [sys.executable, "-c", RECEIVER, when]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as receiver:
        assert receiver.stdout is not None
        pid = int(receiver.stdout.readline())
        receiver.send_signal(signal.SIGKILL)
        receiver.wait()
        assert gone(pid)


COLUMNS = (GaussDbColumn("id", "int4", 23), GaussDbColumn("note", "text", 25))
FACTS = GaussDbTableMetadata(COLUMNS, ("id",), identity_columns=("id",))


def transaction(rows: int, *, odd: bool = False) -> RecordTransaction:
    kinds, note = (Operation.INSERT, Operation.UPDATE, Operation.DELETE), "a value " * 40
    records = []
    for nth in range(rows):
        kind = kinds[nth % 3]
        sent = tuple(Field(c.name, v, type_oid=c.type_oid) for c, v in zip(COLUMNS, (str(nth), note), strict=True))
        row = Row(kind, T, None if kind is Operation.DELETE else sent, None if kind is Operation.INSERT else sent[:1])
        records.append(binary_record(row, "utf-8")[12:])
    if odd:
        records[0] = records[0].replace(note.encode(), b"\xff" * len(note))
    return RecordTransaction(boundaries(1), Style.BINARY, records, list(range(rows)), sum(map(len, records)))


def test_columns_are_the_same_wherever_rows_are_hashed(hashing: HashingProcess) -> None:
    batch = [transaction(6000)]
    there = tabulate(batch, RelationResolver(lambda _: FACTS), hashing)
    assert hashing.pid is not None
    assert_same(there, tabulate(batch, RelationResolver(lambda _: FACTS)))
    assert_same(there, tabulate_plain(batch, RelationResolver(lambda _: FACTS)))


def test_so_are_those_of_messages_of_several_kinds(hashing: HashingProcess) -> None:
    tables = [table("public.a", id="int8", note="text"), table("public.b", note="text", id="int8")]
    changes = []
    for nth in range(3000):
        row = (str(nth), "a value " * 40)
        kinds = Insert(tables[nth % 2], row), Update(tables[0], row), Delete(tables[1], row, OldKind.FULL)
        changes.append(kinds[nth % 3] if nth % 1000 else Message("p", b"x"))
    batch = [raw_transaction(Transaction(boundaries(100), tuple(changes)))]
    there = tabulate_messages(batch, hashing=hashing)
    assert hashing.pid is not None
    assert_same(there, tabulate_messages(batch))
    assert_same(there, tabulate_messages_plain(batch))


def test_what_cannot_be_decoded_leaves_it_to_other_threads(hashing: HashingProcess) -> None:
    rows = tuple(Insert(table("public.a", id="int8", note="text"), (str(nth), "a value " * 40)) for nth in range(3000))
    raw = raw_transaction(Transaction(boundaries(100), rows))
    raw.frames[7] = raw.frames[7].replace(b"a", b"\xff")
    with pytest.raises(DecodeError):
        tabulate_messages([raw], hashing=hashing)
    assert hashing.pid is not None
    assert hashing._user is None


def test_an_error_leaves_nothing_behind_for_the_next_batch(hashing: HashingProcess) -> None:
    with pytest.raises(DecodeError):
        tabulate([transaction(6000, odd=True)], RelationResolver(lambda _: FACTS), hashing)
    assert hashing.pid is not None
    assert hashing._user is None, "another thread may ask"
    batch = [transaction(6000)]
    assert_same(
        tabulate(batch, RelationResolver(lambda _: FACTS), hashing), tabulate(batch, RelationResolver(lambda _: FACTS))
    )
