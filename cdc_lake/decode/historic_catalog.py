"""The catalog as it was where a change stands, worked out from the catalog of now and the layout that landed before.

A stream names columns and leaves their numbers, the defaults of old rows and often the primary key to the catalog,
which a session can only read as it is now. Between the change and now the table may have been altered any number of
times. What holds all the same:

* Columns come in the order of their numbers. A column that is there now was there ever since its number was given, and
  a dropped one never comes back. So of a table of which no column was dropped, place and number are the same.
* A catalog row whose `xmin` is a transaction older than that of the change probably says what was true at the change:
  who alters a table locks out who changes it. But who waits for that lock has its number already, so that what it waits
  for may have a greater one; and a subtransaction has a greater number than its own transaction.
* `attmissingval` goes when the table is rewritten, and never changes otherwise. If the storage of a table is still the
  one that it had when its last layout was read, a column without it is NULL in the rows from before.

Where several histories explain a change equally well, one of them is taken, and the columns it differs in are marked:
silver then asks (`tables.schema_evolution.AssumeColumn`). Both families use this, PostgreSQL with the numbers of
transactions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cdc_lake.model.relation import Column, Missing, Relation, ReplicaIdentity

_HISTORIES: Final = 4096
"""Histories that are compared; a table with more of them is one whose columns nobody can tell apart."""
_UNLIKELY: Final = 100  # what speaks against a history, without excluding it: more than any number of commands
_HALF: Final = 1 << 31  # numbers of transactions are compared modulo 2^32 (transam.c, TransactionIdPrecedes)


@dataclass(frozen=True, slots=True)
class Attribute:
    """A row of `pg_attribute`; a dropped column has neither name nor type.

    `missing`: what rows from before the column hold by `attmissingval`, None where the catalog keeps nothing. `filled`:
    it keeps nothing although the column has a default.
    `changed`: the transaction that wrote the row, as 32 bits; None where that is not known. `generated`: it may be one
    that is not published; `required`: it may not be NULL.
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
    """An index that may identify rows: the numbers of its columns, and whether it is the primary key or named as the
    replica identity (`identity`). `created`: the transaction that made it; `changed`: the one that wrote its row of
    `pg_index`, as each does that names it as the replica identity, or another one in its place.
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
    """A column as the stream announces it; None for what it does not say of the type."""

    name: str
    type_oid: int | None
    modifier: int | None = -1


@dataclass(frozen=True, slots=True)
class Identified:
    """The number of each announced column, and the places of those that may be another column just as well."""

    numbers: tuple[int, ...]
    ambiguous: frozenset[int] = frozenset()


def precedes(changed: int | None, xid: int | None) -> bool:
    """Whether a catalog row was written by a transaction that is older than `xid`; False where one is not known.

    Numbers below 3 are those of the bootstrap and of frozen rows, which are older than all (transam.h). The GaussDB
    family has numbers of 64 bits, which do not come round.
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
    """Which columns of the catalog a change of transaction `xid` announced; None where no history explains it.

    `attributes`: all of the table by number, dropped ones too; `before`: the layout of the same table that landed last;
    `highest`: the greatest number that any layout of it had.
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
    # what was in doubt stays so: what comes behind it may be the other one still
    places |= {
        position
        for position, number in enumerate(numbers)
        if number in columns_before and columns_before[number].ambiguous
    }
    return Identified(numbers, frozenset(places))


def _columns_by_number(before: Relation | None) -> dict[int, Column]:
    """The columns of a layout by number; nothing where one of them has none."""
    columns = {} if before is None else {c.number: c for c in before.columns if c.number is not None}
    return columns if before is not None and len(columns) == len(before.columns) else {}


def _histories(
    announced: Sequence[Named], attributes: Sequence[Attribute], columns_before: Mapping[int, Column], highest: int
) -> Iterator[tuple[int, ...]]:
    """The sets of numbers that the announced columns may have, in order: as few as the catalog allows."""
    highest = max((highest, *columns_before)) if columns_before else 0
    live_numbers = [attribute.number for attribute in attributes if attribute.name is not None]
    later = [number for number in live_numbers if number > highest]
    # a column that the layout before leaves out was not published, or bronze takes none of it
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
    """What speaks against a history, infinity where it cannot have been; and how many commands it takes."""
    of = {attribute.number: attribute for attribute in attributes}
    had = set(numbers)
    against, commands = 0.0, 0
    for number, column in zip(numbers, announced, strict=True):
        now, then = of[number], columns_before.get(number)
        # who waits for a table's lock has its number already, so an older one may have altered it later
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
        if attribute.name is None and attribute.number not in had:
            commands += 0 if attribute.number in columns_before else 2  # added and dropped, before or since
            against += _UNLIKELY * (attribute.number < max(had, default=0) and precedes(xid, attribute.changed))
    for attribute in attributes:
        if attribute.name is not None and attribute.number not in had and attribute.number not in columns_before:
            commands += 1  # added since, or not published
            against += _UNLIKELY * (precedes(attribute.changed, xid) and not attribute.generated)
    return against, commands


def _is_of(column: Named, type_oid: int, modifier: int) -> bool:
    return column.type_oid in (None, type_oid) and column.modifier in (None, modifier)


def missing_then(
    column: Named,
    number: int,
    attributes: Mapping[int, Attribute],
    before: Relation | None,
    *,
    rewritten: bool,
) -> Missing | None:
    """What rows from before a column hold in it (`model.relation.Column.missing`).

    `rewritten`: the table may have been rewritten since `before`, the layout that landed last.
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
    hidden = number < max(columns_before)  # it was there and not published
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
    """The numbers of the columns of the primary key at a change.

    `flagged`: columns that the change marks as its identity, `logged`: which is the primary key; `now`: the key of now;
    `before`: that of the layout before; `all_numbers`: all columns; `settled`: the key of now was the key then.
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
    """By what a row of transaction `xid` that came without an old one was identified; None: by what rows are now. It
    was not by the whole row, which would have come along.

    `now`: the kind of identity that the table's row of `pg_class` names, which transaction `changed` wrote;
    `all_numbers`: the numbers of all columns; `before`: see `identify`.
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
    # What is newer may be the transaction's own: its subtransactions have greater numbers. Of an index that is only
    # made the row is written once.
    rivals = {index.columns for index in others if not precedes(index.changed, xid) and index.changed != index.created}
    rivals |= {index.columns for index in indexes if (index.identity if by_index else index.primary)}
    if keyed and former and former <= set(all_numbers) and not over:
        # An index that is gone leaves no trace: then nothing identified rows from a time on that nobody knows.
        by_other = keyed.identity is ReplicaIdentity.INDEX
        gone = not any(index.columns == former and (index.primary or by_other) for index in indexes)
        return IdentifiedBy(
            keyed.identity, former, gone or (former == of_key and not primary_unchanged) or not rivals <= {former}
        )
    if of_key is not None and of_key <= set(all_numbers):
        return IdentifiedBy(ReplicaIdentity.DEFAULT, of_key, not primary_unchanged or not rivals <= {of_key})
    return None


def storage_then(
    numbers: Iterable[int | None], attributes: Iterable[Attribute], now: int | None, before: Relation | None
) -> int | None:
    """A table's storage, so far as it may be compared with a later one: what was rewritten after a column came that the
    change does not have yet was rewritten with it. `now`: the storage of now.
    """
    highest = max((number for number in numbers if number is not None), default=0)
    all_covered = all(attribute.name is None or attribute.number <= highest for attribute in attributes)
    return now if all_covered or before is None else before.storage


def as_logged(relation: Relation, partitions: Iterable[Collection[str] | None]) -> Relation:
    """The layout of a partitioned table, by what its partitions log: `partitions` are the columns that each logs of old
    rows, None: all. The replica identity of the root itself decides nothing but what the stream calls an old row.
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
