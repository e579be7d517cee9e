"""A server in memory: sends committed transactions as pgoutput and records what is acknowledged.

The receive loop, the assembler, the orderings and bronze are the real ones; only the wire is missing. In the csn domain
each transaction has a number, and one may be sent late, after others that were confirmed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final
from unittest import mock

from cdc_lake.bronze.contract import BronzeWriter
from cdc_lake.bronze.open import bronze_table
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.bronze.writer import TableBronze
from cdc_lake.config.project import Project
from cdc_lake.connectors.gaussdb.csn_order import CsnOrdering, recorded_gaps
from cdc_lake.connectors.open_stream import CommitLsnOrdering, OpenStream, TransactionOrdering
from cdc_lake.control.streams import begin_stream
from cdc_lake.decode.pgoutput.assembler import Assembler
from cdc_lake.decode.pgoutput.columnar import tabulate
from cdc_lake.decode.pgoutput.spooled import SpooledTransaction
from cdc_lake.decode.transaction import BufferedTransaction
from cdc_lake.decode.undecodable import PgoutputFormat, StopAtUndecodable, StoreUndecodable
from cdc_lake.errors import ServerUnreachable
from cdc_lake.model.change import Change, Transaction
from cdc_lake.model.position import Csn, Lsn, OrderDomain
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observability.events import silent
from cdc_lake.runtime.receive import receiver as loop
from cdc_lake.source.base import Kind, StreamIdentity
from cdc_lake.tables.control_tables import ControlTables
from cdc_lake_testing.broken_off import broken_off
from cdc_lake_testing.committed import Committed
from cdc_lake_testing.messages import boundaries, catalog_of, encode_transaction

START: Final = 1000
_FIRST_CSN: Final = 100
_LATE: Final = 0.05  # seconds that a number may be late


@dataclass(frozen=True, slots=True)
class _Sent:
    """A transaction on the wire. `frames` of its changes, where they are not what they are to be; `behind`: the
    position that has to be confirmed before it is sent.
    """

    transaction: Transaction
    end: int
    frames: Sequence[bytes] | None = None
    behind: int = 0


@dataclass
class MemoryServer:
    """`csns`: transactions are ordered by number. `cuts`: after how many frames a connection breaks, each in turn.
    `keeps`: the receiver lands what cannot be decoded as bytes.
    """

    relations: Sequence[Relation]
    csns: bool = False
    keeps: bool = False
    cuts: list[int] = field(default_factory=list)
    confirmed: int = START
    end: int = START
    _sent: list[_Sent] = field(default_factory=list)

    def commit(self, *changes: Change, lsns: tuple[int, ...] = (), frames: Sequence[bytes] | None = None) -> None:
        """A transaction commits. `lsns`: of its changes; `frames`: what is sent of them instead."""
        self._add(changes, lsns, frames, csn=_FIRST_CSN + len(self._sent) + 1)

    def commit_late(self, late: Change, *changes: Change) -> None:
        """Two transactions commit, and the one with the lower number is sent when the other one was confirmed."""
        number = _FIRST_CSN + len(self._sent) + 1
        self._add(changes, csn=number + 1)
        self._add((late,), csn=number, behind=self.end)

    def rewind(self, position: int) -> None:
        """The server forgot what it was told, as one that crashed does."""
        self.confirmed = min(self.confirmed, position)

    def known(self, **more: Any) -> Committed:
        """What was committed, as the checker is told."""
        ordered = sorted((one.transaction for one in self._sent), key=lambda t: t.bounds.position)
        return Committed(ordered, confirmed=self.confirmed, **more)

    def received(self, project: Project, failpoint: str = "") -> BaseException | None:
        """Run the receive loop until everything is there, or until it breaks off; how it ended, None: well."""
        with mock.patch.object(loop, "open_stream", self._open):
            try:
                with broken_off(failpoint):
                    bronze = TableBronze(bronze_table(project))
                    stop = threading.Event()
                    loop.receive(project, bronze, once=True, stop=stop, report=silent, pauses=(0.01, 0.01))
            except Exception as error:  # noqa: BLE001 - how it ended is what was asked
                return error
        return None

    def _add(
        self,
        changes: Sequence[Change],
        lsns: tuple[int, ...] = (),
        frames: Sequence[bytes] | None = None,
        *,
        csn: int,
        behind: int = 0,
    ) -> None:
        first, self.end = self.end, self.end + 100
        bounds = boundaries(self.end)
        if self.csns:
            bounds = replace(bounds, position=csn, csn=csn)
        places = lsns or tuple(first + n for n in range(1, len(changes) + 1))
        self._sent.append(_Sent(Transaction(bounds, tuple(changes), places), self.end, frames, behind))

    @contextmanager
    def _open(
        self, project: Project, bronze: BronzeWriter, control: ControlTables, *_: object, **__: object
    ) -> Iterator[OpenStream]:
        domain = OrderDomain.CSN if self.csns else OrderDomain.LSN
        if (state := bronze.state()) is None:
            identity = StreamIdentity("1", "shop", "s", Lsn(START))
            if self.csns:
                identity = replace(identity, csn=Csn(_FIRST_CSN), kind=Kind.GAUSS)
            state = begin_stream(identity, START, bronze, control, dense=self.csns)
        order: TransactionOrdering = CommitLsnOrdering()
        if self.csns:
            gaps = recorded_gaps(control, BronzeReader(project.bronze), state)
            order = CsnOrdering(
                state.upto,
                state.confirm,
                bound=_LATE,
                policy="record",
                clock=time.monotonic,
                empty=state.empty,
                recorded=gaps,
            )
        goal = max(one.transaction.bounds.position for one in self._sent)
        numbers = {one.end: one.transaction.bounds.position for one in self._sent} if self.csns else {}
        assembler = _Numbering(self.relations, numbers, keeps=self.keeps)
        decoded = PgoutputFormat(tabulate)
        columns = StoreUndecodable(decoded) if self.keeps else StopAtUndecodable(decoded)
        yield OpenStream(_Connection(self), assembler, order, columns, columns, domain, state, goal, 0)

    def frames(self, one: _Sent, announced: dict[TableName, Relation]) -> list[tuple[int, bytes]]:
        """What is sent of a transaction on a connection."""
        bounds = replace(one.transaction.bounds, position=one.end)
        whole = encode_transaction(replace(one.transaction, bounds=bounds), announced)
        if one.frames is None:
            return whole
        return [*whole[: -1 - len(one.transaction.changes)], *((one.end, frame) for frame in one.frames), whole[-1]]

    def to_send(self) -> list[_Sent]:
        """What a connection that begins now is sent, in turn."""
        return [one for one in self._sent if one.end > self.confirmed]


class _Numbering(Assembler):
    """Gives the transactions their numbers, which pgoutput does not have."""

    def __init__(self, relations: Sequence[Relation], numbers: dict[int, int], *, keeps: bool) -> None:
        super().__init__(catalog_of(*relations), keeps=keeps)
        self._numbers = numbers

    def feed(self, payload: bytes, lsn: int) -> tuple[BufferedTransaction | SpooledTransaction, ...]:
        return tuple(self._numbered(one) for one in super().feed(payload, lsn))

    def _numbered(self, one: BufferedTransaction | SpooledTransaction) -> BufferedTransaction | SpooledTransaction:
        csn = self._numbers.get(one.bounds.position)
        return one if csn is None else replace(one, bounds=replace(one.bounds, position=csn, csn=csn))


class _Connection:
    """One connection (`source.base.FrameSource`)."""

    reply_requested = False

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._waiting = server.to_send()
        self._announced: dict[TableName, Relation] = {}
        self._left = server.cuts.pop(0) if server.cuts else None

    @property
    def keepalive_end(self) -> int:
        """See FrameSource."""
        return 0 if self._waiting or self._server.csns else self._server.end

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        """See FrameSource: a transaction at a time."""
        if not self._waiting or self._waiting[0].behind > self._server.confirmed:
            time.sleep(min(timeout, 0.01))
            return []
        frames = self._server.frames(self._waiting.pop(0), self._announced)
        if self._left is not None:
            self._left -= len(frames)
            if self._left <= 0:
                raise ServerUnreachable("the connection broke off")
        return frames

    def confirm(self, position: int) -> None:
        """See FrameSource."""
        self._server.confirmed = max(self._server.confirmed, position)

    def tick(self, *, ping: bool = False) -> None:
        """See FrameSource."""

    def close(self) -> None:
        """See FrameSource."""
