"""Raw transactions: whole transactions whose changes are still the bytes the server sent.

This is what an assembler gives and what both decoders read, the plain one (`changes`) and the columnar one
(`columnar.tabulate`). Keeping bytes until a batch is closed is what makes vectorised decoding possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cdc_lake.errors import DecodeError
from cdc_lake.model.relation import Relation
from cdc_lake.model.transaction import Boundaries


class Raw(Protocol):
    """A committed transaction of any format, as far as batching and bronze's rows need to know it.

    `size`: bytes of all changes. `count`: how many data messages they came in; the changes can be more (a truncate of
    several tables) or fewer (an insert that was cancelled).
    """

    @property
    def bounds(self) -> Boundaries:
        """Its BEGIN and COMMIT."""
        ...

    @property
    def size(self) -> int:
        """Bytes of all changes."""
        ...

    @property
    def count(self) -> int:
        """Data messages; 0 where the transaction changed nothing that is captured."""
        ...


@dataclass(frozen=True, slots=True)
class RawTransaction:
    """A committed transaction: boundaries, and per change its bytes, LSN and the layout in force.

    `frames[i]` is one data message of the stream (insert, update, delete, truncate, logical message; never begin,
    commit, relation, type or origin). `lsns[i]` is the LSN the source gave for it. `layouts[i]` is the relation in
    force for it, None for a message without one; a truncate has all of its relations in `truncated[i]`, the first in
    `layouts[i]`.

    `fault`: by the policy `land`, why a message of it could not be taken in; then `frames` has that one too, and the
    relation messages that were wrong, each before the first change that needs it.

    `part`: its frames are some of a large transaction's (`decode.large`), and `size` is theirs.
    """

    bounds: Boundaries
    frames: list[bytes]
    lsns: list[int]
    layouts: list[Relation | None]
    truncated: dict[int, tuple[Relation, ...]]
    size: int  # bytes of all frames
    fault: DecodeError | None = None
    part: bool = False

    @property
    def count(self) -> int:
        """How many data messages it has."""
        return len(self.frames)


@dataclass(frozen=True, slots=True)
class Tabulated:
    """What is left of a transaction of any format whose changes are columns; implements `Raw`."""

    bounds: Boundaries
    size: int
    count: int
