"""The source's side of a comparison, whatever the server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa

from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.captured import Published, Shown, Unlanded
from cdc_lake.source.hash_sql import HashSql


class CompareSource(Protocol):
    """What a comparison asks of the source. Every method raises SourceError."""

    def captured(self) -> list[Published]:
        """The tables that the stream carries, sorted."""
        ...

    def snapshot(self, tables: Sequence[TableName]) -> AbstractContextManager[Shown]:
        """One snapshot for all that is read inside."""
        ...

    def relation_of(self, one: Published) -> Relation:
        """The layout of a captured table, as the stream would announce it."""
        ...

    def parts(self, relation: Relation, one: Published) -> Iterator[pa.Table]:
        """The rows of a captured table in the snapshot that its row filter takes, a block at a time: large_string
        columns by name, text as the server prints it.
        """
        ...

    def rows(self, relation: Relation, one: Published) -> pa.Table:
        """All of them in one table: for few."""
        ...

    def unsummed(self, relation: Relation) -> str:
        """Why the server cannot sum up hashes of the rows that silver should have; empty where it can."""
        ...

    def sums(self, one: Published, hashed: HashSql) -> Iterator[tuple[int, int, int]]:
        """The same rows as `parts` gives, summed up by the server: bucket, number of rows, sum of their hashes."""
        ...

    def ahead(self, shown: Shown, after: int) -> Sequence[Unlanded] | None:
        """What the slot still has of what the snapshot shows, above position `after`; None where somebody reads it."""
        ...


def joined(blocks: Iterable[pa.Table], relation: Relation) -> pa.Table:
    """All rows of some blocks of a table in one table."""
    empty = pa.schema([pa.field(name, pa.large_string()) for name in relation.names]).empty_table()
    return pa.concat_tables([empty, *blocks])
