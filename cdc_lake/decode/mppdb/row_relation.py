"""The relation of a row: columns and types are the row's, and what these do not say the catalog's or the last one's.

Which columns of the catalog they are is worked out (`decode.historic_catalog`); of each the catalog of now adds the
modifier where it is of that type, else the layout before does; else it is -1, which says that nobody knew. Where the
catalog tells no numbers, columns are known by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

from cdc_lake.decode.historic_catalog import Attribute, Named, identify
from cdc_lake.decode.mppdb.builtin_types import BUILTIN, OID_OF
from cdc_lake.decode.mppdb.facts import FamilyColumn, FamilyTableFacts
from cdc_lake.errors import UnknownType
from cdc_lake.model.change import OldKind
from cdc_lake.model.relation import Column, Missing, Relation, ReplicaIdentity, TableName

Kind: TypeAlias = int | str
"""A type as a row names it: its OID in style b, what is printed in the text styles."""
Names: TypeAlias = tuple[tuple[str, Kind], ...]


def all_columns(facts: FamilyTableFacts | None) -> Names:
    """The columns of a table as the catalog has them."""
    return tuple((c.name, c.type_oid) for c in facts.columns) if facts is not None else ()


def columns_of_delete(latest: Relation | None, facts: FamilyTableFacts | None, sent: Names | None) -> Names:
    """The columns of a table of which a row brings the key only."""
    wanted = {name for name, _ in sent or ()}
    if latest is not None and wanted <= set(latest.names):
        return tuple((c.name, c.type_oid) for c in latest.columns)
    if facts is not None and wanted <= {c.name for c in facts.columns}:
        return all_columns(facts)
    return sent or ()


def relation_of(
    name: TableName, facts: FamilyTableFacts | None, latest: Relation | None, columns: Names, sent: Names | None
) -> Relation:
    """A layout of these columns; `sent` are the columns of the old row that came with it."""
    names = {column for column, _ in columns}
    given = {column for column, _ in sent or ()}
    numbers = _numbers(columns, facts, latest)
    then = {now: column for column, number in numbers.items() for now in _name_now(number, facts)}
    if facts is not None:
        identity = facts.identity
        primary_key = _key_then(tuple(then.get(one, one) for one in facts.primary_key), given, latest)
        whole, logged = facts.whole, {then.get(one, one) for one in facts.identity_columns}
    elif latest is not None:
        identity, primary_key = latest.identity, latest.primary_key
        whole, logged = identity is ReplicaIdentity.FULL, {c.name for c in latest.columns if c.key}
    else:
        identity, primary_key, whole, logged = ReplicaIdentity.DEFAULT, (), False, set()
    key = _key_before(latest, facts, numbers) if facts is not None and latest is not None and whole else set()
    if key and key <= names and (sent is None or given == key):
        # Servers leave NULLs out of whole old rows: one that has the columns of the former key alone may be from before
        # the identity was changed. As a key it is right in both cases; and what has no old row does not tell.
        assert latest is not None, "it has a key"
        whole, logged, identity = False, key, latest.identity
    if given and not whole and not given <= logged and not (logged and given > logged):
        # another identity than the catalog's of now: what was sent was logged
        whole, logged, identity = given == names, given, ReplicaIdentity.INDEX
    return Relation(
        table=name,
        columns=tuple(
            _column(one, kind, numbers.get(one), facts, latest, key=whole or one in logged) for one, kind in columns
        ),
        identity=ReplicaIdentity.FULL if whole else identity,
        primary_key=primary_key if set(primary_key) <= names else (),
        oid=facts.oid if facts is not None else latest.oid if latest is not None else None,
        storage=facts.file if facts is not None else latest.storage if latest is not None else None,
    )


def _key_before(latest: Relation, facts: FamilyTableFacts, numbers: Mapping[str, int]) -> set[str]:
    """What the layout before logged of old rows, where that was less than all, by the names of now."""
    if latest.identity is ReplicaIdentity.FULL or latest.oid != facts.oid:
        return set()
    names = {number: name for name, number in numbers.items()}
    return {names.get(c.number, c.name) if c.number is not None else c.name for c in latest.columns if c.key}


def _numbers(columns: Names, facts: FamilyTableFacts | None, latest: Relation | None) -> dict[str, int]:
    """The numbers that columns had at their row; nothing where the catalog does not tell. Of columns that may be one or
    another, the catalog's of now are taken, where it has their names.
    """
    if facts is None or not facts.highest or any(c.number is None for c in facts.columns):
        return {}
    of = {c.number: c for c in facts.columns}
    attributes = [
        Attribute(number) if (c := of.get(number)) is None else Attribute(number, c.name, c.type_oid, c.modifier)
        for number in range(1, facts.highest + 1)
    ]
    kinds = [kind if isinstance(kind, int) else _oid(one, kind, facts) for one, kind in columns]
    announced = [Named(one, kind, None) for (one, _), kind in zip(columns, kinds, strict=True)]
    found = identify(announced, attributes, latest if latest is not None and latest.oid == facts.oid else None)
    if found is None:
        return {}
    by_name = {c.name: c.number for c in facts.columns if c.number is not None}
    numbers = {}
    for at, ((one, _), number) in enumerate(zip(columns, found.numbers, strict=True)):
        numbers[one] = by_name.get(one, number) if at in found.ambiguous else number
    return numbers if len(set(numbers.values())) == len(numbers) else {}


def _oid(name: str, kind: str, facts: FamilyTableFacts) -> int | None:
    """The OID of a type that is printed; None where several may print so."""
    return next((c.type_oid for c in facts.columns if c.name == name and is_of(c, kind)), OID_OF.get(kind))


def _name_now(number: int, facts: FamilyTableFacts | None) -> list[str]:
    return [c.name for c in facts.columns if c.number == number] if facts is not None else []


def _key_then(now: tuple[str, ...], given: Collection[str], latest: Relation | None) -> tuple[str, ...]:
    """The primary key: that of the layout before, where an old row tells that it still was the key."""
    before = () if latest is None else latest.primary_key
    return before if before and set(before) == set(given) and set(now) != set(given) else now


def old_kind_of(relation: Relation, sent: Names) -> OldKind | None:
    """What an old tuple of these columns is; None for an empty one that cannot be a whole row of NULLs."""
    if relation.identity is ReplicaIdentity.FULL:
        return OldKind.FULL
    if not sent:
        return None
    logged = {c.name for c in relation.columns if c.key}
    return OldKind.KEY if {name for name, _ in sent} <= logged else OldKind.FULL


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
    number: int | None,
    facts: FamilyTableFacts | None,
    latest: Relation | None,
    *,
    key: bool,
) -> Column:
    """A column by its number, where that is known, else by its name."""
    by_number = number is not None
    now = next((c for c in (facts.columns if facts is not None else ()) if _is(c, name, number)), None)
    before = latest if not by_number or (facts is not None and latest is not None and latest.oid == facts.oid) else None
    then = next((c for c in (before.columns if before is not None else ()) if _is(c, name, number)), None)
    for one in (now, then):
        if one is not None and is_of(one, kind):
            missing = _missing(now, then, facts, before) if by_number else one.missing
            told = number if by_number else one.number
            return Column(name, one.type_name, one.type_oid, one.modifier, key, number=told, missing=missing)
    missing = _missing(now, then, facts, before) if by_number else None
    if isinstance(kind, str):
        oid = OID_OF.get(kind, 0)
        return Column(name, BUILTIN[oid].name if oid else kind, oid, -1, key, number=number, missing=missing)
    builtin = BUILTIN.get(kind)
    type_name = builtin.name if builtin is not None else facts.type_names.get(kind) if facts is not None else None
    if type_name is None:
        raise UnknownType(f"column `{name}` is of type OID {kind}, whose name is not known")
    return Column(name, type_name, kind, -1, key, number=number, missing=missing)


def _is(column: FamilyColumn | Column, name: str, number: int | None) -> bool:
    return column.name == name if number is None else column.number == number


def _missing(
    now: FamilyColumn | None, then: Column | None, facts: FamilyTableFacts | None, before: Relation | None
) -> Missing | None:
    """What rows from before a column hold: what was read when it came, else what the catalog keeps."""
    if then is not None and then.redacted is None and (now is None or now.missing in (None, Missing(None))):
        return then.missing
    if now is None:
        return Missing(None) if before is not None else None
    new = before is not None and then is None
    rewritten = before is not None and facts is not None and before.storage != facts.file
    return Missing(None) if now.missing is None and new and (now.filled or rewritten) else now.missing
