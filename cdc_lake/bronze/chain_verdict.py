"""What the chain is held against beside bronze, and what came out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Beside:
    """What is known of one epoch beside bronze; each part is None or empty where it is not known.

    `stream`: its identity. `start`: the position its transactions lie behind. `head` and `last`: hash and position of
    its end, as the stream after it found them. `dense`: it shows every CSN. `gaps`: CSNs that were passed over,
    `(first, last)`, ascending, none overlapping.
    """

    stream: str | None = None
    start: int | None = None
    head: bytes | None = None
    dense: bool = False
    gaps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ChainVerdict:
    """What was verified, up to the first thing that does not fit: where it is, in which stream, and in what way.

    `empty` counts the transactions without rows that are accounted for, `passed_over` the CSNs in recorded gaps; both
    are of streams that show every CSN. `behind`: the last transaction that retention let go; its hash is on record, and
    the chain starts there.
    """

    transactions: int
    changes: int
    last: tuple[int, int] | None  # epoch and position of the last transaction that fits
    broken_at: tuple[int, int] | None = None
    reason: str = ""
    stream: str = ""
    empty: int = 0
    passed_over: int = 0
    behind: tuple[int, int] | None = None

    @property
    def holds(self) -> bool:
        """True where everything fits."""
        return not self.reason
