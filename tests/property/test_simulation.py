"""Simulated histories: a receiver without sockets, files, threads or time, under everything that can go wrong at once.

Connections are lost, servers are away and forget confirmations, storage tears, refuses, lies and shows old listings,
clocks jump, processes die at named points. Bronze is what was committed, and nothing is confirmed before.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from cdc_lake.bronze.contract import BronzeCommit, StreamCheckpoint, TransactionBatch
from cdc_lake.bronze.reader import CommitRow
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.config.model import Apply
from cdc_lake.connectors.open_stream import CommitLsnOrdering
from cdc_lake.connectors.prepared_transactions import PreparedTransactions
from cdc_lake.decode.pgoutput.parser import Prepared
from cdc_lake.decode.pgoutput.spooled import PreparedContent, StreamedTransaction
from cdc_lake.errors import CdcLakeError
from cdc_lake.model.change import Transaction, Undecoded
from cdc_lake.runtime.apply.span_planning import next_span
from cdc_lake.runtime.receive import loop
from cdc_lake_testing.histories import History
from cdc_lake_testing.oracle import Oracle
from cdc_lake_testing.simulation import kinds, run, streamed, table
from cdc_lake_testing.simulation.log import Log
from cdc_lake_testing.simulation.run import play
from cdc_lake_testing.simulation.walsender import Settings, Walsender
from tests.seeds import one_seed, seeds
from tests.tally import tally

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
KINDS = ("pg", "streamed", "gauss")
SEED = one_seed()
HISTORIES = {200: 340, 20: 2_000} if BUDGET > 1 else {200: 1, 20: 15}
"""How many of each kind, by how many transactions they have; in the short ones more goes wrong at the same place."""
FAULTS = {
    "commit failed", "commit landed and failed", "connection lost", "process died", "server away", "slot rewound",
    "stale listing", "torn write", "frame damaged", "clock jumped", "clock set",
}  # fmt: skip
OF_PREPARED = {
    "file not kept", "file kept and denied", "file not read", "file not removed", "files not listed",
}  # fmt: skip


@pytest.mark.parametrize("length", HISTORIES)
@pytest.mark.parametrize("kind", KINDS)
def test_bronze_is_what_was_committed_whatever_goes_wrong(kind: str, length: int) -> None:
    met: Counter[str] = Counter()
    histories, transactions, began = 0, 0, time.process_time()
    for seed in seeds(HISTORIES[length]):
        print(f"CDC_LAKE_SEED={seed}")
        played = play(seed, length, kind)
        met += played.met
        histories += 1
        transactions += len(played.expected)
    minutes = (time.process_time() - began) / 60
    print(f"{histories / max(minutes, 1e-9):,.0f} histories a minute of a processor: {dict(met)}")
    if BUDGET > 1:
        assert met.keys() >= FAULTS | (OF_PREPARED if kind == "streamed" else set())
    tally("R4", faults=met, histories=histories, **{"simulated transactions": transactions})


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_plays_the_same_each_time(kind: str) -> None:
    print(f"CDC_LAKE_SEED={SEED}")
    first, again = (play(SEED, 60, kind) for _ in range(2))
    assert first == again


def test_a_streamed_history_has_every_message_of_a_server_that_streams() -> None:
    print(f"CDC_LAKE_SEED={SEED}")
    sent: Counter[bytes] = Counter()
    for nth in range(20):
        sent += Counter(payload[:1] for payload in messages_of(random.Random(SEED + nth)))
    assert set(sent) >= {bytes([letter]) for letter in b"BCRIUDSEcAbPpKr"}


def messages_of(dice: random.Random) -> list[bytes]:
    history = History(dice.getrandbits(32), run.RELATIONS)
    log = Log([history.transaction(nth) for nth in range(1, 60)], dice)
    several = [Walsender(log, 0, Settings(memory, two_phase=True)) for memory in (None, 0, 5)]
    return [payload for one in several for _, payload in one.messages()]


# ── spans ──


def commits_of(whole: Sequence[Transaction]) -> list[CommitRow]:
    """What apply reads of the transactions."""
    dice = random.Random(SEED)
    sizes = [dice.randrange(1, 500) for _ in whole]
    counts = [{"public.orders": {"I": len(one.changes)}} for one in whole]
    return [commit(one.bounds.position, some, size) for one, some, size in zip(whole, counts, sizes, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_spans_pass_every_transaction_once_and_keep_their_bounds(kind: str) -> None:
    print(f"CDC_LAKE_SEED={SEED}")
    played, dice = play(SEED, 200, kind), random.Random(SEED)
    commits, whole = commits_of(played.landed), played.landed
    for _ in range(5):
        rows, size = dice.choice((1, 7, 100, 10_000)), dice.choice((1 << 20, 1 << 30))
        bounds = Apply.model_construct(span_rows=rows, span_bytes=dice.choice((600, size)))
        stuck = {dice.randrange(len(commits)) for _ in range(dice.randrange(3))}
        ahead = [replace(one, undecoded=UNREAD) if at in stuck else one for at, one in enumerate(commits)]
        silver, model, at = Oracle(), Oracle(), 0
        while at < len(ahead):
            taken, left = next_span(iter(ahead[at:]), bounds)
            if not taken:
                assert left is ahead[at]
                assert at in stuck
                ahead[at] = commits[at]  # a later version can read it
                stuck.discard(at)
                continue
            assert left is None
            assert taken == ahead[at : at + len(taken)]
            assert not stuck & set(range(at, at + len(taken)))
            alone = len(taken) == 1
            assert alone or sum(one.changes for one in taken) <= bounds.span_rows
            assert alone or sum(one.size for one in taken) <= bounds.span_bytes
            following = ahead[at + len(taken) :][:1]
            full = sum(one.changes for one in [*taken, *following]) > bounds.span_rows
            full = full or sum(one.size for one in [*taken, *following]) > bounds.span_bytes
            assert full or not following or following[0].undecoded is not None, "no shorter than it has to be"
            silver.run(whole[at : at + len(taken)])
            at += len(taken)
        model.run([one for one in played.expected if one.changes])
        assert silver.tables == model.tables


# ── what it would find ──


class Lazy(TableBronze):
    """Says that it landed what it did not."""

    def append(self, batch: Any, tabulate: Any = None) -> BronzeCommit:
        state = self.state()
        assert state is not None
        assert isinstance(batch, TransactionBatch)
        if len(batch.transactions) % 7:
            return super().append(batch, tabulate)
        return BronzeCommit(batch.upto, batch.confirm, 1, 1, 0, 0, 0)


class Forgetful(TableBronze):
    """Does not know what it has."""

    def _read(self) -> tuple[bool, StreamCheckpoint | None]:
        there, state = super()._read()
        return there, None if state is None else replace(state, upto=state.upto - 300)


class Hurried(loop.OpenBatch):
    """Confirms what arrived, and not what is complete."""

    def add(self, closed: Any) -> None:
        super().add(closed)
        self.confirm += 400


class WithoutFence(table.SimulatedTable):
    """Commits on top of any version."""

    def commit(self, *given: Any) -> int:
        self._at = len(self._store.versions) - 1
        return super().commit(*given)


class KeepsAll(StreamedTransaction):
    """Lands what was rolled back."""

    def roll_back(self, subxid: int) -> None:
        """Nothing is forgotten."""


class InVain(PreparedTransactions):
    """Confirms a PREPARE of which nothing is kept."""

    def park(self, prepared: Prepared, content: PreparedContent) -> None:
        """Nothing is kept."""


class Tidy(PreparedTransactions):
    """Clears up what was prepared and has not ended."""

    def clean(self, last: int, confirm: int) -> None:
        for name, one in list(self._entries.items()):
            if one.prepared.end_lsn <= confirm:
                self._drop(name)


PLANTED: dict[str, Callable[[], Any]] = {
    "lands nothing and confirms": lambda: mock.patch.object(run, "TableBronze", Lazy),
    "takes repeats for new": lambda: mock.patch.object(run, "TableBronze", Forgetful),
    "confirms too much": lambda: mock.patch("cdc_lake.runtime.receive.loop.OpenBatch", Hurried),
    "no fence": lambda: mock.patch.object(run, "SimulatedTable", WithoutFence),
    "keeps what was rolled back": lambda: mock.patch(
        "cdc_lake.decode.pgoutput.assembler.StreamedTransaction", KeepsAll
    ),
    "keeps no prepared transaction": lambda: mock.patch.object(streamed, "PreparedTransactions", InVain),
    "clears up too early": lambda: mock.patch.object(streamed, "PreparedTransactions", Tidy),
    "no order of CSNs": lambda: mock.patch.object(
        kinds, "CsnOrdering", side_effect=lambda *_, **__: CommitLsnOrdering()
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_receiver_with_a_fault_is_found(planted: str) -> None:
    print(f"CDC_LAKE_SEED={SEED}")
    with PLANTED[planted]():
        assert any(fails(SEED + nth, KINDS[nth % 3]) for nth in range(150))


def fails(seed: int, kind: str) -> bool:
    try:
        play(seed, 50, kind)
    except (AssertionError, CdcLakeError):
        return True
    return False


UNREAD = Undecoded(1, "DEC300", "unreadable", "", ("public.orders",), "0")


def commit(position: int, counts: dict[str, dict[str, int]], size: int) -> CommitRow:
    return CommitRow(1, position, None, None, counts, size, b"", b"")
