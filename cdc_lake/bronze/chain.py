"""The chain, verified: are the transactions in bronze the ones that were landed, all of them, once and unedited?

Digests are computed again from the values in the rows by the definition in `decode.digest`, without the wire and
without the code that landed them; then contents, counts and hashes are compared with what each COMMIT row says, from
transaction to transaction, and the last hash with the head that the table's newest commit of ours names.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc

from cdc_lake.bronze.contract import BEGIN, COMMIT, DELETE, INSERT, MESSAGE, TRUNCATE, UNDECODABLE, UPDATE
from cdc_lake.bronze.reader import BronzeReader
from cdc_lake.decode.digest import (
    GENESIS,
    canonical_relation,
    canonical_tuple,
    canonical_undecodable,
    chain_of,
    content_of,
    digest_of,
)
from cdc_lake.decode.undecodable import READING
from cdc_lake.model.relation import Relation
from cdc_lake.model.span import Span
from cdc_lake.model.undecoded import Undecoded

_COLUMNS = ("position", "ordinal", "op", "relation", "layout", "new", "old", "old_kind", "unchanged", "raw", "info")
_ROW_CHANGES = (INSERT, UPDATE, DELETE)
_END = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ChainVerdict:
    """What was verified, up to the first thing that does not fit: where it is, in which stream, and in what way."""

    transactions: int
    changes: int
    last: tuple[int, int] | None  # epoch and position of the last transaction that fits
    broken_at: tuple[int, int] | None = None
    reason: str = ""
    stream: str = ""

    @property
    def holds(self) -> bool:
        """True where everything fits."""
        return not self.reason


def verify(reader: BronzeReader, span: Span | None = None) -> ChainVerdict:
    """Verify a span (None: every epoch from its start). What lies before a span is taken on trust."""
    state = reader.state()
    if state is None:
        return ChainVerdict(0, 0, None)
    spans = [span] if span is not None else [Span(epoch, -1, _END) for epoch in range(1, state.epoch + 1)]
    verdict = ChainVerdict(0, 0, None)
    for one in spans:
        head = state.head if one.epoch == state.epoch and one.upto >= state.upto else None
        verdict = _verify_epoch(reader, one, head, verdict)
        if not verdict.holds:
            return replace(verdict, stream=_stream(reader, one.epoch))
    return verdict


def _stream(reader: BronzeReader, epoch: int) -> str:
    files = reader.files()
    rows = files.read(files.select(epoch=epoch)[:1], ["stream", "epoch"], pc.field("epoch") == epoch)
    return str(rows["stream"][0]) if rows.num_rows else ""


def _verify_epoch(reader: BronzeReader, span: Span, head: bytes | None, before: ChainVerdict) -> ChainVerdict:
    transactions, changes, last = before.transactions, before.changes, before.last
    layouts: dict[int, str] = {}
    for row in reader.layout_rows(span).to_pylist():
        if not _layout_fits(row):
            place = (span.epoch, row["position"])
            return ChainVerdict(transactions, changes, last, place, "a layout row does not describe its layout")
        layouts[row["layout"]] = row["relation"]
    previous, position = _start(reader, span)
    for at, rows in reader.transactions(span, _COLUMNS):
        place = (span.epoch, at)
        if at <= position:
            return ChainVerdict(transactions, changes, last, place, f"it stands after position {position}")
        reason, previous = _transaction(rows, previous, layouts)
        if reason:
            return ChainVerdict(transactions, changes, last, place, reason)
        position, last = at, place
        transactions, changes = transactions + 1, changes + len(rows) - 2
    if head is not None and previous != head:
        missing = "the table's last transactions are missing: its head is the hash of another one"
        return ChainVerdict(transactions, changes, last, (span.epoch, position), missing)
    return ChainVerdict(transactions, changes, last)


def _start(reader: BronzeReader, span: Span) -> tuple[bytes, int]:
    """The hash and position before the span."""
    position = reader.highest_commit(span.epoch, upto=span.after)
    if position is None:
        return GENESIS, -1
    return reader.commits(Span(span.epoch, position - 1, position))[-1].hash, position


def _layout_fits(row: dict[str, Any]) -> bool:
    try:
        relation = Relation.from_description(json.loads(row["info"]))
    except (KeyError, TypeError, ValueError):
        return False
    return (relation.layout, str(relation.table)) == (row["layout"], row["relation"])


def _transaction(rows: Sequence[dict[str, Any]], previous: bytes, layouts: dict[int, str]) -> tuple[str, bytes]:
    """Why the transaction does not fit (empty: it does), and its hash."""
    if [row["ordinal"] for row in rows] != list(range(len(rows))):
        return "its ordinals do not count from 0: rows are missing, doubled or moved", previous
    if len(rows) < 2 or rows[0]["op"] != BEGIN or rows[-1]["op"] != COMMIT:
        return "it does not run from BEGIN to COMMIT", previous
    body = rows[1:-1]
    try:
        said = json.loads(rows[-1]["info"])
        content = content_of([digest_of(_canonical(row)) for row in body])
        fits = [said["counts"] == _counts(body) and _all_or_none(body, said), said["content"] == content.hex()]
        hashed = chain_of(previous, rows[0]["position"], content)
        fits.append(said["hash"] == hashed.hex())
    except (KeyError, TypeError, ValueError):
        return "a row of it cannot be read", previous
    if not all(row["layout"] is None or layouts.get(row["layout"]) == row["relation"] for row in body):
        return "a change follows a layout that bronze does not describe", previous
    reasons = (
        "its changes are not the ones its COMMIT row counts",
        "its changes are not the ones that were landed",
        "it does not follow the transaction before it: one is missing or doubled",
    )
    return next((reason for fit, reason in zip(fits, reasons, strict=True) if not fit), ""), hashed


def _counts(body: Sequence[dict[str, Any]]) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for (relation, op), number in Counter((row["relation"], row["op"]) for row in body).items():
        if op not in (MESSAGE, UNDECODABLE):
            counts.setdefault(relation, {})[op] = number
    return counts


def _all_or_none(body: Sequence[dict[str, Any]], said: dict[str, Any]) -> bool:
    """Whether the rows `X` are as many as the COMMIT row says, and then all there is."""
    frames = sum(row["op"] == UNDECODABLE for row in body)
    if "undecodable" not in said:
        return not frames
    return bool(frames == Undecoded.from_description(said["undecodable"]).frames == len(body))


def _canonical(row: dict[str, Any]) -> bytes:
    """The canonical bytes of a change row; KeyError, TypeError or ValueError where it is not one."""
    op = row["op"]
    if op == MESSAGE:
        info = json.loads(row["info"])
        prefix, content = str(info["prefix"]).encode(), base64.b64decode(info["content"], validate=True)
        return b"M" + _sized(prefix) + _sized(content)
    if op == UNDECODABLE:
        reading = json.loads(row["info"] or "{}").get(READING, "")
        return canonical_undecodable(reading, row["relation"], row["raw"])
    if op not in (*_ROW_CHANGES, TRUNCATE) or row["relation"] is None:
        raise ValueError(op)
    out: bytes = op.encode() + canonical_relation(row["relation"])
    if op == TRUNCATE:
        info = json.loads(row["info"])
        return out + b"c" * bool(info["cascade"]) + b"r" * bool(info["restart_identity"])
    if row["old"] is not None:
        out += {"key": b"K", "full": b"O"}[row["old_kind"]] + canonical_tuple(row["old"])
    if row["new"] is not None:
        out += b"N" + canonical_tuple(row["new"], frozenset(row["unchanged"] or ()))
    return out


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
