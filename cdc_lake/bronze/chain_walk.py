"""The walk over all rows of bronze, from transaction to transaction and from epoch to epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze.chain_columns import Odd, RowColumns, Run, Whole
from cdc_lake.bronze.chain_link import ROW, Link, Linked, Misfit, whole
from cdc_lake.bronze.chain_verdict import Beside, ChainVerdict
from cdc_lake.bronze.contract import RELATION, SNAPSHOT
from cdc_lake.bronze.files import Files
from cdc_lake.bronze.port import BronzeState
from cdc_lake.bronze.reader import BronzeReader, relation_of, within
from cdc_lake.decode.digest import GENESIS
from cdc_lake.errors import BronzeDamaged
from cdc_lake.model.counting import counted
from cdc_lake.model.relation import Relation
from cdc_lake.model.span import Span
from cdc_lake.observe.progress import Progress, Tell

_END = (1 << 63) - 1
_LOST_TAIL = "the table's last transactions are missing: its head is the hash of another one"


class Broken(Exception):
    """The first thing that does not fit: epoch and position, and in what way."""

    def __init__(self, epoch: int, position: int, reason: str) -> None:
        super().__init__(reason)
        self.place, self.reason = (epoch, max(position, 0)), reason


@dataclass(frozen=True, slots=True)
class Pinned:
    """One version of bronze; `left`: epoch → position and hash of the last transaction that left by retention."""

    state: BronzeState
    files: Files
    left: Mapping[int, tuple[int, bytes]]


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
class Walk:
    """One verification, used once."""

    reader: BronzeReader
    pinned: Pinned
    span: Span | None
    beside: Mapping[int, Beside]
    layouts: dict[int, Relation] = field(default_factory=dict)
    _at: _Epoch = field(init=False)
    _link: Link | None = None
    _transactions: int = 0
    _changes: int = 0
    _empty: int = 0
    _passed_over: int = 0
    _last: tuple[int, int] | None = None
    _behind: tuple[int, int] | None = None

    @property
    def verdict(self) -> ChainVerdict:
        """What fits until now."""
        return ChainVerdict(
            self._transactions,
            self._changes,
            self._last,
            empty=self._empty,
            passed_over=self._passed_over,
            behind=self._behind,
        )

    @property
    def state(self) -> BronzeState:
        """What bronze says of its newest stream."""
        return self.pinned.state

    def run(self, tell: Tell) -> None:
        """Every row in order. Raises Broken at the first that does not fit."""
        self._read_layouts()
        self._at = self._enter(1 if self.span is None else self.span.epoch)
        for rows in self._rows(tell):
            for part in rows.parts():
                match part:
                    case Whole():
                        seen = self._whole(rows, part)
                    case Run():
                        seen = self._run(rows, part)
                    case Odd():
                        seen = False
                if not seen:
                    for row in rows.tuples(part):
                        self._row(row)
        self._closed()
        if self.span is None:
            self._forward(self.state.epoch, self._at.position)
        self._leave()

    def stream_of(self, epoch: int) -> str:
        """The stream of an epoch, as bronze names it."""
        return self.state.stream if epoch == self.state.epoch else self.reader.stream(epoch)

    # ── rows ──

    def _whole(self, rows: RowColumns, part: Whole) -> bool:
        """Take a transaction that fits; False where it does not, or is of another epoch."""
        epoch, position = rows.place(part.start)
        at = self._at
        if self._link is not None or epoch != at.number or position <= at.position:
            return False
        first, last = part.start + 1, part.stop - 1
        said = rows.said(last)
        linked = whole(at.hash, position, rows.digests_in(first, last), rows.counts_in(first, last), *said)
        if linked is None:
            return False
        self._stream_fits(rows.stream(last), position)
        self._count(linked)
        return True

    def _run(self, rows: RowColumns, part: Run) -> bool:
        """Take changes of a transaction that is begun; False where they do not follow."""
        epoch, _ = rows.place(part.start)
        if self._link is None or epoch != self._at.number:
            return False
        digests, counts = rows.digests_in(part.start, part.stop), rows.counts_in(part.start, part.stop)
        return self._link.run(rows.row(part.start), digests, counts)

    def _row(self, row: tuple[Any, ...]) -> None:
        epoch, position = row[0], row[1]
        if epoch != self._at.number:
            self._closed()
            self._forward(epoch, position)
        if self._link is None:
            if position <= self._at.position:
                raise Broken(epoch, position, f"it stands after position {self._at.position}")
            self._link = Link(self._at.hash, self.layouts)
        elif position != self._link.position:
            raise Broken(epoch, self._link.position, "it does not run from BEGIN to COMMIT")
        try:
            linked = self._link.take(row)
        except Misfit as misfit:
            raise Broken(epoch, position, str(misfit)) from misfit
        if linked is not None:
            self._stream_fits(row[ROW.index("stream")], position)
            self._count(linked)
            self._link = None

    def _rows(self, tell: Tell) -> Iterator[RowColumns]:
        files = self.pinned.files
        wanted = ~pc.field("op").isin([RELATION, SNAPSHOT])
        paths = self._paths()
        for number, path in enumerate(paths):
            try:
                for part in files.batches([path], ROW, wanted if self.span is None else wanted & within(self.span)):
                    for some in part.to_batches():
                        yield RowColumns(some, self.layouts)
            except BronzeDamaged as lost:
                raise Broken(*self._first_of(path), f"{lost.message}: {path.rpartition('/')[2]}") from lost
            text = f"verified {counted(self._transactions, 'transaction')}"
            tell(Progress("chain", text, number + 1, len(paths), "files"))

    def _first_of(self, path: str) -> tuple[int, int]:
        """Where a file that cannot be read begins, as the table says, or where the walk stands."""
        return self.pinned.files.first(path) or (self._at.number, self._at.position)

    def _paths(self, op: str | None = None) -> list[str]:
        if self.span is None:
            return self.pinned.files.select(op=op)
        return self.pinned.files.select(epoch=self.span.epoch, after=self.span.after, upto=self.span.upto, op=op)

    def _read_layouts(self) -> None:
        """Of all files first: compaction may move layout rows behind the changes that follow them."""
        wanted = pc.field("ordinal").is_null() & (pc.field("op") == RELATION)
        if self.span is not None:
            wanted &= pc.field("epoch") == self.span.epoch
        seen: set[tuple[Any, ...]] = set()
        columns = ["epoch", "position", "layout", "relation", "info"]
        for part in self._readable(self._paths(RELATION), columns, wanted):
            for epoch, position, number, name, info in zip(*(c.to_pylist() for c in part.columns), strict=True):
                if (number, name, info) in seen:
                    continue
                try:
                    relation = relation_of(info)
                except BronzeDamaged:
                    relation = None
                if relation is None or (relation.layout, str(relation.table)) != (number, name):
                    raise Broken(epoch, position, "a layout row does not describe its layout")
                seen.add((number, name, info))
                self.layouts[number] = relation

    def _readable(self, paths: Sequence[str], columns: Sequence[str], wanted: pc.Expression) -> Iterator[pa.Table]:
        """Of the files that can be read: of the others the walk says so, when it gets there."""
        for path in paths:
            with suppress(BronzeDamaged):
                yield from self.pinned.files.batches([path], columns, wanted)

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
            self._behind = (number, left[0])
        if before is not None:
            at.hash = self.reader.commits(Span(number, before - 1, before))[-1].hash
            at.position = before
            at.counted = before if known.dense else None
        return at

    def _forward(self, epoch: int, position: int) -> None:
        """On to the next epoch that has rows; those in between have none, which what is known of them must bear out."""
        if epoch < self._at.number:
            raise Broken(epoch, position, f"it stands after epoch {self._at.number}")
        if epoch > self.state.epoch:
            raise Broken(epoch, position, f"bronze has no epoch {epoch}: the newest is {self.state.epoch}")
        while self._at.number < epoch:
            self._leave()
            self._at = self._enter(self._at.number + 1)

    def _leave(self) -> None:
        """The end of an epoch, as far as it is known and the span reaches it."""
        at = self._at
        reached = self.span is None or self.span.upto >= (self.state.upto if at.number == self.state.epoch else _END)
        head = self.state.head if at.number == self.state.epoch else at.known.head
        if not reached or head is None:
            return
        if at.hash != head:
            raise Broken(at.number, at.position, _LOST_TAIL)
        if at.number == self.state.epoch and at.counted is not None:
            self._account(self.state.upto + 1, self.state.empty)

    def _closed(self) -> None:
        if self._link is not None:
            raise Broken(self._at.number, self._link.position, "it does not run from BEGIN to COMMIT")

    # ── transactions ──

    def _stream_fits(self, stream: str, position: int) -> None:
        at = self._at
        if at.known.stream is None:
            at.known = replace(at.known, stream=stream)
        elif stream != at.known.stream:
            raise Broken(at.number, position, f"it is of another stream than epoch {at.number} is")

    def _count(self, linked: Linked) -> None:
        at = self._at
        empty = 0
        if at.counted is not None:
            if linked.csn != linked.position:
                raise Broken(at.number, linked.position, "its CSN is not its position")
            self._account(linked.position, linked.empty_before)
            empty = linked.empty_before
        at.position, at.hash = linked.position, linked.hash
        self._transactions += 1
        self._changes += linked.changes
        self._empty += empty
        self._last = (at.number, linked.position)

    def _account(self, position: int, empty: int) -> None:
        """Every CSN between what is accounted for and `position` is of an empty transaction or in a recorded gap."""
        at = self._at
        assert at.counted is not None
        missing = position - at.counted - 1 - empty
        passed = sum(max(0, min(last, position - 1) - max(first, at.counted + 1) + 1) for first, last in at.known.gaps)
        if not 0 <= missing <= passed:
            between = f"between {at.counted} and {position}"
            said = f"{empty} empty transactions and {passed} recorded as missing do not account for the CSNs {between}"
            raise Broken(at.number, position, said)
        at.counted = position
        self._passed_over += missing
