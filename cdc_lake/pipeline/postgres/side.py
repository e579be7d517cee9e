"""The PostgreSQL side of a comparison (`pipeline.ports.side.CompareSource`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import pyarrow as pa

from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.errors import SlotActive
from cdc_lake.lake.control import control_tables
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.pipeline.ports.side import joined
from cdc_lake.pipeline.postgres.captured import by_publication, carried
from cdc_lake.pipeline.postgres.resume import check_same
from cdc_lake.pipeline.stream.encoding import codec_by_name
from cdc_lake.source.captured import Published, Shown, Unlanded
from cdc_lake.source.catalog import relation_of
from cdc_lake.source.connection import Session, connect
from cdc_lake.source.decoded_tables import takes
from cdc_lake.source.hash_probe import hashes_alike
from cdc_lake.source.hash_sql import HashSql
from cdc_lake.source.rows import read_blocks, sum_rows
from cdc_lake.source.server import goal, identify, wal_position
from cdc_lake.source.unlanded import unlanded, unlanded_lines
from cdc_lake.source.visible import visible

_APPLICATION = "cdc_lake compare"


class PostgresSide:
    """One session that reads everything in one snapshot, and another that peeks into the slot."""

    def __init__(self, project: Project, reading: Session) -> None:
        self._project = project
        self._reading = reading

    def captured(self) -> list[Published]:
        """See CompareSource."""
        return carried(self._project, self._reading)

    @contextmanager
    def snapshot(self, tables: Sequence[TableName]) -> Iterator[Shown]:
        """See CompareSource."""
        with visible(self._reading, tables) as seen:
            yield seen

    def relation_of(self, one: Published) -> Relation:
        """See CompareSource."""
        return relation_of(self._reading, one.table, one.columns)

    def parts(self, relation: Relation, one: Published) -> Iterator[pa.Table]:
        """See CompareSource."""
        return read_blocks(self._reading, relation, codec_by_name(self._project, "SQL_ASCII"), one.row_filter)

    def rows(self, relation: Relation, one: Published) -> pa.Table:
        """See CompareSource."""
        return joined(self.parts(relation, one), relation)

    def unsummed(self, relation: Relation) -> str:
        """See CompareSource. Hashes are of UTF-8, and a server hashes text as it has it."""
        del relation
        encoding = self._reading.pgconn.parameter_status(b"server_encoding") or b""
        if encoding != b"UTF8":
            return f"its database is in {encoding.decode()}"
        return "" if self._alike else "its server has other hash functions"

    @cached_property
    def _alike(self) -> bool:
        return hashes_alike(self._reading)

    def sums(self, one: Published, hashed: HashSql) -> Iterator[tuple[int, int, int]]:
        """See CompareSource."""
        return sum_rows(self._reading, one.table, hashed, one.row_filter)

    def ahead(self, shown: Shown, after: int) -> list[Unlanded] | None:
        """See CompareSource."""
        project = self._project
        with connect(project.postgres, project.root, application=_APPLICATION) as session:
            if wal_position(session).value < shown.position:
                goal(session)  # decoding stops at what is flushed: a commit of our own flushes all before it
            try:
                two_phase = project.postgres.decoding.two_phase
                if by_publication(project):
                    return unlanded(
                        session, project.slot, project.publication, after, shown.position, two_phase=two_phase
                    )
                taken = takes(self._reading, project.postgres.tables)
                return unlanded_lines(session, project.slot, taken, after, shown.position, two_phase=two_phase)
            except SlotActive:
                return None


@contextmanager
def postgres_side(project: Project, state: BronzeState) -> Iterator[PostgresSide]:
    """Connect to the server that bronze was fed from. Raises SourceError, StateError."""
    streams = project.postgres.streams
    with connect(project.postgres, project.root, application=_APPLICATION, replication=streams) as replication:
        check_same(project, replication, identify(replication, project.postgres), state, control_tables(project))
    with connect(project.postgres, project.root, application=_APPLICATION) as reading:
        yield PostgresSide(project, reading)
