"""The source port: what the receive loop needs of a change stream, its slot, tables and snapshots, whatever the server.

A stream's identity is one text, kept in bronze and compared with the server at every start, so that two histories are
never joined by mistake::

    pg:<system id>:<database>:<slot>:<consistent point>
    gauss:<system id>:<database>:<slot>:lsn:<consistent point>
    gauss:<system id>:<database>:<slot>:lsn:<seen>@<consistent point>
    gauss:<system id>:<database>:<slot>:csn:<start>@<consistent point>

`start` is the last CSN before the stream: the initial copy holds everything up to it. So is `seen`, in a stream that
is ordered by LSN although its transactions have CSNs: what it sends at or below `seen` is in the copy already.
"""

from __future__ import annotations

import enum
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from cdc_lake import errors
from cdc_lake.decode.transaction import ReceivedTransaction
from cdc_lake.errors.base import ANEW
from cdc_lake.model.position import Csn, Lsn, OrderDomain, format_position
from cdc_lake.model.relation import TableName


class Kind(enum.StrEnum):
    """The server family of a stream."""

    POSTGRES = "pg"
    GAUSS = "gauss"


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    """The server, database and slot of a stream, and its starting point.

    `point`: the slot's consistent point. `csn`: in the csn domain the last CSN before the stream, otherwise None.
    `snapshot_csn`: in the lsn domain the last CSN in the initial copy, None if unknown.
    """

    system: str
    database: str
    slot: str
    point: Lsn
    csn: Csn | None = None
    kind: Kind = Kind.POSTGRES
    snapshot_csn: Csn | None = None

    @property
    def domain(self) -> OrderDomain:
        """The domain that orders the stream."""
        return OrderDomain.LSN if self.csn is None else OrderDomain.CSN

    @property
    def start(self) -> int:
        """The position after which the stream's transactions begin, in its order domain."""
        return self.point.value if self.csn is None else self.csn.value

    @property
    def origin(self) -> str:
        """Server, database and slot: the same for all streams of one slot, even if the slot was recreated."""
        return f"{self.kind}:{self.system}:{self.database}:{self.slot}"

    def __str__(self) -> str:
        source = self.origin
        match self.kind:
            case Kind.POSTGRES:
                return f"{source}:{self.point}"
            case Kind.GAUSS:
                number = self.snapshot_csn if self.csn is None else self.csn
                return f"{source}:{self.domain}:{self.point if number is None else f'{number}@{self.point}'}"

    @classmethod
    def parse(cls, text: str) -> StreamIdentity:
        """Parse the text form (a database name may contain colons); raises OtherSource if it is malformed."""
        head, _, rest = text.partition(":")
        system, _, rest = rest.partition(":")
        try:
            kind = Kind(head)
            rest, _, start = rest.rpartition(":")
            csn = snapshot_csn = None
            if kind is Kind.GAUSS:
                rest, _, word = rest.rpartition(":")
                domain = OrderDomain(word)
                number, separator, point = start.rpartition("@")
                if domain is OrderDomain.CSN:
                    csn, start = Csn.parse(number), point
                elif separator:
                    snapshot_csn, start = Csn.parse(number), point
            database, _, slot = rest.rpartition(":")
            if system and database and slot:
                return cls(system, database, slot, Lsn.parse(start), csn, kind, snapshot_csn)
        except (errors.MalformedPosition, ValueError) as malformed:
            raise errors.OtherSource(_unknown(text)) from malformed
        raise errors.OtherSource(_unknown(text))


def takes_table_copies(stream: str) -> bool:
    """Whether a resync of one table has a position in a stream: with a GaussDB server only in CSN order."""
    return not stream.startswith(f"{Kind.GAUSS}:") or domain_of(stream) is OrderDomain.CSN


def domain_of(stream: str) -> OrderDomain:
    """The order domain of a stream by its identity in bronze; only the GaussDB family has another than LSN.

    Raises OtherSource if the text is of that family and malformed.
    """
    return StreamIdentity.parse(stream).domain if stream.startswith(f"{Kind.GAUSS}:") else OrderDomain.LSN


def format_stream_position(stream: str, position: int) -> str:
    """A position of a stream as commands accept it: `0/16B3748` in the lsn domain, `951909` in the csn domain."""
    return format_position(position, domain_of(stream))


def _unknown(text: str) -> str:
    return f"bronze contains the stream `{text}`, which this version does not know"


