"""Holds: which keys of a table wait, kept in the control table `held`.

A row of it is one change that was kept back (`failed`: it breaks a rule; `waiting`: a change of the same key is held
before it), or `closed`: what ended holds, a truncate those of its table, a row that was read again those of its key.
Rows count only up to the table's watermark: those above it belong to a span that was not merged, and are written again
with it. Nor do they count beside another generation of the table than theirs: a rebuild judges every change again and
records its own.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.config.project import Target
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.span import Span
from cdc_lake.silver.lineage import Closing, Key

FAILED, WAITING, CLOSED = "failed", "waiting", "closed"


@dataclass(frozen=True)
class OpenHolds:
    """What is held of one table: its rows of the control table in order, and the keys they touch."""

    rows: pa.Table
    keys: frozenset[Key]


def open_holds(held: pa.Table, relation: str, epoch: int, generation: int, watermark: int) -> OpenHolds:
    """The open holds of a generation of a table at its watermark. `held` is the control table."""
    mine = held.filter(
        (pc.field("relation") == relation)
        & (pc.field("epoch") == epoch)
        & (pc.field("generation") == generation)
        & (pc.field("position") <= watermark)
    ).sort_by([("position", "ascending"), ("ordinal", "ascending")])
    rows = mine.select(["reason", "key", "from_key"]).to_pylist()
    ends = [at for at, row in enumerate(rows) if row["reason"] == CLOSED and row["key"] is None]
    first = ends[-1] + 1 if ends else 0
    since: dict[Key, int] = {}  # key → the first of its changes that are held
    for at, row in enumerate(rows[first:], first):
        for key in _keys(row):
            if row["reason"] == CLOSED:
                since.pop(key, None)
            else:
                since.setdefault(key, at)
    stays = [
        at >= first and row["reason"] != CLOSED and any(since.get(key, at + 1) <= at for key in _keys(row))
        for at, row in enumerate(rows)
    ]
    return OpenHolds(mine.filter(pa.array(stays, pa.bool_())), frozenset(since))


def _keys(row: Mapping[str, Any]) -> set[Key]:
    return {tuple(key) for key in (row["key"], row["from_key"]) if key is not None}


def record(
    control: ControlTables,
    target: Target,
    stream: str,
    span: Span,
    generation: int,
    held: pa.Table | None,
    closings: Sequence[Closing],
) -> None:
    """Replace what is recorded of a generation of a table above its watermark by what this span holds."""
    same = (pc.field("relation") == str(target.source)) & (pc.field("epoch") == span.epoch)
    above = (pc.field("generation") == generation) & (pc.field("position") > span.after)
    control.delete("held", same & above)
    rows = [_row(target, stream, span, generation, closing.position, closing.ordinal) for closing in closings]
    for row, closing in zip(rows, closings, strict=True):
        row.update({} if closing.key is None else {"op": "S", "key": list(closing.key)})
    if held is not None:
        for change in held.to_pylist():
            row = _row(target, stream, span, generation, change["position"], change["ordinal"])
            row.update(change, reason=FAILED if change["rules"] else WAITING)
            rows.append(row)
    if rows:
        control.append("held", rows)


def forget(control: ControlTables, target: Target, epoch: int, generation: int, *, replaced: bool) -> None:
    """Remove what is recorded of other generations of a table than `generation`, the one that counts: of those that
    never came to be, with `replaced` also of those before it.
    """
    same = (pc.field("relation") == str(target.source)) & (pc.field("epoch") == epoch)
    others = pc.field("generation") != generation if replaced else pc.field("generation") > generation
    control.delete("held", same & others)


def _row(target: Target, stream: str, span: Span, generation: int, position: int, ordinal: int) -> dict[str, object]:
    return {
        "stream": stream,
        "epoch": span.epoch,
        "position": position,
        "ordinal": ordinal,
        "generation": generation,
        "relation": str(target.source),
        "table": target.label,
        "op": "T",
        "reason": CLOSED,
        "rules": None,
        "key": None,
        "from_key": None,
        "layout": None,
        "new": None,
        "old": None,
        "old_kind": None,
        "unchanged": None,
        "span_upto": span.upto,
        "recorded_at": dt.datetime.now(dt.UTC),
    }
