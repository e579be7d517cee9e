"""Held changes by the keys that they connect: what one decision has to take together, and why it may not.

A held change keeps every key it touches, so changes that share a key wait for each other. Of a table that keeps every
change nothing waits for anything: each stands for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdc_lake.config.project import Target
from cdc_lake.config.rules import rule_name
from cdc_lake.model.decision import DISCARD, Verb
from cdc_lake.pipeline.state.holds import FAILED
from cdc_lake.silver.kind import Kind, RowIdentity
from cdc_lake.silver.row_events import Key, unit_of


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """Held changes that wait together, in order: rows of the control table `held`."""

    rows: tuple[Mapping[str, Any], ...]

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys that they keep."""
        found = {tuple(key) for row in self.rows for key in (row["key"], row["from_key"]) if key is not None}
        return tuple(sorted(found, key=repr))

    def of(self, relation: str) -> HeldGroup:
        """Those of one table."""
        return HeldGroup(tuple(row for row in self.rows if row["relation"] == relation))

    @property
    def broken(self) -> frozenset[str]:
        """What they break."""
        return frozenset(name for row in self.rows if row["reason"] == FAILED for name in row["rules"] or ())

    @property
    def moves(self) -> bool:
        """Whether a row goes from one key to another."""
        return any(row["from_key"] is not None and row["from_key"] != row["key"] for row in self.rows)


def groups(rows: Sequence[Mapping[str, Any]], kind: Kind) -> list[HeldGroup]:
    """Open held changes of a table of that kind, together where they wait together, by their first change."""
    return [HeldGroup((row,)) for row in rows] if kind.identity is RowIdentity.PLACE else connected(rows)


def connected(rows: Sequence[Mapping[str, Any]]) -> list[HeldGroup]:
    """Open held changes of rows with keys, together where they share one."""
    return _joined(rows, lambda row: HeldGroup((row,)).keys)


def together(rows: Sequence[Mapping[str, Any]]) -> list[HeldGroup]:
    """Open held changes of the tables of a group, together where they share a key or a transaction."""
    return _joined(rows, _of_group)


def _of_group(row: Mapping[str, Any]) -> list[Hashable]:
    unit = unit_of(row["position"], row["ordinal"], row["op"])
    return [*((row["relation"], key) for key in HeldGroup((row,)).keys), *([] if unit is None else [unit])]


def _joined(
    rows: Sequence[Mapping[str, Any]], of: Callable[[Mapping[str, Any]], Sequence[Hashable]]
) -> list[HeldGroup]:
    """Rows together where they share something, by their first one."""
    leader: dict[Hashable, Hashable] = {}

    def led(one: Hashable) -> Hashable:
        while (other := leader.setdefault(one, one)) != one:
            leader[one] = leader[other]
            one = other
        return one

    for row in rows:
        first, *others = [led(one) for one in of(row)]
        for other in others:
            leader[other] = first
    found: dict[Hashable, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(led(of(row)[0]), []).append(row)
    return [HeldGroup(tuple(mine)) for mine in found.values()]


def objection(group: HeldGroup, verb: Verb, target: Target, kind: Kind) -> str | None:
    """Why a group cannot be decided on like that, None where it can."""
    if target.transforms.where is not None:
        return "the table has a filter: whether silver has the row depends on values that wait"
    if group.moves and target.transforms.any:
        return "the table has computed columns, and a key moves: what they read depends on values that wait"
    if verb == DISCARD:
        no_key = kind.identity is RowIdentity.CONTENT
        return "rows of the table have no key: nobody could tell which of them were given up" if no_key else None
    if beyond := group.broken - {rule_name(rule) for rule in target.row_rules}:
        return f"no rule of the pipeline holds it that could be waived, but {', '.join(sorted(beyond))}"
    return None
