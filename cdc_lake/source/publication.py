"""The publication: which tables the slot's stream carries.

`tables` of the pipeline are patterns over the catalog. They choose the tables when the publication is made, and again
at every start of the receiver: what came or went since is told, and done where the publication is the pipeline's own
(`pipeline.postgres.tables`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from cdc_lake.errors import PublicationMissing, PublicationUnfit
from cdc_lake.model.relation import TableName
from cdc_lake.source.captured import Published
from cdc_lake.source.connection import Session, named
from cdc_lake.source.quoting import identifier, literal, quoted

# of a table that is published with its schema, or with all others, there is none but the publication itself
_MEMBER = (
    "coalesce("
    "(SELECT r.oid FROM pg_publication_rel AS r WHERE r.prpubid = o.oid AND r.prrelid = {table}), o.oid)::bigint"
)


@dataclass(frozen=True, slots=True)
class Maker:
    """The pipeline that made a publication, and the slot by which it reads; kept as the publication's comment."""

    pipeline: str
    slot: str

    def __str__(self) -> str:
        return f"cdc_lake: made by pipeline {self.pipeline} for slot {self.slot}"


_MADE_BY = re.compile(r"cdc_lake: made by pipeline (\S+) for slot (\S+)")


def tables_in_database(session: Session) -> list[TableName]:
    """Tables that can be published: ordinary ones and partitioned roots, none of the system's, none temporary."""
    with named("listing the tables"):
        rows = session.execute(
            "SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p' "
            "AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
        ).fetchall()
    return sorted(TableName(str(schema), str(name)) for schema, name in rows)


def publication_exists(session: Session, name: str) -> bool:
    """True where there is one; raises PublicationUnfit where it leaves out a kind of change."""
    with named(f"looking up publication `{name}`"):
        row = session.execute(
            "SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = %s", [name]
        ).fetchone()
    if row is None:
        return False
    missing = [kind for kind, there in zip(("insert", "update", "delete", "truncate"), row, strict=True) if not there]
    if missing:
        raise PublicationUnfit(
            f"publication `{name}` leaves out {', '.join(missing)}",
            hint=f"ALTER PUBLICATION {identifier(name)} SET (publish = 'insert, update, delete, truncate')",
        )
    return True


Conditions: TypeAlias = Mapping[TableName, str]
"""Conditions in SQL on the rows of tables."""
_NONE: Final[Conditions] = MappingProxyType({})


def creating(name: str, tables: Iterable[TableName], filters: Conditions = _NONE) -> str:
    """The statement that makes a publication of exactly these tables; changes of partitions appear as their root's."""
    options = "WITH (publish_via_partition_root = true)"
    return f"CREATE PUBLICATION {identifier(name)} FOR TABLE {_each(tables, filters)} {options}"


def create_publication(
    session: Session, name: str, tables: Sequence[TableName], filters: Conditions = _NONE, maker: Maker | None = None
) -> None:
    """Make that publication, which says who made it. Raises SourceError."""
    statement = creating(name, tables, filters)
    if maker is not None:  # both or neither: several statements sent as one are one transaction
        statement += f"; COMMENT ON PUBLICATION {identifier(name)} IS {literal(str(maker))}"
    with named(f"creating publication `{name}`"):
        session.execute(statement.encode())


def maker_of(session: Session, name: str) -> Maker | None:
    """Who made a publication; None if it does not say so, as one of a DBA or of version 0.3.0, or there is none.

    Raises SourceError.
    """
    with named(f"looking up who made publication `{name}`"):
        row = session.execute(
            "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s", [name]
        ).fetchone()
    found = None if row is None else _MADE_BY.fullmatch(str(row[0]))
    return None if found is None else Maker(found[1], found[2])


def altering(name: str, verb: str, *tables: TableName, filters: Conditions = _NONE) -> str:
    """The statement by which tables come into a publication (`ADD`) or leave it (`DROP`)."""
    return f"ALTER PUBLICATION {identifier(name)} {verb} TABLE {_each(tables, filters if verb == 'ADD' else _NONE)}"


def _each(tables: Iterable[TableName], filters: Conditions) -> str:
    """These tables alone: without ONLY those that inherit from them come along, and leave; partitions do anyway."""
    return ", ".join(f"ONLY {quoted(t)}" + (f" WHERE ({filters[t]})" if t in filters else "") for t in tables)


