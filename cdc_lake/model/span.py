"""A span: the half-open range of positions `(after, upto]` within one epoch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """All transactions with `after < position <= upto` in `epoch`."""

    epoch: int
    after: int
    upto: int

    def __post_init__(self) -> None:
        if not self.after <= self.upto:
            msg = f"a span cannot end ({self.upto}) before it starts ({self.after})"
            raise ValueError(msg)

    @property
    def empty(self) -> bool:
        """True where no position lies inside."""
        return self.after == self.upto

    def __contains__(self, position: int) -> bool:
        return self.after < position <= self.upto
