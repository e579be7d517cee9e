"""The initial copy from PostgreSQL: every published table as of a slot's consistent point, by sessions that see it.

The copy of a stream may take several attempts. Each reads in the snapshot of a temporary slot made for it, so its exact
place among the transactions is known: the snapshot shows those that end at or below the slot's consistent point, and no
other (PostgreSQL docs, CREATE_REPLICATION_SLOT). What an attempt has whole stays, at that point; what it has not is
copied anew by the next one, at another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from cdc_lake.bronze.port import BronzeState, BronzeWriter
from cdc_lake.config.project import Project
from cdc_lake.decode.mppdb.codec import Codec
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.relation import Relation, TableName
from cdc_lake.observe.failpoint import TABLE_COPIED, failpoint
from cdc_lake.observe.progress import Tell
from cdc_lake.pipeline.postgres.captured import carried
from cdc_lake.pipeline.postgres.facts import tables as table_facts
from cdc_lake.pipeline.state.copies import STARTED, CopiedTable, snapshot_id
from cdc_lake.pipeline.state.streams import record_copy
from cdc_lake.pipeline.stream.copying import CopyPoint, Part, TableCopy, chunk_rows, copy_tables, expected_rows, pace_of
from cdc_lake.pipeline.stream.encoding import codec_by_name
from cdc_lake.source import slot, snapshot
from cdc_lake.source.captured import Published
from cdc_lake.source.catalog import relation_of
from cdc_lake.source.connection import Session
from cdc_lake.source.ranges import Range, ranges_of

_RECORD_EVERY = 1.0  # seconds: small tables are recorded together


@dataclass(frozen=True, slots=True)
class Copying:
    """An attempt: where it reads, where it writes. `dial` opens sessions beside `session`."""

    project: Project
    session: Session
    dial: Callable[[str], Session]
    bronze: BronzeWriter
    control: ControlTables
    state: BronzeState
    stop: threading.Event
    tell: Tell


def copy_published(attempt: Copying, made: slot.ExportedSlot, whole: Sequence[CopiedTable]) -> list[CopiedTable]:
    """Copy every published table but those that are whole already; all that are whole then.

    Each table is recorded once it is. Raises SourceError, LakeError, Stopped.
    """
    have = {one.relation for one in whole}
    recorder = _Recorder(attempt, list(whole))
    copy_some(attempt, made, lambda table: table not in have, _name(attempt.state, made), recorder.add)
    return recorder.whole


def copy_some(
    attempt: Copying,
    made: slot.ExportedSlot,
    chosen: Callable[[TableName], bool],
    name: str,
    finished: Callable[[CopiedTable], None] | None = None,
) -> tuple[CopiedTable, ...]:
    """Copy the published tables that are chosen, in the slot's snapshot, under a name; `finished`: told of each that is
    whole. Raises SourceError, LakeError, Stopped.
    """
    project, limits = attempt.project, attempt.project.pipeline.snapshot
    with ExitStack() as opened:
        several = limits.parallelism > 1
        inside = opened.enter_context(snapshot.exported(attempt.session, made.snapshot, others=several))
        left = {table.table: table for table in carried(project, inside) if chosen(table.table)}
        # the server sends UTF-8, or whatever a database in SQL_ASCII holds
        reading = _Reading(left, chunk_rows(limits), codec_by_name(project, "SQL_ASCII"))
        relations = [relation_of(inside, table.table, table.columns) for table in left.values()]
        copies = [TableCopy(one, reading.parts(inside, one, several=several)) for one in relations]
        expected = expected_rows(table_facts(inside, list(left)))
        readers = [inside]
        for _ in range(min(limits.parallelism, sum(len(copy.parts) for copy in copies)) - 1):
            other = opened.enter_context(closing(attempt.dial("copy")))
            readers.append(opened.enter_context(snapshot.exported(other, made.snapshot, others=True)))
        point = CopyPoint(name, made.consistent.value)
        return copy_tables(
            copies, readers, attempt.bronze, point, attempt.stop, attempt.tell, expected, pace_of(limits), finished
        )


def _name(state: BronzeState, made: slot.ExportedSlot) -> str:
    """The name of an attempt's snapshot in bronze; the chunks of each count anew. No two slots have one point: each
    waits for a record of its own in the log.
    """
    first, point = snapshot_id(state.epoch), made.consistent.value
    return first if point == state.upto else f"{first}-{point}"


@dataclass
class _Recorder:
    """Records what is whole, so that a later attempt need not copy it."""

    attempt: Copying
    whole: list[CopiedTable]
    recorded_at: float = -_RECORD_EVERY

    def add(self, table: CopiedTable) -> None:
        self.whole.append(table)
        if time.monotonic() - self.recorded_at >= _RECORD_EVERY:
            record_copy(self.attempt.control, self.attempt.state, STARTED, self.whole)
            self.recorded_at = time.monotonic()
            failpoint(TABLE_COPIED)


@dataclass(frozen=True, slots=True)
class _Reading:
    """How published tables are read in a snapshot."""

    carried: Mapping[TableName, Published]
    chunk_rows: int
    codec: Codec

    def parts(self, session: Session, relation: Relation, *, several: bool) -> Sequence[Part[Session]]:
        """What readers take of a table; `several`: more than one reads."""
        found = ranges_of(session, relation, self.chunk_rows) if several else ()
        return [partial(self._read, relation=relation, within=one) for one in found or (None,)]

    def _read(self, session: Session, relation: Relation, within: Range | None) -> Iterator[pa.ChunkedArray]:
        return snapshot.read_chunks(
            session,
            relation,
            row_filter=self.carried[relation.table].row_filter,
            chunk_rows=self.chunk_rows,
            codec=self.codec,
            within=within,
        )
