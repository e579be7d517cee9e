"""Derives the catalog at the time of a change from the current catalog and the layout that landed before.

A stream names columns, but their numbers, the defaults of old rows and often the primary key are only in the catalog,
which a session can read only as it is now. Between the change and now the table may have been altered any number of
times. These facts still hold:

* Columns are sent in the order of their numbers. A current column has existed since its number was assigned, and a
  dropped one never returns. In a table without dropped columns, position and number therefore correspond.
* A catalog row whose `xmin` is older than the transaction of the change was probably valid at the change, because
  altering a table locks out writers. But a transaction that waits for that lock already has its id, so the one for
  which it waits may have a greater one; and a subtransaction has a greater id than its transaction.
* `attmissingval` is removed when the table is rewritten, and never changes otherwise. If the storage of a table is the
  same as when its last layout was read, a column without it is NULL in earlier rows.

If several histories explain a change equally well, one of them is used, and the columns in which they differ are
marked: silver then requires approval (`tables.schema_evolution.AssumeColumn`). Both families use this, PostgreSQL with
transaction ids.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc_lake.model.relation import Column, Missing, Relation, ReplicaIdentity

_HISTORIES: Final = 4096
"""Maximum number of histories that are compared; with more, columns cannot be distinguished."""
_UNLIKELY: Final = 100  # weight of an unlikely history: more than any number of commands
_HALF: Final = 1 << 31  # transaction ids are compared modulo 2^32 (transam.c, TransactionIdPrecedes)


@dataclass(frozen=True, slots=True)
class Attribute:
    """A row of `pg_attribute`; a dropped column has neither name nor type.

    `missing`: the value of earlier rows according to `attmissingval`, None if there is none. `filled`: there is none
    although the column has a default. `changed`: the transaction that wrote the row, as 32 bits; None if unknown.
    `generated`: it may be unpublished; `required`: it is NOT NULL.
    """

    number: int
    name: str | None = None
    type_oid: int = 0
    modifier: int = -1
    missing: Missing | None = None
    filled: bool = False
    changed: int | None = None
    generated: bool = False
    required: bool = False


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """An index that may identify rows: the numbers of its columns, and whether it is the primary key or the replica
    identity (`identity`). `created`: the transaction that created it; `changed`: the one that wrote its row of
    `pg_index`, as setting or replacing the replica identity does.
    """

    columns: frozenset[int]
    primary: bool
    identity: bool
    created: int
    changed: int


@dataclass(frozen=True, slots=True)
class IdentifiedBy:
    """What identified rows: kind of replica identity, numbers of its columns. `ambiguous`: it may have been another."""

    kind: ReplicaIdentity
    columns: frozenset[int]
    ambiguous: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """A column as the stream announces it; None for unknown parts of the type."""

    name: str
    type_oid: int | None
    modifier: int | None = -1


@dataclass(frozen=True, slots=True)
class Identified:
    """The number of each announced column, and the positions of those that may be another column."""

    numbers: tuple[int, ...]
    ambiguous: frozenset[int] = frozenset()


def precedes(changed: int | None, xid: int | None) -> bool:
    """Whether a catalog row was written by a transaction older than `xid`; False if one is unknown.

    Ids below 3 are those of the bootstrap and of frozen rows, which are older than all (transam.h). The GaussDB family
    has ids of 64 bits, which do not wrap around.
    """
    if changed is None or xid is None:
        return False
    if max(changed, xid) >= 2 * _HALF:
        return changed < xid
    return changed < 3 or 0 < (xid - changed) % (2 * _HALF) < _HALF


def identify(
    announced: Sequence[Named],
    attributes: Sequence[Attribute],
    before: Relation | None,
    xid: int | None = None,
    highest: int = 0,
) -> Identified | None:
    """The columns of the catalog that a change of transaction `xid` announced; None if no history explains it.

    `attributes`: all of the table by number, including dropped ones; `before`: the last landed layout of the same
    table; `highest`: the greatest number in any of its layouts.
    """
    columns_before = _columns_by_number(before)
    histories = sorted(
        (against, commands, numbers)
        for numbers in _histories(announced, attributes, columns_before, highest)
        for against, commands in [_weigh_history(numbers, announced, attributes, columns_before, xid)]
        if not math.isinf(against)
    )
    if not histories:
        return identify(announced, attributes, None, xid) if columns_before else None
    least, commands, numbers = histories[0]
    rivals = [other for against, needed, other in histories[1:] if against == least or needed <= commands]
    places = {position for other in rivals for position, number in enumerate(other) if number != numbers[position]}
    # ambiguous columns stay ambiguous, and so do those after them
    places |= {
        position
        for position, number in enumerate(numbers)
        if number in columns_before and columns_before[number].ambiguous
    }
    return Identified(numbers, frozenset(places))


def _columns_by_number(before: Relation | None) -> dict[int, Column]:
    """The columns of a layout by number; empty if one of them has none."""
    columns = {} if before is None else {c.number: c for c in before.columns if c.number is not None}
    return columns if before is not None and len(columns) == len(before.columns) else {}


def _histories(
    announced: Sequence[Named], attributes: Sequence[Attribute], columns_before: Mapping[int, Column], highest: int
) -> Iterator[tuple[int, ...]]:
    """The possible numbers of the announced columns, in order: as few as the catalog allows."""
    highest = max((highest, *columns_before)) if columns_before else 0
    live_numbers = [attribute.number for attribute in attributes if attribute.name is not None]
    later = [number for number in live_numbers if number > highest]
    # a column that is missing in the previous layout was not published, or bronze omits it
    hidden = [number for number in live_numbers if number <= highest and number not in columns_before]
    sure = [number for number in live_numbers if number in columns_before]
    dropped = [
        attribute.number
        for attribute in attributes
        if attribute.name is None and (attribute.number > highest or attribute.number in columns_before)
    ]
    left = _HISTORIES
    for first in ([*sure, *hidden], sure) if hidden else (sure,):
        for later_count in range(len(later) + 1):
            base = (*first, *later[:later_count])
            end = later[later_count] if later_count < len(later) else math.inf
            lacking, free = len(announced) - len(base), [number for number in dropped if number < end]
            if not 0 <= lacking <= len(free):
                continue
            left -= math.comb(len(free), lacking)
            if left < 0:
                return
            for chosen in itertools.combinations(free, lacking):
                yield tuple(sorted((*base, *chosen)))


def _weigh_history(
    numbers: Sequence[int],
    announced: Sequence[Named],
    attributes: Sequence[Attribute],
    columns_before: Mapping[int, Column],
    xid: int | None,
) -> tuple[float, int]:
    """The weight against a history, infinity if it is impossible; and its number of commands."""
    of = {attribute.number: attribute for attribute in attributes}
    had = set(numbers)
    against, commands = 0.0, 0
    for number, column in zip(numbers, announced, strict=True):
        now, then = of[number], columns_before.get(number)
        # a transaction that waits for a table's lock has its id already, so an older one may have altered it later
        differs = (now.name != column.name) + (not _is_of(column, now.type_oid, now.modifier))
        commands += 1 if now.name is None else differs
        against += _UNLIKELY * (precedes(now.changed, xid) and differs > 0)
        if then is None:
            commands += bool(columns_before)
        else:
            same = then.redacted is not None or _is_of(column, then.type_oid, then.modifier)
            commands += (then.name != column.name) + (not same)
    commands += sum(number not in had for number in columns_before)  # dropped before
    for attribute in attributes:
        if attribute.number in had:
            continue
        if attribute.name is None:
            commands += 0 if attribute.number in columns_before else 2  # added and dropped, before or since
            against += _UNLIKELY * (attribute.number < max(had, default=0) and precedes(xid, attribute.changed))
        elif attribute.number not in columns_before:
            commands += 1  # added later, or not published
            against += _UNLIKELY * (precedes(attribute.changed, xid) and not attribute.generated)
    return against, commands


def _is_of(column: Named, type_oid: int, modifier: int) -> bool:
    return column.type_oid in (None, type_oid) and column.modifier in (None, modifier)


def missing_then(
    column: Named, number: int, attributes: Mapping[int, Attribute], before: Relation | None, *, rewritten: bool
) -> Missing | None:
    """The value of a column in rows that are older than it (`model.relation.Column.missing`).

    `rewritten`: the table may have been rewritten since `before`, the last landed layout.
    """
    columns_before = _columns_by_number(before)
    now, then = attributes.get(number), columns_before.get(number)
    missing_now = None if now is None or not _is_of(column, now.type_oid, now.modifier) else now.missing
    if then is not None:
        hashed = then.redacted is not None and then.missing is not None and then.missing.text is not None
        if missing_now is not None and (hashed or then.type_oid != column.type_oid):
            return missing_now
        return Missing(None) if hashed else then.missing
    if now is None or now.name is None:
        return Missing(None)
    if now.missing is not None:
        return missing_now or Missing(None)
    if not columns_before:
        return Missing(None) if now.filled else None
    hidden = number < max(columns_before)  # it existed and was not published
    return Missing(None) if rewritten or hidden else None


def key_then(
    flagged: Sequence[int],
    now: Sequence[int],
    before: Sequence[int],
    all_numbers: Collection[int],
    *,
    logged: bool,
    settled: bool,
) -> tuple[int, ...]:
    """The numbers of the primary key's columns at a change.

    `flagged`: columns that the change marks as its identity, `logged`: whether that is the primary key; `now`: the
    current key; `before`: that of the previous layout; `all_numbers`: all columns; `settled`: the key has not changed
    since.
    """
    if logged and flagged:
        return next((tuple(key) for key in (now, before) if set(key) == set(flagged)), tuple(flagged))
    if not settled and before and now and set(before) <= set(all_numbers):
        return tuple(before)
    return tuple(now) if set(now) <= set(all_numbers) else ()


def identity_then(
    now: ReplicaIdentity,
    changed: int,
    indexes: Collection[UniqueIndex],
    before: Relation | None,
    all_numbers: Collection[int],
    xid: int,
) -> IdentifiedBy | None:
    """The identity of rows in transaction `xid`, whose change came without an old tuple; None: as now. It was not FULL,
    which would have sent the old row.

    `now`: the replica identity in the table's row of `pg_class`, written by transaction `changed`; `all_numbers`: the
    numbers of all columns; `before`: see `identify`.
    """
    by_index = now is ReplicaIdentity.INDEX
    primary = next((index for index in indexes if index.primary), None)
    of_key, primary_unchanged = (None, False) if primary is None else (primary.columns, precedes(primary.created, xid))
    if by_index:
        settled = any(index.identity and precedes(index.changed, xid) for index in indexes)
    else:
        settled = precedes(changed, xid) and (primary_unchanged or now is not ReplicaIdentity.DEFAULT)
    if settled:
        return None
    keyed = None if before is None or before.identity is ReplicaIdentity.FULL else before
    former = frozenset(c.number for c in (keyed.columns if keyed else ()) if c.key and c.number is not None)
    others = [index for index in indexes if not index.primary and not index.identity]
    over = any(index.columns == former and precedes(index.changed, xid) for index in others)
    over |= primary_unchanged and former != of_key and keyed is not None and keyed.identity is ReplicaIdentity.DEFAULT
    # A newer one may be the transaction's own: its subtransactions have greater ids. The row of an index that is only
    # created is written once.
    rivals = {index.columns for index in others if not precedes(index.changed, xid) and index.changed != index.created}
    rivals |= {index.columns for index in indexes if (index.identity if by_index else index.primary)}
    if keyed and former and former <= set(all_numbers) and not over:
        # A dropped index leaves no trace: then rows had no identity from some unknown time on.
        by_other = keyed.identity is ReplicaIdentity.INDEX
        gone = not any(index.columns == former and (index.primary or by_other) for index in indexes)
        ambiguous = gone or (former == of_key and not primary_unchanged) or not rivals <= {former}
        return IdentifiedBy(keyed.identity, former, ambiguous)
    if of_key is not None and of_key <= set(all_numbers):
        return IdentifiedBy(ReplicaIdentity.DEFAULT, of_key, not primary_unchanged or not rivals <= {of_key})
    return None


def storage_then(
    numbers: Iterable[int | None], attributes: Iterable[Attribute], now: int | None, before: Relation | None
) -> int | None:
    """A table's storage, if it may be compared with a later one: a rewrite after a column was added that the change
    does not have yet also rewrote the row. `now`: the current storage.
    """
    highest = max((number for number in numbers if number is not None), default=0)
    all_covered = all(attribute.name is None or attribute.number <= highest for attribute in attributes)
    return now if all_covered or before is None else before.storage


def as_logged(relation: Relation, partitions: Iterable[Collection[str] | None]) -> Relation:
    """The layout of a partitioned table according to its partitions: `partitions` are the columns that each logs of old
    rows, None: all. The replica identity of the root determines only what the stream calls an old row.
    """
    all_names = frozenset(relation.names)
    logged = all_names.intersection(*(all_names if names is None else names for names in partitions))
    if all(not column.key or column.name in logged for column in relation.columns):
        return relation
    full = relation.identity is ReplicaIdentity.FULL
    return replace(
        relation,
        columns=tuple(replace(column, key=column.key and column.name in logged) for column in relation.columns),
        identity=ReplicaIdentity.DEFAULT if full else relation.identity,
        mixed=full,
    )
