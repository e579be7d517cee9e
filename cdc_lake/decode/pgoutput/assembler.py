"""Assembles whole transactions from pgoutput's messages, without decoding values.

Changes remain bytes until a batch is closed; only boundaries and layouts are parsed here. Transactions are returned
after their COMMIT, so an aborted or torn transaction leaves no trace. This is the hot path of the receiver: a change
costs two slices, a look-up and three appends.

Blocks of several streamed transactions alternate and never nest; whole transactions come between them. Each transaction
is returned when it commits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from cdc_lake.decode.pgoutput import messages, parser
from cdc_lake.decode.pgoutput.relations import Catalog, DdlMessages, Landed, RelationCache, TableFacts, no_layout
from cdc_lake.decode.pgoutput.spooled import (
    InProgressTransactions,
    PreparedStorage,
    SpillingTransaction,
    SpooledTransaction,
    StreamedTransaction,
    check_inside,
    of_its_own,
)
from cdc_lake.decode.pgoutput.two_phase import TwoPhaseAssembler
from cdc_lake.decode.transaction import BufferedTransaction, FrameStoreFactory, InMemoryFrameStores
from cdc_lake.errors import DecodeError, MalformedMessage, OutOfSequence, UnknownRelation
from cdc_lake.model.change import DDL_MESSAGES, OWN_MESSAGES, Boundaries
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import Relation


class StreamedTransactions:
    """The streamed transactions of one connection, and prepared ones with `prepared_storage`.

    `block`: the transaction whose block is open. `landed`: see `TwoPhaseAssembler`. With `keeps`, messages that cannot
    be processed are kept, and their transaction has a fault (`decode.pgoutput.assembler`).
    """

    def __init__(
        self,
        announced: RelationCache,
        frames: FrameStoreFactory,
        *,
        keeps: bool,
        prepared_storage: PreparedStorage | None = None,
        landed: int = 0,
    ) -> None:
        self._under_way = InProgressTransactions(announced, keeps=keeps)
        self._frames = frames
        self._open: dict[int, StreamedTransaction] = {}
        self._two_phase = (
            None if prepared_storage is None else TwoPhaseAssembler(self._under_way, frames, prepared_storage, landed)
        )
        self.block: StreamedTransaction | None = None

    @property
    def open_bytes(self) -> int:
        """Bytes of changes of transactions without their COMMIT, except stored prepared ones."""
        preparing = 0 if (transaction := self._preparing) is None else transaction.frames.size
        return preparing + sum(transaction.frames.size for transaction in self._open.values())

    @property
    def outside_messages(self) -> int:
        """Number of dropped logical messages in blocks that belong to no transaction."""
        return self._under_way.outside_messages

    @property
    def in_transaction(self) -> bool:
        """Whether a block is open, or a transaction without its PREPARE."""
        return self.block is not None or self._preparing is not None

    @property
    def _preparing(self) -> StreamedTransaction | None:
        return None if self._two_phase is None else self._two_phase.open

    def takes(self, payload: bytes) -> bool:
        """Whether a message is for `feed`: it opens, closes or ends a transaction here, or is inside one."""
        if payload[:1] == b"":
            return self.in_transaction
        if payload[0] in parser.LETTERS or self.block is not None:
            return True
        return self._two_phase is not None and self._two_phase.takes(payload)

    def forget(self) -> None:
        """Forget everything: the next connection starts over."""
        for transaction in self._open.values():
            transaction.frames.close()
        self._open, self.block = {}, None
        if self._two_phase is not None:
            self._two_phase.forget()

    def feed(self, payload: bytes, lsn: int) -> tuple[BufferedTransaction | SpooledTransaction, ...]:
        """Take one message; returns what it completes. Raises DecodeError, LakeError, and errors of the catalog."""
        if self.block is None and self._two_phase is not None and self._two_phase.takes(payload):
            return self._two_phase.feed(payload, lsn, self._open)
        match parser.stream_message(payload):
            case parser.StreamStart() as start:
                self._start(start)
            case parser.StreamStop():
                self._require_block("the end of a streamed block")
                self.block = None
            case parser.StreamCommit() as commit:
                return (self._commit(commit),)
            case parser.StreamAbort(xid=xid, subxid=subxid):
                self._require_no_block("an abort")
                transaction = self._open.get(xid)
                if transaction is not None and subxid != xid:
                    transaction.roll_back(subxid)
                elif transaction is not None:  # otherwise it had no effect, so nothing has to be undone
                    transaction.frames.close()
                    del self._open[xid]
            case None:
                self._take(self._require_block("a change"), payload, lsn)
        return ()

    def _start(self, start: parser.StreamStart) -> None:
        if self.block is not None:
            raise OutOfSequence("a streamed block inside another one", offset=0)
        if start.first == (start.xid in self._open):
            which = "again" if start.first else "without its first block"
            raise OutOfSequence(f"the streamed transaction {start.xid} arrives {which}", offset=1)
        if start.first:
            self._open[start.xid] = StreamedTransaction(start.xid, self._frames())
        self.block = self._open[start.xid]

    def _require_block(self, what: str) -> StreamedTransaction:
        if self.block is None:
            raise OutOfSequence(f"{what} outside a streamed block", offset=0)
        return self.block

    def _require_no_block(self, what: str) -> None:
        if self.block is not None:
            raise OutOfSequence(f"{what} inside a streamed block", offset=0)

    # ── inside a block ──

    def _take(self, transaction: StreamedTransaction, payload: bytes, lsn: int) -> None:
        """Process a message of a block other than a change of a known table, which `Assembler.feed` handles."""
        letter = payload[:1]
        if letter == b"O":
            self._under_way.take_origin(transaction, payload)
            return
        check_inside(letter, "a streamed block")
        bare = parser.without_xid(payload)
        transaction.enter(payload[1:5])
        self._under_way.take(transaction, bare, lsn, left_out=4)

    # ── the end ──

    def _commit(self, commit: parser.StreamCommit) -> BufferedTransaction | SpooledTransaction:
        self._require_no_block("a COMMIT")
        if (transaction := self._open.get(commit.xid)) is None:
            text = f"a COMMIT of the streamed transaction {commit.xid}, of which nothing was received"
            raise OutOfSequence(text, offset=1)
        bounds = parser.bounds_of(commit, commit.xid, transaction.origin)
        put = self._under_way.announced.put
        committed = self._under_way.commit_transaction(transaction, bounds, put, self._frames.part)
        del self._open[commit.xid]
        return committed


__all__ = ["Assembler", "Catalog", "TableFacts"]

_BORDERS: Final = frozenset(bytes([letter]) for letter in frozenset(b"BC") | parser.LETTERS | parser.PREPARED_LETTERS)
"""Letters of messages that begin or end transactions and their blocks."""


@dataclass(slots=True)
class _Open:
    """The transaction without its COMMIT so far."""

    begin: messages.Begin
    origin: str | None = None
    truncated: dict[int, tuple[Relation, ...]] = field(default_factory=dict)
    growing: SpillingTransaction | None = None  # its frames once it outgrew memory
    fault: DecodeError | None = None
    repeated: set[bytes] = field(default_factory=set)  # OIDs whose invalid relation message is among the frames


class Assembler:
    """Takes the messages of one pgoutput connection in order, returns transactions as they commit.

    After a DecodeError or a lost connection, call `reset` before `feed`: the server then sends whole transactions again
    and announces every relation. A logical message outside of transactions is dropped, or with `messages` becomes a
    transaction: without xid and time, at the end position of its record in the WAL, which lies between the transactions
    that ended before it and those that end after it; the record of the next COMMIT may begin there. Messages of
    cdc_lake (`OWN_MESSAGES`) are always dropped.

    With `keeps`, a message inside a transaction that cannot be processed is kept as received, and the transaction has a
    `fault`. Invalid BEGIN and COMMIT are always errors; so is a message that hides one of them, once the next one does
    not fit.
    """

    open_csn: Final = None  # PostgreSQL has no CSNs
    completed_transactions: Final[tuple[BufferedTransaction, ...]] = ()  # an unreadable message completes none

    def __init__(
        self,
        catalog: Catalog,
        *,
        keeps: bool = False,
        messages: bool = False,
        ddl_messages: DdlMessages | None = None,
        frames: FrameStoreFactory | None = None,
        prepared_storage: PreparedStorage | None = None,
        landed: int = 0,
        layouts: Landed = no_layout,
    ) -> None:
        """`frames` makes stores for streamed or large transactions; None: all are in memory.

        `ddl_messages` processes logical messages about altered tables; None: they are ignored. `prepared_storage`
        stores prepared transactions, with two-phase decoding; everything up to `landed` is in bronze. `layouts`: those
        that landed last.
        """
        frames = frames or InMemoryFrameStores()
        self._announced = RelationCache(catalog, ddl_messages, layouts)
        self._keeps = keeps
        self._messages = messages
        self._new_frames, self._part = frames, frames.part
        self._streams = StreamedTransactions(
            self._announced, frames, keeps=keeps, prepared_storage=prepared_storage, landed=landed
        )
        self._outside_messages = 0
        self._open: _Open | None = None
        self.reset()

    def reset(self) -> None:
        """Drop the open transactions and the relations of this connection."""
        if self._open is not None and self._open.growing is not None:
            self._open.growing.frames.close()
        self._streams.forget()
        self._announced.forget()
        self._relations = self._announced.relations
        # relation messages that could not be processed, by OID, with their LSN and error
        self._wrong: dict[bytes, tuple[bytes, int, DecodeError]] = {}
        self._open = None
        self._start()

    def _start(self) -> None:
        self._frames: list[bytes] = []
        self._lsns: list[int] = []
        self._layouts: list[Relation | None] = []
        self._bytes = 0

    @property
    def in_transaction(self) -> bool:
        """True between a BEGIN and its COMMIT or PREPARE, and inside a block of a streamed transaction."""
        return self._open is not None or self._streams.in_transaction

    @property
    def outside_messages(self) -> int:
        """Number of dropped logical messages outside of transactions."""
        return self._outside_messages + self._streams.outside_messages

    @property
    def open_bytes(self) -> int:
        """Bytes of changes of open transactions."""
        growing = None if self._open is None else self._open.growing
        return self._bytes + (0 if growing is None else growing.frames.size) + self._streams.open_bytes

    def feed(self, payload: bytes, lsn: int) -> tuple[BufferedTransaction | SpooledTransaction, ...]:
        """Take one message and its WAL position; returns the transaction that it completes, if any, even without
        changes.

        Raises DecodeError, whose `where` names the position; LakeError if a store is full.
        """
        relation = self._relations.get(payload[1:5])  # a key has four bytes, so after a hit payload[0] exists
        if relation is not None and payload[0] in parser.ROW_CHANGES and self._open is not None:
            self._frames.append(payload)
            self._lsns.append(lsn)
            self._layouts.append(relation)
            self._bytes += len(payload)
            if self._bytes > self._part:
                self._outgrown(self._open)
            return ()
        block = self._streams.block
        if block is not None and payload[5:9] in block.announced and payload[0] in parser.ROW_CHANGES:
            block.enter(payload[1:5])
            block.frames.append(payload[:1] + payload[5:], lsn)
            return ()
        try:
            if self._open is None and self._streams.takes(payload):
                return self._streams.feed(payload, lsn)
            if self._announced.deferred and self._open is not None and self._caught_up(payload):
                return self.feed(payload, lsn)
            return self._feed(payload, lsn)
        except DecodeError as error:
            error.where = error.where or f"the message at {Lsn(lsn)}"
            if not self._keeps or not self._store_undecodable(payload, lsn, error):
                raise
            return ()

    def _feed(self, payload: bytes, lsn: int) -> tuple[BufferedTransaction | SpooledTransaction, ...]:
        """Process everything but a change of a known relation in an open transaction."""
        match parser.parse(payload):
            case messages.Begin() as begin:
                if self._open is not None:
                    raise OutOfSequence("a BEGIN inside a transaction", offset=0)
                self._open = _Open(begin)
            case messages.Commit() as commit:
                return (self._commit(commit),)
            case messages.OriginMessage(name=name):
                self._transaction("an origin").origin = name
            case messages.RelationMessage() as announced:
                self._announce(announced, payload, lsn)
            case messages.TypeMessage() as named:
                self._announced.type(named)
            case messages.LogicalMessage(transactional=False) as message:
                return self._feed_nontransactional(payload, message)
            case messages.LogicalMessage(prefix=prefix, content=content):
                self._transaction("a message")
                if prefix == DDL_MESSAGES:
                    self._announced.take_told(content)
                if prefix != OWN_MESSAGES:
                    self._keep(payload, lsn, None)
            case messages.TruncateMessage(oids=oids):
                self._truncate(payload, lsn, oids)
            case change:
                self._transaction("a change")
                raise UnknownRelation(f"a change of table OID {change.oid}, which was not announced", offset=1)
        return ()

    def _announce(self, message: messages.RelationMessage, payload: bytes, lsn: int) -> None:
        inside = self._open
        xid = None if inside is None else inside.begin.xid
        place = None if inside is None else (inside.begin.final_lsn, self._count(inside))
        self._announced.relation(message, payload, lsn, xid, place)
        self._wrong.pop(payload[1:5], None)
        for deferred in self._announced.late(payload[1:5]):
            self.feed(*deferred)

    def _feed_nontransactional(
        self, payload: bytes, message: messages.LogicalMessage
    ) -> tuple[BufferedTransaction, ...]:
        if not self._messages or message.prefix == OWN_MESSAGES:
            self._outside_messages += 1
            return ()
        if self._open is not None:
            raise OutOfSequence("a message outside of transactions inside one", offset=1)
        bounds = Boundaries(position=message.lsn, confirm=message.lsn)
        return (BufferedTransaction(bounds, [payload], [message.lsn], [None], {}, len(payload)),)

    def _caught_up(self, payload: bytes) -> bool:
        """Whether tables of a change were announced in an earlier prepared transaction, and are looked up now."""
        letter = payload[:1]
        places: Iterable[int] = range(parser.TRUNCATE_HEAD, len(payload), 4) if letter == b"T" else ()
        if letter and letter[0] in parser.ROW_CHANGES:
            places = (1,)
        late = [message for offset in places for message in self._announced.late(payload[offset : offset + 4])]
        for message in late:
            self.feed(*message)
        return bool(late)

    def _transaction(self, what: str) -> _Open:
        if self._open is None:
            raise OutOfSequence(f"{what} outside a transaction", offset=0)
        return self._open

    def _keep(self, payload: bytes, lsn: int, relation: Relation | None) -> None:
        self._frames.append(payload)
        self._lsns.append(lsn)
        self._layouts.append(relation)
        self._bytes += len(payload)
        if self._open is not None and self._bytes > self._part:
            self._outgrown(self._open)

    def _truncate(self, payload: bytes, lsn: int, oids: tuple[int, ...]) -> None:
        open_ = self._transaction("a truncate")
        tables = []
        for index, oid in enumerate(oids):
            if (relation := self._relations.get(oid.to_bytes(4, "big"))) is None:
                raise UnknownRelation(f"a truncate of table OID {oid}, which was not announced", offset=6 + 4 * index)
            tables.append(relation)
        payload, own = of_its_own(payload, tables)
        if own:
            open_.truncated[self._count(open_)] = own
            self._keep(payload, lsn, own[0])

    def _count(self, open_: _Open) -> int:
        return len(self._frames) + (0 if open_.growing is None else len(open_.growing.frames))

    def _outgrown(self, open_: _Open) -> None:
        """Move the open transaction to a store."""
        if open_.growing is None:
            open_.growing = SpillingTransaction(self._new_frames())
        open_.growing.extend(self._frames, self._lsns, self._layouts, open_.truncated)
        self._start()

    def _commit(self, commit: messages.Commit) -> BufferedTransaction | SpooledTransaction:
        open_ = self._transaction("a COMMIT")
        begin = open_.begin
        if begin.final_lsn != commit.commit_lsn:
            announced, came = Lsn(begin.final_lsn), Lsn(commit.commit_lsn)
            raise MalformedMessage(f"a COMMIT at {came} for a BEGIN that announced {announced}", offset=2)
        bounds = parser.bounds_of(commit, begin.xid, open_.origin)
        if (growing := open_.growing) is not None:
            self._outgrown(open_)
            growing.frames.seal()
            self._open = None
            return SpooledTransaction(bounds, growing.frames, growing.marks, open_.fault)
        contents = self._frames, self._lsns, self._layouts, open_.truncated, self._bytes
        raw = BufferedTransaction(bounds, *contents, fault=open_.fault)
        self._open = None
        self._start()
        return raw

    # ── what cannot be taken in ──

    def _store_undecodable(self, payload: bytes, lsn: int, error: DecodeError) -> bool:
        """Keep a message of the open transaction as received; False if the stream itself is in doubt."""
        if self._open is None or payload[:1] in _BORDERS:
            return False
        match payload[:1]:
            case b"R":
                if len(payload) < 5:
                    return False  # of an unknown table
                self._announced.put(payload[1:5], None, self._announced.next_arrival(), payload, lsn)
                self._wrong[payload[1:5]] = payload, lsn, error
                return True
            case b"I" | b"U" | b"D":
                return self._keep_change(self._open, payload, lsn, [payload[1:5]])
            case b"T" if isinstance(error, UnknownRelation):
                oids = [payload[offset : offset + 4] for offset in range(6, len(payload), 4)]
                return self._keep_change(self._open, payload, lsn, oids)
        self._open.fault = self._open.fault or error
        self._keep(payload, lsn, None)
        return True

    def _keep_change(self, open_: _Open, payload: bytes, lsn: int, oids: list[bytes]) -> bool:
        """Keep a change of tables with invalid announcements, after these; others need a new connection."""
        if not all(oid in self._wrong for oid in oids):
            return False
        for oid in oids:
            announcement, announced_at, error = self._wrong[oid]
            open_.fault = open_.fault or error
            if oid not in open_.repeated:
                open_.repeated.add(oid)
                self._keep(announcement, announced_at, None)
        self._keep(payload, lsn, None)
        return True
