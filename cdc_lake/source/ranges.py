"""Ranges: a table in parts that several readers copy side by side, all in one snapshot.

A part is a range of the blocks that a stored table has, read by a TID range scan (PostgreSQL 14 and newer): each row of
the snapshot is in exactly one, because rows do not move. What would move them, a rewrite, the readers shut out and find
out (`source.snapshot`). The last range has no end, for blocks that came while the first ones were counted.

A partitioned table is read partition by partition, with the rights that asks for; where they are missing, and for
everything that has no blocks (a foreign table), there is one part: the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.connection import Session, named
from cdc_lake.source.quoting import quoted

_RANGE_CHUNKS = 4
"""Chunks of one range: the last one is smaller than the others, so ranges are not too short."""
_ROWS_A_BLOCK = 60  # where the planner does not know
_BLOCKS_AT_MOST = 131_072  # 1 GiB in blocks of 8 KiB


@dataclass(frozen=True, slots=True)
class Range:
    """Blocks of a stored table: from `first` on to before `until`, None: to its end."""

    stored: TableName
    first: int = 0
    until: int | None = None

    @property
    def condition(self) -> str | None:
        """The SQL that only its rows meet; None where all do."""
        bounds = [f"ctid >= '({self.first},0)'::tid"] if self.first else []
        bounds += [f"ctid < '({self.until},0)'::tid"] if self.until is not None else []
        return " AND ".join(bounds) or None


@dataclass(frozen=True, slots=True)
class _Stored:
    """A table with rows of its own: an ordinary one, a partition, or a foreign table. `rows`: as the planner thinks."""

    name: TableName
    kind: str
    blocks: int
    rows: float
    pages: int
    readable: bool


def ranges_of(session: Session, relation: Relation, chunk_rows: int) -> Sequence[Range]:
    """The parts of a table in the session's snapshot; none where it is to be read as a whole. Raises SourceError."""
    stored = _stored(session, relation.table)
    if not all(one.readable for one in stored) and [one.name for one in stored] != [relation.table]:
        return ()
    found = [part for one in stored for part in _cut(one, chunk_rows)]
    return found if len(found) > 1 else ()


def _cut(stored: _Stored, chunk_rows: int) -> Iterator[Range]:
    if stored.kind != "r":
        yield Range(stored.name)
        return
    density = stored.rows / stored.pages if stored.rows > 0 and stored.pages > 0 else _ROWS_A_BLOCK
    size = min(max(round(_RANGE_CHUNKS * chunk_rows / density), 1), _BLOCKS_AT_MOST)
    borders = range(size, stored.blocks, size)
    for first, until in zip((0, *borders), (*borders, None), strict=True):
        yield Range(stored.name, first, until)


def _stored(session: Session, table: TableName) -> list[_Stored]:
    """The table itself, or the partitions that hold its rows, as the session's snapshot has them."""
    with named(f"looking up the parts of {table}"):
        rows = session.execute(
            "WITH RECURSIVE tree AS ("
            "  SELECT c.oid, c.relkind FROM pg_class AS c WHERE c.oid = %s::regclass"
            "  UNION ALL SELECT c.oid, c.relkind FROM tree JOIN pg_inherits AS i ON i.inhparent = tree.oid"
            "  JOIN pg_class AS c ON c.oid = i.inhrelid WHERE tree.relkind = 'p') "
            "SELECT n.nspname, c.relname, c.relkind::text, "
            "CASE c.relkind WHEN 'r' THEN pg_relation_size(c.oid) / current_setting('block_size')::int ELSE 0 END, "
            "c.reltuples::float8, c.relpages, "
            "has_table_privilege(c.oid, 'SELECT') "
            "AND NOT row_security_active(c.oid) AND NOT row_security_active(%s::regclass) "
            "FROM tree JOIN pg_class AS c USING (oid) JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE c.relkind <> 'p' ORDER BY c.oid",
            [quoted(table), quoted(table)],
        ).fetchall()
    return [
        _Stored(
            TableName(str(schema), str(name)),
            str(kind),
            int(str(blocks or 0)),
            float(str(planned)),
            int(str(pages)),
            bool(readable),
        )
        for schema, name, kind, blocks, planned, pages, readable in rows
    ]
