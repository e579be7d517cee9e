"""The relation of a row: columns and types are the row's, and what these do not say the catalog's or the last one's.

Of each column the catalog of now adds modifier, number and the default of old rows where it has one of that name and
type, else the layout before does; else the modifier is -1, which says that nobody knew.
"""

from __future__ import annotations

from typing import TypeAlias

from cdc_lake.decode.mppdb.builtin_types import BUILTIN, OID_OF
from cdc_lake.decode.mppdb.facts import FamilyColumn, FamilyTableFacts
from cdc_lake.errors import UnknownType
from cdc_lake.model.change import OldKind
from cdc_lake.model.relation import Column, Relation, ReplicaIdentity, TableName

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
    if facts is not None:
        identity, primary_key = facts.identity, facts.primary_key
        whole, logged = facts.whole, set(facts.identity_columns)
    elif latest is not None:
        identity, primary_key = latest.identity, latest.primary_key
        whole, logged = identity is ReplicaIdentity.FULL, {c.name for c in latest.columns if c.key}
    else:
        identity, primary_key, whole, logged = ReplicaIdentity.DEFAULT, (), False, set()
    if given and not whole and not given <= logged and not (logged and given > logged):
        # another identity than the catalog's of now: what was sent was logged
        whole, logged, identity = given == names, given, ReplicaIdentity.INDEX
    known = {c.name: c for c in (latest.columns if latest is not None else ())}
    of_now = {c.name: c for c in (facts.columns if facts is not None else ())}
    return Relation(
        table=name,
        columns=tuple(
            _column(one, kind, (of_now.get(one), known.get(one)), facts, key=whole or one in logged)
            for one, kind in columns
        ),
        identity=ReplicaIdentity.FULL if whole else identity,
        primary_key=primary_key if set(primary_key) <= names else (),
        oid=facts.oid if facts is not None else latest.oid if latest is not None else None,
    )


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
    candidates: tuple[FamilyColumn | None, Column | None],
    facts: FamilyTableFacts | None,
    *,
    key: bool,
) -> Column:
    for one in candidates:
        if one is not None and is_of(one, kind):
            return Column(name, one.type_name, one.type_oid, one.modifier, key, number=one.number, missing=one.missing)
    if isinstance(kind, str):
        oid = OID_OF.get(kind, 0)
        return Column(name, BUILTIN[oid].name if oid else kind, oid, -1, key)
    builtin = BUILTIN.get(kind)
    type_name = builtin.name if builtin is not None else facts.type_names.get(kind) if facts is not None else None
    if type_name is None:
        raise UnknownType(f"column `{name}` is of type OID {kind}, whose name is not known")
    return Column(name, type_name, kind, -1, key)
