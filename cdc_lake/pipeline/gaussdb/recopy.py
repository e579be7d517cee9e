"""Tables of the GaussDB family copied again: in a snapshot that is exported with its CSN, and shows all below it.

So a copy has its exact place in a stream that is ordered by CSN. In one that is ordered by LSN it has none: the
transactions below a CSN are no beginning of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Final

import pyarrow.compute as pc

from cdc_lake.bronze.contract import SNAPSHOT
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState, BronzeWriter
from cdc_lake.config.project import Project
from cdc_lake.decode.mppdb.layouts import Layouts
from cdc_lake.errors import CopyUnplaced
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.position import OrderDomain
from cdc_lake.model.relation import TableName
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.gaussdb.facts import captured, catalog
from cdc_lake.pipeline.gaussdb.facts import tables as table_facts
from cdc_lake.pipeline.gaussdb.side import checked
from cdc_lake.pipeline.state.copies import CopiedTable, copy_name
from cdc_lake.pipeline.stream.copying import CopyPoint, TableCopy, chunk_rows, copy_tables, expected_rows, pace_of
from cdc_lake.pipeline.stream.encoding import sql_codec
from cdc_lake.source.ending import Opened, nobody
from cdc_lake.source.gaussdb.connection import target_of
from cdc_lake.source.gaussdb.server import CsnSnapshot
from cdc_lake.source.gaussdb.snapshot import FamilyReader, exported
from cdc_lake.source.quoting import quoted
from cdc_lake.source.stream import StreamIdentity
from cdc_lake.source.wire.connect import connect
from cdc_lake.source.wire.session import WireSession

_ATTEMPTS: Final = 3


def copy_family(
    project: Project,
    state: BronzeState,
    tables: Sequence[TableName],
    bronze: BronzeWriter,
    control: ControlTables,
    stop: threading.Event,
    tell: Tell,
    opened: Opened = nobody,
) -> tuple[str, tuple[CopiedTable, ...]]:
    """Copy those of the tables that the stream carries; the name of their copy in bronze. Raises CopyUnplaced,
    SourceError, LakeError, StateError, Stopped.
    """
    if StreamIdentity.parse(state.stream).domain is not OrderDomain.CSN:
        raise CopyUnplaced("the stream is ordered by LSN, and a snapshot of this server is placed by its CSN")
    limits = project.pipeline.snapshot
    target, application = target_of(project.family, project.root), f"cdc_lake {project.name} copy"
    with closing(connect(target, application=application, told=opened)) as session:
        facts, _ = checked(project, session, state, opened)
        there = [table for table in captured(project, session) if table in set(tables)]
        expected = expected_rows(table_facts(session, there))
        with _taken(project, session, state, control, there) as taken:
            position = taken.csn.value - 1
            tell(Progress("snapshot", f"copy of all below CSN {taken.csn}", facts={"epoch": state.epoch}))
            layouts = Layouts(catalog(project, session, there).get)
            relations = [layouts.relation_of(table) for table in there]
            copies = [TableCopy(one, (partial(FamilyReader.read, relation=one),)) for one in relations]
            reader = FamilyReader(session, chunk_rows(limits), sql_codec(project, facts.encoding))
            point = CopyPoint(copy_name(state, position), position)
            return point.snapshot, copy_tables(copies, [reader], bronze, point, stop, tell, expected, pace_of(limits))


@contextmanager
def _taken(
    project: Project, session: WireSession, state: BronzeState, control: ControlTables, tables: Sequence[TableName]
) -> Iterator[CsnSnapshot]:
    """A snapshot at a CSN that no other copy stands at, of whatever tables: two copies of one name would be one. On a
    quiet server two snapshots have one CSN: a transaction of ours that only takes an id parts them. Raises CopyUnplaced
    where it does not, SourceError.
    """
    for _ in range(_ATTEMPTS):
        with exported(session, [quoted(table) for table in tables]) as taken:
            if _is_free(project, state, control, taken.csn.value - 1):
                yield taken
                return
        session.query("SELECT txid_current()", doing="parting a copy from the one before it")
    hint = "once a transaction has ended at the source, run `cdc-lake resync` again"
    raise CopyUnplaced(f"bronze has a copy that was begun at CSN {taken.csn.value - 1} already", hint=hint)


def _is_free(project: Project, state: BronzeState, control: ControlTables, position: int) -> bool:
    """Whether there are no copied rows at a position, of a copy that broke off either, and no copy of empty tables."""
    if any(row.snapshot == copy_name(state, position) for row in control.snapshots()):
        return False
    files = bronze_reader(project).files()
    paths = files.select(epoch=state.epoch, after=position - 1, upto=position, op=SNAPSHOT)
    wanted = (pc.field("epoch") == state.epoch) & (pc.field("position") == position) & (pc.field("op") == SNAPSHOT)
    return not files.read(paths, ["relation"], wanted).num_rows
