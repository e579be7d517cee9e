"""The chain, verified: are the transactions in bronze the ones that were landed, all of them, once and unedited?

Digests are computed again from the values in the rows by the definition in `decode.digest`, without the wire and
without the code that landed them; then contents, counts and hashes are compared with what each COMMIT row says, from
transaction to transaction, and the last hash with the head that the table's newest commit of ours names. Where a stream
shows every CSN, the numbers between two transactions are accounted for too: by transactions without rows, which the
later one counts, and by recorded gaps.

File by file, in memory that grows neither with bronze nor with a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow.compute as pc

from cdc_lake.bronze.chain_link import ROW, Link, Linked, Misfit
from cdc_lake.bronze.contract import RELATION, SNAPSHOT
from cdc_lake.bronze.files import Files
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader, relation_of, within
from cdc_lake.decode.digest import GENESIS
from cdc_lake.errors import BronzeBusy, BronzeDamaged
from cdc_lake.model.relation import Relation
from cdc_lake.model.span import Span
from cdc_lake.observe.progress import Progress, Tell, silent

_END = (1 << 63) - 1
_TURNS = 100
_ROWS_AT_ONCE = 4096
_LOST_TAIL = "the table's last transactions are missing: its head is the hash of another one"


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


def verify(
    reader: BronzeReader,
    span: Span | None = None,
    *,
    beside: Callable[[], Mapping[int, Beside]] = dict,
    tell: Tell = silent,
) -> ChainVerdict:
    """Verify a span (None: every epoch from its start). What lies before a span is taken on trust.

    `beside` gives what is known of each epoch beside bronze; it is asked once the version to verify is chosen.
    Bronze may go on meanwhile. Raises BronzeBusy where no version can be read in peace.
    """
    pinned = _pinned(reader)
    if pinned is None:
        return ChainVerdict(0, 0, None)
    walk = _Walk(reader, pinned, span, beside())
    try:
        walk.run(tell)
    except _Broken as broken:
        epoch, _ = broken.place
        return replace(walk.verdict, broken_at=broken.place, reason=broken.reason, stream=walk.stream_of(epoch))
    return walk.verdict


@dataclass(frozen=True, slots=True)
class _Pinned:
    """One version of bronze; `left`: epoch → position and hash of the last transaction that left by retention."""

    state: BronzeState
    files: Files
    left: Mapping[int, tuple[int, bytes]]


def _pinned(reader: BronzeReader) -> _Pinned | None:
    """The newest version, all parts of it from the same one; None where no stream was started."""
    for _ in range(_TURNS):
        version = reader.version()
        state, files, trimmed = reader.state(), reader.files(), reader.trimmed()
        left = {e: at for e, at in trimmed.items() if reader.highest_commit(e, upto=at[0]) is None}
        if reader.version() == version:
            return None if state is None else _Pinned(state, files, left)
    raise BronzeBusy("bronze changed each time it was looked at", where=reader.place, hint="run it again")


class _Broken(Exception):
    def __init__(self, epoch: int, position: int, reason: str) -> None:
        super().__init__(reason)
        self.place, self.reason = (epoch, max(position, 0)), reason


@dataclass(slots=True)
class _Epoch:
    """Where the walk stands in one epoch: `position` and `hash` of the transaction before.

    `counted`: CSNs up to it are accounted for; None where the stream does not show every CSN, as far as is known.
    """

    number: int
    known: Beside
    position: int = -1
    hash: bytes = GENESIS
    counted: int | None = None


@dataclass
class _Walk:
    reader: BronzeReader
    pinned: _Pinned
    span: Span | None
    beside: Mapping[int, Beside]
    verdict: ChainVerdict = field(default_factory=lambda: ChainVerdict(0, 0, None))
    layouts: dict[int, Relation] = field(default_factory=dict)

    @property
    def state(self) -> BronzeState:
        """What bronze says of its newest stream."""
        return self.pinned.state

    def run(self, tell: Tell) -> None:
        """Every row in order. Raises _Broken at the first that does not fit."""
        self._read_layouts()
        at = self._enter(1 if self.span is None else self.span.epoch)
        link: Link | None = None
        for row in self._rows(tell):
            epoch, position = row[0], row[1]
            if epoch != at.number:
                self._closed(at, link)
                at, link = self._forward(at, epoch, position), None
            if link is None:
                if position <= at.position:
                    raise _Broken(epoch, position, f"it stands after position {at.position}")
                link = Link(at.hash, self.layouts)
            elif position != link.position:
                raise _Broken(epoch, link.position, "it does not run from BEGIN to COMMIT")
            try:
                linked = link.take(row)
            except Misfit as misfit:
                raise _Broken(epoch, position, str(misfit)) from misfit
            if linked is not None:
                self._stream_fits(at, row)
                self._count(at, linked)
                link = None
        self._closed(at, link)
        if self.span is None:
            at = self._forward(at, self.state.epoch, at.position)
        self._leave(at)

    def stream_of(self, epoch: int) -> str:
        """The stream of an epoch, as bronze names it."""
        return self.state.stream if epoch == self.state.epoch else self.reader.stream(epoch)

    # ── rows ──

    def _rows(self, tell: Tell) -> Iterator[tuple[Any, ...]]:
        files = self.pinned.files
        wanted = ~pc.field("op").isin([RELATION, SNAPSHOT])
        paths = self._paths()
        for number, path in enumerate(paths):
            for part in files.batches([path], ROW, wanted if self.span is None else wanted & within(self.span)):
                for some in part.to_batches(max_chunksize=_ROWS_AT_ONCE):
                    yield from zip(*(column.to_pylist() for column in some.columns), strict=True)
            text = f"verified {self.verdict.transactions:,} transactions"
            tell(Progress("chain", text, number + 1, len(paths), "files"))

    def _paths(self, op: str | None = None) -> list[str]:
        if self.span is None:
            return self.pinned.files.select(op=op)
        return self.pinned.files.select(epoch=self.span.epoch, after=self.span.after, upto=self.span.upto, op=op)

    def _read_layouts(self) -> None:
        """Of all files first: compaction may move layout rows behind the changes that follow them."""
        files = self.pinned.files
        wanted = pc.field("ordinal").is_null() & (pc.field("op") == RELATION)
        if self.span is not None:
            wanted &= pc.field("epoch") == self.span.epoch
        seen: set[tuple[Any, ...]] = set()
        columns = ["epoch", "position", "layout", "relation", "info"]
        for part in files.batches(self._paths(RELATION), columns, wanted):
            for epoch, position, number, name, info in zip(*(c.to_pylist() for c in part.columns), strict=True):
                if (number, name, info) in seen:
                    continue
                try:
                    relation = relation_of(info)
                except BronzeDamaged:
                    relation = None
                if relation is None or (relation.layout, str(relation.table)) != (number, name):
                    raise _Broken(epoch, position, "a layout row does not describe its layout")
                seen.add((number, name, info))
                self.layouts[number] = relation

    # ── epochs ──

    def _enter(self, number: int) -> _Epoch:
        known = self.beside.get(number, Beside())
        if number == self.state.epoch and known.stream is None:
            known = replace(known, stream=self.state.stream)
        at = _Epoch(number, known, -1, GENESIS, known.start if known.dense else None)
        if known.start is not None:
            at.position = known.start
        before = None if self.span is None else self.reader.highest_commit(number, upto=self.span.after)
        left = self.pinned.left.get(number)
        if left is not None and before is None:
            at.position, at.hash = left
            at.counted = left[0] if known.dense else None
            self.verdict = replace(self.verdict, behind=(number, left[0]))
        if before is not None:
            at.hash = self.reader.commits(Span(number, before - 1, before))[-1].hash
            at.position = before
            at.counted = before if known.dense else None
        return at

    def _forward(self, at: _Epoch, epoch: int, position: int) -> _Epoch:
        """The next epoch that has rows; those in between have none, which what is known of them must bear out."""
        if epoch < at.number:
            raise _Broken(epoch, position, f"it stands after epoch {at.number}")
        if epoch > self.state.epoch:
            raise _Broken(epoch, position, f"bronze has no epoch {epoch}: the newest is {self.state.epoch}")
        while at.number < epoch:
            self._leave(at)
            at = self._enter(at.number + 1)
        return at

    def _leave(self, at: _Epoch) -> None:
        """The end of an epoch, as far as it is known and the span reaches it."""
        whole = self.span is None or self.span.upto >= (self.state.upto if at.number == self.state.epoch else _END)
        head = self.state.head if at.number == self.state.epoch else at.known.head
        if not whole or head is None:
            return
        if at.hash != head:
            raise _Broken(at.number, at.position, _LOST_TAIL)
        if at.number == self.state.epoch and at.counted is not None:
            self._account(at, self.state.upto + 1, self.state.empty)

    def _closed(self, at: _Epoch, link: Link | None) -> None:
        if link is not None:
            raise _Broken(at.number, link.position, "it does not run from BEGIN to COMMIT")

    # ── transactions ──

    def _stream_fits(self, at: _Epoch, row: tuple[Any, ...]) -> None:
        stream = row[ROW.index("stream")]
        if at.known.stream is None:
            at.known = replace(at.known, stream=stream)
        elif stream != at.known.stream:
            raise _Broken(at.number, row[1], f"it is of another stream than epoch {at.number} is")

    def _count(self, at: _Epoch, linked: Linked) -> None:
        empty = 0
        if at.counted is not None:
            if linked.csn != linked.position:
                raise _Broken(at.number, linked.position, "its CSN is not its position")
            self._account(at, linked.position, linked.empty_before)
            empty = linked.empty_before
        at.position, at.hash = linked.position, linked.hash
        self.verdict = replace(
            self.verdict,
            transactions=self.verdict.transactions + 1,
            changes=self.verdict.changes + linked.changes,
            last=(at.number, linked.position),
            empty=self.verdict.empty + empty,
        )

    def _account(self, at: _Epoch, position: int, empty: int) -> None:
        """Every CSN between what is accounted for and `position` is of an empty transaction or in a recorded gap."""
        assert at.counted is not None
        missing = position - at.counted - 1 - empty
        passed = sum(max(0, min(last, position - 1) - max(first, at.counted + 1) + 1) for first, last in at.known.gaps)
        if not 0 <= missing <= passed:
            between = f"between {at.counted} and {position}"
            said = f"{empty} empty transactions and {passed} recorded as missing do not account for the CSNs {between}"
            raise _Broken(at.number, position, said)
        at.counted = position
        self.verdict = replace(self.verdict, passed_over=self.verdict.passed_over + missing)
