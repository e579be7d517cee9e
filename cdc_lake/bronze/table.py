"""The port below writer and reader: one bronze table of one format at one place.

A table is looked at, then read or committed to as it was then. A commit carries rows and the whole state, or neither,
and lands only on top of the version that was looked at: whoever comes second is refused, not interleaved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cdc_lake.bronze.files import Files
from cdc_lake.bronze.port import BronzeState
from cdc_lake.lake.parquet_file import Rows


@dataclass(frozen=True, slots=True)
class Written:
    """A data file that is there and that no version names yet: what the format commits it by, and its bytes."""

    file: Any
    size: int


class BronzeTable(Protocol):
    """A bronze table at the version that was looked at last. One instance is used by one thread."""

    @property
    def place(self) -> str:
        """Where it is, as errors and views name it."""
        ...

    @property
    def version(self) -> int:
        """The version looked at; grows with each commit."""
        ...

    def look(self) -> bool:
        """Move to the newest version; False where there is no table.

        Raises BronzeUnknown for a table that is not bronze, or of a contract that this version does not know.
        """
        ...

    def create(self) -> None:
        """Make the empty table and look at it. Raises BronzeNotWritten."""
        ...

    def state(self) -> BronzeState | None:
        """What the version says of its newest stream; None where no stream was started. Raises BronzeDamaged."""
        ...

    def prove(self) -> None:
        """Raise BronzeAltered where something else changed the data since the newest version that was made here.

        A commit proves the version that it is made on, where that was not made by the same table.
        """
        ...

    def last_chunk(self, app: str) -> int | None:
        """The last chunk of a snapshot, by its application id."""
        ...

    def files(self) -> Files:
        """The data files of the version."""
        ...

    def trimmed(self) -> Mapping[int, tuple[int, bytes]]:
        """Epoch → position and hash of the last transaction that left by retention; the chain goes on behind it."""
        ...

    def write(self, rows: Rows) -> Written:
        """Write one data file, on disk where the durability says so. Raises BronzeNotWritten."""
        ...

    def commit(self, files: Sequence[Written], state: BronzeState, chunks: Mapping[str, int]) -> int:
        """Make the files part of the table together with the state and chunk numbers; the version made, looked at.

        Raises AnotherReceiver where the version looked at is not the newest one, BronzeNotWritten where the commit is
        known not to have landed. After either, look again.
        """
        ...
