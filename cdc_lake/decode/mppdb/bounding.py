"""From BEGIN and COMMIT to the bounds of a transaction: its position, what may be confirmed behind it, its numbers.

Which LSN may be confirmed depends on how the stream is written (openGauss 3.0.0 and 6.0.2, tried on servers):

* Style b, and t and j in batches: the COMMIT has the end of its commit record. 6.0.2 sends a transaction again that
  starts at or after the confirmed LSN, 3.0.0 one that starts after it: the end itself loses the next one there, the
  end minus 1 loses and repeats nothing on either.
* Serial: the header of the COMMIT, which is that end too, is safe as it is.
* t and j without batches: the header is the commit record's start; header plus 1 does not repeat it.
* A slot that is ordered by CSN is confirmed by CSN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cdc_lake.decode.mppdb.records import Begin, Commit, Style
from cdc_lake.decode.mppdb.timestamps import micros
from cdc_lake.errors import MalformedMessage, NoOrderNumber
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.transaction import Boundaries

STORABLE: Final = 1 << 63
"""Bronze holds numbers of 63 bits; no real LSN, CSN or xid is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounding:
    """How the transactions of one stream are bounded. `confirms_csn`: its slot is ordered by CSN."""

    style: Style
    batch: bool
    domain: OrderDomain
    confirms_csn: bool

    def bounds(self, begin: Begin, commit: Commit, header_lsn: int, at: int, *, has_rows: bool) -> Boundaries:
        """The bounds; `header_lsn`: of the message with the COMMIT, which stands at `at` in it. Raises DecodeError."""
        csn = begin.csn if begin.csn is not None else commit.csn
        commit_lsn = commit.lsn if commit.lsn is not None else header_lsn
        return Boundaries(
            position=self._position(csn, commit_lsn, at),
            confirm=self._confirm(csn, commit_lsn, at),
            commit_lsn=_storable(commit_lsn, "a COMMIT LSN", at),
            first_lsn=_first_lsn(begin) if has_rows else None,
            csn=_storable(csn, "a CSN", at),
            xid=_storable(commit.xid if commit.xid is not None else begin.xid, "a transaction id", at),
            commit_ts=_time(commit.time or begin.time, at),
            user=begin.user,
            origin=str(begin.origin_id) if begin.origin_id else None,  # 0: of this server
        )

    def _position(self, csn: int | None, commit_lsn: int, at: int) -> int:
        number, name = (csn, "CSN") if self.domain is OrderDomain.CSN else (commit_lsn, "commit LSN")
        if number is None:
            raise NoOrderNumber(f"a transaction without a {name} in a stream that is ordered by {name}", offset=at)
        if number >= STORABLE:
            raise NoOrderNumber(f"a transaction whose {name} is above 63 bits", offset=at)
        return number

    def _confirm(self, csn: int | None, commit_lsn: int, at: int) -> int:
        if self.confirms_csn:
            if csn is None:
                raise NoOrderNumber("a transaction without a CSN on a slot that is confirmed by CSN", offset=at)
            return csn
        if self.style is Style.SERIAL:
            return commit_lsn
        if self.style is Style.BINARY or self.batch:
            return max(commit_lsn - 1, 0)
        return commit_lsn + 1


def _first_lsn(begin: Begin) -> int | None:
    """The first LSN of a transaction with rows. 3.0.x prints stale memory for one without."""
    first = begin.first_lsn if begin.first_lsn is not None else begin.lsn  # serial: the LSN of BEGIN is it
    return first if first and first < STORABLE else None


def _storable(number: int | None, what: str, at: int) -> int | None:
    if number is not None and number >= STORABLE:
        raise MalformedMessage(f"{what} above 63 bits", offset=at)
    return number


def _time(text: str | None, at: int) -> int | None:
    if not text:
        return None
    time = micros(text)
    if abs(time) >= STORABLE:
        raise MalformedMessage("a commit time beyond what 64 bits of microseconds hold", offset=at)
    return time
