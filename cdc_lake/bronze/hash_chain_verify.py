"""Verifies the hash chain: bronze contains exactly the landed transactions, once and unmodified.

Digests are computed again from the values in the rows, by the definition in `decode.hashing` and without the code that
landed them. Contents, counts and hashes are compared with each COMMIT row, from transaction to transaction and from
epoch to epoch, and the last hash with the head in the newest commit of cdc_lake. If a stream shows every CSN, the
numbers between two transactions are accounted for too: by transactions without rows, which the later one counts, and by
recorded gaps.

Verification reads file by file, in memory that grows neither with bronze nor with a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.bronze import hash_chain
from cdc_lake.bronze.contract import RELATION, SNAPSHOT, StreamCheckpoint
from cdc_lake.bronze.data_files import Files
from cdc_lake.bronze.reader import BronzeReader, relation_of, span_filter
from cdc_lake.decode.hashing import GENESIS
from cdc_lake.errors import BronzeBusy, BronzeDamaged
from cdc_lake.model.diagnostic import pluralize
from cdc_lake.model.position import END, Span
from cdc_lake.model.relation import Relation
from cdc_lake.observability.events import ProgressEvent, ProgressReporter, silent

_LOST_TAIL = "the table's last transactions are missing: its head is the hash of another transaction"


class ChainBreak(Exception):
    """The first mismatch: epoch and position, and the reason."""

    def __init__(self, epoch: int, position: int, reason: str) -> None:
        super().__init__(reason)
        self.place, self.reason = (epoch, max(position, 0)), reason


@dataclass(frozen=True, slots=True)
class PinnedVersion:
    """One version of bronze; `left`: epoch → position and hash of the last transaction that retention removed."""

    state: StreamCheckpoint
    files: Files
    left: Mapping[int, tuple[int, bytes]]


@dataclass(slots=True)
class _Epoch:
    """The progress in one epoch: `position` and `hash` of the previous transaction.

    `counted`: CSNs up to it are accounted for; None if the stream is not known to show every CSN.
    """

    number: int
    facts: hash_chain.EpochFacts
    position: int = -1
    hash: bytes = GENESIS
    counted: int | None = None


@dataclass
class ChainVerification:
    """One verification, used once."""

    reader: BronzeReader
    pinned: PinnedVersion
    span: Span | None
    epoch_facts: Mapping[int, hash_chain.EpochFacts]
    layouts: dict[int, Relation] = field(default_factory=dict)
    _current: _Epoch = field(init=False)
    _link: hash_chain.Link | None = None
    _transactions: int = 0
    _changes: int = 0
    _empty: int = 0
    _passed_over: int = 0
    _last: tuple[int, int] | None = None
    _trimmed_end: tuple[int, int] | None = None

    @property
    def verdict(self) -> hash_chain.ChainVerdict:
        """The result so far."""
        return hash_chain.ChainVerdict(
            self._transactions,
            self._changes,
            self._last,
            empty=self._empty,
            passed_over=self._passed_over,
            behind=self._trimmed_end,
        )

    @property
    def state(self) -> StreamCheckpoint:
        """The state of bronze's newest stream."""
        return self.pinned.state

    def run(self, report: ProgressReporter) -> None:
        """Verify every row in order. Raises ChainBreak at the first mismatch."""
        self._read_layouts()
        self._current = self._enter(1 if self.span is None else self.span.epoch)
        for rows in self._rows(report):
            for part in rows.parts():
                match part:
                    case hash_chain.CompleteTransaction():
                        is_verified = self._verify_transaction(rows, part)
                    case hash_chain.ChangeRun():
                        is_verified = self._run(rows, part)
                    case hash_chain.UnverifiedRows():
                        is_verified = False
                if not is_verified:
                    for row in rows.tuples(part):
                        self._row(row)
        self._check_closed()
        if self.span is None:
            self._forward(self.state.epoch, self._current.position)
        self._leave()

    # ── rows ──

    def _verify_transaction(self, rows: hash_chain.RowColumns, part: hash_chain.CompleteTransaction) -> bool:
        """Take a verified transaction; False if it does not match, or belongs to another epoch."""
        epoch, position = rows.places[part.start]
        current = self._current
        if self._link is not None or epoch != current.number or position <= current.position:
            return False
        first, last = part.start + 1, part.stop - 1
        digests, counts = rows.digests_in(first, last), rows.counts_in(first, last)
        linked = hash_chain.link_transaction(current.hash, position, digests, counts, rows.infos[last], rows.csns[last])
        if linked is None:
            return False
        self._stream_fits(rows.streams[last], position)
        self._count(linked)
        return True

    def _run(self, rows: hash_chain.RowColumns, part: hash_chain.ChangeRun) -> bool:
        """Take changes of an open transaction; False if they do not follow."""
        epoch, _ = rows.places[part.start]
        if self._link is None or epoch != self._current.number:
            return False
        digests, counts = rows.digests_in(part.start, part.stop), rows.counts_in(part.start, part.stop)
        return self._link.run(rows.row(part.start), digests, counts)

    def _row(self, row: tuple[Any, ...]) -> None:
        epoch, position = row[0], row[1]
        if epoch != self._current.number:
            self._check_closed()
            self._forward(epoch, position)
        if self._link is None:
            if position <= self._current.position:
                raise ChainBreak(epoch, position, f"it comes after position {self._current.position}")
            self._link = hash_chain.Link(self._current.hash, self.layouts)
        elif position != self._link.position:
            raise ChainBreak(epoch, self._link.position, "it does not run from BEGIN to COMMIT")
        try:
            linked = self._link.take(row)
        except hash_chain.ChainMismatch as misfit:
            raise ChainBreak(epoch, position, str(misfit)) from misfit
        if linked is not None:
            self._stream_fits(row[hash_chain.ROW.index("stream")], position)
            self._count(linked)
            self._link = None

    def _rows(self, report: ProgressReporter) -> Iterator[hash_chain.RowColumns]:
        files = self.pinned.files
        wanted = ~pc.field("op").isin([RELATION, SNAPSHOT])
        paths = files.select_span(self.span)
        for number, path in enumerate(paths):
            try:
                for part in files.batches(
                    [path], hash_chain.ROW, wanted if self.span is None else wanted & span_filter(self.span)
                ):
                    for batch in part.to_batches():
                        yield hash_chain.RowColumns(batch, self.layouts)
            except BronzeDamaged as lost:
                # the first place of the file according to the table, or the current place
                place = files.first(path) or (self._current.number, self._current.position)
                raise ChainBreak(*place, f"{lost.message}: {path.rpartition('/')[2]}") from lost
            text = f"verified {pluralize(self._transactions, 'transaction')}"
            report(ProgressEvent("chain", text, number + 1, len(paths), "files"))

    def _read_layouts(self) -> None:
        """Read the layouts of all files first: compaction may move layout rows after changes that use them."""
        wanted = pc.field("ordinal").is_null() & (pc.field("op") == RELATION)
        if self.span is not None:
            wanted &= pc.field("epoch") == self.span.epoch
        seen_layouts: set[tuple[Any, ...]] = set()
        columns = ["epoch", "position", "layout", "relation", "info"]
        for part in self._readable(self.pinned.files.select_span(self.span, RELATION), columns, wanted):
            for epoch, position, number, name, info in zip(*(c.to_pylist() for c in part.columns), strict=True):
                if (number, name, info) in seen_layouts:
                    continue
                try:
                    relation = relation_of(info)
                except BronzeDamaged:
                    relation = None
                if relation is None or (relation.layout, str(relation.table)) != (number, name):
                    raise ChainBreak(epoch, position, "a layout row does not describe its layout")
                seen_layouts.add((number, name, info))
                self.layouts[number] = relation

    def _readable(self, paths: Sequence[str], columns: Sequence[str], wanted: pc.Expression) -> Iterator[pa.Table]:
        """Rows of readable files; the others are reported when verification reaches them."""
        for path in paths:
            with suppress(BronzeDamaged):
                yield from self.pinned.files.batches([path], columns, wanted)

    # ── epochs ──

    def _enter(self, number: int) -> _Epoch:
        facts = self.epoch_facts.get(number, hash_chain.EpochFacts())
        if number == self.state.epoch and facts.stream is None:
            facts = replace(facts, stream=self.state.stream)
        current = _Epoch(number, facts, -1, GENESIS, facts.start if facts.dense else None)
        if facts.start is not None:
            current.position = facts.start
        before = None if self.span is None else self.reader.highest_commit(number, upto=self.span.after)
        left = self.pinned.left.get(number)
        if left is not None and before is None:
            current.position, current.hash = left
            current.counted = left[0] if facts.dense else None
            self._trimmed_end = (number, left[0])
        if before is not None:
            current.hash = self.reader.commits(Span(number, before - 1, before))[-1].hash
            current.position = before
            current.counted = before if facts.dense else None
        return current

    def _forward(self, epoch: int, position: int) -> None:
        """Move to the next epoch with rows; what is known of epochs in between must show that they have none."""
        if epoch < self._current.number:
            raise ChainBreak(epoch, position, f"it comes after epoch {self._current.number}")
        if epoch > self.state.epoch:
            raise ChainBreak(epoch, position, f"bronze has no epoch {epoch}: the latest is {self.state.epoch}")
        while self._current.number < epoch:
            self._leave()
            self._current = self._enter(self._current.number + 1)

    def _leave(self) -> None:
        """Verify the end of an epoch, as far as it is known and in the span."""
        current = self._current
        reached = self.span is None or self.span.upto >= (
            self.state.upto if current.number == self.state.epoch else END
        )
        head = self.state.head if current.number == self.state.epoch else current.facts.head
        if not reached or head is None:
            return
        if current.hash != head:
            raise ChainBreak(current.number, current.position, _LOST_TAIL)
        if current.number == self.state.epoch and current.counted is not None:
            self._account(self.state.upto + 1, self.state.empty)

    def _check_closed(self) -> None:
        if self._link is not None:
            raise ChainBreak(self._current.number, self._link.position, "it does not run from BEGIN to COMMIT")

    # ── transactions ──

    def _stream_fits(self, stream: str, position: int) -> None:
        current = self._current
        if current.facts.stream is None:
            current.facts = replace(current.facts, stream=stream)
        elif stream != current.facts.stream:
            raise ChainBreak(current.number, position, f"it belongs to another stream than epoch {current.number}")

    def _count(self, linked: hash_chain.LinkedTransaction) -> None:
        current = self._current
        empty = 0
        if current.counted is not None:
            if linked.csn != linked.position:
                raise ChainBreak(current.number, linked.position, "its CSN is not its position")
            self._account(linked.position, linked.empty_before)
            empty = linked.empty_before
        current.position, current.hash = linked.position, linked.hash
        self._transactions += 1
        self._changes += linked.changes
        self._empty += empty
        self._last = (current.number, linked.position)

    def _account(self, position: int, empty: int) -> None:
        """Verify that every CSN before `position` belongs to an empty transaction or a recorded gap."""
        current = self._current
        assert current.counted is not None
        missing = position - current.counted - 1 - empty
        passed = sum(
            max(0, min(last, position - 1) - max(first, current.counted + 1) + 1) for first, last in current.facts.gaps
        )
        if not 0 <= missing <= passed:
            between = f"between {current.counted} and {position}"
            reason = (
                f"{empty} empty transactions and {passed} recorded as missing do not account for the CSNs {between}"
            )
            raise ChainBreak(current.number, position, reason)
        current.counted = position
        self._passed_over += missing


