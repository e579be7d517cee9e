"""A random WAL of a server: concurrent transactions, with subtransactions that are kept or rolled back.

Transactions commit in the given order with the given changes: everything else is rolled back, with its subtransaction
or with the whole of an additional transaction. Some are prepared first; of those that are rolled back some never end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from cdc_lake.model.change import Boundaries, Change, Transaction
from cdc_lake_testing.messages import DEFAULT_COMMIT_TS, encode_change

RECORD = 40
"""Bytes of a record; the next one begins behind it."""
SIDE_BY_SIDE = 5
"""Transactions that are under way at most."""


@dataclass(frozen=True, slots=True)
class Changed:
    """`sub` is the subtransaction that made the change, `top` its transaction, which may be the same; `payload`: the
    change as pgoutput has it.
    """

    lsn: int
    top: int
    sub: int
    change: Change
    payload: bytes


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A subtransaction is rolled back: `subs` are those inside it that were kept, then itself."""

    lsn: int
    top: int
    subs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """PREPARE TRANSACTION."""

    lsn: int
    top: int
    gid: str


@dataclass(frozen=True, slots=True)
class Ended:
    """COMMIT or ROLLBACK; of a prepared transaction too, whose PREPARE is at `prepared`."""

    lsn: int
    top: int
    commits: bool
    gid: str | None = None
    prepared: int = 0


Record: TypeAlias = Changed | RolledBack | Prepared | Ended


@dataclass
class _Sub:
    """A subtransaction that is open; `kept`: those inside it that ended well. Who changes nothing has no xid."""

    xid: int = 0
    kept: list[int] = field(default_factory=list)


@dataclass
class _Under:
    """A transaction under way. `steps`: what is left to do: a change, `(` begin, `)` keep, `!` roll back."""

    steps: Iterator[Change | str]
    nth: int | None
    gid: str | None
    subs: list[_Sub] = field(default_factory=lambda: [_Sub()])
    prepared: int = 0
    done: bool = False


