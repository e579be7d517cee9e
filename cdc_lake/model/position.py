"""Positions, spans, and the ways to name the moment to read.

An LSN is a byte position in the write-ahead log (PostgreSQL, type `pg_lsn`), a CSN the commit sequence number of the
GaussDB family. A `Position` orders a pipeline: the epoch of its stream, then the commit position in that stream's order
domain, as the plain number in bronze. A span is the half-open range `(after, upto]` in one epoch.

As text a position has its printed form (`0/16B3748` an LSN, `951909` a CSN), as an integer the form in tables.
`control.cut_lookup` finds the corresponding cut.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from cdc_lake.errors import CutUnknown, MalformedPosition

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_DIGITS = re.compile(r"[0-9]{1,19}")

END: Final = (1 << 63) - 1
"""After every position of a stream."""


class OrderDomain(enum.StrEnum):
    """The kind of number that orders a stream; fixed at its start, never mixed under one watermark."""

    LSN = "lsn"
    CSN = "csn"


@dataclass(frozen=True, slots=True, order=True)
class Lsn:
    """A byte position in the write-ahead log, 64 bit unsigned."""

    value: int

    def __post_init__(self) -> None:
        if not 0 <= self.value < 1 << 64:
            raise MalformedPosition(str(self.value))

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Parse the server's form, `16/B374D848`."""
        if (m := _LSN.fullmatch(text)) is None:
            raise MalformedPosition(text)
        return cls((int(m[1], 16) << 32) | int(m[2], 16))

    def __str__(self) -> str:
        return f"{self.value >> 32:X}/{self.value & 0xFFFFFFFF:X}"


@dataclass(frozen=True, slots=True, order=True)
class Csn:
    """A commit sequence number of the GaussDB family, 63 bit."""

    value: int

    def __post_init__(self) -> None:
        if not 0 <= self.value < 1 << 63:
            raise MalformedPosition(str(self.value))

    @classmethod
    def parse(cls, text: str) -> Csn:
        """Parse a decimal number."""
        if _DIGITS.fullmatch(text) is None:
            raise MalformedPosition(text)
        return cls(int(text))

    def __str__(self) -> str:
        return str(self.value)


def parse_position(text: str) -> int:
    """Parse a position as commands print it, `0/16B3748` or `951909`, to the number in bronze."""
    return Lsn.parse(text).value if "/" in text else Csn.parse(text).value


def format_position(value: int, domain: OrderDomain) -> str:
    """Format a stored position in its order domain, as commands accept it."""
    return str(Lsn(value)) if domain is OrderDomain.LSN else str(Csn(value))


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The place of a transaction in a pipeline: `(epoch, value)`, both ascending."""

    epoch: int
    value: int


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
        """Whether it contains no position."""
        return self.after == self.upto

    def __contains__(self, position: int) -> bool:
        return self.after < position <= self.upto


@dataclass(frozen=True, slots=True)
class Latest:
    """The newest cut."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A position as bronze and the cuts store it."""

    value: int


@dataclass(frozen=True, slots=True)
class Number:
    """A number as text: a CSN if the server has CSNs, otherwise a stored position."""

    value: int


@dataclass(frozen=True, slots=True)
class Moment:
    """A time with a zone."""

    time: datetime


@dataclass(frozen=True, slots=True)
class Named:
    """The cut of the pin with this name."""

    name: str


AsOf: TypeAlias = Latest | Stored | Number | Position | Lsn | Csn | Moment | Named
"""What a reader may request. `Lsn` and `Csn` are that number in any stream; `Position` includes its epoch."""

Given: TypeAlias = AsOf | str | int | datetime
"""The same in the forms that callers pass."""

PIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_TIME = re.compile(r"[0-9]{4}-?[0-9]{2}.*")


def as_of(value: Given) -> AsOf:
    """Parse a request. Raises CutUnknown, MalformedPosition."""
    if isinstance(value, str):
        return _text(value.strip())
    if isinstance(value, datetime):
        return _moment(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return Stored(value)
    if isinstance(value, Latest | Stored | Number | Position | Lsn | Csn | Moment | Named):
        return value
    raise CutUnknown(f"`{value}` does not identify a cut: it is of type {type(value).__name__}")


def _text(text: str) -> AsOf:
    if text == "latest":
        return Latest()
    if "/" in text:
        return Lsn.parse(text)
    if _DIGITS.fullmatch(text):
        return Number(Csn.parse(text).value)
    if PIN_NAME.fullmatch(text):
        return Named(text)
    try:
        return _moment(datetime.fromisoformat(text))
    except ValueError as bad:
        what = "is not a time" if _TIME.fullmatch(text) else "is not a position, time or name"
        raise CutUnknown(f"`{text}` {what}") from bad


def _moment(time: datetime) -> Moment:
    if time.tzinfo is None:
        raise CutUnknown(f"the time `{time.isoformat()}` has no time zone")
    return Moment(time)
