"""Verifies by repeated transactions that a server of the GaussDB family still has what bronze has.

The family's servers report no history of their WAL, and openGauss keeps one timeline number through every failover. But
a slot's confirmed position reaches the standbys in the WAL itself, after everything it confirms: every server with it
has everything before it. A stream that may continue elsewhere therefore starts at the slot's own position, not at the
end of bronze, and the few transactions between are repeated. Only if they are exactly those in bronze is anything after
them landed, and anything acknowledged.

A slot in CSN order is confirmed by CSN, and may represent several data nodes, each with its own WAL, whose end may be
lost alone. There the last transactions do not prove the earlier ones, and more are requested.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta

from cdc_lake.bronze.contract import StreamCheckpoint, release_transaction
from cdc_lake.bronze.reader import BronzeReader, CommitRow
from cdc_lake.connectors.failover import lost_words
from cdc_lake.connectors.open_stream import OrderedTransaction, TransactionOrdering
from cdc_lake.decode.transaction import ReceivedTransaction
from cdc_lake.errors import BronzeAhead, HistoryDiffers
from cdc_lake.model.change import Boundaries
from cdc_lake.model.position import OrderDomain, Span
from cdc_lake.source.base import FrameSource, StreamIdentity, format_stream_position
from cdc_lake.source.gaussdb.slot import GaussDbSlotFacts

AGAIN = 64
"""Maximum number of repeated transactions: the WAL is one sequence, so the last ones prove all before them."""
AGAIN_BY_CSN = 1 << 16
"""Maximum number of CSNs to go back in a slot in CSN order: many times what all nodes confirm at once."""
_INVERTED = 64  # maximum difference of CSN order and WAL order; at most 9 was measured
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FailoverReplay:
    """What bronze has after a slot's position, until the server has repeated it.

    `start`: where the stream is to begin. Nothing may be acknowledged before everything was repeated (`agreed`); then
    `then` is called. `exact`: the slot's position is exactly `confirmed`.
    """

    def __init__(
        self, state: StreamCheckpoint, newest: Sequence[CommitRow], *, confirmed: int, exact: bool, by_csn: bool = False
    ) -> None:
        """`newest`: bronze's last transactions in the order of the slot; with `by_csn` all that are requested."""
        self._state = state
        self._by_csn = by_csn
        self._held = {commit.position: commit for commit in newest}
        self.start = confirmed if by_csn else max([confirmed, *(_lsn(commit) - 1 for commit in newest[:-AGAIN][-1:])])
        due_commits = newest if by_csn else [commit for commit in newest if self._behind_start(_lsn(commit))]
        self._due = {commit.position for commit in due_commits} if exact else set()
        self._end = state.upto if by_csn else max([state.confirm, *map(_lsn, due_commits)])
        identity = StreamIdentity.parse(state.stream)
        copied = identity.snapshot_csn if identity.csn is None else identity.csn
        self._copied = -1 if copied is None else copied.value
        self.agreed = False
        self.then: Callable[[], None] = lambda: None

    def is_beyond(self, bounds: Boundaries) -> bool:
        """Whether a transaction follows everything that is to be repeated."""
        position = bounds.position if self._by_csn else bounds.commit_lsn
        return position is not None and position > self._end

    def has_resent_all(self, end: int) -> bool:
        """Whether everything to be repeated was sent, if everything up to `end` was."""
        return not self._by_csn and end > self._end

    def compare(self, bounds: Boundaries, count: int) -> None:
        """Compare repeated transactions with bronze. Raises BronzeAhead, HistoryDiffers."""
        commit = self._held.get(bounds.position)
        if commit is not None:
            if not _differs(commit, bounds):
                self._due.discard(bounds.position)
            elif self._by_csn:  # everything that was not repeated yet is in doubt
                self._raise_ahead([self._held[position] for position in sorted(self._due)])
            else:
                self._lost_from(_lsn(commit))
        elif count and self._asked_for(bounds) and (bounds.csn is None or bounds.csn > self._copied):
            if self._by_csn and (missing := sorted(due for due in self._due if due < bounds.position)):
                self._raise_ahead([self._held[position] for position in missing])  # the more specific error
            shown_position = format_stream_position(self._state.stream, bounds.position)
            raise HistoryDiffers(
                f"the server sends a transaction at {shown_position}, below bronze's end at "
                f"{format_stream_position(self._state.stream, self._state.upto)}, that bronze does not contain"
            )

    def finish(self) -> None:
        """Everything has been repeated. Raises BronzeAhead if something is missing."""
        if self._due and not self._by_csn:
            self._lost_from(min(_lsn(self._held[position]) for position in self._due))
        if self._due:
            self._raise_ahead([self._held[position] for position in sorted(self._due)])
        self.agreed = True
        self.then()

    def _asked_for(self, bounds: Boundaries) -> bool:
        """Whether bronze must have a transaction: up to its end, and not before the start of the stream."""
        if bounds.position > self._state.upto:
            return False
        if self._by_csn:
            return bounds.position > self.start
        return bounds.commit_lsn is None or self._behind_start(bounds.commit_lsn)

    def _behind_start(self, lsn: int) -> bool:
        """Whether a commit at an LSN is repeated: no release sends what ends one byte after `start`."""
        return lsn - 1 > self.start

    def _lost_from(self, lsn: int) -> None:
        """Raise: the WAL is one sequence, so from the first difference on the server lacks what is in bronze."""
        self._raise_ahead([commit for _, commit in sorted(self._held.items()) if _lsn(commit) >= lsn])

    def _raise_ahead(self, lost: Sequence[CommitRow]) -> None:
        raise BronzeAhead(f"the server's WAL has another history: {lost_words(self._state, lost)}")


