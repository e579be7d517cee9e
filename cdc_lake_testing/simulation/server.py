"""A simulated slot and its connections, each of which sends some frames until it is lost; subclasses are servers.

A slot sends what follows its confirmed position. A crashed server forgets the newest confirmations: it starts at an
earlier position, and sends everything since again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from cdc_lake.bronze.contract import StreamCheckpoint, Tabulate
from cdc_lake.connectors.open_stream import OpenStream, TransactionOrdering
from cdc_lake.connectors.prepared_transactions import PreparedTransactions
from cdc_lake.errors import ServerUnreachable
from cdc_lake.model.position import OrderDomain
from cdc_lake.source.base import TransactionAssembler
from cdc_lake_testing.simulation.table import Store
from cdc_lake_testing.simulation.world import World

MOST_POLLS = 20_000
"""More than any history of some hundred transactions takes."""


class Sending(Protocol):
    """What one connection is sent. `reached`: everything up to there was."""

    @property
    def reached(self) -> int:
        """See above; 0 where a keepalive promises nothing."""

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Each with its LSN."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What belongs to one connection (`connectors.open_stream.OpenStream`)."""

    sending: Sending
    assembler: TransactionAssembler
    order: TransactionOrdering
    tabulate: Tabulate
    parked: PreparedTransactions | None = None


class Kind(Protocol):
    """What one family of servers does with a history.

    `goal` is its last position, `start` where the stream begins, as position and confirmed position. `landmarks`:
    confirmed position and position of each transaction with changes, ascending by the first. `fragile`: what the first
    byte of a frame may be that is damaged, None: any.
    """

    domain: OrderDomain
    goal: int
    start: tuple[int, int]
    landmarks: list[tuple[int, int]]
    fragile: bytes | None

    def open(self, state: StreamCheckpoint, after: int, world: World, store: Store) -> Opened:
        """A connection of a receiver whose bronze is at `state`, to a slot that was confirmed up to `after`."""


@dataclass
class SimulatedServer:
    """A slot on a server; bronze, which has to hold what is confirmed, is `store`."""

    kind: Kind
    world: World
    store: Store
    polls: int = 0
    _confirmations: list[int] = field(default_factory=lambda: [0])
    _forgotten: int = 0  # of the kind's landmarks, so many were in bronze when they were confirmed

    def connect(self, state: StreamCheckpoint) -> OpenStream:
        """A connection that goes on from what bronze holds. Raises ServerUnreachable."""
        if self.world.chance("server away", 0.3):
            raise ServerUnreachable("the server is not there")
        if self.world.chance("slot rewound", 0.5):
            keep = self.world.dice.randrange(len(self._confirmations)) + 1
            del self._confirmations[keep:]
        kind = self.kind
        opened = kind.open(state, self._confirmations[-1], self.world, self.store)
        return OpenStream(
            SimulatedFrames(self, opened.sending), opened.assembler, opened.order, opened.tabulate, opened.tabulate,
            kind.domain, state, kind.goal, 0, prepared=opened.parked,
        )  # fmt: skip

    def confirm(self, position: int) -> None:
        """The receiver says what may be forgotten."""
        behind = bisect_right(self.kind.landmarks, (position, 1 << 64))
        for _, known in self.kind.landmarks[self._forgotten : behind]:
            assert known in self.store.positions, "confirmed before it was durable"
        self._forgotten = max(self._forgotten, behind)
        if position > self._confirmations[-1]:
            self._confirmations.append(position)


class SimulatedFrames:
    """One connection (`source.base.FrameSource`): so many frames at a time, until it is lost."""

    def __init__(self, server: SimulatedServer, sending: Sending) -> None:
        self._server = server
        self._world = server.world
        self._sending = sending
        self._left = sending.messages()
        self.keepalive_end = 0

    @property
    def reply_requested(self) -> bool:
        """See FrameSource."""
        return self._world.dice.random() < 0.05

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        """See FrameSource."""
        world, dice = self._world, self._world.dice
        self._server.polls += 1
        assert self._server.polls < MOST_POLLS, "no end is in sight"
        world.now += dice.random() * timeout
        if world.chance("connection lost", 0.2):
            raise ServerUnreachable("the connection broke off")
        some = dice.choice((0, 1, 2, 5, 20))
        frames = [one for _, one in zip(range(some), self._left, strict=False)]
        if len(frames) < some or dice.random() < 0.2:
            self.keepalive_end = self._sending.reached
        if frames and world.chance("frame damaged", 0.1):
            at = dice.randrange(len(frames))
            lsn, payload = frames[at]
            if self._server.kind.fragile is None or payload[0] in self._server.kind.fragile:
                frames[at] = lsn, payload[:-1]
        return frames

    def confirm(self, position: int) -> None:
        """See FrameSource."""
        self._server.confirm(position)

    def tick(self, *, ping: bool = False) -> None:
        """See FrameSource."""

    def close(self) -> None:
        """See FrameSource."""
