"""Stores prepared transactions durably until their end, in a folder next to the control tables.

A file is named after epoch, xid and gid; a note next to it records where the transaction ended. Both are removed when
bronze has a transaction at or after that end: before that, a failover may revert the end. Files whose PREPARE this
connection is to send again count only once it did; otherwise they never existed on this server.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.config.project import Project
from cdc_lake.connectors.spool import Spool
from cdc_lake.decode.pgoutput.parser import Prepared
from cdc_lake.decode.pgoutput.spooled import PreparedContent
from cdc_lake.decode.pgoutput.two_phase import encode_prepared, read_back
from cdc_lake.errors import PreparedDamaged, PreparedNotKept
from cdc_lake.observability.failpoints import PREPARE_CLEANED, PREPARE_ENDED, PREPARE_KEPT, failpoint
from cdc_lake.tables.control_files import ControlFiles, control_files


def prepared_files(project: Project) -> ControlFiles:
    """The location of a pipeline's prepared transactions."""
    text = "a prepared transaction could not be stored or read back"
    return control_files(project, "prepared", lambda where: PreparedNotKept(text, where=where))


_END: Final = ".end"
_NAME: Final = re.compile(rf"([0-9]{{1,18}})-[0-9]+-[0-9a-f]{{16}}(?:{re.escape(_END)})?")


@dataclass(slots=True)
class _Entry:
    """A file: the prepared transaction, the bytes of its frames, and its end, if read.

    `sent`: its PREPARE precedes this connection's start, or was sent on it.
    """

    prepared: Prepared
    size: int
    end: int | None
    sent: bool


def waiting_files(place: ControlFiles, epoch: int) -> list[str]:
    """Names of the files of a stream's transactions whose end was not read. Raises LakeError."""
    names = place.sizes().keys()
    own_names = [name for name in names if _epoch_of(name) == epoch and not name.endswith(_END)]
    return [name for name in own_names if f"{name}{_END}" not in names]


def forget(place: ControlFiles) -> None:
    """Remove all files: the slot sends the transactions as a whole at their end. Raises LakeError."""
    for name in place.sizes():
        place.remove(name)


def read_file(place: ControlFiles, name: str, part: int) -> tuple[Prepared, PreparedContent]:
    """The content of a file; `part`: see `decode.transaction.FrameStoreFactory`. Raises LakeError."""
    return read_back(lambda offset, size: place.read(name, offset, size) or b"", part, f"{place.name}/{name}")


class PreparedTransactions:
    """Prepared transactions of one stream, for one connection that continues from `state`.

    Their bytes count towards the limit of `spool`. `tick` is called between written blocks; `highest` returns the
    position of bronze's last transaction; `changed`: see PreparedStorage.has_changes.
    """

    def __init__(
        self,
        place: ControlFiles,
        spool: Spool,
        state: StreamCheckpoint,
        *,
        highest: Callable[[], int | None],
        changed: Callable[[int, int], bool],
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Read the existing files. Raises LakeError."""
        self._place = place
        self._spool = spool
        self._epoch = state.epoch
        self._tick = tick
        self._changed = changed
        self._entries: dict[str, _Entry] = {}
        sizes = place.sizes()
        for name in sizes:
            if (epoch := _epoch_of(name)) is None:
                continue
            bare = name.removesuffix(_END)
            if epoch < state.epoch or bare not in sizes:
                place.remove(name)  # of an earlier stream, or left by an interrupted removal
            elif name == bare and epoch == state.epoch:
                prepared, content = read_file(place, name, spool.part)
                size = content.frames.size
                spool.park(size, checked=False)
                # lines contain only the end of the record
                sent = prepared.lsn < state.confirm or prepared.end_lsn <= state.confirm
                self._entries[name] = _Entry(prepared, size, self._end_of(name, sizes, state), sent)
        if any(entry.end is not None for entry in self._entries.values()):
            self.clean(highest() or 0, state.confirm)

    @property
    def waiting(self) -> list[Prepared]:
        """The transactions that are prepared and have not ended."""
        return [entry.prepared for entry in self._entries.values() if entry.end is None]

    def park(self, prepared: Prepared, content: PreparedContent) -> None:
        """Store a prepared transaction durably, once. Raises SpoolFull."""
        name = file_name(self._epoch, prepared.xid, prepared.gid)
        existing = self._entries.get(name)
        if existing is not None and existing.prepared == prepared:
            existing.sent = True
            return
        size = content.frames.size
        self._spool.park(size)
        if existing is not None:  # of WAL that the server has abandoned since
            self._drop(name)
        self._place.put(name, lambda: self._ticking(encode_prepared(prepared, content)))
        failpoint(PREPARE_KEPT)
        self._entries[name] = _Entry(prepared, size, None, sent=True)

    def commit_prepared(self, xid: int, gid: str, end_lsn: int) -> PreparedContent | None:
        """Record a COMMIT PREPARED whose record ends at `end_lsn`; returns the stored content, None without one."""
        name = file_name(self._epoch, xid, gid)
        if name not in self._entries:
            return None
        self._record_end(name, end_lsn)
        return read_file(self._place, name, self._spool.part)[1]

    def has_changes(self, xid: int, end_lsn: int) -> bool:
        """Whether a transaction that is not stored changed anything. Raises SourceError."""
        return self._changed(xid, end_lsn)

    def rolled_back(self, xid: int, gid: str, end_lsn: int) -> None:
        """Record such a ROLLBACK PREPARED; does nothing if the transaction is not stored."""
        name = file_name(self._epoch, xid, gid)
        if name in self._entries:
            self._record_end(name, end_lsn)

    def clean(self, last: int, confirm: int) -> None:
        """Remove obsolete files: bronze's last transaction is at `last`, the slot's position is `confirm`."""
        for name, entry in list(self._entries.items()):
            ended = entry.end is not None and entry.end <= last
            if ended or (not entry.sent and entry.prepared.end_lsn <= confirm):
                self._drop(name)

    # ── files ──

    def _end_of(self, name: str, sizes: Iterable[str], state: StreamCheckpoint) -> int | None:
        """Where it ended; an end that will be read again is removed, because the server may have another one now."""
        note = f"{name}{_END}"
        text = self._place.read(note, 0, 20) if note in sizes else None
        if text is None:
            return None
        if not text.isdigit():
            where = f"{self._place.name}/{note}"
            raise PreparedDamaged("the note that records where a prepared transaction ended is damaged", where=where)
        if int(text) > state.upto:
            self._place.remove(note)
            return None
        return int(text)

    def _record_end(self, name: str, end_lsn: int) -> None:
        entry = self._entries[name]
        if entry.end != end_lsn:
            self._place.put(f"{name}{_END}", lambda: [str(end_lsn).encode()])
            entry.end = end_lsn
        failpoint(PREPARE_ENDED)

    def _drop(self, name: str) -> None:
        """Remove the file first: a note without a file has no effect."""
        entry = self._entries.pop(name)
        self._place.remove(name)
        failpoint(PREPARE_CLEANED)
        if entry.end is not None:
            self._place.remove(f"{name}{_END}")
        self._spool.unpark(entry.size)

    def _ticking(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self._tick()
            yield block


def _epoch_of(name: str) -> int | None:
    """The epoch in a file's name; None if it is not a receiver's file."""
    name_match = _NAME.fullmatch(name)
    return None if name_match is None else int(name_match[1])


def file_name(epoch: int, xid: int, gid: str) -> str:
    """The name of a prepared transaction's file; a gid has up to 200 bytes of any kind."""
    return f"{epoch}-{xid}-{hashlib.sha256(gid.encode()).hexdigest()[:16]}"
