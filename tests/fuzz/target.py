"""What is fuzzed: a part of the product that takes bytes of strangers, and what may come of any of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cdc_lake.errors import CdcLakeError, DecodeError
from cdc_lake.model.change import Boundaries


class Finding(AssertionError):
    """Bytes that gave what none may: decoders that differ, an error that says nonsense."""


@dataclass(frozen=True)
class Target:
    """`run` takes one input: True where it was taken for good, False where it was refused by an error of the house;
    anything else it raises is a finding. `words`: bytes that mean something in the format. `seeds`: inputs to begin
    with, beside those that are kept in tests/data/fuzz.
    """

    name: str
    run: Callable[[bytes], bool]
    seeds: Callable[[], Sequence[bytes]]
    words: Sequence[bytes] = ()


REFUSED_ALONE = 16
"""Of the frames that the plain decoder refuses every so many-th is given to the fast one too, alone."""


class Form(Protocol):
    """A format of single changes with two decoders. Its target tries one frame; `many` tries frames together, which is
    what fast decoders are made for.
    """

    @property
    def name(self) -> str: ...

    @property
    def target(self) -> Target: ...

    def many(self, frames: Sequence[bytes]) -> Judged:
        """Each frame alone by the plain decoder; those it took, together, by both, and some of those it refused."""
        ...


@dataclass(frozen=True)
class Judged:
    """Of some frames: how many were taken, and of how many of those the fast decoder vouched itself."""

    taken: int
    vouched: int


def refused(error: CdcLakeError, data: bytes | None = None) -> bool:
    """That an error of the house is a good one: it has a code and words that can be written, a place inside the bytes."""
    said = f"{error.message} {error.where} {error.remedy}"
    if not error.code or not error.message or not error.remedy or not _can_be_written(said):
        raise Finding(f"{type(error).__name__} says {said!r}") from error
    if isinstance(error, DecodeError) and (error.offset < 0 or (data is not None and error.offset > len(data))):
        raise Finding(f"{type(error).__name__} at byte {error.offset} of {len(data or b'')}") from error
    return False


def storable(bounds: Boundaries) -> None:
    """That numbers of a transaction fit into what bronze holds."""
    numbers = [bounds.position, bounds.confirm, bounds.csn, bounds.first_lsn, bounds.commit_lsn, bounds.xid]
    if any(number is not None and not 0 <= number < 1 << 63 for number in numbers):
        raise Finding(f"numbers that bronze has no room for: {bounds}")
    if bounds.commit_ts is not None and not -(1 << 63) <= bounds.commit_ts < 1 << 63:
        raise Finding(f"a time that bronze has no room for: {bounds}")


def _can_be_written(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def records_of(data: bytes) -> list[bytes]:
    """Inputs of several messages: each behind its length in two bytes; the last one may be cut off."""
    found, at = [], 0
    while at + 2 <= len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "big")
        found.append(data[at + 2 : end])
        at = end
    return found


def of_records(records: Sequence[bytes]) -> bytes:
    """The other way round; a longer message is cut."""
    return b"".join(min(len(one), 65_535).to_bytes(2, "big") + one[:65_535] for one in records)
