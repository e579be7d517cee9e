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
silver then asks (`lake.evolution.AssumeColumn`). Both families use this, PostgreSQL with the numbers of transactions.
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
    """What identified rows: the kind of replica identity, and the numbers of its columns. `ambiguous`: it may have been
    something else as well.
    """

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
    known = _numbered(before)
    found = sorted(
        (against, commands, numbers)
        for numbers in _histories(announced, attributes, known, highest)
        for against, commands in [_weighed(numbers, announced, attributes, known, xid)]
        if not math.isinf(against)
    )
    if not found:
        return identify(announced, attributes, None, xid) if known else None
    least, commands, numbers = found[0]
    rivals = [other for against, needed, other in found[1:] if against == least or needed <= commands]
    places = {at for other in rivals for at, number in enumerate(other) if number != numbers[at]}
    # what was in doubt stays so: what comes behind it may be the other one still
    places |= {at for at, number in enumerate(numbers) if number in known and known[number].ambiguous}
    return Identified(numbers, frozenset(places))


def _numbered(before: Relation | None) -> dict[int, Column]:
    """The columns of a layout by number; nothing where one of them has none."""
    columns = {} if before is None else {c.number: c for c in before.columns if c.number is not None}
    return columns if before is not None and len(columns) == len(before.columns) else {}


def _histories(
    announced: Sequence[Named], attributes: Sequence[Attribute], known: Mapping[int, Column], highest: int
) -> Iterator[tuple[int, ...]]:
    """The sets of numbers that the announced columns may have, in order: as few as the catalog allows."""
    highest = max((highest, *known)) if known else 0
    there = [one.number for one in attributes if one.name is not None]
    later = [number for number in there if number > highest]
    # a column that the layout before leaves out was not published, or bronze takes none of it
    hidden = [number for number in there if number <= highest and number not in known]
    sure = [number for number in there if number in known]
    dropped = [one.number for one in attributes if one.name is None and (one.number > highest or one.number in known)]
    left = _HISTORIES
    for first in ([*sure, *hidden], sure) if hidden else (sure,):
        for taken in range(len(later) + 1):
            base = (*first, *later[:taken])
            end = later[taken] if taken < len(later) else math.inf
            lacking, free = len(announced) - len(base), [number for number in dropped if number < end]
            if not 0 <= lacking <= len(free):
                continue
            left -= math.comb(len(free), lacking)
            if left < 0:
                return
            for some in itertools.combinations(free, lacking):
                yield tuple(sorted((*base, *some)))


def _weighed(
    numbers: Sequence[int],
    announced: Sequence[Named],
    attributes: Sequence[Attribute],
    known: Mapping[int, Column],
    xid: int | None,
) -> tuple[float, int]:
    """What speaks against a history, infinity where it cannot have been; and how many commands it takes."""
    of = {one.number: one for one in attributes}
    had = set(numbers)
    against, commands = 0.0, 0
    for number, column in zip(numbers, announced, strict=True):
        now, then = of[number], known.get(number)
        # who waits for a table's lock has its number already, so an older one may have altered it later
        differs = (now.name != column.name) + (not _is_of(column, now.type_oid, now.modifier))
        commands += 1 if now.name is None else differs
        against += _UNLIKELY * (precedes(now.changed, xid) and differs > 0)
        if then is None:
            commands += bool(known)
        else:
            same = then.redacted is not None or _is_of(column, then.type_oid, then.modifier)
            commands += (then.name != column.name) + (not same)
    commands += sum(number not in had for number in known)  # dropped before
    for one in attributes:
        if one.name is None and one.number not in had:
            commands += 0 if one.number in known else 2  # added and dropped, before or since
            against += _UNLIKELY * (one.number < max(had, default=0) and precedes(xid, one.changed))
    for one in attributes:
        if one.name is not None and one.number not in had and one.number not in known:
            commands += 1  # added since, or not published
            against += _UNLIKELY * (precedes(one.changed, xid) and not one.generated)
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
    known = _numbered(before)
    now, then = attributes.get(number), known.get(number)
    kept = None if now is None or not _is_of(column, now.type_oid, now.modifier) else now.missing
    if then is not None:
        hashed = then.redacted is not None and then.missing is not None and then.missing.text is not None
        if kept is not None and (hashed or then.type_oid != column.type_oid):
            return kept
        return Missing(None) if hashed else then.missing
    if now is None or now.name is None:
        return Missing(None)
    if now.missing is not None:
        return kept or Missing(None)
    if not known:
        return Missing(None) if now.filled else None
    hidden = number < max(known)  # it was there and not published
    return Missing(None) if rewritten or hidden else None


