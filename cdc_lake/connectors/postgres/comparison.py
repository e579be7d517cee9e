"""The PostgreSQL side of a comparison (`connectors.base.ComparisonSource`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property

import pyarrow as pa

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.config.project import Project
from cdc_lake.connectors.open_stream import codec_by_name
from cdc_lake.connectors.postgres.decoding import by_publication, carried_tables
from cdc_lake.connectors.postgres.server_checks import check_same
from cdc_lake.errors import SlotActive
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.source.base import PendingTransaction, PublishedTable, SnapshotVisibility
from cdc_lake.source.postgres.catalog import relation_of, takes
from cdc_lake.source.postgres.connection import Session, connect
from cdc_lake.source.postgres.server import goal, hashes_alike, identify, wal_position
from cdc_lake.source.postgres.slot_peek import peek_pending, unlanded_lines
from cdc_lake.source.postgres.snapshot_visibility import read_blocks, sum_rows, visible
from cdc_lake.source.row_hash_sql import HashSql
from cdc_lake.tables.control_tables import control_tables

_APPLICATION = "cdc_lake compare"


class PostgresComparison:
    """One session that reads everything in one snapshot, and another that peeks at the slot."""

    def __init__(self, project: Project, reading: Session) -> None:
        self._project = project
        self._reading = reading

    def captured_tables(self) -> list[PublishedTable]:
        """The tables that the stream contains, sorted."""
        return carried_tables(self._project, self._reading)

    def snapshot(self, tables: Sequence[TableName]) -> AbstractContextManager[SnapshotVisibility]:
        """One snapshot for everything that is read inside."""
        return visible(self._reading, tables)

    def relation_of(self, source_table: PublishedTable) -> Relation:
        """The layout of a captured table, as the stream would announce it."""
        return relation_of(self._reading, source_table.table, source_table.columns)

    def parts(self, relation: Relation, source_table: PublishedTable) -> Iterator[pa.Table]:
        """The rows of a captured table that match its filter, in blocks: large_string columns, text as printed."""
        return read_blocks(self._reading, relation, codec_by_name(self._project, "SQL_ASCII"), source_table.row_filter)

    def unsummable_reason(self, relation: Relation) -> str:
        """Why the server cannot sum up hashes, empty if it can: it hashes text in its own encoding, silver UTF-8."""
        del relation
        encoding = self._reading.pgconn.parameter_status(b"server_encoding") or b""
        if encoding != b"UTF8":
            return f"its database has the encoding {encoding.decode()}"
        return "" if self._alike else "its server has other hash functions"

    @cached_property
    def _alike(self) -> bool:
        return hashes_alike(self._reading)

    def sums(self, source_table: PublishedTable, hashed: HashSql) -> Iterator[tuple[int, int, int]]:
        """The rows of `parts`, summed up by the server: bucket, number of rows, sum of their hashes."""
        return sum_rows(self._reading, source_table.table, hashed, source_table.row_filter)

    def ahead(self, shown: SnapshotVisibility, after: int) -> list[PendingTransaction] | None:
        """What the slot still has of what the snapshot shows, after position `after`; None if it has a reader."""
        project = self._project
        with connect(project.postgres, project.root, application=_APPLICATION) as session:
            if wal_position(session).value < shown.position:
                goal(session)  # decoding stops at the flush position: our own commit flushes everything before it
            slot, upto, two_phase = project.slot, shown.position, project.postgres.decoding.two_phase
            try:
                if by_publication(project):
                    return peek_pending(session, slot, project.publication, after, upto, two_phase=two_phase)
                takes_table = takes(self._reading, project.postgres.tables)
                return unlanded_lines(session, slot, takes_table, after, upto, two_phase=two_phase)
            except SlotActive:
                return None


@contextmanager
def postgres_side(project: Project, state: StreamCheckpoint) -> Iterator[PostgresComparison]:
    """Connect to the server of bronze's stream. Raises SourceError, StateError."""
    streams = project.postgres.streams
    with connect(project.postgres, project.root, application=_APPLICATION, replication=streams) as replication:
        check_same(project, replication, identify(replication, project.postgres), state, control_tables(project))
    with connect(project.postgres, project.root, application=_APPLICATION) as reading:
        yield PostgresComparison(project, reading)
