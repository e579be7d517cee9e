"""Record transactions: whole transactions of the GaussDB family whose rows are still the bytes the server sent.

What the assembler gives and `tabulate` reads. Layouts are not known here: in this format each row brings the names
and types of its columns along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cdc_lake.decode.mppdb.records import Style
from cdc_lake.model.transaction import Boundaries


@dataclass(frozen=True, slots=True)
class RecordTransaction:
    """A committed transaction: boundaries, and per row or truncate its bytes and LSN; implements `decode.raw.Raw`.

    `records[i]` in style b is the body of a record from its letter on; in the text styles one statement without its
    length and LSN. `lsns[i]` is the LSN the source gave for it: of the record where it has one, else of the message's
    header. A transaction without rows is one too: counts of CSNs need it. Both are lists, or `runs.Rows` and
    `runs.Lsns` where many rows came in one payload.
    """

    bounds: Boundaries
    style: Style
    records: Sequence[bytes]
    lsns: Sequence[int]
    size: int  # bytes of all records

    @property
    def count(self) -> int:
        """How many records it has."""
        return len(self.records)
