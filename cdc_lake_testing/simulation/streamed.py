"""Streaming PostgreSQL servers, some with two-phase decoding: transactions sent before their end, prepared, aborted."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.connectors.open_stream import CommitLsnOrdering
from cdc_lake.connectors.prepared_transactions import PreparedTransactions, file_name
from cdc_lake.connectors.spool import Spool
from cdc_lake.decode.pgoutput import columnar
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.transaction import MemoryFrames, Part
from cdc_lake.decode.undecodable import PgoutputFormat, StopAtUndecodable
from cdc_lake.errors import PreparedNotKept
from cdc_lake.model.change import Transaction
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import Relation
from cdc_lake_testing.messages import catalog_of
from cdc_lake_testing.simulation.log import Log
from cdc_lake_testing.simulation.server import Opened
from cdc_lake_testing.simulation.table import Store
from cdc_lake_testing.simulation.walsender import Settings, Walsender
from cdc_lake_testing.simulation.world import World


class SmallFrames(MemoryFrames):
    """Frames in memory that are given back in parts, as those on disk are."""

    is_spilled = True

    def __init__(self, part: int) -> None:
        super().__init__()
        self._part = part

    def parts(self) -> Iterator[Part]:
        """See FrameStore."""
        frames, lsns, size = list[bytes](), list[int](), 0
        for found, places in super().parts():
            for frame, lsn in zip(found, places, strict=True):
                frames.append(frame)
                lsns.append(lsn)
                size += len(frame)
                if size >= self._part:
                    yield frames, lsns
                    frames, lsns, size = [], [], 0
        if frames:
            yield frames, lsns


class SomeLarge:
    """Makes stores for transactions that are large from `part` bytes on (`decode.transaction.FrameStoreFactory`)."""

    def __init__(self, part: int) -> None:
        self.part = part

    def __call__(self) -> MemoryFrames:
        """See NewFrames."""
        return SmallFrames(self.part) if self.part < sys.maxsize else MemoryFrames()


class MemoryParked:
    """Files of prepared transactions (`tables.control_files.ControlFiles`), which outlast processes in
    a store.
    """

    name = "memory"

    def __init__(self, store: Store, world: World) -> None:
        self._files = store.parked
        self._world = world

    def sizes(self) -> dict[str, int]:
        """See ParkedPlace."""
        self._fails("files not listed", 0.2)
        return {name: len(content) for name, content in self._files.items()}

    def put(self, name: str, blocks: Callable[[], Iterable[bytes]]) -> None:
        """See ParkedPlace; it may be there when an error says that it is not."""
        content = b"".join(blocks())
        self._fails("file not kept", 0.3)
        self._files[name] = content
        self._fails("file kept and denied", 0.3)

    def read(self, name: str, at: int, size: int) -> bytes | None:
        """See ParkedPlace."""
        self._fails("file not read", 0.1)
        content = self._files.get(name)
        return None if content is None else content[at : at + size]

    def remove(self, name: str) -> None:
        """See ParkedPlace."""
        self._fails("file not removed", 0.2)
        self._files.pop(name, None)

    def _fails(self, how: str, share: float) -> None:
        if self._world.chance(how, share):
            raise PreparedNotKept("the disk is full", where=self.name)


class Streaming:
    """pgoutput of version 2 to 4 (`simulation.server.Kind`).

    Damaged are only frames that a prepared transaction does not keep: what is parked is decoded at its end.
    """

    domain = OrderDomain.LSN
    fragile: bytes | None = b"BCSEcAPpKr"

    def __init__(self, transactions: Sequence[Transaction], relations: Sequence[Relation], world: World) -> None:
        dice = world.dice
        self._catalog = catalog_of(*relations)
        self._log = Log(transactions, dice)
        self._two_phase = dice.random() < 0.6
        self._part = dice.choice((100, 700, sys.maxsize))
        self.expected: Sequence[Transaction] = self._log.committed
        self.landmarks = [(one.bounds.position, one.bounds.position) for one in self.expected if one.changes]
        self.goal = self._log.end
        self.start = (0, 0)

    def open(self, state: StreamCheckpoint, after: int, world: World, store: Store) -> Opened:
        """See Kind. A receiver asks for what lies behind bronze's position; with two-phase it relies on that."""
        start = max(after, state.confirm) if self._two_phase else after
        settings = Settings.by_chance(world.dice, two_phase=self._two_phase)
        frames = SomeLarge(self._part)
        parked = self._parked(state, store, world) if self._two_phase else None
        assembler = Assembler(self._catalog, frames=frames, prepared_storage=parked, landed=state.upto)
        tabulate = StopAtUndecodable(PgoutputFormat(columnar.tabulate))
        return Opened(Walsender(self._log, start, settings), assembler, CommitLsnOrdering(), tabulate, parked)

    def _parked(self, state: StreamCheckpoint, store: Store, world: World) -> PreparedTransactions:
        counting = Spool(Path("nowhere"), 1 << 40, self._part)  # it makes no stores, so it keeps nothing
        return PreparedTransactions(
            MemoryParked(store, world), counting, state,
            highest=lambda: max(store.positions, default=None), changed=self._log.changed,
        )  # fmt: skip

    def check(self, store: Store, met: Mapping[str, int]) -> None:
        """Of the prepared transactions exactly those are kept that may still end, once a start has cleared up.

        Where a start was told an older position of bronze, it forgot ends that are not read again: those files stay.
        """
        state = store.state
        if self._two_phase and state is not None:
            self._parked(state, store, World(random.Random(), stormy=0.0))
        last = max(store.positions, default=0)
        ended = {name.removesuffix(".end"): int(at) for name, at in store.parked.items() if name.endswith(".end")}
        left = {name for name in store.parked if not name.endswith(".end") and ended.get(name, 0) <= last}
        waiting = {file_name(1, xid, gid): xid for xid, gid in self._log.open.items()}
        assert left <= waiting.keys() or "stale listing" in met, "of what ended a file is kept"
        lost = [name for name, xid in waiting.items() if name not in left and self._log.stands(xid)]
        assert not (self._two_phase and lost), "a prepared transaction is lost"