class TransactionAssembler(Protocol):
    """Assembles transactions from one connection's frames. Raises DecodeError; then, or on reconnect, call `reset`."""

    @property
    def in_transaction(self) -> bool:
        """True between a BEGIN and its COMMIT."""

    @property
    def open_csn(self) -> int | None:
        """The CSN of the BEGIN whose COMMIT is pending, None if there is none or it has no CSN."""

    @property
    def open_bytes(self) -> int:
        """Bytes of changes of transactions whose COMMIT is pending."""

    @property
    def completed_transactions(self) -> Sequence[ReceivedTransaction]:
        """After `feed` raised: the transactions completed by the payload before the error."""

    def feed(self, payload: bytes, lsn: int) -> Sequence[ReceivedTransaction]:
        """Consume a frame and its position; the transactions it completes, in the order of arrival."""

    def reset(self) -> None:
        """Discard everything that this connection sent."""


class FrameSource(Protocol):
    """An open stream. Frames are in order; after `confirm(p)` the server may discard everything up to p.

    Not thread-safe. Every method raises SourceError: ServerUnreachable if retrying helps.
    """

    @property
    def keepalive_end(self) -> int:
        """The newest WAL position the server announced: everything committed before it has been sent.

        0 if keepalives do not guarantee this (parallel decoding of the GaussDB family).
        """

    @property
    def reply_requested(self) -> bool:
        """True once after the server asked for a reply; reading it clears it."""

    def poll(self, timeout: float) -> list[tuple[int, bytes]]:
        """Frames as `(lsn, payload)`, waiting up to `timeout` seconds for the first; also answers keepalives."""

    def confirm(self, position: int) -> None:
        """Everything up to the slot position `position` is durable: tell the server so now."""

    def tick(self, *, ping: bool = False) -> None:
        """Send the status if it is due, without reading; with `ping`, now, and ask for a keepalive."""

    def close(self) -> None:
        """Close the connection; the slot stays."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table of a stream: its streamed columns in order, and its row filter (SQL), if any.

    `member`: identifies the table's entry in a publication; it changes if the table is removed and added again, or if
    other columns or rows are published. Without a publication: the transaction that gave the table its name
    (`decode.gaussdb.catalog_facts.named_by`). None: not queried. `oid`: the table's OID, a different one if the name
    refers to another table now.
    """

    table: TableName
    columns: tuple[str, ...]
    row_filter: str | None
    member: int | str | None = None
    oid: int | None = None


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A committed transaction that bronze does not have: position, its number in snapshots, changed tables."""

    position: int
    number: int
    tables: frozenset[TableName]


class SnapshotVisibility(Protocol):
    """The transactions visible in a source snapshot, by a number that bronze stores for each (`column`)."""

    @property
    def column(self) -> str:
        """The column of bronze's COMMIT rows with the number: xid or csn."""

    @property
    def position(self) -> int:
        """A position in the stream's order domain that no visible transaction exceeds."""

    def shows(self, number: int, position: int, /) -> bool:
        """Whether the transaction with this number, committed at a position of the order domain, is visible."""

    def may_be_hidden(self, numbers: Any, positions: Any, /) -> Any:
        """For int64 ndarrays of numbers and positions a bool ndarray: False if the transaction is certainly visible."""


VERSION: Final = (
    "c.oid::text || ' ' || c.xmin::text || ' ' || c.relfilenode::text || ' ' || (SELECT "
    "count(*)::text || ' ' || sum(a.xmin::text::bigint)::text FROM pg_attribute AS a WHERE a.attrelid = c.oid) || ' ' "
    "|| (SELECT count(*)::text || ' ' || coalesce(sum(i.xmin::text::bigint), 0)::text FROM pg_index AS i "
    "WHERE i.indrelid = c.oid) || ' ' || (SELECT t.xmin::text || ' ' || t.typowner::text FROM pg_type AS t "
    "WHERE t.oid = c.reltype)"
)
"""SQL over a table `c` of either family's catalog: a text that changes if the table is altered. Its last two words are
`decode.gaussdb.catalog_facts.named_by`.
"""


def select_tables(patterns: Sequence[str], tables: Iterable[TableName]) -> list[TableName]:
    """The tables that match the patterns, sorted; raises NoTableMatches for a pattern without matches."""
    candidates = sorted(tables)
    chosen: set[TableName] = set()
    for pattern in patterns:
        taken_out = pattern.startswith("!")
        match = _compile_pattern(pattern.removeprefix("!"))
        matches = {t for t in candidates if match(t)}
        if taken_out:
            chosen -= matches
        elif matches:
            chosen |= matches
        else:
            raise errors.NoTableMatches(f"`{pattern}` of `source.tables` matches no table in the database")
    if not chosen:
        raise errors.NoTableMatches("`source.tables` matches no table")
    return sorted(chosen)