_TURNS = 100


def verify(
    reader: BronzeReader,
    span: Span | None = None,
    *,
    load_epoch_facts: Callable[[], Mapping[int, hash_chain.EpochFacts]] = dict,
    report: ProgressReporter = silent,
) -> hash_chain.ChainVerdict:
    """Verify a span (None: every epoch from its start). What precedes a span is trusted.

    `load_epoch_facts` returns other knowledge of each epoch; it is called after the version to verify was chosen.
    Bronze may grow meanwhile. Raises BronzeBusy if no version can be read completely.
    """
    pinned = _pin_version(reader)
    if pinned is None:
        return hash_chain.ChainVerdict(0, 0, None)
    walk = ChainVerification(reader, pinned, span, load_epoch_facts())
    try:
        walk.run(report)
    except ChainBreak as broken:
        epoch, _ = broken.place
        stream = pinned.state.stream if epoch == pinned.state.epoch else reader.stream(epoch)
        return replace(walk.verdict, broken_at=broken.place, reason=broken.reason, stream=stream)
    return walk.verdict


def _pin_version(reader: BronzeReader) -> PinnedVersion | None:
    """The newest version, with all parts from the same one; None if no stream was started."""
    for _ in range(_TURNS):
        version = reader.version()
        state, files, trimmed = reader.state(), reader.files(), reader.last_trimmed()
        left = {e: end for e, end in trimmed.items() if reader.highest_commit(e, upto=end[0]) is None}
        if reader.version() == version:
            return None if state is None else PinnedVersion(state, files, left)
    raise BronzeBusy("bronze changed during each attempt to read it", where=reader.place, hint="run it again")
