"""The relation of a row: columns and types are the row's, and what these do not say the catalog's or the last one's.

Which columns of the catalog they are is worked out (`decode.historic_catalog`); of each the catalog of now adds the
modifier where it is of that type and no newer than the row, else the layout before does; else it is -1, which says that
nobody knew. Where the catalog tells no numbers, columns are known by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from cdc_lake.decode.historic_catalog import (
    Named,
    identify,
    identity_then,
    key_then,
    missing_then,
    precedes,
    storage_then,
)
from cdc_lake.decode.mppdb.builtin_types import BUILTIN, OID_OF
from cdc_lake.decode.mppdb.facts import FamilyColumn, FamilyTableFacts, Storage
from cdc_lake.errors import UnknownType
from cdc_lake.model.change import OldKind
from cdc_lake.model.relation import Column, Missing, Relation, ReplicaIdentity, TableName, numeric_modifier

Kind: TypeAlias = int | str
"""A type as a row names it: its OID in style b, what is printed in the text styles."""
Names: TypeAlias = tuple[tuple[str, Kind], ...]


def all_columns(facts: FamilyTableFacts | None) -> Names:
    """The columns of a table as the catalog has them."""
    return tuple((c.name, c.type_oid) for c in facts.columns) if facts is not None else ()


def layout_now(name: TableName, facts: FamilyTableFacts | None) -> Relation:
    """The layout of a table as the catalog has it."""
    attributes = () if facts is None else tuple(one for one in facts.attributes if one.name is not None)
    return relation_of(name, facts and replace(facts, attributes=attributes), Before(), all_columns(facts), None)


def columns_of_delete(latest: Relation | None, facts: FamilyTableFacts | None, sent: Names | None) -> Names:
    """The columns of a table of which a row brings the key only."""
    wanted = {name for name, _ in sent or ()}
    if latest is not None and wanted <= set(latest.names):
        return tuple((c.name, c.type_oid or c.type_name) for c in latest.columns)
    if facts is not None and wanted <= {c.name for c in facts.columns}:
        return all_columns(facts)
    return sent or ()


@dataclass(frozen=True, slots=True)
class Before:
    """What was known of a table before a row: its last layout, and the greatest number that a column of it had."""

    latest: Relation | None = None
    highest: int = 0

    def of(self, facts: FamilyTableFacts | None) -> Before:
        """The same, if the catalog's table of that name is the one that it is of."""
        same = facts is not None and self.latest is not None and self.latest.oid == facts.oid
        return self if same else Before()


def relation_of(
    name: TableName,
    facts: FamilyTableFacts | None,
    before: Before,
    columns: Names,
    sent: Names | None,
    xid: int | None = None,
    *,
    updates: bool = False,
) -> Relation:
    """A layout of these columns, of a row of transaction `xid`, which `updates` another one or is new; `sent` are the
    columns of the old row that came with it.
    """
    latest, of_table = before.latest, before.of(facts)
    names = {column for column, _ in columns}
    given = {column for column, _ in sent or ()}
    found = _identified(columns, facts, of_table, xid)
    numbers = {one: number for one, (number, _) in found.items() if number is not None}
    if facts is not None:
        then = {now: column for column, number in numbers.items() for now in _name_now(number, facts)}
        logged = {then.get(one, one) for one in facts.identity_columns}
        was_full = not facts.whole and not given <= logged and _may_be_null(given, facts, numbers)
        flagged = names if was_full else given
        primary_key = _key_then(facts, of_table.latest if numbers else latest, columns, flagged, numbers, xid)
        identity = ReplicaIdentity.FULL if facts.whole or was_full else facts.identity
    elif latest is not None:
        identity, primary_key, logged = latest.identity, latest.primary_key, {c.name for c in latest.columns if c.key}
    else:
        identity, primary_key, logged = ReplicaIdentity.DEFAULT, (), set()
    if facts is not None and facts.whole:
        # Servers leave NULLs out of whole old rows: one that has the columns of a key alone may be from before the
        # identity was changed. As a key it is right in both cases; and what has no old row does not tell.
        key = _key_before(of_table.latest, numbers)
        if key and key <= names and (sent is None or given == key):
            assert latest is not None, "it has a key"
            identity, logged = latest.identity, key
        elif given < names and _is_key(facts, of_table.latest, given, names, primary_key):
            by_key = given == set(primary_key)
            identity, logged = ReplicaIdentity.DEFAULT if by_key else ReplicaIdentity.INDEX, given
    by, was_whole = None, of_table.latest is not None and of_table.latest.identity is ReplicaIdentity.FULL
    sure = updates or not (identity is ReplicaIdentity.FULL or was_whole)  # an INSERT never has an old row
    if sent is None and sure and xid is not None and facts is not None and facts.identity_changed is not None:
        changes = facts.identity, facts.identity_changed
        by = identity_then(*changes, facts.indexes, of_table.latest, numbers.values(), xid)
    if by is not None:
        identity, logged = by.kind, {one for one, number in numbers.items() if number in by.columns}
    more = logged and given > logged and (given == names or facts is None or facts.storage is Storage.USTORE)
    if identity is not ReplicaIdentity.FULL and not given <= logged and not more:
        # another identity than the catalog's of now: what was sent was logged
        identity, logged = ReplicaIdentity.FULL if given == names else ReplicaIdentity.INDEX, given
    whole = identity is ReplicaIdentity.FULL
    if facts is not None:
        oid, storage = facts.oid, storage_then(numbers.values(), facts.attributes, facts.file, of_table.latest)
    else:
        oid, storage = (None, None) if latest is None else (latest.oid, latest.storage)
    return Relation(
        table=name,
        columns=tuple(
            _column(
                one,
                kind,
                found.get(one),
                facts,
                of_table if one in numbers else before,
                xid,
                key=whole or one in logged,
            )
            for one, kind in columns
        ),
        identity=identity,
        primary_key=primary_key if set(primary_key) <= names else (),
        oid=oid,
        storage=storage,
        # what was in doubt stays so, until it is settled
        ambiguous=by is not None
        and by.ambiguous
        and (updates or (of_table.latest is not None and of_table.latest.ambiguous)),
    )


