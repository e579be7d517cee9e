"""Large transactions: committed ones of pgoutput that are decoded a part at a time, because memory does not hold them.

Their frames are in a store; which layout each change follows is told by marks, of which there is one where a table is
announced. A part is a raw transaction of some of the frames, so whatever decodes those decodes these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Final

from cdc_lake.decode.frames import FrameStore
from cdc_lake.decode.pgoutput import ROW_CHANGES, TRUNCATE_HEAD, parse
from cdc_lake.decode.raw import RawTransaction
from cdc_lake.decode.records import TruncateMessage
from cdc_lake.errors import DecodeError, UnknownRelation
from cdc_lake.model.relation import Relation
from cdc_lake.model.transaction import Boundaries

_TRUNCATE: Final = ord("T")


@dataclass(frozen=True, slots=True)
class Mark:
    """From frame number `at` on, changes of the table with this OID (four bytes) follow `relation`.

    None: its announcement could not be taken in; `wrong` has that message and its LSN, where it is to be kept.
    """

    at: int
    oid: bytes
    relation: Relation | None
    wrong: tuple[bytes, int] | None = None


@dataclass(frozen=True, slots=True)
class LargeTransaction:
    """A committed transaction in parts (implements `decode.raw.Raw`). `fault`: as `RawTransaction` has it.

    `marks` ascend, all of them before the end of `frames`, which are sealed.
    """

    in_order: ClassVar = False
    """What is decoded before and behind it may be so at any time: a part has all that decoding it takes."""

    bounds: Boundaries
    frames: FrameStore
    marks: Sequence[Mark]
    fault: DecodeError | None = None

    @property
    def size(self) -> int:
        """Bytes of all frames, and of announcements that were wrong."""
        return self.frames.size + sum(len(mark.wrong[0]) for mark in self.marks if mark.wrong is not None)

    @property
    def count(self) -> int:
        """How many data messages it has, and announcements that were wrong."""
        return len(self.frames) + sum(mark.wrong is not None for mark in self.marks)

    def parts(self, fault: DecodeError | None = None) -> Iterator[RawTransaction]:
        """Its parts in order; with `fault`, to be kept as bytes. Can be asked for again.

        Raises LakeError, and UnknownRelation where there is no `fault`.
        """
        fault = fault or self.fault
        force: dict[bytes, Relation | None] = {}
        first, next_mark = 0, 0
        for frames, lsns in self.frames.parts():
            end, start = first + len(frames), next_mark
            while next_mark < len(self.marks) and self.marks[next_mark].at < end:
                next_mark += 1
            marks = [(mark.at - first, mark) for mark in self.marks[start:next_mark]]
            made = [self._part(frames, lsns, marks, force, fault)]
            first = end
            del frames
            yield made.pop()  # nothing here keeps it in memory

    def whole(self) -> RawTransaction:
        """It as one raw transaction, where it is not large. Raises LakeError, UnknownRelation."""
        parts = list(self.parts()) or [self._part([], [], [], {}, self.fault)]
        assert len(parts) == 1, "frames in memory are one part"
        return replace(parts[0], part=False)

    def cut_otherwise(self, error: DecodeError) -> bool:  # noqa: ARG002 - as other formats have it
        """Whether its parts begin elsewhere now: no error comes of where they begin."""
        return False

    def release(self) -> None:
        """It is landed: its frames are not needed any more."""
        self.frames.close()

    def _part(
        self,
        frames: list[bytes],
        lsns: list[int],
        marks: Sequence[tuple[int, Mark]],
        force: dict[bytes, Relation | None],
        fault: DecodeError | None,
    ) -> RawTransaction:
        """A part whose marks are at these of its frames. `force`: layouts in force at its start, then at its end."""
        size = sum(map(len, frames)) + sum(len(mark.wrong[0]) for _, mark in marks if mark.wrong is not None)
        out = RawTransaction(self.bounds, [], [], [], {}, size, fault, part=True)
        starts = sorted({0, len(frames), *(at for at, _ in marks)})
        waiting = iter([*marks, (len(frames), None)])
        at, mark = next(waiting)
        for start, end in pairwise(starts):
            while mark is not None and at == start:
                force[mark.oid] = mark.relation
                if mark.wrong is not None:
                    _append(out, *mark.wrong)
                at, mark = next(waiting)
            first = start
            while first < end:
                stop = next((nth for nth in range(first, end) if frames[nth][0] == _TRUNCATE), end)
                out.frames.extend(frames[first:stop])
                out.lsns.extend(lsns[first:stop])
                out.layouts.extend([force.get(f[1:5]) if f[0] in ROW_CHANGES else None for f in frames[first:stop]])
                if stop < end:
                    _truncate(out, frames[stop], lsns[stop], _truncated(frames[stop], force, fault))
                first = stop + 1
        return out


def _truncate(out: RawTransaction, payload: bytes, lsn: int, tables: tuple[Relation, ...] | None) -> None:
    """Add a truncate, so far as it is one of its `tables`; None: they are not all known."""
    if tables is not None:
        payload, tables = of_its_own(payload, tables)
        if not tables:
            return
        out.truncated[len(out.frames)] = tables
    _append(out, payload, lsn)
    out.layouts[-1] = None if tables is None else tables[0]


def of_its_own(payload: bytes, tables: Sequence[Relation]) -> tuple[bytes, tuple[Relation, ...]]:
    """A truncate without the partitions that are taken for their root, and the tables that are left: it is none of the
    root's, as the server does not send which rows go with a partition.
    """
    oids = [payload[at : at + 4] for at in range(TRUNCATE_HEAD, len(payload), 4)]
    own = [nth for nth, one in enumerate(tables) if one.oid in (None, int.from_bytes(oids[nth], "big"))]
    if len(own) < len(tables):
        head = payload[:1] + len(own).to_bytes(4, "big") + payload[5:TRUNCATE_HEAD]
        payload = head + b"".join(oids[nth] for nth in own)
    return payload, tuple(tables[nth] for nth in own)


def _append(out: RawTransaction, payload: bytes, lsn: int) -> None:
    out.frames.append(payload)
    out.lsns.append(lsn)
    out.layouts.append(None)


def _truncated(
    frame: bytes, force: Mapping[bytes, Relation | None], fault: DecodeError | None
) -> tuple[Relation, ...] | None:
    """The tables of a truncate; None where they are not all known and the transaction is kept as bytes."""
    try:
        message = parse(frame)
        assert isinstance(message, TruncateMessage)
        tables = []
        for nth, oid in enumerate(message.oids):
            if (relation := force.get(oid.to_bytes(4, "big"))) is None:
                raise UnknownRelation(
                    f"a truncate of table OID {oid}, which was not announced", offset=TRUNCATE_HEAD + 4 * nth
                )
            tables.append(relation)
    except DecodeError:
        if fault is None:
            raise
        return None
    return tuple(tables)


class Growing:
    """An open transaction that outgrew memory: its frames so far, and marks of the layouts that they followed."""

    def __init__(self, frames: FrameStore) -> None:
        self.frames = frames
        self.marks: list[Mark] = []
        self._force: dict[bytes, Relation | None] = {}

    def extend(
        self,
        frames: Sequence[bytes],
        lsns: Sequence[int],
        layouts: Sequence[Relation | None],
        truncated: Mapping[int, tuple[Relation, ...]],
    ) -> None:
        """Add frames as `RawTransaction` has them; `truncated` by their number from the transaction's start.

        Raises LakeError.
        """
        append, force = self.frames.append, self._force
        for frame, lsn, layout in zip(frames, lsns, layouts, strict=True):
            if frame[0] in ROW_CHANGES:
                oid = frame[1:5]
                if oid not in force or force[oid] is not layout:
                    self._mark(oid, layout)
            elif tables := truncated.get(len(self.frames)):
                for nth, table in enumerate(tables):
                    oid = frame[TRUNCATE_HEAD + 4 * nth : TRUNCATE_HEAD + 4 * nth + 4]
                    if force.get(oid) is not table:
                        self._mark(oid, table)
            append(frame, lsn)

    def _mark(self, oid: bytes, layout: Relation | None) -> None:
        self._force[oid] = layout
        self.marks.append(Mark(len(self.frames), oid, layout))
