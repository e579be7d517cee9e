"""Bugs of a receiver that are planted on purpose: the checker finds each, in a history that passes without it.

Those of apply are in tests/spark/test_silver_negative_controls.py.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias
from unittest import mock

import pytest

from cdc_lake.bronze.contract import TransactionBatch
from cdc_lake.bronze.open import bronze_table
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.config.project import Project
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.pgoutput.spooled import SpooledTransaction
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import BronzeNotWritten, LateTransaction, UnexpectedMessage
from cdc_lake.model.change import Insert, Transaction
from cdc_lake.observability import failpoints as at
from cdc_lake_testing import controls
from cdc_lake_testing.invariants import Known, Verdict, invariants
from cdc_lake_testing.memory_server import START, MemoryServer
from cdc_lake_testing.messages import boundaries, encode_change, raw_transaction, table
from cdc_lake_testing.power_loss import LyingDisk
from cdc_lake_testing.verdict import Signature
from tests.pipeline_file import make_project
from tests.seeds import one_seed
from tests.tally import tally

Plant: TypeAlias = Callable[[], AbstractContextManager[None]]
Judged: TypeAlias = tuple[Verdict, BaseException | None]
"""What the checker says, and what ended the run."""
History: TypeAlias = Callable[[Path, Plant], list[Judged]]

ORDERS = table("public.orders", id="int8", note="text")
IMAGES = 8


def insert(number: int) -> Insert:
    return Insert(ORDERS, (str(number), "note"))


def project_of(root: Path) -> Project:
    root.mkdir(parents=True, exist_ok=True)
    return make_project(root, bronze={"batch": {"max_transactions": 2, "max_delay": "5 ms"}})


def judged(project: Project, server: MemoryServer, ended: BaseException | None) -> Judged:
    return invariants(project, Known(silver=False, committed=server.known(), ended=ended)), ended


def killed_where_it_had_confirmed(root: Path, plant: Plant) -> list[Judged]:
    project, server = project_of(root), MemoryServer([ORDERS])
    with plant():
        for number in range(4):
            server.commit(insert(number))
        server.received(project, f"{at.CONFIRMED}:1")
        server.commit(insert(4))
        return [judged(project, server, server.received(project))]


def killed_within_an_insert_of_many_rows(root: Path, plant: Plant) -> list[Judged]:
    """As COPY makes them: all at one LSN."""
    project, server = project_of(root), MemoryServer([ORDERS])
    with plant():
        server.commit(insert(1))
        server.commit(insert(2), insert(3), insert(4), lsns=(1150, 1150, 1150))
        server.cuts = [6]
        server.received(project, f"{at.BRONZE_COMMITTED}:1")
        server.rewind(1000)
        return [judged(project, server, server.received(project))]


def a_frame_of_a_newer_server(root: Path, plant: Plant) -> list[Judged]:
    project, server = project_of(root), MemoryServer([ORDERS])
    with plant():
        server.commit(insert(1))
        server.commit(insert(2), insert(3), frames=[encode_change(insert(2)), b"J" + encode_change(insert(3))[1:]])
        server.commit(insert(4))
        return [judged(project, server, server.received(project))]


def losses_of_power(root: Path, plant: Plant) -> list[Judged]:
    seed = one_seed()
    print(f"CDC_LAKE_SEED={seed}")
    project, server, dice = project_of(root / "there"), MemoryServer([ORDERS]), random.Random(seed)
    with LyingDisk(root / "there") as disk, plant():
        for number in range(6):
            server.commit(insert(number))
        assert server.received(project) is None
        images = [root / f"image{n}" for n in range(IMAGES)]
        for image in images:
            disk.image(image, dice)
    return [judged(one, server, server.received(one)) for one in map(project_of, images)]


def a_number_that_comes_late(root: Path, plant: Plant) -> list[Judged]:
    project, server = project_of(root), MemoryServer([ORDERS], csns=True)
    with plant():
        server.commit(insert(1))
        server.commit_late(insert(2), insert(3))
        server.commit(insert(4))
        return [judged(project, server, server.received(project))]


LOST = r"^the transaction at \S+ is not in bronze"
OTHER = r"^the transaction at \S+ is in bronze with other changes$"


def missing(rows: str) -> str:
    return rf"^bronze's public.orders: {rows} rows are missing, 0 are not the source's$"


CONTROLS: dict[str, tuple[Plant, History, Signature]] = {
    "acknowledge before commit": (
        controls.acknowledge_before_commit,
        killed_where_it_had_confirmed,
        Signature(
            # how many are in the last batch depends on how quick the machine is
            {"I1": LOST, "I4": missing("[1-4]"), "I5": r"^the server was told to forget up to 1500, bronze holds 1\d00$",
             "I6": r"^nothing ended the run, and bronze is at \S+, not at 1500$"}
        ),
    ),
    "LSN as identity": (
        controls.lsn_as_identity,
        killed_within_an_insert_of_many_rows,
        Signature({"I1": OTHER, "I4": missing("2")}),
    ),
    "unknown frames ignored": (
        controls.unknown_frames_ignored,
        a_frame_of_a_newer_server,
        Signature({"I1": OTHER, "I4": missing("1")}),
    ),
    "no fsync": (
        controls.no_fsync,
        losses_of_power,
        Signature({"I1": f"{LOST}, which is at 1600$|^it cannot be read"}, frozenset({"I3", "I4", "I5", "I6"})),
    ),
    "a late CSN dropped as a repeat": (
        controls.late_csn_dropped,
        a_number_that_comes_late,
        Signature({"I1": f"{LOST}, which is at 104$", "I4": missing("1")}),
    ),
}  # fmt: skip
"""What is planted, in which history, and what the checker then says, and nothing else."""


@pytest.mark.parametrize("name", CONTROLS)
def test_what_is_planted_is_found_out_in_a_history_that_passes_without_it(name: str, tmp_path: Path) -> None:
    plant, history, signature = CONTROLS[name]
    for verdict, ended in history(tmp_path / "as it is", nullcontext):
        verdict.assert_held("I1", "I2", "I3", "I5", "I6")
        assert ended is None or isinstance(ended, UnexpectedMessage | LateTransaction), ended
    began = time.monotonic()
    found = [verdict for verdict, _ in history(tmp_path / "planted", plant) if verdict.broken]
    took = time.monotonic() - began
    assert any(map(signature.fits, found)), "\n".join(map(str, found)) or "nothing was found"
    print(found[0])
    tally("R8", [name], **{"controls": 1, "found within 60 seconds": int(took < 60)})


def test_what_is_held_back_goes_with_the_receiver_that_is_killed(tmp_path: Path) -> None:
    """Also where the next one takes its place in memory."""
    bronze, upto = bronze_table(project_of(tmp_path)), START + 100
    batch = TransactionBatch((raw_transaction(Transaction(boundaries(upto), (insert(1),))),), upto, upto)
    with controls.acknowledge_before_commit():
        TableBronze(bronze).begin_stream("s", START)
        for _ in range(20):
            TableBronze(bronze).append(batch)
        state = TableBronze(bronze).state()
    assert state is not None
    assert state.upto == START


# ── what is no planted bug ──


@contextmanager
def the_receiver_breaks() -> Iterator[None]:
    """By an error that nobody thought of."""
    with mock.patch.object(Assembler, "feed", side_effect=AttributeError("a typing error")):
        yield


@contextmanager
def bronze_cannot_be_written() -> Iterator[None]:
    """Every commit fails, and says so."""
    with mock.patch.object(TableBronze, "append", side_effect=BronzeNotWritten("the disk is full", where="there")):
        yield


@contextmanager
def everything_lands_twice() -> Iterator[None]:
    """Nothing is lost, but bronze has it under two positions."""
    feed = Assembler.feed

    def twice(assembler: Assembler, payload: bytes, lsn: int) -> tuple[BufferedTransaction | SpooledTransaction, ...]:
        done = feed(assembler, payload, lsn)
        return tuple(
            replace(one, bounds=replace(one.bounds, position=one.bounds.position - behind))
            for one in done for behind in (1, 0)
        )  # fmt: skip

    with mock.patch.object(Assembler, "feed", twice):
        yield


OTHERS = (the_receiver_breaks, bronze_cannot_be_written, everything_lands_twice)
# where nothing lands, a loss of power takes nothing away
CASES = [(name, one) for name in CONTROLS for one in OTHERS if name != "no fsync" or one is everything_lands_twice]


@pytest.mark.parametrize(("name", "other"), CASES)
def test_another_failure_is_not_taken_for_what_is_planted(name: str, other: Plant, tmp_path: Path) -> None:
    _, history, signature = CONTROLS[name]
    found = [verdict for verdict, _ in history(tmp_path / "planted", other)]
    assert found
    assert not any(map(signature.fits, found)), "\n".join(map(str, found))


def test_each_bug_looks_like_itself_alone(tmp_path: Path) -> None:
    looks = {
        name: [verdict for verdict, _ in history(tmp_path / str(nth), plant)]
        for nth, (name, (plant, history, _)) in enumerate(CONTROLS.items())
    }
    for name, (_, _, signature) in CONTROLS.items():
        taken = {other for other, found in looks.items() if any(map(signature.fits, found))}
        assert taken == {name}, "\n".join(map(str, looks[name]))
