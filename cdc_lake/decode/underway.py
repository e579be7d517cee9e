"""Under way: messages of a transaction whose end has not come are put into its store, and taken out at its COMMIT.

What streamed and prepared transactions have in common: the connection's later ones come between their beginning and
their end, so that tables which they announce are looked up at the end only.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from cdc_lake.decode.announced import Announced
from cdc_lake.decode.large import LargeTransaction
from cdc_lake.decode.pgoutput import ROW_CHANGES, TRUNCATE_HEAD, parse
from cdc_lake.decode.pgoutput_stream import WITH_XID
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.decode.records import LogicalMessage, OriginMessage, RelationMessage, TruncateMessage, TypeMessage
from cdc_lake.decode.streamed import Put, Streamed
from cdc_lake.errors import DecodeError, OutOfSequence, UnknownRelation
from cdc_lake.model.change import DDL_MESSAGES, OWN_MESSAGES
from cdc_lake.model.position import Lsn
from cdc_lake.model.relation import Relation
from cdc_lake.model.transaction import Boundaries

_RELATION_HEAD: Final = 5  # bytes: letter and OID


class UnderWay:
    """Takes messages, as version 1 has them, of transactions that are not committed.

    With `keeps`, what cannot be taken in is kept, and its transaction has a fault (`decode.assembler`).
    """

    def __init__(self, announced: Announced, *, keeps: bool) -> None:
        self.announced = announced
        self.outside_messages = 0
        self._keeps = keeps

    def take(self, one: Streamed, bare: bytes, lsn: int, *, left_out: int = 0) -> None:
        """A message other than a change of a table that `one` announced. Raises DecodeError.

        `left_out`: bytes behind its letter that are not in `bare`, for what an error says of its place.
        """
        letter = bare[:1]
        if letter == b"R":
            if len(bare) < _RELATION_HEAD:
                parse(bare)  # says that it ends early
            one.announce(bare, lsn, self.announced.arrived())
        elif letter and letter[0] in ROW_CHANGES:
            raise _unknown("change", int.from_bytes(bare[1:5], "big"), 1 + left_out)
        else:
            self._take_other(one, bare, lsn, left_out)

    def take_origin(self, one: Streamed, payload: bytes) -> None:
        """Where it came from. Raises DecodeError."""
        origin = parse(payload)
        assert isinstance(origin, OriginMessage)
        one.origin = origin.name

    def _take_other(self, one: Streamed, bare: bytes, lsn: int, left_out: int) -> None:
        try:
            match parse(bare):
                case TypeMessage() as named:
                    self.announced.type(named)
                    return
                case LogicalMessage(transactional=transactional, prefix=prefix, content=content):
                    if not transactional or prefix == OWN_MESSAGES:
                        self.outside_messages += not transactional
                        return
                    if prefix == DDL_MESSAGES:
                        one.tell(content)
                case TruncateMessage(oids=oids):
                    for at, oid in enumerate(oids):
                        if oid.to_bytes(4, "big") not in one.announced:
                            raise _unknown("truncate", oid, TRUNCATE_HEAD + left_out + 4 * at)
        except DecodeError as error:
            if not self._keeps or isinstance(error, UnknownRelation):
                raise  # a table that was not announced is announced by a new connection
            error.where = error.where or f"the message at {Lsn(lsn)}"
            one.fault = one.fault or error
        one.frames.append(bare, lsn)

    def ended(self, one: Streamed, bounds: Boundaries, put: Put, part: int) -> RawTransaction | LargeTransaction:
        """It committed: what its messages tell counts now, and its layouts are looked up; each is `put`. `part`: see
        `decode.frames.NewFrames`. Raises DecodeError, LakeError, and what the catalog raises.
        """
        for _, content in one.told:
            self.announced.take_told(content)
        marks = one.marks(partial(self._resolved, one.xid, bounds.position), put, self.announced)
        one.frames.seal()
        return _given_back(LargeTransaction(bounds, one.frames, marks, one.fault), part)

    def _resolved(
        self, xid: int, position: int, payload: bytes, lsn: int, place: tuple[int, int]
    ) -> Relation | DecodeError:
        """The layout that a relation message announces; with `keeps`, why it cannot be taken in."""
        try:
            message = parse(payload)
            assert isinstance(message, RelationMessage)
            return self.announced.resolved(message, xid, place, position)
        except DecodeError as error:
            error.where = error.where or f"the message at {Lsn(lsn)}"
            if not self._keeps:
                raise
            return error


def check_inside(letter: bytes, where: str) -> None:
    """Raise OutOfSequence for a message that does not belong into a transaction."""
    if not letter or letter[0] not in WITH_XID:
        raise OutOfSequence(f"a message `{letter.decode(errors='replace')}` inside {where}", offset=0)


def _given_back(large: LargeTransaction, part: int) -> RawTransaction | LargeTransaction:
    """A committed transaction as it goes on: whole, where less than `part` bytes are a part, or memory holds it."""
    if large.frames.spilled and large.frames.size >= part:
        return large
    whole = large.whole()
    large.release()
    return whole


def _unknown(what: str, oid: int, offset: int) -> UnknownRelation:
    return UnknownRelation(f"a {what} of table OID {oid}, which was not announced", offset=offset)
