"""Phases: prepared transactions of test_decoding, parked from their PREPARE to their end.

A PREPARE's line comes behind the rows, at the end of its record, and what became of the transaction later, alone.
Where the record begins no line says. What was prepared before the slot was made is printed whole at its end, PREPARE
and COMMIT PREPARED together, and goes the same way. Pure but for the parking.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cdc_lake.decode.frames import AllInMemory, FrameStore, NewFrames
from cdc_lake.decode.mppdb.bounding import STORABLE
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.decode.mppdb.large_records import LargeRecords
from cdc_lake.decode.mppdb.open_rows import OpenRows, Whole
from cdc_lake.decode.mppdb.raw import RecordTransaction
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.decode.mppdb.timestamps import micros
from cdc_lake.decode.parking import Parked, Parking
from cdc_lake.decode.pgoutput_prepared import Prepared
from cdc_lake.decode.postgres_lines import PhaseLine
from cdc_lake.decode.test_decoding.heads import TABLE, tables_of
from cdc_lake.errors import DecodeError, MalformedMessage, NoOrderNumber, PreparedUnknown
from cdc_lake.model.transaction import Boundaries

PREPARED: Final = frozenset({"prepare", "commit_prepared", "rollback_prepared"})
"""Kinds of lines that are read here."""


class Phases:
    """Takes the lines of prepared transactions. `landed`: what was committed up to there is in bronze."""

    def __init__(self, codec: Codec, parking: Parking, landed: int, frames: NewFrames | None) -> None:
        """`frames` makes stores for transactions that are large; None: all are held in memory."""
        self._codec = codec
        self._parking = parking
        self._landed = landed
        self._frames: NewFrames = frames or AllInMemory()

    def park(self, said: PhaseLine, end: int, rows: OpenRows) -> None:
        """It is prepared, by a record that ends at `end`, and `rows` are what it did. Raises DecodeError, LakeError."""
        xid, gid = _named(said, end)
        at = 0 if said.time is None else micros(said.time)
        rows.check()
        store = rows.set_aside()
        try:
            tables = sorted(set(_tables(store, self._codec)))
            content = Parked(store, (), tables=tables, encoding=self._codec.encoding)
            self._parking.park(Prepared(xid, gid, end, end, at), content)
        finally:
            store.close()

    def ended(self, said: PhaseLine, end: int) -> tuple[Whole, ...]:
        """It ended, by a record that ends at `end`: the transaction, where it was committed. Raises DecodeError,
        LakeError, and SourceError where the server had to be asked.
        """
        xid, gid = _named(said, end)
        if said.kind == "rollback_prepared":
            self._parking.rolled_back(xid, gid, end)
            return ()
        time = None if said.time is None else micros(said.time)
        bounds = Boundaries(position=end, confirm=end, xid=xid, commit_ts=time)
        parked = self._parking.committed(xid, gid, end)
        if parked is not None:
            return (self._whole(bounds, parked),)
        if end <= self._landed:
            return ()
        if self._parking.changed(xid, end):
            raise PreparedUnknown(f"COMMIT PREPARED of `{gid}` (xid {xid}), whose PREPARE neither came nor is kept")
        return (RecordTransaction(bounds, Style.SERIAL, [], [], 0),)

    def _whole(self, bounds: Boundaries, parked: Parked) -> Whole:
        store = parked.frames
        if parked.encoding is not None and Codec(parked.encoding).python != self._codec.python:
            store = self._recoded(store, Codec(parked.encoding))
        if store.spilled and store.size >= self._frames.part:
            return LargeRecords(bounds, Style.SERIAL, store, store.size, len(store))
        records: list[bytes] = []
        lsns: list[int] = []
        for some, numbers in store.parts():
            records += some
            lsns += numbers
        store.close()
        return RecordTransaction(bounds, Style.SERIAL, records, lsns, sum(map(len, records)))

    def _recoded(self, store: FrameStore, before: Codec) -> FrameStore:
        """The same lines in the encoding of this connection: one by SQL functions has another than a stream."""
        made = self._frames()
        for some, lsns in store.parts():
            made.extend([self._codec.encode(before.text(line)) for line in some], lsns)
        made.seal()
        return made


def _named(said: PhaseLine, end: int) -> tuple[int, str]:
    """Its id and its name, by which the parking knows it."""
    if said.xid is None or said.gid is None:
        raise MalformedMessage("a prepared transaction without its id: `include-xids` is off")
    if not 0 < end < STORABLE:
        raise NoOrderNumber("the end of a prepared transaction without the position that orders the stream")
    return said.xid, said.gid


def _tables(store: FrameStore, codec: Codec) -> Iterator[str]:
    """The tables that lines change, as far as they can be read."""
    seen: set[bytes] = set()
    for lines, _ in store.parts():
        for line in lines:
            head = line[: line.find(b": ", len(TABLE))]
            if head in seen and b'"' not in head:  # of a name with a colon it may be a part
                continue
            seen.add(head)
            try:
                yield from map(str, tables_of(line, codec) or ())
            except DecodeError:
                continue  # whoever decodes it says what is wrong
