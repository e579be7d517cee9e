"""Tables that follow events as apply does, without Spark: keys in silver, the log of holds, decisions, any spans."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import pyarrow as pa

from cdc_lake.control.quarantine import OpenQuarantine, QuarantineLog, open_quarantine
from cdc_lake.model.change import UNCHANGED, Change, Delete, Insert, Message, OldKind, Truncate, Tuple, Update
from cdc_lake.model.position import Span
from cdc_lake.model.quarantine import FIRST_ORDINAL, Decided
from cdc_lake.model.relation import ReplicaIdentity
from cdc_lake.silver.row_tracing import Event, HoldRelease, Key, TracedChange, Unit, trace
from cdc_lake.tables.control_schema import schema_of
from cdc_lake_testing.oracle import Oracle

Followed: TypeAlias = tuple[list[TracedChange], list[HoldRelease]]
LIMIT = 69
AT = FIRST_ORDINAL


@dataclass
class Table:
    """A table that follows rows as apply does: keys in silver, the log of holds, and the decisions on them."""

    cuts: random.Random
    name: str = "t"
    keys: set[Key] = field(default_factory=set)
    quarantined: list[dict[str, Any]] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    pending: list[Event] = field(default_factory=list)
    at: int = 0

    def open(self) -> OpenQuarantine:
        return open_quarantine(self.log(), self.name, 1, 1, self.at)

    def log(self) -> QuarantineLog:
        """What is recorded."""
        return QuarantineLog(pa.Table.from_pylist(self.quarantined, schema_of("quarantine")), self._decisions())

    def decide(self, verb: str, rows: list[dict[str, Any]]) -> None:
        first = AT + sum(one["position"] == self.at + 1 for one in self.decisions)
        for n, row in enumerate(rows):
            place = {"of_position": row["position"], "of_ordinal": row["ordinal"]}
            own = {"position": self.at + 1, "ordinal": first + n, "verb": verb, "reason": "", **place}
            self.decisions.append({**dict.fromkeys(schema_of("decisions").names), **row, **own})

    def run(self, events: list[Event], upto: int) -> None:
        """Everything up to a position, in spans of any size."""
        self.pending += events
        while self.at < upto:
            end = min(upto, self.at + self.cuts.choice([10, 30, 100, 10_000]))
            self._span([one for one in self.pending if one.position <= end], end)
            self.pending = [one for one in self.pending if one.position > end]

    def _span(self, events: list[Event], end: int) -> None:
        every = self.every(events, end)
        self.merge(every, self.traced(every), end)

    def every(self, events: list[Event], end: int) -> list[Event]:
        """The events of a span, with the decisions that come into force in it."""
        coming = Decided(self._decisions()).select_span(Span(1, self.at, end)).rows
        made = [_decision(row) for row in ([] if coming is None else coming.to_pylist())]
        return sorted([*made, *events], key=lambda one: (one.position, one.ordinal))

    def traced(self, every: list[Event], whole: frozenset[Unit] = frozenset()) -> Followed:
        """What became of the events of a span."""
        existing, waiting = frozenset(self.keys), self.open().waiting
        return trace(every, existing=existing, quarantined=waiting, holds_missing=False, whole_units=whole)

    def merge(self, every: list[Event], followed: Followed, end: int) -> None:
        """The span is written: rows, and what is held."""
        traced, closings = followed
        self._fold(every, traced)
        for event, one in zip([e for e in every if e.op != "T"], traced, strict=True):
            if one.quarantined:
                rules = [*(["rule"] if event.failed else []), *([one.broke] if one.broke else [])]
                rules = [] if one.waits else rules
                self._record(event, "failed" if rules else "waiting", end, rules)
        for closing in closings:
            key = closing.key
            op = "T" if key is None else "S"
            self._record(Event(closing.position, closing.ordinal, op, None, key), "closed", end, [])
        self.at = end

    def _decisions(self) -> pa.Table:
        return pa.Table.from_pylist(self.decisions, schema_of("decisions"))

    def _fold(self, events: list[Event], traced: list[TracedChange]) -> None:
        """Which keys silver has behind the span, as net changes tell it."""
        if any(one.op == "T" for one in events):
            self.keys.clear()
        after = (
            max((one.position, one.ordinal) for one in events if one.op == "T")
            if any(one.op == "T" for one in events)
            else (-1, 0)
        )
        last: dict[int, tuple[Event, TracedChange]] = {}
        for event, one in zip([e for e in events if e.op != "T"], traced, strict=True):
            if not one.quarantined and not one.dropped and (event.position, event.ordinal) > after:
                last[one.row] = (event, one)
        for _, one in last.values():
            if one.origin is not None:
                self.keys.discard(one.origin)
        self.keys |= {event.new for event, _ in last.values() if event.op != "D" and event.new is not None}

    def _record(self, event: Event, reason: str, end: int, rules: list[str]) -> None:
        keys = {"key": event.new or event.old, "from_key": event.old}
        own = {"position": event.position, "ordinal": event.ordinal, "op": event.op, "reason": reason, "rules": rules}
        self.quarantined.append(
            {
                **dict.fromkeys(schema_of("quarantine").names),
                "relation": self.name,
                "epoch": 1,
                "generation": 1,
                "span_upto": end,
            }
            | own
            | {name: None if key is None else list(key) for name, key in keys.items()}
        )


def _decision(row: dict[str, Any]) -> Event:
    of = (row["of_position"], row["of_ordinal"])
    if row["verb"] == "discard":
        return Event(row["position"], row["ordinal"], row["op"], decides=of, given_up=True)
    old = None if row["from_key"] is None else tuple(row["from_key"])
    new = None if row["op"] == "D" else tuple(row["key"])
    return Event(row["position"], row["ordinal"], row["op"], old, new, decides=of, partial=_PARTIAL.get(of, False))


_PARTIAL: dict[tuple[int, int], bool] = {}


def event_of(oracle: Oracle, position: int, ordinal: int, change: Change, limit: int = LIMIT) -> Event:
    """A change as apply reduces it; `amount` is always sent, so a change tells by itself whether it fails."""
    assert not isinstance(change, Message)
    if isinstance(change, Truncate):
        return Event(position, ordinal, "T")
    new = change.new if isinstance(change, Insert | Update) else None
    failed = new is not None and new[1] is not None and int(str(new[1])) > limit
    old = None if isinstance(change, Insert) else change.old
    before = after = None
    if isinstance(change, Insert):
        (after,) = oracle.keys_of(change)
    elif isinstance(change, Delete):
        (before,) = oracle.keys_of(change)
    else:
        (before,) = oracle.keys_of(Insert(change.relation, old or change.new))
        (after,) = oracle.keys_of(Insert(change.relation, change.new))
    told = old if change.relation.identity is ReplicaIdentity.FULL else None
    digests = [None if row is None else hash(row) for row in (told, _whole(new, told))]
    partial = isinstance(change, Update) and UNCHANGED in change.new and change.old_kind is not OldKind.FULL
    _PARTIAL[position, ordinal] = partial
    op = {"Insert": "I", "Update": "U", "Delete": "D"}[type(change).__name__]
    event = Event(position, ordinal, op, before, after, failed=failed, partial=partial)
    return replace(event, old_digest=digests[0], new_digest=digests[1])


def _whole(new: Tuple | None, old: Tuple | None) -> Tuple | None:
    """A new tuple with what was not sent; None where nothing tells that."""
    if new is None or old is None:
        return None if new is None or UNCHANGED in new else new
    return tuple(before if value is UNCHANGED else value for value, before in zip(new, old, strict=True))


def breaks(_: object, row: dict[str, str | None], limit: int = LIMIT) -> bool:
    return row["amount"] is not None and int(str(row["amount"])) > limit
