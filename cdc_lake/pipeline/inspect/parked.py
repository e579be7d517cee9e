"""Parked: the prepared transactions that are kept until their COMMIT PREPARED, for who asks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState
from cdc_lake.config.project import Project
from cdc_lake.config.source import PostgresSource
from cdc_lake.decode.kept import announced_in
from cdc_lake.lake.parked_place import parked_place
from cdc_lake.model.position import Lsn
from cdc_lake.pipeline.stream.parked import read_file, waiting_files


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A prepared transaction that is kept: `prepared_at` its PREPARE, which lies at `position`; how many changes it
    has, and their bytes; the tables that they are of.
    """

    gid: str
    xid: int
    position: str
    prepared_at: datetime
    changes: int
    bytes: int
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParkedList:
    """Those of the newest stream, the oldest first. `place`: where they are kept, None where the pipeline does not ask
    for them before their end.
    """

    place: str | None
    transactions: tuple[PreparedTransaction, ...]


def inspect_parked(project: Project) -> ParkedList:
    """What is parked, whether a receiver runs or not. Raises LakeError."""
    if not _parks(project):
        return ParkedList(None, ())
    state = bronze_reader(project).state()
    return ParkedList(parked_place(project).name, prepared_transactions(project, state))


def prepared_transactions(project: Project, state: BronzeState | None) -> tuple[PreparedTransaction, ...]:
    """Those of bronze's stream that are kept and whose end was not read, the oldest first. Raises LakeError."""
    if state is None or not _parks(project):
        return ()
    place, found = parked_place(project), []
    for name in waiting_files(place, state.epoch):
        prepared, content = read_file(place, name, part=1)
        tables = {str(table) for one in content.announcements for table in announced_in(one.payload)}
        tables.update(content.tables)
        found.append(
            PreparedTransaction(
                gid=prepared.gid,
                xid=prepared.xid,
                position=str(Lsn(prepared.lsn)),
                prepared_at=datetime.fromtimestamp(prepared.at / 1e6, UTC),
                changes=len(content.frames),
                bytes=content.frames.size,
                tables=tuple(sorted(tables)),
            )
        )
    return tuple(sorted(found, key=lambda one: one.prepared_at))


def _parks(project: Project) -> bool:
    source = project.pipeline.source
    return isinstance(source, PostgresSource) and source.decoding.two_phase