def _may_be_null(given: Collection[str], facts: FamilyTableFacts, numbers: Mapping[str, int]) -> bool:
    """Whether an old row has a column that no key has: then it was a whole one, whatever is logged now, without its
    NULLs.
    """
    nullable = {c.number for c in facts.columns if not c.filled}
    return facts.storage is not Storage.USTORE and any(numbers[one] in nullable for one in given if one in numbers)


def _key_before(latest: Relation | None, numbers: Mapping[str, int]) -> set[str]:
    """What the layout before logged of old rows, where that was less than all, by the names of now."""
    if latest is None or latest.identity is ReplicaIdentity.FULL:
        return set()
    names = {number: name for name, number in numbers.items()}
    return {names.get(c.number, c.name) if c.number is not None else c.name for c in latest.columns if c.key}


def _is_key(
    facts: FamilyTableFacts,
    latest: Relation | None,
    given: Collection[str],
    names: Collection[str],
    primary_key: Collection[str],
) -> bool:
    """Whether an old row that lacks columns is a key, and no whole one without its NULLs."""
    if not given:
        return False
    if any(c.filled and c.name in names and c.name not in given for c in facts.columns):
        return True
    return latest is None and set(given) == set(primary_key)


def _identified(
    columns: Names, facts: FamilyTableFacts | None, before: Before, xid: int | None
) -> dict[str, tuple[int | None, bool]]:
    """The number that each column had at its row, and whether it may be another one as well; nothing where the catalog
    does not tell.
    """
    if facts is None or not facts.attributes:
        return {}
    kinds = [kind if isinstance(kind, int) else _oid(one, kind, facts) for one, kind in columns]
    announced = [Named(one, kind, None) for (one, _), kind in zip(columns, kinds, strict=True)]
    found = identify(announced, facts.attributes, before.latest, xid, before.highest)
    if found is None:
        of_now = {one.name: one.number for one in facts.attributes}
        return {one: (of_now.get(one), True) for one, _ in columns}
    # what was in doubt stays so: rows of other shapes have the same layout
    doubtful = {c.number for c in (() if before.latest is None else before.latest.columns) if c.ambiguous}
    return {
        one: (number, at in found.ambiguous or number in doubtful)
        for at, ((one, _), number) in enumerate(zip(columns, found.numbers, strict=True))
    }


def _oid(name: str, kind: str, facts: FamilyTableFacts) -> int | None:
    """The OID of a type that is printed; None where several may print so."""
    oid = next((c.type_oid for c in facts.columns if c.name == name and is_of(c, kind)), OID_OF.get(kind))
    if oid is None and (found := facts.printed_types(kind)) is not None:
        return found[0]
    return oid


def _name_now(number: int, facts: FamilyTableFacts) -> list[str]:
    return [c.name for c in facts.columns if c.number == number]


def _key_then(
    facts: FamilyTableFacts,
    latest: Relation | None,
    columns: Names,
    given: Collection[str],
    numbers: Mapping[str, int],
    xid: int | None,
) -> tuple[str, ...]:
    """The primary key at a row, by the names of its columns there."""
    now, was = facts.primary_key, () if latest is None else latest.primary_key
    if not numbers:
        return was if was and set(was) == set(given) and set(now) != set(given) else now
    of_now = {one.name: one.number for one in facts.attributes}
    of_before = {c.name: c.number for c in (() if latest is None else latest.columns) if c.number is not None}
    of_key = [of_now[name] for name in now if name in of_now]
    of_former = [of_before[name] for name in was if name in of_before]
    flagged = [numbers[one] for one, _ in columns if one in given and one in numbers]
    by_default = facts.identity is ReplicaIdentity.DEFAULT and len(flagged) < len(columns)
    key = key_then(
        flagged,
        of_key,
        of_former,
        numbers.values(),
        logged=by_default or set(flagged) in (set(of_key), set(of_former)),
        settled=xid is None or precedes(facts.key_changed, xid),
    )
    names = {number: name for name, number in numbers.items()}
    return tuple(names[number] for number in key if number in names)


