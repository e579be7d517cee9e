"""Parked transactions of a stream: prepared, durable, and not landed (implements `decode.parking.Parking`).

A file is named after epoch, xid and gid, and a note beside it says where the transaction ended, once that was read;
files of other names are nobody's business here. It goes when bronze holds a transaction at that end or behind it:
before, a failover may yet take the end back. Files of a PREPARE that this connection is to send again count only once
it did; what it does not send again never was.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from cdc_lake.bronze.port import BronzeState
from cdc_lake.decode.parked_form import read_back, written
from cdc_lake.decode.parking import Parked
from cdc_lake.decode.pgoutput_prepared import Prepared
from cdc_lake.errors import PreparedDamaged
from cdc_lake.lake.parked_place import ParkedPlace
from cdc_lake.observe.failpoint import PREPARE_CLEANED, PREPARE_ENDED, PREPARE_KEPT, failpoint
from cdc_lake.pipeline.stream.spool import Spool

_END: Final = ".end"
_NAME: Final = re.compile(rf"([0-9]{{1,18}})-[0-9]+-[0-9a-f]{{16}}(?:{re.escape(_END)})?")


@dataclass(slots=True)
class _Entry:
    """A file: what was prepared, the bytes of its frames, and where it ended, if that was read.

    `sent`: its PREPARE lies before this connection's start, or was sent on it.
    """

    prepared: Prepared
    size: int
    end: int | None
    sent: bool


def waiting_files(place: ParkedPlace, epoch: int) -> list[str]:
    """Names of the files of a stream's transactions whose end was not read. Raises LakeError."""
    names = place.sizes().keys()
    mine = [name for name in names if _epoch_of(name) == epoch and not name.endswith(_END)]
    return [name for name in mine if f"{name}{_END}" not in names]


def forget(place: ParkedPlace) -> None:
    """Remove all of them: the slot sends them whole at their end. Raises LakeError."""
    for name in place.sizes():
        place.remove(name)


def read_file(place: ParkedPlace, name: str, part: int) -> tuple[Prepared, Parked]:
    """What a file has; `part`: see `decode.frames.NewFrames`. Raises LakeError."""
    return read_back(lambda at, size: place.read(name, at, size) or b"", part, f"{place.name}/{name}")


class ParkedTransactions:
    """Those of one stream, for one connection that goes on from `state`.

    Their bytes count in the budget of `spool`. `tick` is called between two blocks that are written; `highest` gives
    the position of bronze's last transaction; `changed`: see Parking.
    """

    def __init__(
        self,
        place: ParkedPlace,
        spool: Spool,
        state: BronzeState,
        *,
        highest: Callable[[], int | None],
        changed: Callable[[int, int], bool],
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Look what is there. Raises LakeError."""
        self._place = place
        self._spool = spool
        self._epoch = state.epoch
        self._tick = tick
        self._changed = changed
        self._entries: dict[str, _Entry] = {}
        self._look(state)
        if any(one.end is not None for one in self._entries.values()):
            self.clean(highest() or 0, state.confirm)

    @property
    def waiting(self) -> list[Prepared]:
        """What is prepared, and has not ended."""
        return [one.prepared for one in self._entries.values() if one.end is None]

    def park(self, prepared: Prepared, content: Parked) -> None:
        """See Parking. Raises SpoolFull."""
        name = file_name(self._epoch, prepared.xid, prepared.gid)
        known = self._entries.get(name)
        if known is not None and known.prepared == prepared:
            known.sent = True
            return
        size = content.frames.size
        self._spool.park(size)
        if known is not None:  # of a log that the server has left since
            self._drop(name)
        self._place.put(name, lambda: self._ticking(written(prepared, content)))
        failpoint(PREPARE_KEPT)
        self._entries[name] = _Entry(prepared, size, None, sent=True)

    def committed(self, xid: int, gid: str, end_lsn: int) -> Parked | None:
        """See Parking."""
        name = file_name(self._epoch, xid, gid)
        if name not in self._entries:
            return None
        self._ended(name, end_lsn)
        return self._read(name)[1]

    def changed(self, xid: int, end_lsn: int) -> bool:
        """See Parking. Raises SourceError."""
        return self._changed(xid, end_lsn)

    def rolled_back(self, xid: int, gid: str, end_lsn: int) -> None:
        """See Parking."""
        name = file_name(self._epoch, xid, gid)
        if name in self._entries:
            self._ended(name, end_lsn)

    def clean(self, last: int, confirm: int) -> None:
        """Remove what is not needed any more: bronze's last transaction is at `last`, the slot's position `confirm`."""
        for name, one in list(self._entries.items()):
            ended = one.end is not None and one.end <= last
            if ended or (not one.sent and one.prepared.end_lsn <= confirm):
                self._drop(name)

    # ── files ──

    def _look(self, state: BronzeState) -> None:
        sizes = self._place.sizes()
        for name in sizes:
            if (epoch := _epoch_of(name)) is None:
                continue
            bare = name.removesuffix(_END)
            if epoch < state.epoch or bare not in sizes:
                self._place.remove(name)  # of a stream before, or what is left of a removal
            elif name == bare and epoch == state.epoch:
                prepared, content = self._read(name)
                size = content.frames.size
                self._spool.park(size, checked=False)
                # lines say only where its record ends
                sent = prepared.lsn < state.confirm or prepared.end_lsn <= state.confirm
                self._entries[name] = _Entry(prepared, size, self._end_of(name, sizes, state), sent)

    def _end_of(self, name: str, sizes: Iterable[str], state: BronzeState) -> int | None:
        """Where it ended; an end that is to be read again is forgotten, since the server may have another one now."""
        note = f"{name}{_END}"
        text = self._place.read(note, 0, 20) if note in sizes else None
        if text is None:
            return None
        if not text.isdigit():
            where = f"{self._place.name}/{note}"
            raise PreparedDamaged("the note that says where a prepared transaction ended is damaged", where=where)
        if int(text) > state.upto:
            self._place.remove(note)
            return None
        return int(text)

    def _read(self, name: str) -> tuple[Prepared, Parked]:
        return read_file(self._place, name, self._spool.part)

    def _ended(self, name: str, end_lsn: int) -> None:
        one = self._entries[name]
        if one.end != end_lsn:
            self._place.put(f"{name}{_END}", lambda: [str(end_lsn).encode()])
            one.end = end_lsn
        failpoint(PREPARE_ENDED)

    def _drop(self, name: str) -> None:
        """The file first: a note without one says nothing."""
        one = self._entries.pop(name)
        self._place.remove(name)
        failpoint(PREPARE_CLEANED)
        if one.end is not None:
            self._place.remove(f"{name}{_END}")
        self._spool.unpark(one.size)

    def _ticking(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self._tick()
            yield block


def _epoch_of(name: str) -> int | None:
    """The epoch that a file's name says; None for one that is not a receiver's."""
    ours = _NAME.fullmatch(name)
    return None if ours is None else int(ours[1])


def file_name(epoch: int, xid: int, gid: str) -> str:
    """What a prepared transaction's file is called; a gid may hold anything, and up to 200 bytes of it."""
    return f"{epoch}-{xid}-{hashlib.sha256(gid.encode()).hexdigest()[:16]}"
