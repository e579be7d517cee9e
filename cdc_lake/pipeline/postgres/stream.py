"""From a pipeline to an open stream of PostgreSQL: a new one, or the one that bronze was fed from, checked first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from cdc_lake.bronze.open import bronze_reader
from cdc_lake.bronze.port import BronzeState, BronzeWriter
from cdc_lake.config.project import Project
from cdc_lake.lake.control import ControlTables
from cdc_lake.lake.parked_place import parked_place
from cdc_lake.model.position import Lsn, OrderDomain
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.postgres import start as postgres_start
from cdc_lake.pipeline.postgres.captured import by_publication
from cdc_lake.pipeline.postgres.reading import (
    changed_whole,
    check_binary,
    print_whole_names,
    reading_of,
    stream_options,
)
from cdc_lake.pipeline.postgres.resume import check_resume
from cdc_lake.pipeline.postgres.sessions import Dial
from cdc_lake.pipeline.postgres.tables import settle_tables
from cdc_lake.pipeline.state.memberships import last_members
from cdc_lake.pipeline.state.streams import is_complete
from cdc_lake.pipeline.stream.copies_beside import CopiesBeside, Recopy
from cdc_lake.pipeline.stream.failover import note_timeline
from cdc_lake.pipeline.stream.hashing_process import HashingProcess
from cdc_lake.pipeline.stream.open_stream import OpenStream, nothing, patiently
from cdc_lake.pipeline.stream.order import ArrivalOrder
from cdc_lake.pipeline.stream.parked import ParkedTransactions, forget
from cdc_lake.pipeline.stream.spool import Spool
from cdc_lake.source import slot
from cdc_lake.source.connection import Session, place_of
from cdc_lake.source.locks import holders_named, wait_for_locks
from cdc_lake.source.polling import PollingStream
from cdc_lake.source.postgres import PostgresStream
from cdc_lake.source.postgres_polling import PostgresFunctions
from cdc_lake.source.server import ServerFacts, SynchronousStandby, check_failover, check_server, goal, identify
from cdc_lake.source.silence import of_postgres
from cdc_lake.source.stream import FrameSource, shown
from cdc_lake.source.unsent import UnsentPrepares


@contextmanager
def open_postgres(
    project: Project,
    bronze: BronzeWriter,
    control: ControlTables,
    stop: threading.Event,
    tell: Tell,
    patience: float,
    recopy: Recopy,
    *,
    first: bool = False,
    heed: Callable[[], object] = nothing,
) -> Iterator[OpenStream]:
    """Connect, start or check the stream, start replication. `first`: tables that came to the pipeline are copied
    before anything is read, while `heed` is called; otherwise beside it. Raises SourceError, LakeError, StateError,
    Stopped.
    """
    streams = project.postgres.streams
    with ExitStack() as opened:
        dial = Dial(project, opened)
        replication = dial("stream", replication=streams)
        source = dial.source
        facts = identify(replication, source)
        check_server(facts, place_of(source))
        if source.slot.failover:
            check_failover(facts, place_of(source), two_phase=source.decoding.two_phase)
        session = dial("catalog")
        wait_for_locks(session)
        with holders_named(session, project.postgres.tables):
            check_binary(project, session)
        target = goal(session)
        state, copied = bronze.state(), 0
        if not is_complete(state, control):
            with holders_named(session, project.postgres.tables):
                state, copied = patiently(
                    lambda: postgres_start.begin(
                        project, session, replication, dial, facts, bronze, control, stop, tell
                    ),
                    stop, tell, patience,
                )  # fmt: skip
            replication.close()  # and with it goes the temporary slot
            replication = dial("stream", replication=streams)
        else:
            timeline, held = check_resume(project, session, replication, facts, state, control)
            if held != state:
                state = bronze.turn_back(held.upto)
                tell(Progress("connect", f"the server's log is another one behind {Lsn(state.upto)}: read from there"))
            note_timeline(timeline, control, state, tell)
        _keep_on_standbys(project, session, replication)
        frames = patiently(lambda: _start(project, replication, session, facts, state), stop, tell, patience)
        with holders_named(session, project.postgres.tables):
            came = settle_tables(project, session, state, control, tell, target)  # nobody else reads the slot now
        beside = opened.enter_context(CopiesBeside(project, state, came, recopy, tell, lasting=not first))
        if first:
            at = beside.finished((frames.tick, heed), stop)
            copied, target = copied + sum(one.rows for one in at), max([target, *(one.position for one in at)])
        limits, silence = project.pipeline.bronze.spool, project.postgres.silence_timeout / 1000
        hashing = opened.enter_context(HashingProcess())
        spool = opened.enter_context(Spool(project.spool, limits.max_bytes, limits.part))
        parked = _parked(project, spool, state, session, facts, frames)
        members = last_members(control, state)
        reading = reading_of(project, session, lambda: dial("layouts"), state, tell, spool, hashing, parked, members)
        after = shown(state.stream, state.upto)
        tell(Progress("connect", f"slot `{project.slot}` streams after {after}", facts={"upto": state.upto}))
        yield OpenStream(
            frames=frames,
            assembler=reading.assembler,
            order=ArrivalOrder(),
            tabulate=reading.tabulate,
            again=reading.again,
            domain=OrderDomain.LSN,
            state=state,
            goal=target,
            copied=copied,
            spilled=lambda: spool.written,
            parked=parked,
            heed=beside.heed,
            synchronous=SynchronousStandby(session, replication, silence) if streams else bool,
        )


def _parked(
    project: Project, spool: Spool, state: BronzeState, session: Session, facts: ServerFacts, frames: FrameSource
) -> ParkedTransactions | None:
    """Prepared transactions that wait for their end, where the pipeline asks for them. Raises SourceError, LakeError.

    Where it does not (any more), what is kept is of no use: the slot, which was checked, has them whole.
    """
    place = parked_place(project)
    if not project.postgres.decoding.two_phase:
        forget(place)
        return None
    changes = changed_whole(project, facts.product, session)
    unsent = UnsentPrepares(session, project.slot, changes, state.confirm, frames.tick)

    def highest() -> int | None:
        return bronze_reader(project).highest_commit(state.epoch)

    # another receiver may have gone on before the slot was ours: an end that it read does not come again
    held = bronze_reader(project).state() or state
    return ParkedTransactions(place, spool, held, highest=highest, changed=unsent.changed, tick=frames.tick)


def _keep_on_standbys(project: Project, session: Session, replication: Session) -> None:
    """Make the slot one that standbys keep a copy of, where the pipeline says so."""
    found = slot.find_slot(session, project.slot) if project.postgres.slot.failover else None
    if found is not None and not found.failover and found.active_pid is None:
        slot.keep_on_standbys(replication, project.slot)


def _start(
    project: Project, replication: Session, session: Session, facts: ServerFacts, state: BronzeState
) -> FrameSource:
    interval = project.postgres.status_interval / 1000
    if facts.wal_sender_timeout:
        interval = min(interval, facts.wal_sender_timeout / 3)
    if not by_publication(project):
        print_whole_names(replication)
    source, options = project.postgres, stream_options(project, facts.product)
    if source.mode == "polling":
        functions = PostgresFunctions(replication, session, project.slot, source.slot.plugin, options)
        every, most = source.polling.interval / 1000, source.polling.max_changes
        return PollingStream(functions, state.confirm, interval=every, max_changes=most)
    silence = of_postgres(source.silence_timeout / 1000, facts.wal_sender_timeout)
    return PostgresStream(replication, project.slot, options, state.confirm, status_interval=interval, silence=silence)
