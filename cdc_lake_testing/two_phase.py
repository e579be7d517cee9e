"""Prepared transactions of a server: their messages, and a WAL that is sent from wherever a slot is.

What is sent follows PostgreSQL: a transaction whose COMMIT, or PREPARE, begins before the start of a connection is not
sent, and a COMMIT PREPARED then comes alone (`SnapBuildXactNeedsSkip`, `DecodePrepare`); each connection announces
tables again; announcements of a streamed transaction apply to others once it commits, not when it is prepared; of one
that only locked rows, versions up to 17 send nothing but its end.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cdc_lake.decode.pgoutput.parser import POSTGRES_EPOCH
from cdc_lake.model.change import Boundaries, Change, Message, Transaction
from cdc_lake.model.relation import Relation, TableName
from cdc_lake_testing.messages import DEFAULT_COMMIT_TS, begin, commit, encode_change, relation
from cdc_lake_testing.streaming import inside, stream_commit, stream_start, stream_stop

RECORD = 40
"""Bytes of a record that ends or prepares a transaction."""


def begin_prepare(xid: int, gid: str, lsn: int, at: int = DEFAULT_COMMIT_TS) -> bytes:
    """`b`; `lsn`: where the PREPARE's record begins, here and below."""
    return b"b" + _said(xid, gid, lsn, at)


def prepare(xid: int, gid: str, lsn: int, at: int = DEFAULT_COMMIT_TS) -> bytes:
    """`P`."""
    return b"P\0" + _said(xid, gid, lsn, at)


def stream_prepare(xid: int, gid: str, lsn: int, at: int = DEFAULT_COMMIT_TS) -> bytes:
    """`p`."""
    return b"p\0" + _said(xid, gid, lsn, at)


def commit_prepared(xid: int, gid: str, lsn: int, at: int = DEFAULT_COMMIT_TS) -> bytes:
    """`K`."""
    return b"K\0" + _said(xid, gid, lsn, at)


def rollback_prepared(xid: int, gid: str, prepare_lsn: int, lsn: int, at: int = DEFAULT_COMMIT_TS) -> bytes:
    """`r`."""
    numbers = prepare_lsn + RECORD, lsn + RECORD, at - POSTGRES_EPOCH, at - POSTGRES_EPOCH, xid
    return b"r\0" + struct.pack(">QQqqI", *numbers) + gid.encode() + b"\0"


def _said(xid: int, gid: str, lsn: int, at: int) -> bytes:
    return struct.pack(">QQqI", lsn, lsn + RECORD, at - POSTGRES_EPOCH, xid) + gid.encode() + b"\0"


@dataclass
class Logged:
    """A transaction: its changes with their LSNs; where it is prepared and ends, None where it does not."""

    xid: int
    changes: list[tuple[Change, int]]
    streamed: bool
    gid: str | None
    prepared: int | None = None
    end: int | None = None
    commits: bool = True
    blocks: list[int] = field(default_factory=list)  # how many changes each has
    silent: bool = False  # of it only the end is sent


