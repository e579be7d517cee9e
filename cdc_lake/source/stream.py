"""The source port: what the receive loop needs of a change stream, whatever the server.

A stream's identity is one text, kept in bronze and compared with the server at every start, so that two histories are
never joined by mistake::

    pg:<system id>:<database>:<slot>:<consistent point>
    gauss:<system id>:<database>:<slot>:lsn:<consistent point>
    gauss:<system id>:<database>:<slot>:lsn:<seen>@<consistent point>
    gauss:<system id>:<database>:<slot>:csn:<start>@<consistent point>

`start` is the last CSN before the stream: the initial copy holds everything up to it. So is `seen`, in a stream that is
ordered by LSN although its transactions have CSNs: what it sends at or below `seen` is in the copy already.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cdc_lake.decode.raw import Raw
from cdc_lake.errors import MalformedPosition, OtherSource
from cdc_lake.model.position import Csn, Lsn, OrderDomain, format_position


class Kind(enum.StrEnum):
    """The family of servers a stream comes from."""

    POSTGRES = "pg"
    GAUSS = "gauss"


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """Which server, database and slot a stream comes from, and where it starts.

    `point`: the slot's consistent point. `csn`: in the csn domain the last CSN before the stream, otherwise None.
    `seen`: in the lsn domain the last CSN that the initial copy holds, None where that is not known.
    """

    system: str
    database: str
    slot: str
    point: Lsn
    csn: Csn | None = None
    kind: Kind = Kind.POSTGRES
    seen: Csn | None = None

    @property
    def domain(self) -> OrderDomain:
        """What orders the stream."""
        return OrderDomain.LSN if self.csn is None else OrderDomain.CSN

    @property
    def start(self) -> int:
        """The position after which the stream's transactions lie, in its order domain."""
        return self.point.value if self.csn is None else self.csn.value

    @property
    def origin(self) -> str:
        """Server, database and slot: what streams of one slot that was made again have in common."""
        return f"{self.kind}:{self.system}:{self.database}:{self.slot}"

    def __str__(self) -> str:
        source = self.origin
        match self.kind:
            case Kind.POSTGRES:
                return f"{source}:{self.point}"
            case Kind.GAUSS:
                number = self.seen if self.csn is None else self.csn
                return f"{source}:{self.domain}:{self.point if number is None else f'{number}@{self.point}'}"

    @classmethod
    def parse(cls, text: str) -> StreamIdentity:
        """Read the text back (a database name may hold colons); raises OtherSource where it is not one."""
        head, _, rest = text.partition(":")
        system, _, rest = rest.partition(":")
        try:
            kind = Kind(head)
            rest, _, start = rest.rpartition(":")
            csn = seen = None
            if kind is Kind.GAUSS:
                rest, _, word = rest.rpartition(":")
                domain = OrderDomain(word)
                number, at, point = start.rpartition("@")
                if domain is OrderDomain.CSN:
                    csn, start = Csn.parse(number), point
                elif at:
                    seen, start = Csn.parse(number), point
            database, _, slot = rest.rpartition(":")
            if system and database and slot:
                return cls(system, database, slot, Lsn.parse(start), csn, kind, seen)
        except (MalformedPosition, ValueError) as malformed:
            raise OtherSource(_unknown(text)) from malformed
        raise OtherSource(_unknown(text))


def domain_of(stream: str) -> OrderDomain:
    """The order domain of a stream by its identity as bronze stores it; only the GaussDB family has another than LSN.

    Raises OtherSource where the text is one of that family and cannot be read.
    """
    return StreamIdentity.parse(stream).domain if stream.startswith(f"{Kind.GAUSS}:") else OrderDomain.LSN


def shown(stream: str, position: int) -> str:
    """A position of a stream as people paste it: `0/16B3748` in the lsn domain, `951909` in the csn domain."""
    return format_position(position, domain_of(stream))


def _unknown(text: str) -> str:
    return f"bronze holds the stream `{text}`, which is not one that this version knows"


class TransactionAssembler(Protocol):
    """Makes whole transactions of one connection's frames. Raises DecodeError; then, or when reconnected, `reset`."""

    @property
    def in_transaction(self) -> bool:
        """True between a BEGIN and its COMMIT."""
        ...

    @property
    def open_csn(self) -> int | None:
        """The CSN of the BEGIN whose COMMIT has not come, None where there is none or it has no CSN."""
        ...

    @property
    def open_bytes(self) -> int:
        """Bytes of changes held for transactions whose COMMIT has not come."""
        ...

    @property
    def completed(self) -> Sequence[Raw]:
        """After `feed` raised: the transactions that its payload completed before that."""
        ...

    def feed(self, payload: bytes, lsn: int) -> Sequence[Raw]:
        """Take a frame and the position it came with; the transactions it completes, in the order they came."""
        ...

    def reset(self) -> None:
        """Forget what this connection sent."""
        ...


class FrameSource(Protocol):
    """An open stream. Frames come in order; after `confirm(p)` the server may forget everything up to p.

    Not for several threads at once. Every method raises SourceError: ServerUnreachable where trying again helps.
    """

    @property
    def keepalive_end(self) -> int:
        """The newest WAL position the server announced: everything committed before it has been sent.

        0 where a keepalive promises nothing of the kind (parallel decoding of the GaussDB family).
        """
        ...

    @property
    def asked(self) -> bool:
        """True once after the server asked for a reply; reading it clears it."""
        ...

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        """Frames as `(lsn, payload)`, waiting up to `timeout` seconds for the first; also answers keepalives."""
        ...

    def confirm(self, position: int) -> None:
        """Everything up to the slot position `position` is durable: tell the server so now."""
        ...

    def tick(self, *, ping: bool = False) -> None:
        """Send the status if it is due, without reading; with `ping`, now, and ask for a keepalive."""
        ...

    def close(self) -> None:
        """Close the connection; the slot stays."""
        ...