def alter_publication(session: Session, name: str, verb: str, *tables: TableName, filters: Conditions = _NONE) -> None:
    """Add tables to a publication, or drop them from it. Raises SourceError."""
    with named(f"altering publication `{name}`"):
        session.execute(altering(name, verb, *tables, filters=filters).encode())


def not_addable(session: Session, name: str, tables: Iterable[TableName]) -> list[TableName]:
    """Those of the tables that the role may not add to a publication, where that is there: it has to own both."""
    out = []
    for table in tables:
        with named(f"looking who owns {table}"):
            row = session.execute(
                "SELECT pg_has_role(p.pubowner, 'USAGE') AND pg_has_role(c.relowner, 'USAGE') "
                "FROM pg_publication AS p CROSS JOIN pg_class AS c WHERE p.pubname = %s AND c.oid = to_regclass(%s)",
                [name, quoted(table)],
            ).fetchone()
        if row is not None and not row[0]:
            out.append(table)
    return out


def published(session: Session, name: str) -> list[Published]:
    """What a publication carries, sorted by table; raises PublicationMissing, and PublicationUnfit where partitions
    come under their own names.
    """
    if not publication_exists(session, name):
        raise PublicationMissing(f"publication `{name}` is not there")
    with named(f"reading publication `{name}`"):
        rows = session.execute(
            # attnames and rowfilter came with PostgreSQL 15; before, every column that is not generated
            "SELECT p.schemaname, p.tablename, to_jsonb(p) ->> 'rowfilter', "
            "ARRAY(SELECT a.attname::text FROM pg_attribute AS a "
            "  WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            "  AND CASE WHEN to_jsonb(p) ? 'attnames' "
            "      THEN to_jsonb(p) -> 'attnames' ? a.attname::text ELSE a.attgenerated = '' END "
            f"  ORDER BY a.attnum), {_MEMBER.format(table='c.oid')}, c.oid::bigint, "
            "c.relispartition AND NOT o.pubviaroot "
            "FROM pg_publication_tables AS p JOIN pg_publication AS o ON o.pubname = p.pubname "
            "JOIN pg_class AS c ON c.oid = format('%%I.%%I', p.schemaname, p.tablename)::regclass WHERE p.pubname = %s",
            [name],
        ).fetchall()
    if parts := [str(TableName(str(s), str(t))) for s, t, *_, apart in rows if apart]:
        raise PublicationUnfit(
            f"publication `{name}` carries partitions under their own names: {', '.join(sorted(parts))}",
            hint=f"ALTER PUBLICATION {identifier(name)} SET (publish_via_partition_root = true)",
        )
    return sorted(
        (
            Published(
                TableName(str(s), str(t)),
                tuple(_names(columns)),
                None if f is None else str(f),
                int(str(member)),
                int(str(oid)),
            )
            for s, t, f, columns, member, oid, _ in rows
        ),
        key=lambda p: p.table,
    )


def member_of(session: Session, name: str, oid: int) -> tuple[TableName, int] | None:
    """The name that table `oid` has now, and its `Published.member`; None if table or publication is not there.

    Raises SourceError.
    """
    with named(f"looking up a table in publication `{name}`"):
        row = session.execute(
            f"SELECT n.nspname, c.relname, {_MEMBER.format(table='c.oid')} "
            "FROM pg_publication AS o, pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE o.pubname = %s AND c.oid = %s".encode(),
            [name, oid],
        ).fetchone()
    return None if row is None else (TableName(str(row[0]), str(row[1])), int(str(row[2])))


def check_published(
    name: str, carried: Iterable[TableName], wanted: Iterable[TableName], filters: Conditions = _NONE
) -> None:
    """Raise PublicationUnfit where a publication that was there before carries other tables than the pipeline wants."""
    have, want = set(carried), set(wanted)
    if missing := sorted(want - have):
        raise PublicationUnfit(
            f"publication `{name}` does not carry {', '.join(map(str, missing))}",
            hint=altering(name, "ADD", *missing, filters=filters),
        )
    if extra := sorted(have - want):
        listed = ", ".join(map(str, extra))
        raise PublicationUnfit(
            f"publication `{name}` carries {listed}, which `source.tables` leaves out",
            hint="name them in `source.tables`, or name another publication in `source.publication`",
        )


def _names(value: object) -> list[str]:
    assert isinstance(value, list)
    return [str(v) for v in value]
