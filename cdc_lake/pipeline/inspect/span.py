"""A span of bronze, transaction by transaction, with its totals: values for `cdc-lake inspect span`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cdc_lake.bronze.ledger import Ledger
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.errors import NotInBronze
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.span import Span
from cdc_lake.source.stream import domain_of

Counts = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class TransactionLine:
    """One transaction of a span, as its BEGIN and COMMIT rows say."""

    position: int
    csn: int | None
    xid: int | None
    commit_ts: datetime | None
    user: str | None
    origin: str | None
    counts: Counts
    bytes: int
    empty_before: int
    undecodable: bool

    @property
    def changes(self) -> int:
        """Changes of tables."""
        return sum(sum(kinds.values()) for kinds in self.counts.values())


@dataclass(frozen=True, slots=True)
class SpanView:
    """The transactions behind `after` up to `upto`: the first ones (`listed`), and the totals over all of them."""

    stream: str
    epoch: int
    after: int
    upto: int
    transactions: int
    changes: int
    bytes: int
    empty: int
    counts: Counts
    listed: tuple[TransactionLine, ...]


def asked_span(reader: BronzeReader, after: str | None, upto: str | None, epoch: int | None) -> Span:
    """The span between positions as people paste them; by default the newest epoch, all of it.

    Raises MalformedPosition, NotInBronze.
    """
    span = Ledger(reader).span(after, upto, epoch=epoch)
    if any("/" in text for text in (after, upto) if text) and _domain(reader, span.epoch) is OrderDomain.CSN:
        raise NotInBronze(
            f"epoch {span.epoch} is ordered by CSN, and an LSN was given",
            where=reader.place,
            hint="`cdc-lake status` shows its positions, plain numbers",
        )
    return span


def inspect_span(reader: BronzeReader, span: Span, limit: int) -> SpanView:
    """The first `limit` transactions of a span, and totals of all. Raises BronzeDamaged."""
    totals: Counts = {}
    listed: list[TransactionLine] = []
    seen = size = empty = 0
    for batch in Ledger(reader).transaction_batches(span):
        for row in batch.to_pylist(maps_as_pydicts="strict"):
            seen, size, empty = seen + 1, size + row["bytes"], empty + row["empty_before"]
            _add(totals, row["counts"])
            if len(listed) < limit:
                listed.append(_line(row))
    changes = sum(sum(kinds.values()) for kinds in totals.values())
    counts = {table: dict(sorted(kinds.items())) for table, kinds in sorted(totals.items())}
    return SpanView(
        reader.stream(span.epoch), span.epoch, span.after, span.upto, seen, changes, size, empty, counts, tuple(listed)
    )


def _line(row: Mapping[str, Any]) -> TransactionLine:
    names = ("position", "csn", "xid", "commit_ts", "user", "origin", "counts", "bytes", "empty_before")
    return TransactionLine(**{name: row[name] for name in names}, undecodable=row["undecodable"] is not None)


def _add(totals: Counts, counts: Counts) -> None:
    for table, kinds in counts.items():
        sums = totals.setdefault(table, {})
        for op, number in kinds.items():
            sums[op] = sums.get(op, 0) + number


def _domain(reader: BronzeReader, epoch: int) -> OrderDomain:
    return domain_of(reader.stream(epoch))
