"""A streaming server: pgoutput messages of transactions that are sent before they end, in alternating blocks.

Tables are announced as by PostgreSQL's pgoutput: once per connection and layout for whole transactions, once more for
each streamed one (again after one of its subtransactions was rolled back); an announcement of a streamed transaction
applies to all once it commits (`maybe_send_schema`, `cleanup_rel_sync_cache`).
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from cdc_lake.decode.pgoutput.parser import POSTGRES_EPOCH
from cdc_lake.model.change import Change, Message, Transaction
from cdc_lake.model.relation import Relation, TableName
from cdc_lake_testing.messages import DEFAULT_COMMIT_TS, begin, commit, encode_change, origin, relation


def stream_start(xid: int, *, first: bool) -> bytes:
    """`S`."""
    return b"S" + struct.pack(">IB", xid, first)


def stream_stop() -> bytes:
    """`E`."""
    return b"E"


def stream_commit(xid: int, commit_lsn: int, end_lsn: int, commit_ts: int = DEFAULT_COMMIT_TS) -> bytes:
    """`c`."""
    return b"c" + struct.pack(">IBQQq", xid, 0, commit_lsn, end_lsn, commit_ts - POSTGRES_EPOCH)


def stream_abort(xid: int, subxid: int, lsn: int | None = None) -> bytes:
    """`A`; with the place and time of parallel streaming where `lsn` is given."""
    more = b"" if lsn is None else struct.pack(">Qq", lsn, DEFAULT_COMMIT_TS - POSTGRES_EPOCH)
    return b"A" + struct.pack(">II", xid, subxid) + more


def inside(payload: bytes, xid: int) -> bytes:
    """A message of version 1 as a block has it."""
    return payload[:1] + struct.pack(">I", xid) + payload[1:]


@dataclass
class _Sub:
    """A subtransaction that is open; `own`: xids of it and of what was released into it that have changes."""

    xid: int | None
    start: int
    own: list[int] = field(default_factory=list)


@dataclass
class _Under:
    """A transaction under way: what is left to do, and what of it stands."""

    transaction: Transaction
    streamed: bool
    aborts: bool
    left: list[Change]
    subs: list[_Sub]
    kept: list[tuple[Change, int]] = field(default_factory=list)
    begun: bool = False


class StreamingServer:
    """Sends transactions, some streamed, by chance. `messages` is what it sent, `committed` what it should come to.

    Changes beyond those of the given transactions are made and rolled back with their subtransactions.
    """

    def __init__(self, transactions: Iterable[Transaction], seed: int, *, streamed: float = 0.7) -> None:
        self._dice = random.Random(seed)
        self._streamed = streamed
        self._waiting = list(transactions)
        self._under: list[_Under] = []
        self._xid = 1000
        self._lsn = 1_000_000
        self._current: dict[TableName, Relation] = {}
        self._told: set[TableName] = set()
        self._told_in: dict[int, set[TableName]] = {}
        self._parallel = self._dice.random() < 0.3
        self.messages: list[tuple[int, bytes]] = []
        self.committed: list[Transaction] = []
        while self._waiting or self._under:
            self._step()

    def _step(self) -> None:
        dice = self._dice
        if self._waiting and (not self._under or dice.random() < 0.3):
            one, streamed = self._waiting.pop(0), dice.random() < self._streamed
            aborts = streamed and dice.random() < 0.15
            top = _Sub(self._next_xid(), 0)
            self._under.append(_Under(one, streamed, aborts, list(one.changes), [top]))
            return
        one_under = dice.choice(self._under)
        if one_under.streamed:
            self._block(one_under)
        else:
            self._whole(one_under)

    def _next_xid(self) -> int:
        self._xid += 1
        return self._xid

    def _next_lsn(self) -> int:
        self._lsn += self._dice.randint(1, 100)
        return self._lsn

    # ── a whole transaction ──

    def _whole(self, one: _Under) -> None:
        self._under.remove(one)
        top = one.subs[0].xid
        assert top is not None
        changes = [(change, self._next_lsn()) for change in one.left]
        end = self._end(one, changes)
        self._send(begin(end - 48, top, end))
        if one.transaction.bounds.origin is not None:
            self._send(origin(one.transaction.bounds.origin))
        for change, lsn in changes:
            self._announce(change, lsn, None, top)
            self._send(encode_change(change), lsn)
        self._send(commit(end - 48, end, end))

    # ── a streamed one ──

    def _block(self, one: _Under) -> None:
        """A few steps of it as a block; then perhaps its end."""
        top = one.subs[0].xid
        assert top is not None
        opened = False
        for _ in range(self._dice.randint(1, 6)):
            kind = self._dice.random()
            if kind < 0.2:
                one.subs.append(_Sub(None, len(one.kept)))
            elif kind < 0.3 and len(one.subs) > 1:
                released = one.subs.pop()
                one.subs[-1].own += released.own
            elif kind < 0.45 and len(one.subs) > 1:
                opened = opened and self._send(stream_stop())
                self._roll_back(one, top)
            elif one.left:
                if not opened:
                    self._send(stream_start(top, first=not one.begun))
                    if not one.begun and one.transaction.bounds.origin is not None:
                        self._send(origin(one.transaction.bounds.origin))
                    opened = one.begun = True
                self._change(one, top)
        if opened:
            self._send(stream_stop())
        if not one.left and one.begun and self._dice.random() < 0.5:
            self._finish(one, top)
        elif not one.left and not one.begun:
            self._whole(one)

    def _change(self, one: _Under, top: int) -> None:
        """The next change, in the innermost subtransaction; one that may be rolled back is tried again later."""
        change, lsn = one.left.pop(0), self._next_lsn()
        for sub in one.subs:
            sub.xid = sub.xid or self._next_xid()
        sub = one.subs[-1]
        assert sub.xid is not None
        if sub.xid not in sub.own:
            sub.own.append(sub.xid)
        self._announce(change, lsn, top, sub.xid)
        self._send(inside(encode_change(change), sub.xid), lsn)
        one.kept.append((change, lsn))

    def _roll_back(self, one: _Under, top: int) -> None:
        sub = one.subs.pop()
        undone = one.kept[sub.start :]
        del one.kept[sub.start :]
        if self._dice.random() < 0.7:
            one.left[:0] = [change for change, _ in undone]
        for xid in sub.own:
            self._send(stream_abort(top, xid, self._lsn if self._parallel else None))
        if sub.own:
            self._told_in.pop(top, None)

    def _finish(self, one: _Under, top: int) -> None:
        self._under.remove(one)
        if one.aborts:
            for sub in one.subs[1:]:
                for xid in sub.own:
                    self._send(stream_abort(top, xid, self._lsn if self._parallel else None))
            self._send(stream_abort(top, top, self._lsn if self._parallel else None))
            self._told_in.pop(top, None)
            return
        end = self._end(one, one.kept)
        self._send(stream_commit(top, end - 48, end, end))
        self._told |= self._told_in.pop(top, set())

    def _end(self, one: _Under, changes: Sequence[tuple[Change, int]]) -> int:
        """The position of the COMMIT; what it should come to is noted."""
        self._lsn += 1000
        xid = one.subs[0].xid
        bounds = replace(
            one.transaction.bounds,
            position=self._lsn, confirm=self._lsn, commit_lsn=self._lsn - 48, xid=xid, commit_ts=self._lsn,
        )  # fmt: skip
        self.committed.append(Transaction(bounds, tuple(c for c, _ in changes), tuple(lsn for _, lsn in changes)))
        return self._lsn

    def _announce(self, change: Change, lsn: int, top: int | None, xid: int) -> None:
        """The relation message before a change, where one is due; `top`: of a streamed transaction."""
        if isinstance(change, Message):
            return
        layout = change.relation
        if self._current.get(layout.table) != layout:
            self._current[layout.table] = layout
            self._told.discard(layout.table)
            for told in self._told_in.values():
                told.discard(layout.table)
        told = self._told if top is None else self._told_in.setdefault(top, set())
        if layout.table not in told:
            told.add(layout.table)
            message = relation(layout)
            self._send(message if top is None else inside(message, xid), lsn)

    def _send(self, payload: bytes, lsn: int | None = None) -> bool:
        self.messages.append((self._lsn if lsn is None else lsn, payload))
        return False