class TwoPhaseLog:
    """A log of transactions by chance, some streamed, some prepared. `committed`: what it comes to; `open`: xids of
    transactions that are prepared at its end and whose PREPARE is sent; `events`: a block, PREPARE or end of each, with
    the block's number or where the record begins.
    """

    def __init__(self, changes: Sequence[Sequence[Change]], dice: random.Random) -> None:
        """`changes`: of each transaction."""
        self._dice = dice
        self._lsn = 1_000
        self.events: list[tuple[Logged, str, int]] = []
        self.committed: list[Transaction] = []
        waiting, under = [self._begun(nth, one) for nth, one in enumerate(changes)], list[Logged]()
        while waiting or under:
            if waiting and (not under or dice.random() < 0.4):
                under.append(waiting.pop(0))
            one = dice.choice(under)
            if not self._step(one):
                under.remove(one)
        prepared = [one for one, what, _ in self.events if what == "prepare" and not one.silent]
        self.open = [one.xid for one in prepared if one.end is None]
        self._ended(Logged(9_999, [], streamed=False, gid=None))  # behind everything, so that all of it can be passed

    def _begun(self, nth: int, changes: Sequence[Change]) -> Logged:
        gid = f"gid {nth} 'ü'" if self._dice.random() < 0.6 else None
        silent = gid is not None and not changes and self._dice.random() < 0.5
        streamed = not silent and self._dice.random() < 0.5
        return Logged(100 + nth, [(one, 0) for one in changes], streamed, gid, silent=silent)

    def _advanced(self) -> int:
        self._lsn += self._dice.randint(RECORD + 1, 200)
        return self._lsn

    def _step(self, one: Logged) -> bool:
        """The next thing that is logged of it; False where nothing more comes."""
        done = sum(one.blocks)
        if one.streamed and (done < len(one.changes) or not one.blocks):
            count = min(self._dice.randint(1, 4), len(one.changes) - done)
            if count == 0:
                one.streamed = False
                return True
            for at in range(done, done + count):
                one.changes[at] = one.changes[at][0], self._advanced()
            one.blocks.append(count)
            self.events.append((one, "block", len(one.blocks) - 1))
            return True
        if one.gid is not None and one.prepared is None:
            self._dated(one)
            one.prepared = self._advanced()
            self.events.append((one, "prepare", one.prepared))
            return True
        if one.gid is not None and self._dice.random() < 0.25:
            return False  # it stays prepared
        one.commits = one.gid is None or self._dice.random() < 0.7
        self._dated(one)
        self._ended(one)
        return False

    def _dated(self, one: Logged) -> None:
        if not one.streamed and one.prepared is None:
            one.changes = [(change, self._advanced()) for change, _ in one.changes]

    def _ended(self, one: Logged) -> None:
        one.end = self._advanced()
        self.events.append((one, "end", one.end))
        if one.commits:
            end = one.end + RECORD
            bounds = Boundaries(position=end, confirm=end, commit_lsn=one.end, xid=one.xid, commit_ts=DEFAULT_COMMIT_TS)
            lsns = tuple(lsn for _, lsn in one.changes)
            self.committed.append(Transaction(bounds, tuple(change for change, _ in one.changes), lsns))

    def changed(self, xid: int, end_lsn: int) -> bool:
        """What the server says of a transaction (`decode.pgoutput.spooled.PreparedStorage`)."""
        [found] = [one for one in self.committed if one.bounds.xid == xid]
        assert found.bounds.confirm == end_lsn
        return bool(found.changes)

    def messages(self, start: int) -> Iterator[tuple[int, bytes]]:
        """What a connection that starts at this position is sent, each message with its LSN."""
        return _Connection(self.events).messages(start)


class _Connection:
    """What was told: to all, and in the blocks of each streamed transaction. A table whose layout is another one than
    before is told anew, everywhere.
    """

    def __init__(self, events: Sequence[tuple[Logged, str, int]]) -> None:
        self._events = events
        self._current: dict[TableName, Relation] = {}
        self._told: set[TableName] = set()
        self._told_in: dict[int, set[TableName]] = {}

    def messages(self, start: int) -> Iterator[tuple[int, bytes]]:
        """See TwoPhaseLog."""
        for one, what, number in self._events:
            first = one.end if one.prepared is None else one.prepared
            again = first is not None and first >= start
            match what:
                case "block" if again:
                    yield from self._block(one, number)
                case "prepare" if one.silent:
                    pass
                case "prepare" if again and one.streamed:
                    assert one.gid is not None
                    yield number, stream_prepare(one.xid, one.gid, number)
                case "prepare" if again:
                    assert one.gid is not None
                    yield number, begin_prepare(one.xid, one.gid, number)
                    yield from self._plain(one)
                    yield number, prepare(one.xid, one.gid, number)
                case "end" if number >= start:
                    yield from self._end(one, number)

    def _end(self, one: Logged, lsn: int) -> Iterator[tuple[int, bytes]]:
        if one.gid is not None and one.prepared is not None:
            if one.commits:
                yield lsn, commit_prepared(one.xid, one.gid, lsn)
            else:
                yield lsn, rollback_prepared(one.xid, one.gid, one.prepared, lsn)
        elif one.streamed:
            yield lsn, stream_commit(one.xid, lsn, lsn + RECORD)
            self._told |= self._told_in.pop(one.xid, set())
        else:
            yield lsn, begin(lsn, one.xid)
            yield from self._plain(one)
            yield lsn + RECORD, commit(lsn, lsn + RECORD)

    def _plain(self, one: Logged) -> Iterator[tuple[int, bytes]]:
        for change, lsn in one.changes:
            for payload in [*self._announced(change, self._told), encode_change(change)]:
                yield lsn, payload

    def _block(self, one: Logged, number: int) -> Iterator[tuple[int, bytes]]:
        begins = sum(one.blocks[:number])
        some = one.changes[begins : begins + one.blocks[number]]
        yield some[0][1], stream_start(one.xid, first=number == 0)
        for change, lsn in some:
            for payload in [*self._announced(change, self._told_in.setdefault(one.xid, set())), encode_change(change)]:
                yield lsn, inside(payload, one.xid)
        yield some[-1][1], stream_stop()

    def _announced(self, change: Change, told: set[TableName]) -> list[bytes]:
        """The relation message before a change, where one is due."""
        if isinstance(change, Message):
            return []
        layout = change.relation
        if self._current.get(layout.table) != layout:
            self._current[layout.table] = layout
            for others in [self._told, *self._told_in.values()]:
                others.discard(layout.table)
        if layout.table in told:
            return []
        told.add(layout.table)
        return [relation(layout)]
