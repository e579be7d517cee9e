"""The quarantine: which keys of a table are held, according to the control table `quarantine`.

A row of it is a quarantined change (`failed`: it violates a rule; `waiting`: a change of the same key is held before
it, or one of its transaction in a group), or `closed`: an end of holds, by a truncate for its table, by a repaired row
for its key. A decision in the control table `decisions` also ends a hold, from its position on.

Rows count only up to the table's watermark: those above it belong to a span that was not merged, and are written again
with it. They count only for their generation of the table: a rebuild evaluates every change again and records its own.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc_lake.config.project import Target
from cdc_lake.model.position import Span
from cdc_lake.model.quarantine import DISCARD, NOTHING_DECIDED, ON, Decided, Place, decided_in, place_of
from cdc_lake.silver.row_tracing import NOTHING_WAITS, HoldRelease, Key, QuarantineState
from cdc_lake.tables.control_schema import schema_of
from cdc_lake.tables.control_tables import ControlTables

FAILED, WAITING, CLOSED = "failed", "waiting", "closed"


@dataclass(frozen=True)
class QuarantineLog:
    """The control tables `quarantine` and `decisions`, as read."""

    quarantined: pa.Table
    decisions: pa.Table

    def decisions_on(self, relation: str, span: Span) -> Decided:
        """The decisions about one table that take effect in a span."""
        if self.decisions.num_rows == 0:  # usual, and a filter would take milliseconds
            return NOTHING_DECIDED
        return decided_in(self.decisions.filter(pc.field("relation") == relation), span)

    def decided_tables(self, span: Span) -> frozenset[str]:
        """The tables with a decision that takes effect in a span."""
        rows = decided_in(self.decisions, span).rows
        return frozenset() if rows is None else frozenset(rows["relation"].to_pylist())


def quarantine_log(control: ControlTables, *, for_new_content: bool = False) -> QuarantineLog:
    """Read the current records. Without holds there are no decisions; `for_new_content`: for a new generation, of which
    nothing is recorded yet.
    """
    quarantined = control.read("quarantine")
    asked = for_new_content or quarantined.num_rows
    return QuarantineLog(quarantined, control.read("decisions") if asked else schema_of("decisions").empty_table())


@dataclass(frozen=True)
class OpenQuarantine:
    """The quarantined changes of one table: its rows of the control table in order, and the keys they hold. `given_up`:
    discards, in order, of keys whose source row silver has not had since; `apart`: these keys, by place of the
    discarded change.
    """

    rows: pa.Table
    waiting: QuarantineState
    given_up: pa.Table
    apart: Mapping[Place, frozenset[Key]]

    @property
    def keys(self) -> frozenset[Key]:
        """The quarantined keys."""
        return self.waiting.keys

    @property
    def kept_back(self) -> list[dict[str, Any]]:
        """All changes that silver lacks, held or discarded, each at its own place; `key_told`, `from_key_told`: the
        state of that key became known since.
        """
        quarantined = [(place_of(row), self.waiting.quarantined, row) for row in self.rows.to_pylist()]
        quarantined += [(place_of(row, ON), self.apart, row) for row in self.given_up.to_pylist()]
        return [
            row
            | {"position": place[0], "ordinal": place[1]}
            | {
                f"{of}_told": row[of] is not None and tuple(row[of]) not in keys_by_place[place]
                for of in ("key", "from_key")
            }
            for place, keys_by_place, row in quarantined
        ]


def open_quarantine(log: QuarantineLog, relation: str, epoch: int, generation: int, watermark: int) -> OpenQuarantine:
    """The open holds of a generation of a table at its watermark."""
    if log.quarantined.num_rows == log.decisions.num_rows == 0:
        return OpenQuarantine(log.quarantined, NOTHING_WAITS, log.decisions, {})
    of_table = (pc.field("relation") == relation) & (pc.field("epoch") == epoch)
    order = [("position", "ascending"), ("ordinal", "ascending")]
    above = pc.field("position") <= watermark
    own_rows = log.quarantined.filter(of_table & (pc.field("generation") == generation) & above).sort_by(order)
    decisions = log.decisions.filter(of_table & above).sort_by(order)
    quarantined, given_up = _Kept(), _Kept()
    # A released change may be held again under its new place, that of the decision, so this comes first.
    steps = [(*place_of(row), 0, index, row) for index, row in enumerate(_plain(decisions, *ON, "verb"))]
    steps += [(*place_of(row), 1, index, row) for index, row in enumerate(_plain(own_rows, "reason"))]
    for position, ordinal, kind, index, row in sorted(steps, key=lambda step: step[:3]):
        if kind == 0:
            place = place_of(row, ON)
            keys = quarantined.remove(place)
            if keys and row["verb"] == DISCARD:
                given_up.add(place, keys, index)
        elif row["reason"] != CLOSED:
            quarantined.add((position, ordinal), _keys(row), index)
        else:
            quarantined.close(row["key"])
            given_up.close(row["key"])
    waiting = QuarantineState(quarantined.keys, frozenset().union(*given_up.keys.values()))
    return OpenQuarantine(own_rows.take(quarantined.rows()), waiting, decisions.take(given_up.rows()), given_up.keys)


def recorded_keys(log: QuarantineLog, relation: str, epoch: int, generation: int, watermark: int) -> frozenset[Key]:
    """The keys of all changes that one generation of a table ever held up to its watermark."""
    own_rows = (
        (pc.field("relation") == relation) & (pc.field("epoch") == epoch) & (pc.field("generation") == generation)
    )
    rows = log.quarantined.filter(own_rows & (pc.field("position") <= watermark) & (pc.field("reason") != CLOSED))
    return frozenset().union(*map(_keys, rows.select(["key", "from_key"]).to_pylist()))


class _Kept:
    """Changes by place: the keys that each still holds, and the number of its row."""

    def __init__(self) -> None:
        self.keys: dict[Place, frozenset[Key]] = {}
        self._row_numbers: dict[Place, int] = {}
        self._places: dict[Key, set[Place]] = {}

    def add(self, place: Place, keys: frozenset[Key], number: int) -> None:
        self.keys[place], self._row_numbers[place] = keys, number
        for key in keys:
            self._places.setdefault(key, set()).add(place)

    def remove(self, place: Place) -> frozenset[Key]:
        """Remove a change and return the keys that it held."""
        keys = self.keys.pop(place, frozenset())
        for key in keys:
            self._places[key].discard(place)
        return keys

    def close(self, key: Sequence[str | None] | None) -> None:
        """End all holds of this key, None: of any key."""
        if key is None:
            self.keys.clear()
            self._places.clear()
            return
        ended = frozenset({tuple(key)})
        for place in self._places.pop(tuple(key), set()):
            self.keys[place] -= ended
            if not self.keys[place]:
                del self.keys[place]

    def rows(self) -> pa.Array:
        """The numbers of the rows, in their order."""
        return pa.array(sorted(self._row_numbers[place] for place in self.keys), pa.int64())


def _plain(rows: pa.Table, *names: str) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = rows.select(["position", "ordinal", "key", "from_key", *names]).to_pylist()
    return result


def _keys(row: Mapping[str, Any]) -> frozenset[Key]:
    return frozenset(tuple(key) for key in (row["key"], row["from_key"]) if key is not None)


def record(
    control: ControlTables,
    target: Target,
    stream: str,
    span: Span,
    generation: int,
    quarantined: pa.Table | None,
    closings: Sequence[HoldRelease],
) -> None:
    """Replace the records of a generation of a table above its watermark by the holds of this span."""
    same = (pc.field("relation") == str(target.source)) & (pc.field("epoch") == span.epoch)
    above = (pc.field("generation") == generation) & (pc.field("position") > span.after)
    control.delete("quarantine", same & above)
    rows = [_row(target, stream, span, generation, closing.position, closing.ordinal) for closing in closings]
    for row, closing in zip(rows, closings, strict=True):
        row.update({} if closing.key is None else {"op": "S", "key": list(closing.key)})
    if quarantined is not None:
        for change in quarantined.to_pylist():
            row = _row(target, stream, span, generation, change["position"], change["ordinal"])
            row.update(change, reason=FAILED if change["rules"] else WAITING)
            rows.append(row)
    if rows:
        control.append("quarantine", rows)


def forget(control: ControlTables, target: Target, epoch: int, generation: int, *, replaced: bool) -> None:
    """Remove the records of other generations of a table than the current `generation`: of unpublished later ones, with
    `replaced` also of earlier ones.
    """
    same = (pc.field("relation") == str(target.source)) & (pc.field("epoch") == epoch)
    others = pc.field("generation") != generation if replaced else pc.field("generation") > generation
    control.delete("quarantine", same & others)


def _row(target: Target, stream: str, span: Span, generation: int, position: int, ordinal: int) -> dict[str, object]:
    """A row that closes all holds of a table; the columns of a change are NULL."""
    return {
        **dict.fromkeys(schema_of("quarantine").names),
        "stream": stream,
        "epoch": span.epoch,
        "position": position,
        "ordinal": ordinal,
        "generation": generation,
        "relation": str(target.source),
        "table": target.label,
        "op": "T",
        "reason": CLOSED,
        "span_upto": span.upto,
        "recorded_at": dt.datetime.now(dt.UTC),
    }
