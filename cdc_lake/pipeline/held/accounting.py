"""Accounting: every open held key is explained by folding its held changes onto silver's row.

Silver shows a held key as it was before its first held change. If nothing but the hold separates it from the source,
the held changes in order, applied to that row one by one, give the source's row.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from cdc_lake.bronze.contract import DELETE, INSERT, SNAPSHOT
from cdc_lake.model.relation import Relation
from cdc_lake.model.rows_by_key import Key, RowsByKey
from cdc_lake.model.succession import predecessors

Row: TypeAlias = Mapping[str, str | None]
Form: TypeAlias = Callable[[str, str | None], str | None]
"""The canonical form of a text of a column, by the column's name."""


@dataclass(frozen=True, slots=True)
class HeldChange:
    """One held change: its place, its tuples by column name in canonical form, and what was not sent. `told`: whether
    the key it leaves, and the one it gives, were told anew since: of that one it says nothing any more.
    """

    place: tuple[int, int, int]  # epoch, position, ordinal
    op: str
    new: Row | None
    old: Row | None
    unchanged: frozenset[str]
    told: tuple[bool, bool] = (False, False)

    def keys(self, names: Sequence[str]) -> tuple[Key | None, Key | None]:
        """The key it leaves and the key it gives, None where there is none, or where it was told anew."""
        before = self.old if self.old is not None else self.new
        arrives = self.op == INSERT or (self.op == SNAPSHOT and self.new is not None)
        leaves = None if arrives or before is None else _key(before, names)
        gives = None
        if self.op != DELETE and self.new is not None:
            known = {**(self.old or {}), **{n: v for n, v in self.new.items() if n not in self.unchanged}}
            gives = tuple(known.get(name) for name in names)
        return None if self.told[0] else leaves, None if self.told[1] else gives


def held_changes(
    rows: Iterable[Mapping[str, Any]], layouts: Mapping[int, Relation], now: Relation, form: Form
) -> list[HeldChange]:
    """The open held changes of one table in order, from their rows in the control table `held`, by the names of now."""
    out: list[HeldChange] = []
    for row in sorted(rows, key=_place):
        names, later = _names_of_now(layouts[row["layout"]], now)
        unchanged = frozenset(names[at] for at in row["unchanged"] or ())
        new, old = (_named(row[tuple_], names, form) for tuple_ in ("new", "old"))
        if new is not None:
            new = {**{name: form(name, text) for name, text in later.items()}, **new}
        told = (bool(row.get("from_key_told")), bool(row.get("key_told")))
        out.append(HeldChange(_place(row), row["op"], new, old, unchanged, told))
    return out


def _names_of_now(layout: Relation, now: Relation) -> tuple[list[str], dict[str, str | None]]:
    """What the columns of a layout are called now, and what its rows hold in columns that came later.

    A column that is gone keeps its name, unless another one has it.
    """
    names = [name if name not in now.names else f"{name} (gone)" for name in layout.names]
    later: dict[str, str | None] = {}
    for place, column in zip(predecessors(layout, now), now.columns, strict=True):
        if place is not None:
            names[place] = column.name
        elif column.missing is not None and column.missing.text is not None:
            later[column.name] = column.missing.text
    return names, later


@dataclass(frozen=True, slots=True)
class Folded:
    """`rows`: of each key that a change touches, as the changes leave them; `odd`: keys where a change does not apply
    to what is there; `shared`: those that several rows had at the end of some transaction.
    """

    rows: Mapping[Key, tuple[Row, ...]]
    odd: frozenset[Key]
    shared: frozenset[Key]


def folded(
    changes: Sequence[HeldChange],
    keys: Sequence[str],
    columns: Sequence[str],
    silver: Mapping[Key, Sequence[Row]],
    *,
    partial: bool = False,
) -> Folded:
    """What the rows of each key that a change touches become. Changes come in order; a change is of the row of its key
    that the old tuple names.

    `partial`: silver may lack rows that the source has; values that no held change tells are not in the result.
    """
    rows: RowsByKey[dict[str, str | None]] = RowsByKey()
    touched: set[Key] = set()
    odd: set[Key] = set()
    shared: set[Key] = set()
    for _, transaction in itertools.groupby(changes, key=lambda change: change.place[:2]):
        mine: set[Key] = set()
        for change in transaction:
            leaves, gives = change.keys(keys)
            own = {key for key in (leaves, gives) if key is not None}
            for key in own - touched:
                rows.put(key, map(dict, silver.get(key, ())))
            touched |= own
            mine |= own
            if change.op == SNAPSHOT:  # it was read again: whatever was before, this is so
                odd -= own
                for key in own:
                    rows.put(key, () if gives is None else (_after(change, None, columns),))
                continue
            old = None if change.old is None else {name: change.old.get(name) for name in columns}
            before = None if leaves is None else rows.row_of(leaves, old)
            if leaves is not None and before is None and not partial:
                odd |= own
            rows.move(leaves, gives, None if gives is None else _after(change, before, columns), old)
        shared |= {key for key in mine if len(rows.rows(key)) > 1}
    return Folded({key: rows.rows(key) for key in touched}, frozenset(odd), frozenset(shared))


def folded_copies(
    changes: Sequence[HeldChange], columns: Sequence[str], silver: Mapping[Key, int]
) -> tuple[dict[Key, int], frozenset[Key]]:
    """How often each row that a held change touches is there after it, of a table without a key, and the rows that a
    change takes away where there is none.
    """
    state: dict[Key, int] = {}
    odd: set[Key] = set()
    for change in changes:
        leaves, gives = change.keys(columns)
        if leaves is not None:
            state[leaves] = state.get(leaves, silver.get(leaves, 0)) - 1
            if state[leaves] < 0:
                odd.add(leaves)
        if gives is not None:
            state[gives] = state.get(gives, silver.get(gives, 0)) + 1
    return state, frozenset(odd)


def explained(after: Sequence[Row], wanted: Sequence[Row]) -> bool:
    """Whether what held changes lead to are the source's rows of a key, each as often, as far as they tell them."""
    left = list(wanted)
    for names in sorted({tuple(row) for row in after}, key=len, reverse=True):  # what tells most has the first choice
        found = Counter(_key(row, names) for row in after if tuple(row) == names)
        others = []
        for row in left:
            found[_key(row, names)] -= 1
            if found[_key(row, names)] < 0:
                others.append(row)
        if any(times > 0 for times in found.values()):
            return False
        left = others
    return not left


def _after(change: HeldChange, before: Row | None, columns: Sequence[str]) -> dict[str, str | None]:
    """The row after a change: what was not sent comes from a whole old tuple or the row before, where there is one."""
    new, old = change.new or {}, change.old or {}
    out: dict[str, str | None] = {}
    for name in columns:
        if name in new and name not in change.unchanged:
            out[name] = new[name]
        elif before is not None or old.get(name) is not None or change.op in (INSERT, SNAPSHOT):
            out[name] = old[name] if old.get(name) is not None else (before or {}).get(name)
    return out


def _place(row: Mapping[str, Any]) -> tuple[int, int, int]:
    return row["epoch"], row["position"], row["ordinal"]


def _key(row: Row, names: Sequence[str]) -> Key:
    return tuple(row.get(name) for name in names)


def _named(values: Sequence[str | None] | None, names: Sequence[str], form: Form) -> Row | None:
    if values is None:
        return None
    return {name: form(name, value) for name, value in zip(names, values, strict=True)}
