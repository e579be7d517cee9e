"""The verdict on the invariants I1 to I8: whether each holds, is violated and where, or was not checked."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from deltalake.exceptions import DeltaError

from cdc_lake.errors import CdcLakeError

INVARIANTS: Final[Mapping[str, str]] = {
    "I1": "every committed change is in bronze exactly once",
    "I2": "nothing of a transaction that did not commit is in bronze",
    "I3": "readers see whole transactions, and a silver table goes from one position to a later one",
    "I4": "silver is the fold of bronze and the state of the source",
    "I5": ("no watermark goes back, and the server was told to forget what bronze holds and no more"),
    "I6": "a run ends at the source's state without a human, or by a typed error",
    "I7": "memory and open files stay bounded",
    "I8": "no secret is in the lake or in what was said",
}

UNREADABLE: Final = (CdcLakeError, DeltaError, pa.ArrowException, OSError, ValueError, KeyError)
"""What reading a lake raises that somebody broke."""


class Standing(enum.StrEnum):
    """What was found of an invariant."""

    HELD = "held"
    BROKEN = "broken"
    NOT_LOOKED_AT = "not looked at"


@dataclass(frozen=True, slots=True)
class Signature:
    """What one bug looks like: how these invariants are broken, as patterns that each sentence fits. Besides them only
    those of `beside` may be.
    """

    broken: Mapping[str, str]
    beside: frozenset[str] = frozenset()

    def fits(self, verdict: Verdict) -> bool:
        """Whether a verdict is of this bug, and of nothing else."""
        found = verdict.broken
        if not self.broken.keys() <= found.keys() <= self.broken.keys() | self.beside:
            return False
        return all(re.search(pattern, how) for one, pattern in self.broken.items() for how in found[one])


@dataclass
class Verdict:
    """What was found: each invariant that was looked at, with where and how it is broken."""

    found: dict[str, list[str]] = field(default_factory=dict)

    def __getitem__(self, invariant: str) -> Standing:
        if invariant not in self.found:
            return Standing.NOT_LOOKED_AT
        return Standing.BROKEN if self.found[invariant] else Standing.HELD

    @property
    def broken(self) -> dict[str, list[str]]:
        """The broken ones, and how."""
        return {invariant: how for invariant, how in self.found.items() if how}

    def look(self, invariant: str, how: Iterable[str] = ()) -> None:
        """An invariant was looked at: `how` it is broken, nothing where it holds."""
        self.found.setdefault(invariant, []).extend(how)

    @contextmanager
    def looking(self, *invariants: str) -> Iterator[None]:
        """Look at invariants with checks that assert, and at a lake that may not be readable."""
        how: list[str] = []
        try:
            yield
        except AssertionError as wrong:
            how = [str(wrong) or "an assertion failed"]
        except UNREADABLE as wrong:
            how = [f"it cannot be read: {type(wrong).__name__}: {wrong}"]
        for invariant in invariants:
            self.look(invariant, how)

    def assert_held(self, *looked_at: str) -> None:
        """Nothing is broken, and at least these were looked at."""
        assert not self.broken, str(self)
        missed = [one for one in looked_at if self[one] is Standing.NOT_LOOKED_AT]
        assert not missed, f"nobody looked at {', '.join(missed)}"

    def __str__(self) -> str:
        lines = []
        for invariant, says in INVARIANTS.items():
            how = "; ".join(self.found.get(invariant, ()))
            lines.append(f"{invariant} {self[invariant]}: {how or says}")
        return "\n".join(lines)