def key_then(
    flagged: Sequence[int],
    now: Sequence[int],
    before: Sequence[int],
    there: Collection[int],
    *,
    logged: bool,
    settled: bool,
) -> tuple[int, ...]:
    """The numbers of the columns of the primary key at a change.

    `flagged`: columns that the change marks as its identity, `logged`: which is the primary key; `now`: the key of now;
    `before`: that of the layout before; `there`: all columns; `settled`: the key of now was the key then.
    """
    if logged and flagged:
        return next((tuple(key) for key in (now, before) if set(key) == set(flagged)), tuple(flagged))
    if not settled and before and now and set(before) <= set(there):
        return tuple(before)
    return tuple(now) if set(now) <= set(there) else ()


def identity_then(
    now: ReplicaIdentity,
    changed: int,
    indexes: Collection[UniqueIndex],
    before: Relation | None,
    there: Collection[int],
    xid: int,
) -> IdentifiedBy | None:
    """By what a row of transaction `xid` that came without an old one was identified; None: by what rows are now. It
    was not by the whole row, which would have come along.

    `now`: the kind of identity that the table's row of `pg_class` names, which transaction `changed` wrote; `there`:
    the numbers of all columns; `before`: see `identify`.
    """
    by_index = now is ReplicaIdentity.INDEX
    primary = next((one for one in indexes if one.primary), None)
    of_key, kept = (None, False) if primary is None else (primary.columns, precedes(primary.created, xid))
    if by_index:
        settled = any(one.identity and precedes(one.changed, xid) for one in indexes)
    else:
        settled = precedes(changed, xid) and (kept or now is not ReplicaIdentity.DEFAULT)
    if settled:
        return None
    keyed = None if before is None or before.identity is ReplicaIdentity.FULL else before
    former = frozenset(c.number for c in (keyed.columns if keyed else ()) if c.key and c.number is not None)
    others = [one for one in indexes if not one.primary and not one.identity]
    over = any(one.columns == former and precedes(one.changed, xid) for one in others)
    over |= kept and former != of_key and keyed is not None and keyed.identity is ReplicaIdentity.DEFAULT
    # What is newer may be the transaction's own: its subtransactions have greater numbers. Of an index that is only
    # made the row is written once.
    rivals = {one.columns for one in others if not precedes(one.changed, xid) and one.changed != one.created}
    rivals |= {one.columns for one in indexes if (one.identity if by_index else one.primary)}
    if keyed and former and former <= set(there) and not over:
        # An index that is gone leaves no trace: then nothing identified rows from a time on that nobody knows.
        by_other = keyed.identity is ReplicaIdentity.INDEX
        gone = not any(one.columns == former and (one.primary or by_other) for one in indexes)
        return IdentifiedBy(keyed.identity, former, gone or (former == of_key and not kept) or not rivals <= {former})
    if of_key is not None and of_key <= set(there):
        return IdentifiedBy(ReplicaIdentity.DEFAULT, of_key, not kept or not rivals <= {of_key})
    return None


def storage_then(
    numbers: Iterable[int | None], attributes: Iterable[Attribute], now: int | None, before: Relation | None
) -> int | None:
    """A table's storage, so far as it may be compared with a later one: what was rewritten after a column came that the
    change does not have yet was rewritten with it. `now`: the storage of now.
    """
    highest = max((number for number in numbers if number is not None), default=0)
    seen = all(one.name is None or one.number <= highest for one in attributes)
    return now if seen or before is None else before.storage


def as_logged(relation: Relation, partitions: Iterable[Collection[str] | None]) -> Relation:
    """The layout of a partitioned table, by what its partitions log: `partitions` are the columns that each logs of old
    rows, None: all. The replica identity of the root itself decides nothing but what the stream calls an old row.
    """
    whole = frozenset(relation.names)
    logged = whole.intersection(*(whole if one is None else one for one in partitions))
    if all(not column.key or column.name in logged for column in relation.columns):
        return relation
    full = relation.identity is ReplicaIdentity.FULL
    return replace(
        relation,
        columns=tuple(replace(column, key=column.key and column.name in logged) for column in relation.columns),
        identity=ReplicaIdentity.DEFAULT if full else relation.identity,
        mixed=full,
    )