def rejoining(reader: BronzeReader, state: StreamCheckpoint, slot: GaussDbSlotFacts) -> FailoverReplay | None:
    """What the server must repeat if its slot is behind bronze; None if it is not.

    Raises LakeError.
    """
    confirmed = slot.confirmed or 0
    if confirmed >= state.confirm:
        return None
    if slot.order is OrderDomain.CSN:
        start = max(confirmed, state.upto - AGAIN_BY_CSN)
        again = reader.commits(Span(state.epoch, start, state.upto)) if start < state.upto else []
        return FailoverReplay(state, again, confirmed=start, exact=True, by_csn=True)
    return FailoverReplay(state, sorted(_newest(reader, state), key=_lsn), confirmed=confirmed, exact=slot.exact)


class FailoverOrdering:
    """A `TransactionOrdering` that passes nothing on before the server has proven what it has."""

    def __init__(self, order: TransactionOrdering, rejoin: FailoverReplay, state: StreamCheckpoint) -> None:
        self._order = order
        self._rejoin = rejoin
        self._upto = state.upto
        self._buffer: list[ReceivedTransaction] = []
        self._repeats = 0

    @property
    def repeats(self) -> int:
        """Number of transactions dropped because they were closed before."""
        return self._order.repeats + self._repeats

    @property
    def waiting(self) -> int:
        """Number of transactions that arrived and are not closed yet."""
        return self._order.waiting + sum(transaction.bounds.position > self._upto for transaction in self._buffer)

    def add(self, transaction: ReceivedTransaction) -> Sequence[OrderedTransaction]:
        """Take a committed transaction, repeated ones first. Raises BronzeAhead, HistoryDiffers as well."""
        if self._rejoin.agreed:
            return [*self._release_buffer(), *self._order.add(transaction)]
        bounds = transaction.bounds
        if self._rejoin.is_beyond(bounds):
            self._rejoin.finish()
            return [*self._release_buffer(), *self._order.add(transaction)]
        is_repeated = bounds.position <= self._upto
        if is_repeated:
            self._rejoin.compare(bounds, transaction.count)
        # In CSN order new transactions may precede the last repeated one. A repeated one that follows them is passed on
        # after them: it would move the position that is acknowledged beyond what is not in bronze.
        if self._buffer or not is_repeated:
            self._buffer.append(transaction)
        else:
            self._pass_on(transaction)  # bronze has it: nothing is closed, but the ordering knows the recorded gaps
        return ()

    def expire_gaps(self, opened: Collection[int] = ()) -> Sequence[OrderedTransaction]:
        """Check the clock, after each read of the stream; returns what is closed by passing over a gap."""
        return [*self._release_buffer(), *self._order.expire_gaps(opened)] if self._rejoin.agreed else ()

    def _release_buffer(self) -> list[OrderedTransaction]:
        """What was buffered until the server had repeated everything, which a keepalive may also show."""
        transactions, self._buffer = self._buffer, []
        return [closed for transaction in transactions for closed in self._pass_on(transaction)]

    def _pass_on(self, transaction: ReceivedTransaction) -> Sequence[OrderedTransaction]:
        if transaction.bounds.position > self._upto:
            return self._order.add(transaction)
        before = self._order.repeats
        closed = self._order.add(transaction)
        self._repeats += self._order.repeats == before
        release_transaction(transaction)
        return closed


class FailoverFrames:
    """Frames of such a stream (`source.base.FrameSource`): a keepalive also shows that everything was repeated."""

    def __init__(self, frames: FrameSource, rejoin: FailoverReplay) -> None:
        self._frames = frames
        self._rejoin = rejoin
        self.confirm, self.tick, self.close = frames.confirm, frames.tick, frames.close

    @property
    def keepalive_end(self) -> int:
        """The newest WAL position the server announced: everything committed before it has been sent."""
        return self._frames.keepalive_end if self._rejoin.agreed else 0

    @property
    def reply_requested(self) -> bool:
        """True once after the server asked for a reply; reading it clears it."""
        return self._frames.reply_requested

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        """Frames, waiting up to `timeout` seconds. Raises BronzeAhead as well."""
        frames = self._frames.poll(timeout)
        if not frames and not self._rejoin.agreed and self._rejoin.has_resent_all(self._frames.keepalive_end):
            self._rejoin.finish()
        return frames


def _newest(reader: BronzeReader, state: StreamCheckpoint) -> list[CommitRow]:
    """The last `AGAIN` transactions of bronze in WAL order, and some before them."""
    identity = StreamIdentity.parse(state.stream)
    back = 1024 if identity.domain is OrderDomain.CSN else 1 << 20
    while True:
        after = max(identity.start, state.upto - back)
        commits = reader.commits(Span(state.epoch, after, state.upto))
        if after == identity.start or len(commits) > AGAIN + _INVERTED:
            return commits[-AGAIN - _INVERTED :]
        back *= 16


def _lsn(commit: CommitRow) -> int:
    return commit.commit_lsn or 0


def _differs(commit: CommitRow, bounds: Boundaries) -> bool:
    """Whether a repeated transaction differs from the one in bronze at its position."""
    own_values: tuple[object, ...] = (commit.xid, commit.commit_ts, commit.commit_lsn)
    commit_time = None if bounds.commit_ts is None else _EPOCH + timedelta(microseconds=bounds.commit_ts)
    sent_values: tuple[object, ...] = (bounds.xid, commit_time, bounds.commit_lsn)
    return any(own != other for own, other in zip(own_values, sent_values, strict=True) if None not in (own, other))
