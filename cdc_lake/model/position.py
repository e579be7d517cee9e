"""Positions: what a stream is ordered by.

An LSN is a byte position in the write-ahead log (PostgreSQL, type `pg_lsn`), a CSN the commit sequence number of the
GaussDB family. A `Position` is what orders a pipeline: the epoch of its stream, then the commit position in that
stream's order domain, held as the plain number that bronze stores.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from cdc_lake.errors import MalformedPosition

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_CSN = re.compile(r"[0-9]{1,19}")


class OrderDomain(enum.StrEnum):
    """Which number orders a stream; fixed at its start, never mixed under one watermark."""

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
        """Read the form the server prints, `16/B374D848`."""
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
        """Read a decimal number."""
        if _CSN.fullmatch(text) is None:
            raise MalformedPosition(text)
        return cls(int(text))

    def __str__(self) -> str:
        return str(self.value)


def parse_position(text: str) -> int:
    """Read a position as people paste it, `0/16B3748` or `951909`, as the number that bronze stores."""
    return Lsn.parse(text).value if "/" in text else Csn.parse(text).value


def format_position(value: int, domain: OrderDomain) -> str:
    """Write a stored position in the form of its order domain, ready to be pasted back."""
    return str(Lsn(value)) if domain is OrderDomain.LSN else str(Csn(value))


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where a transaction stands in a pipeline: `(epoch, value)`, both ascending."""

    epoch: int
    value: int
