"""Prepared transactions land where they commit, once, whatever a receiver dies of and however often."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.connectors.prepared_transactions import PreparedTransactions, file_name, read_file
from cdc_lake.connectors.spool import Spool
from cdc_lake.decode.encoding import Codec
from cdc_lake.decode.gaussdb.assembler import Whole
from cdc_lake.decode.gaussdb.batches import RecordTransaction
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.pgoutput.spooled import SpooledTransaction
from cdc_lake.decode.test_decoding import LineAssembler
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.errors import PreparedUnknown
from cdc_lake.observability import failpoints as at
from cdc_lake.tables.control_files import LocalControlFiles
from cdc_lake_testing.messages import catalog_of, raw_transaction
from cdc_lake_testing.two_phase import RECORD, TwoPhaseLog
from cdc_lake_testing.two_phase_lines import as_recorded, lines_of
from tests.property.test_streamed_transactions import LAYOUTS, a_change, joined
from tests.seeds import seeds

BUDGET = int(os.environ.get("CDC_LAKE_BUDGET", "1"))
ROUNDS = 60 * BUDGET
KINDS = {b"S", b"c", b"b", b"P", b"p", b"K", b"r"}  # streamed and committed; prepared, also streamed; both ends
POINTS = (at.PREPARE_KEPT, at.PREPARE_ENDED, at.PREPARE_CLEANED)


class Died(Exception):
    pass


def died() -> None:
    raise Died


class Messages:
    """The log by pgoutput."""

    sent = staticmethod(TwoPhaseLog.messages)
    expected = staticmethod(raw_transaction)

    def assembler(self, spool: Spool, parked: PreparedTransactions, landed: int) -> Assembler:
        return Assembler(catalog_of(*LAYOUTS), frames=spool, prepared_storage=parked, landed=landed)

    def whole(self, raw: BufferedTransaction | SpooledTransaction) -> BufferedTransaction:
        return replace(raw if isinstance(raw, BufferedTransaction) else joined(raw), part=False)


class Lines:
    """The log by test_decoding."""

    sent = staticmethod(lines_of)
    expected = staticmethod(as_recorded)

    def assembler(self, spool: Spool, parked: PreparedTransactions, landed: int) -> LineAssembler:
        return LineAssembler(Codec(), lambda _: True, frames=spool, prepared_storage=parked, landed=landed)

    def whole(self, raw: Whole) -> RecordTransaction:
        if isinstance(raw, RecordTransaction):
            return raw
        parts = list(raw.parts())
        records, lsns = [one for part in parts for one in part.records], [one for part in parts for one in part.lsns]
        return RecordTransaction(raw.bounds, raw.style, records, lsns, sum(map(len, records)))


Plugin: TypeAlias = Messages | Lines
PLUGINS = pytest.mark.parametrize("plugin", [Messages(), Lines()], ids=["pgoutput", "test_decoding"])


@dataclass
class Lake:
    """What survives: bronze as a dictionary, the folder of parked transactions, and how often a receiver died."""

    folder: Path
    landed: dict[int, Any]
    plugin: Plugin = field(default_factory=Messages)
    state: StreamCheckpoint = field(default_factory=lambda: StreamCheckpoint("pg:1:d:s:0/0", 1, 0, 0, b""))
    deaths: int = 0


@contextmanager
def dying(lake: Lake, dice: random.Random) -> Iterator[None]:
    at.arm(f"{dice.choice(POINTS)}:{dice.randint(1, 3)}" if dice.random() < 0.8 else "", died)
    try:
        yield
    except Died:
        lake.deaths += 1
    finally:
        at.arm("")


def receive(lake: Lake, log: TwoPhaseLog, dice: random.Random, messages: float) -> None:
    """One connection, which is lost after about so many messages."""
    connected(lake, log, dice, lands=lambda: dice.random() < 0.3, dies=lambda: dice.random() < 1 / messages)


def connected(
    lake: Lake, log: TwoPhaseLog, dice: random.Random, *, lands: Callable[[], bool], dies: Callable[[], bool]
) -> None:
    """One connection; after each message it lands what is whole, and is lost, or not."""
    with Spool(lake.folder / "spool", 1 << 30, dice.choice([1, 90, 1 << 20])) as spool:
        parked = PreparedTransactions(
            LocalControlFiles(lake.folder / "parked", durable=False), spool, lake.state,
            highest=lambda: max(lake.landed, default=None), changed=log.changed,
        )  # fmt: skip
        assembler = lake.plugin.assembler(spool, parked, lake.state.upto)
        pending: list[Any] = []
        for lsn, payload in lake.plugin.sent(log, lake.state.confirm):
            pending += assembler.feed(payload, lsn)
            if lands():
                land(lake, pending, None if assembler.in_transaction else lsn, parked)
            if dies():
                return
        land(lake, pending, None, parked)


def land(lake: Lake, pending: list[Any], reached: int | None, parked: PreparedTransactions) -> None:
    """What is whole lands, and is confirmed; where nothing is under way, so is what was reached (a keepalive's end)."""
    last = 0
    for raw in pending:
        position = raw.bounds.position
        whole = lake.plugin.whole(raw)
        if position > lake.state.upto:
            assert position > max(lake.landed, default=0), "in order"
            lake.landed[position] = whole
            last = position
        else:
            assert lake.landed[position] == whole, "what comes again is the same"
    pending.clear()
    upto = max(lake.state.upto, last, reached or 0)
    lake.state = replace(lake.state, upto=upto, confirm=upto)
    parked.clean(last, upto)


def a_log(dice: random.Random) -> TwoPhaseLog:
    return TwoPhaseLog(
        [[a_change(dice, dice.choice(LAYOUTS)) for _ in range(dice.randint(0, 8))] for _ in range(6)], dice
    )


def name_of(xid: int) -> str:
    """Of the file of one that `TwoPhaseLog` prepares."""
    return file_name(1, xid, f"gid {xid - 100} 'ü'")


def all_of(log: TwoPhaseLog, plugin: Plugin) -> list[Any]:
    """What has to land."""
    return [plugin.expected(one) for one in log.committed]


@PLUGINS
@pytest.mark.parametrize("seed", seeds(1))
def test_they_land_once_where_they_commit_over_any_deaths(seed: int, plugin: Plugin, tmp_path: Path) -> None:
    dice = random.Random(seed)
    deaths = waited = 0
    for nth in range(ROUNDS):
        log = a_log(dice)
        lake = Lake(tmp_path / str(nth), {}, plugin)
        for _ in range(dice.randint(0, 12)):
            with dying(lake, dice):
                receive(lake, log, dice, dice.choice([3, 10, 40]))
        receive(lake, log, dice, 1 << 30)
        assert list(lake.landed.values()) == all_of(log, plugin)
        left = [] if not (lake.folder / "parked").exists() else [one.name for one in (lake.folder / "parked").iterdir()]
        assert sorted(left) == sorted(map(name_of, log.open))
        deaths, waited = deaths + lake.deaths, waited + len(log.open)
    assert deaths > 0
    assert waited > 0


@PLUGINS
@pytest.mark.parametrize("seed", seeds(1))
def test_a_lost_file_is_an_error_where_its_transaction_changed_something_and_lands_once_it_is_back(
    seed: int, plugin: Plugin, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    errors = 0
    for nth in range(1000 * BUDGET):
        if errors == 5 * BUDGET:
            break
        log, lake = a_log(dice), Lake(tmp_path / str(nth), {}, plugin)
        for _ in range(dice.randint(1, 3)):
            with dying(lake, dice):
                connected(lake, log, dice, lands=lambda: True, dies=lambda: dice.random() < 0.05)
        ahead = [one for one in log.committed if one.bounds.position > lake.state.upto and one.changes]
        files = [path for one in ahead if (path := lake.folder / "parked" / name_of(one.bounds.xid)).exists()]
        if not files:
            continue
        lost = dice.choice(files)
        content = lost.read_bytes()
        prepared, _ = read_file(LocalControlFiles(lost.parent), lost.name, part=1)
        lost.unlink()
        if min(prepared.lsn, prepared.end_lsn - RECORD) < lake.state.confirm:  # otherwise its PREPARE is sent again
            errors += 1
            with pytest.raises(PreparedUnknown):
                receive(lake, log, dice, 1 << 30)
            lost.write_bytes(content)
        receive(lake, log, dice, 1 << 30)
        assert list(lake.landed.values()) == all_of(log, plugin)
    assert errors == 5 * BUDGET


@PLUGINS
@pytest.mark.parametrize("seed", seeds(1))
def test_dead_between_any_two_messages_of_streamed_and_prepared_transactions(
    seed: int, plugin: Plugin, tmp_path: Path
) -> None:
    dice = random.Random(seed)
    logs = (a_log(dice) for _ in range(100_000 * BUDGET))
    each_kind = (log for log in logs if {message[:1] for _, message in log.messages(0)} >= KINDS)
    chosen = list(itertools.islice(each_kind, BUDGET))
    assert len(chosen) == BUDGET
    for nth, log in enumerate(chosen):
        for after, eager in itertools.product(range(len(list(plugin.sent(log, 0)))), (False, True)):
            lake, left = Lake(tmp_path / f"{nth} {after} {eager}", {}, plugin), itertools.count(-after)
            connected(lake, log, dice, lands=lambda eager=eager: eager, dies=lambda left=left: next(left) == 0)
            if dice.random() < 0.2:
                receive(lake, log, dice, 10)
            receive(lake, log, dice, 1 << 30)
            assert list(lake.landed.values()) == all_of(log, plugin), (after, eager)
