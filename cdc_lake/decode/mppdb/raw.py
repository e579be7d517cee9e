"""Record transactions: whole transactions of the GaussDB family whose rows are still the bytes the server sent.

What the assembler gives and `tabulate` reads. Layouts are not known here: in this format each row brings the names
and types of its columns along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdc_lake.decode.mppdb.layouts import Mark
from cdc_lake.decode.mppdb.records import Style
from cdc_lake.errors import DecodeError
from cdc_lake.model.transaction import Boundaries


class Start:
    """What was known of tables before a large transaction (`large_records`): its parts may be read more than once, and
    each time begin with that. None until its first part is read.
    """

    __slots__ = ("mark",)

    def __init__(self) -> None:
        self.mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class PartOf:
    """Where a part of a large transaction stands in it: behind so many of its records.

    `fault`: why all of the transaction is to be kept as bytes. `movable`: it may begin one frame earlier as well.
    """

    before: int
    start: Start
    fault: DecodeError | None = None
    movable: bool = False


@dataclass(frozen=True, slots=True)
class RecordTransaction:
    """A committed transaction: boundaries, and per row or truncate its bytes and LSN; implements `decode.raw.Raw`.

    `records[i]` in style b is the body of a record from its letter on; in the text styles one statement without its
    length and LSN. `lsns[i]` is the LSN the source gave for it: of the record where it has one, else of the message's
    header. A transaction without rows is one too: counts of CSNs need it. Both are lists, or `runs.Rows` and
    `runs.Lsns` where many rows came in one payload. `part`: its records are some of a large transaction's.
    """

    bounds: Boundaries
    style: Style
    records: Sequence[bytes]
    lsns: Sequence[int]
    size: int  # bytes of all records
    part: PartOf | None = None

    @property
    def count(self) -> int:
        """How many records it has."""
        return len(self.records)
