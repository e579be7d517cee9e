"""Large transactions of rows that name their columns: committed ones that memory does not hold, decoded in parts.

A part is a record transaction of some of the records, so whatever decodes those decodes these. What a row teaches of
its table counts for the rows behind it: the parts are decoded in order, and nothing of the stream in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from cdc_lake.decode.frames import FrameStore
from cdc_lake.decode.mppdb.raw import PartOf, RecordTransaction, Start
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.errors import DecodeError, UnmatchedDelete
from cdc_lake.model.transaction import Boundaries


class _Cuts:
    """Where the store's frames are cut into parts. `joined`: numbers of those that go with the ones before."""

    def __init__(self) -> None:
        self.joined: set[int] = set()
        self.given = (0, 0)  # the first and the last one that the newest part is made of


@dataclass(frozen=True, slots=True)
class LargeRecords:
    """A committed transaction in parts (implements `decode.raw.Raw`). `frames`: its records, which are sealed.

    `size` and `count`: of all records, also once they are released.
    """

    in_order: ClassVar = True
    """What is decoded before and behind it is so before its first part and behind its last."""

    bounds: Boundaries
    style: Style
    frames: FrameStore
    size: int
    count: int
    _start: Start = field(default_factory=Start, repr=False, compare=False)
    _cuts: _Cuts = field(default_factory=_Cuts, repr=False, compare=False)

    def parts(self, fault: DecodeError | None = None) -> Iterator[RecordTransaction]:
        """Its parts in order; with `fault`, to be kept as bytes. Can be asked for again. Raises LakeError."""
        before = first = behind = 0
        records: list[bytes] = []
        lsns: list[int] = []
        for some, numbers in self.frames.parts():
            records, lsns, behind = records + some, lsns + numbers, behind + 1
            del some
            if behind not in self._cuts.joined:
                part = PartOf(before, self._start, fault, movable=0 < first == behind - 1)
                made = [self._part(records, lsns, part, (first, behind - 1))]
                before, first, records, lsns = before + len(records), behind, [], []
                yield made.pop()  # nothing here keeps it in memory

    def cut_otherwise(self, error: DecodeError) -> bool:
        """Whether the newest part could not be decoded because of where it begins: then it begins one earlier now.

        A DELETE that takes an INSERT back stands right behind it, and both have to be in one part.
        """
        if not isinstance(error, UnmatchedDelete):
            return False
        self._cuts.joined.add(self._cuts.given[0])
        return True

    def release(self) -> None:
        """It is landed, or dropped: its records are not needed any more."""
        self.frames.close()

    def _part(self, records: list[bytes], lsns: list[int], part: PartOf, numbers: tuple[int, int]) -> RecordTransaction:
        self._cuts.given = numbers
        return RecordTransaction(self.bounds, self.style, records, lsns, sum(map(len, records)), part)
