"""Large transactions: committed ones of pgoutput that are decoded a part at a time, because memory does not hold them.

Their frames are in a store; which layout each change follows is told by marks, of which there is one where a table is
announced. A part is a raw transaction of some of the frames, so whatever decodes those decodes these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Final

import numpy as np

from cdc_lake.decode.changes import ChangeColumns
from cdc_lake.decode.frames import Decoded, FrameStore, Part
from cdc_lake.decode.pgoutput import ROW_CHANGES, TRUNCATE_HEAD, parse
from cdc_lake.decode.plain import Numbering
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
    `followed`: what its frames' store was told of it before the COMMIT, where that was not `relation`.
    """

    at: int
    oid: bytes
    relation: Relation | None
    wrong: tuple[bytes, int] | None = None
    followed: Relation | None = None


@dataclass(frozen=True, slots=True)
class DecodedPart:
    """A part that is columns already (implements `decode.raw.Raw`)."""

    bounds: Boundaries
    size: int
    count: int
    columns: ChangeColumns


def decoded_or(tabulate: Callable[[Sequence[Any]], ChangeColumns]) -> Callable[[Sequence[Any]], ChangeColumns]:
    """Makes columns of raw transactions by `tabulate`; a part that is columns already has them."""

    def columns(batch: Sequence[Any]) -> ChangeColumns:
        return batch[0].columns if isinstance(batch[0], DecodedPart) else tabulate(batch)

    return columns


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

    def parts(self, fault: DecodeError | None = None) -> Iterator[RawTransaction | DecodedPart]:
        """Its parts in order, as columns where they were decoded before its COMMIT; with `fault`, to be kept as bytes.
        Can be asked for again. Raises LakeError, what decoding raises, and UnknownRelation where there is no `fault`.
        """
        fault = fault or self.fault
        return self._walked(self.frames.pieces() if fault is None else self.frames.parts(), fault)

    def in_frames(self) -> Iterator[RawTransaction]:
        """The same, all of them as frames."""
        for part in self._walked(self.frames.parts(), self.fault):
            assert isinstance(part, RawTransaction), "made of frames"
            yield part

    def _walked(
        self, pieces: Iterator[Part] | Iterator[Part | Decoded], fault: DecodeError | None
    ) -> Iterator[RawTransaction | DecodedPart]:
        force: dict[bytes, Relation | None] = {}
        settled: dict[Relation, Relation] = {}
        first, next_mark = 0, 0
        for piece in pieces:
            end, start = first + (piece.count if isinstance(piece, Decoded) else len(piece[0])), next_mark
            while next_mark < len(self.marks) and self.marks[next_mark].at < end:
                next_mark += 1
            marks = self.marks[start:next_mark]
            settled |= {mark.followed or mark.relation: mark.relation for mark in marks if mark.relation is not None}
            if isinstance(piece, Decoded):
                force |= {mark.oid: mark.relation for mark in marks}
                yield DecodedPart(self.bounds, piece.size, piece.count, _following(piece.columns, settled))
            else:
                yield self._part(*piece, [(mark.at - first, mark) for mark in marks], force, fault)
            first = end

    def whole(self) -> RawTransaction:
        """It as one raw transaction, where it is not large. Raises LakeError, UnknownRelation."""
        parts = list(self.in_frames()) or [self._part([], [], [], {}, self.fault)]
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
            some = frames[start:end]
            for nth, frame in enumerate(some):
                if frame[0] == _TRUNCATE and (tables := _truncated(frame, force, fault)):
                    out.truncated[len(out.frames) + nth] = tables
            out.frames.extend(some)
            out.lsns.extend(lsns[start:end])
            out.layouts.extend([force.get(f[1:5]) if f[0] in ROW_CHANGES else None for f in some])
        for nth, tables in out.truncated.items():
            out.layouts[nth] = tables[0]
        return out


def _following(columns: ChangeColumns, settled: Mapping[Relation, Relation]) -> ChangeColumns:
    """The columns, with each relation that was followed before the COMMIT as it is now that it is settled."""
    numbering = Numbering()
    numbers = [numbering.number(settled[relation]) for relation in columns.relations]
    relation = np.array([*numbers, -1], np.int32)[columns.relation]
    return replace(columns, relations=numbering.relations, relation=relation)


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
        self.frames.follow(oid, layout)
        self.marks.append(Mark(len(self.frames), oid, layout))