def old_kind_of(relation: Relation, sent: Names) -> OldKind | None:
    """What an old tuple of these columns is; None for an empty one that cannot be a whole row of NULLs."""
    if relation.identity is ReplicaIdentity.FULL:
        return OldKind.FULL
    if not sent:
        return None
    names = {name for name, _ in sent}
    return OldKind.FULL if names == set(relation.names) and not names <= logged_of(relation) else OldKind.KEY


def logged_of(relation: Relation) -> set[str]:
    """The columns that the server logs of old rows."""
    return {c.name for c in relation.columns if c.key}


def is_of(column: FamilyColumn | Column, kind: Kind) -> bool:
    """Whether a column is of the type that a row names."""
    if isinstance(kind, int):
        return column.type_oid == kind
    printed = column.printed if isinstance(column, FamilyColumn) else None
    builtin = BUILTIN.get(column.type_oid)
    return kind == (printed or (builtin.printed if builtin is not None else column.type_name))


def _column(
    name: str,
    kind: Kind,
    found: tuple[int | None, bool] | None,
    facts: FamilyTableFacts | None,
    before: Before,
    xid: int | None,
    *,
    key: bool,
) -> Column:
    """A column by its number, where that is known, else by its name."""
    number, ambiguous = found or (None, False)
    latest = before.latest
    now = next((c for c in (facts.columns if facts is not None else ()) if _is(c, name, number)), None)
    then = next((c for c in (latest.columns if latest is not None else ()) if _is(c, name, number)), None)
    order = (then, now) if _altered_since(facts, number, xid) and not _holds(now, then) else (now, then)
    known = next((one for one in order if one is not None and is_of(one, kind)), None)
    type_name, oid, modifier = _type(name, kind, facts, latest) if known is None else _type_of(known)
    if facts is None or number is None:
        missing = Missing(None) if ambiguous else None if known is None else known.missing
        told = None if known is None else known.number
        return Column(name, type_name, oid, modifier, key, number=told, missing=missing, ambiguous=ambiguous)
    missing = missing_then(
        Named(name, oid, modifier),
        number,
        {one.number: one for one in facts.attributes},
        latest,
        rewritten=latest is None or latest.storage != facts.file or (now is not None and now.filled),
    )
    return Column(name, type_name, oid, modifier, key, number=number, missing=missing, ambiguous=ambiguous)


def _altered_since(facts: FamilyTableFacts | None, number: int | None, xid: int | None) -> bool:
    """Whether what the catalog says of a column is known to be no older than transaction `xid`."""
    if facts is None or xid is None:
        return False
    written = (one.changed for one in facts.attributes if one.number == number)
    return any(changed is not None and not precedes(changed, xid) for changed in written)


def _holds(now: FamilyColumn | Column | None, then: Column | None) -> bool:
    """Whether the type of now has all values of the one of then as they are: a decimal of more digits does."""
    if now is None or then is None or now.type_oid != OID_OF["numeric"]:
        return False
    if (former := numeric_modifier(then.modifier)) is None:
        return False
    given = numeric_modifier(now.modifier)
    return given is None or (given[1] >= former[1] and given[0] - given[1] >= former[0] - former[1])


def _type_of(column: FamilyColumn | Column) -> tuple[str, int, int]:
    return column.type_name, column.type_oid, column.modifier


def _type(name: str, kind: Kind, facts: FamilyTableFacts | None, latest: Relation | None) -> tuple[str, int, int]:
    """Name, OID and modifier of a type that neither the catalog nor the layout before has for a column."""
    if isinstance(kind, str):
        if (oid := OID_OF.get(kind, 0)) or facts is None or (found := facts.printed_types(kind)) is None:
            return BUILTIN[oid].name if oid else kind, oid, -1
        return found[1], found[0], -1
    builtin = BUILTIN.get(kind)
    type_name = builtin.name if builtin is not None else facts.type_names.get(kind) if facts is not None else None
    if type_name is None and latest is not None:  # of a DELETE, whose columns are those of the layout before
        type_name = next((c.type_name for c in latest.columns if c.type_oid == kind), None)
    if type_name is None:
        raise UnknownType(f"column `{name}` is of type OID {kind}, whose name is not known")
    return type_name, kind, -1


def _is(column: FamilyColumn | Column, name: str, number: int | None) -> bool:
    return column.name == name if number is None else column.number == number