def left_out(tables: Sequence[TableName]) -> str:
    """The patterns for `source.tables` that exclude some tables."""
    return f"{', '.join(f'`!{table}`' for table in tables)} in `source.tables`"


def chooses(patterns: Sequence[str]) -> Callable[[TableName], bool]:
    """The patterns as a predicate, without a list of tables; raises NoTableMatches for an invalid pattern."""
    steps = [(not pattern.startswith("!"), _compile_pattern(pattern.removeprefix("!"))) for pattern in patterns]

    def chosen(table: TableName) -> bool:
        inside = False
        for takes_in, match in steps:
            if takes_in is not inside and match(table):
                inside = takes_in
        return inside

    return chosen


def _compile_pattern(pattern: str) -> Callable[[TableName], bool]:
    """A pattern as a predicate: `schema.table`, escaped as in `TableName`, `*` and `?` within a part."""
    try:
        parts = TableName.parse(pattern)
    except ValueError as wrong:
        raise errors.NoTableMatches(f"`{pattern}` of `source.tables` is not a pattern: {wrong}") from wrong
    wild = {"*": ".*", "?": "."}
    schema, name = (
        re.compile("".join(wild.get(char) or re.escape(char) for char in part), re.DOTALL)
        for part in (parts.schema, parts.name)
    )
    return lambda table: bool(schema.fullmatch(table.schema) and name.fullmatch(table.name))


@dataclass(frozen=True, slots=True)
class SlotCounters:
    """`pg_stat_replication_slots`: transactions and bytes since the statistics were reset or began.

    `spilled`: larger than `logical_decoding_work_mem`, so written to the server's disk during decoding; `streamed`:
    sent before their COMMIT instead; `total`: all decoded ones. `since`: time of the reset; None: never, so they begin
    with the slot, or with a crash of the server that lost them.
    """

    spilled_transactions: int
    spilled_bytes: int
    streamed_transactions: int
    streamed_bytes: int
    total_transactions: int
    total_bytes: int
    since: datetime | None = None

    @property
    def counted_since(self) -> str:
        """The same for display."""
        return "since the slot's statistics began" if self.since is None else f"since {self.since:%Y-%m-%dT%H:%M:%SZ}"


_REMEDIES = {
    "idle_timeout": "raise idle_replication_slot_timeout on the server",
    "rows_removed": "set hot_standby_feedback = on at the standby that decodes",
    "wal_level_insufficient": "set wal_level = logical on the server again",
}
"""The first remedy by `pg_replication_slots.invalidation_reason` (PostgreSQL 17 and newer)."""


def check_fits(name: str, kind: str, of_slot: tuple[str | None, str | None], wanted: tuple[str, str]) -> None:
    """Raise SlotForeign, SlotOfOtherPlugin or SlotOfOtherDatabase if a slot, with its plugin and database, does not fit
    the `wanted` ones of the pipeline.
    """
    plugin, database = of_slot
    wanted_plugin, wanted_database = wanted
    if kind != "logical":
        raise errors.SlotForeign(f"slot `{name}` is {kind}; expected a logical one")
    if plugin != wanted_plugin:
        raise errors.SlotOfOtherPlugin(f"slot `{name}` uses plugin {plugin}; the pipeline reads {wanted_plugin}")
    if database != wanted_database:
        raise errors.SlotOfOtherDatabase(
            f"slot `{name}` belongs to database {database}; the pipeline reads {wanted_database}"
        )


def useless(name: str, reason: str, held: str) -> errors.SlotInvalidated:
    """The error for an invalidated slot, by the reason; `held`: the position of bronze."""
    words = f"slot `{name}` can no longer be used: {reason}; bronze contains changes up to {held}"
    if reason in {"wal_removed", "lost"}:
        return errors.WalGone(words)
    first = _REMEDIES.get(reason)
    return errors.SlotInvalidated(words, hint=None if first is None else f"{first}; then {ANEW}")


_LOOK: Final = 0.2  # seconds between two attempts


def dropped_when_free(drop: Callable[[], None], patience: float) -> None:
    """Retry `drop` while the slot is in use, for up to `patience` seconds. Raises its errors, SlotActive too."""
    until = time.monotonic() + patience
    while True:
        try:
            return drop()
        except errors.SlotActive:
            if time.monotonic() + _LOOK > until:
                raise
        time.sleep(_LOOK)
