"""What a server sends of its WAL from any position: the reorder buffer of PostgreSQL and the output of pgoutput.

The WAL is read from before the start, but what ended there is not sent, and nothing is streamed before the start is
reached. A transaction that was streamed on one connection may therefore come as a whole on the next, and what was
rolled back before the start never comes (`SnapBuildXactNeedsSkip`, `ReorderBufferLargestStreamableTopTXN`,
`ReorderBufferCheckMemoryLimit`). Announcements are as in `cdc_lake_testing.streaming`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, assert_never

from cdc_lake.model.change import Message
from cdc_lake.model.relation import TableName
from cdc_lake_testing.messages import begin, commit, relation
from cdc_lake_testing.simulation.log import RECORD, Changed, Ended, Log, Prepared, RolledBack
from cdc_lake_testing.streaming import inside, stream_abort, stream_commit, stream_start, stream_stop
from cdc_lake_testing.two_phase import begin_prepare, commit_prepared, prepare, rollback_prepared, stream_prepare

Sent: TypeAlias = Iterator[tuple[int, bytes]]

_relation = lru_cache(relation)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server sends. `memory`: changes that it holds before it streams, None: it streams nothing. `parallel`: an
    abort says its place. `empty`: transactions without changes are sent, as before version 15.
    """

    memory: int | None
    two_phase: bool
    parallel: bool = False
    empty: bool = False

    @classmethod
    def by_chance(cls, dice: random.Random, *, two_phase: bool) -> Settings:
        """Those of one connection to the next may differ in all but two-phase."""
        return cls(dice.choice((None, 0, 3, 10)), two_phase, dice.random() < 0.3, dice.random() < 0.5)


class Walsender:
    """One connection. `reached`: everything that ends before it was sent."""

    def __init__(self, log: Log, start: int, settings: Settings) -> None:
        self._log = log
        self._start = start
        self._settings = settings
        self._buffer: dict[int, list[Changed]] = {}
        self._held = 0
        self._streamed: dict[int, set[int]] = {}  # transaction → its subtransactions of which something was streamed
        self._told: set[TableName] = set()
        self._told_in: dict[int, set[TableName]] = {}
        self.reached = 0

    def messages(self) -> Sent:
        """All of it, each message with its LSN."""
        for record in self._log.since(self._start):
            match record:
                case Changed():
                    self._buffer.setdefault(record.top, []).append(record)
                    self._held += 1
                    yield from self._relieved(record.lsn)
                case RolledBack():
                    yield from self._rolled_back(record)
                case Prepared():
                    if self._settings.two_phase:
                        yield from self._prepared(record)
                case Ended():
                    yield from self._ended(record)
                case _ as never:
                    assert_never(never)
            self.reached = record.lsn + RECORD

    def _relieved(self, lsn: int) -> Sent:
        """The largest transaction is streamed where too much is held."""
        if self._settings.memory is not None and self._held > self._settings.memory and lsn >= self._start:
            yield from self._block(max(self._buffer, key=lambda top: len(self._buffer[top])))

    def _block(self, top: int) -> Sent:
        some = self._taken(top)
        if not some:
            return
        first = top not in self._streamed
        subs = self._streamed.setdefault(top, set())
        yield some[0].lsn, stream_start(top, first=first)
        told = self._told_in.setdefault(top, set())
        for one in some:
            subs.add(one.sub)
            for payload in self._encoded(one, told):
                yield one.lsn, inside(payload, one.sub)
        yield some[-1].lsn, stream_stop()

    def _taken(self, top: int) -> Sequence[Changed]:
        some = self._buffer.pop(top, [])
        self._held -= len(some)
        return some

    @staticmethod
    def _encoded(one: Changed, told: set[TableName]) -> Iterator[bytes]:
        change = one.change
        if not isinstance(change, Message) and change.relation.table not in told:
            told.add(change.relation.table)
            yield _relation(change.relation)
        yield one.payload

    def _rolled_back(self, record: RolledBack) -> Sent:
        gone = set(record.subs)
        before = self._taken(record.top)
        if left := [one for one in before if one.sub not in gone]:
            self._buffer[record.top] = left
            self._held += len(left)
        yield from self._aborts(record.top, record.lsn, [sub for sub in record.subs if sub != record.top])

    def _aborts(self, top: int, lsn: int, subs: Sequence[int]) -> Sent:
        """Aborts of what was streamed of these; what they announced is announced again."""
        streamed = self._streamed.get(top, set())
        for sub in subs:
            if sub in streamed:
                streamed.discard(sub)
                self._told_in.pop(top, None)
                yield lsn, stream_abort(top, sub, lsn if self._settings.parallel else None)

    def _prepared(self, record: Prepared) -> Sent:
        top, gid, lsn = record.top, record.gid, record.lsn
        if lsn < self._start:
            self._taken(top)
        elif top in self._streamed:
            yield from self._block(top)
            del self._streamed[top]
            yield lsn, stream_prepare(top, gid, lsn)
        elif some := self._taken(top):
            yield lsn, begin_prepare(top, gid, lsn)
            yield from self._plain(some)
            yield lsn, prepare(top, gid, lsn)

    def _ended(self, record: Ended) -> Sent:
        top, lsn = record.top, record.lsn
        if record.gid is not None and self._settings.two_phase:
            if lsn >= self._start and record.commits:
                yield lsn, commit_prepared(top, record.gid, lsn)
            elif lsn >= self._start:
                yield lsn, rollback_prepared(top, record.gid, record.prepared, lsn)
            return
        if not record.commits:
            self._taken(top)
            if top in self._streamed:
                subs = sorted(self._streamed[top] - {top})
                yield from self._aborts(top, lsn, subs)
                yield lsn, stream_abort(top, top, lsn if self._settings.parallel else None)
                self._forget(top)
        elif lsn < self._start:
            self._taken(top)
        elif top in self._streamed:
            yield from self._block(top)
            yield lsn, stream_commit(top, lsn, lsn + RECORD)
            self._told |= self._told_in.get(top, set())
            self._forget(top)
        elif (some := self._taken(top)) or self._settings.empty:
            yield lsn, begin(lsn, top)
            yield from self._plain(some)
            yield lsn + RECORD, commit(lsn, lsn + RECORD)

    def _forget(self, top: int) -> None:
        del self._streamed[top]
        self._told_in.pop(top, None)

    def _plain(self, some: Sequence[Changed]) -> Sent:
        for one in some:
            for payload in self._encoded(one, self._told):
                yield one.lsn, payload