class Log:
    """`records` of the log, `committed` in order, and `open`: gids by xid of what is prepared at its end."""

    def __init__(self, transactions: Sequence[Transaction], dice: random.Random) -> None:
        self._dice = dice
        self._noise = [change for one in transactions for change in one.changes]
        self._lsn, self._xid = 1_000, dice.choice((700, (1 << 32) - 300))  # xids begin anew once they are used up
        self._given = transactions
        self._waiting = list(self._made())
        self.records: list[Record] = []
        self.committed: list[Transaction] = []
        self.open: dict[int, str] = {}
        under: list[_Under] = []
        while self._waiting or under:
            few = len(under) < SIDE_BY_SIDE - 1
            if self._waiting and len(under) < SIDE_BY_SIDE and (not under or dice.random() < 0.3):
                # with room for one more only: the first, which others wait for
                under.append(self._waiting.pop(dice.randrange(min(3, len(self._waiting))) if few else 0))
            one = dice.choice(under)
            if not self._step(one):
                under.remove(one)
        self._spans = self._first_and_last()

    @property
    def end(self) -> int:
        """Behind the last record."""
        return self.records[-1].lsn + RECORD

    def since(self, start: int) -> Sequence[Record]:
        """The records from the first one of a transaction that is not over at `start`; what is prepared never is."""
        first = min((first for first, last in self._spans if last is None or last >= start), default=len(self.records))
        return self.records[first:]

    def _first_and_last(self) -> list[tuple[int, int | None]]:
        """Of each transaction the number of its first record, and where its last one is."""
        first: dict[int, int] = {}
        last: dict[int, int | None] = {}
        for nth, record in enumerate(self.records):
            first.setdefault(record.top, nth)
            last[record.top] = record.lsn if isinstance(record, Ended) else None
        return [(nth, last[top]) for top, nth in first.items()]

    def _made(self) -> Iterator[_Under]:
        for nth, one in enumerate(self._given):
            yield _Under(self._steps(list(one.changes)), nth, self._gid(nth))
            if self._noise and self._dice.random() < 0.1:
                some = self._dice.sample(self._noise, min(len(self._noise), self._dice.randint(1, 6)))
                yield _Under(self._steps(some), None, self._gid(-nth - 1))

    def _gid(self, number: int) -> str | None:
        return f"gid {number} 'ü'" if self._dice.random() < 0.3 else None

    def _steps(self, changes: Sequence[Change], depth: int = 0) -> Iterator[Change | str]:
        at = 0
        while at < len(changes):
            roll = self._dice.random() if depth < 3 else 1.0
            if roll < 0.08:
                yield "("
                yield from self._steps(self._dice.choices(self._noise, k=self._dice.randint(0, 3)), depth + 1)
                yield "!"
            elif roll < 0.2:
                some = changes[at : at + self._dice.randint(1, 4)]
                yield "("
                yield from self._steps(some, depth + 1)
                yield ")"
                at += len(some)
            else:
                yield changes[at]
                at += 1

    def _next_lsn(self) -> int:
        self._lsn += self._dice.randint(RECORD + 1, 200)
        return self._lsn

    def _xid_of(self, sub: _Sub) -> int:
        if not sub.xid:
            self._xid = self._xid % ((1 << 32) - 1) + 1
            sub.xid = self._xid if self._xid > 2 else 3  # the first ones are the server's own
            self._xid = sub.xid
        return sub.xid

    def _step(self, one: _Under) -> bool:
        """Do the next thing of it; False where nothing more comes."""
        step = None if one.done else next(one.steps, None)
        top = one.subs[0]
        match step:
            case None:
                one.done = True
                return self._ends(one)
            case "(":
                one.subs.append(_Sub())
            case ")":
                kept = one.subs.pop()
                one.subs[-1].kept += [*kept.kept, *([kept.xid] if kept.xid else [])]
            case "!":
                undone = one.subs.pop()
                if undone.xid:
                    gone = (*undone.kept, undone.xid)
                    self.records.append(RolledBack(self._next_lsn(), top.xid, gone))
            case str():
                raise NotImplementedError(step)
            case change:
                xids = [self._xid_of(sub) for sub in one.subs]  # the outer ones first
                self.records.append(Changed(self._next_lsn(), top.xid, xids[-1], change, encode_change(change)))
        return True

    def _ends(self, one: _Under) -> bool:
        """Prepare it, or end it where it is its turn."""
        xid = self._xid_of(one.subs[0])
        if one.gid is not None and not one.prepared:
            one.prepared = self._next_lsn()
            self.records.append(Prepared(one.prepared, xid, one.gid))
            return True
        if one.nth is None:
            if one.gid is not None and self._dice.random() < 0.4:
                self.open[xid] = one.gid
            else:
                self.records.append(Ended(self._next_lsn(), xid, commits=False, gid=one.gid, prepared=one.prepared))
            return False
        if one.nth != len(self.committed):
            return True
        lsn = self._next_lsn()
        self.records.append(Ended(lsn, xid, commits=True, gid=one.gid, prepared=one.prepared))
        end = lsn + RECORD
        bounds = Boundaries(position=end, confirm=end, commit_lsn=lsn, xid=xid, commit_ts=DEFAULT_COMMIT_TS)
        self.committed.append(replace(self._given[one.nth], bounds=bounds, lsns=()))
        return False

    def stands(self, xid: int) -> bool:
        """Whether a transaction has changes that were not rolled back with a subtransaction."""
        mine = [record for record in self.records if record.top == xid]
        gone = {sub for record in mine if isinstance(record, RolledBack) for sub in record.subs}
        return any(isinstance(record, Changed) and record.sub not in gone for record in mine)

    def changed(self, xid: int, end_lsn: int) -> bool:
        """What the server says of a transaction that ended there (`decode.pgoutput.spooled.PreparedStorage`)."""
        [found] = [one for one in self.committed if one.bounds.position == end_lsn]
        assert found.bounds.xid == xid
        return bool(found.changes)
