"""Opens a stream of PostgreSQL for a pipeline: a new one, or the one in bronze after checks.

While a receiver runs without end, a heartbeat regularly writes a small transactional message. Keepalives alone advance
a slot; a heartbeat is a commit of the captured database, so the slot also advances if something in between drops
keepalives, and its arrival can be verified. It has its own connection: its commit may wait for a standby, the stream
must not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from cdc_lake.bronze.contract import StreamCheckpoint
from cdc_lake.bronze.open import bronze_reader
from cdc_lake.config.project import Project
from cdc_lake.connectors.base import ReceiverContext
from cdc_lake.connectors.failover import note_timeline
from cdc_lake.connectors.hashing_process import HashingProcess
from cdc_lake.connectors.open_stream import CommitLsnOrdering, OpenStream, retry_while_slot_active
from cdc_lake.connectors.postgres import decoding
from cdc_lake.connectors.postgres import snapshot as postgres_start
from cdc_lake.connectors.postgres.server_checks import SessionFactory, check_resume, session_of
from cdc_lake.connectors.postgres.snapshot import settle_tables
from cdc_lake.connectors.prepared_transactions import PreparedTransactions, forget, prepared_files
from cdc_lake.connectors.snapshot_copy import BackgroundCopies, PeriodicTask, Recopy
from cdc_lake.connectors.spool import Spool
from cdc_lake.connectors.table_sync import last_members
from cdc_lake.control.streams import is_complete
from cdc_lake.errors import CdcLakeError, Retry
from cdc_lake.model.position import Lsn, OrderDomain
from cdc_lake.observability.events import ProgressEvent, ProgressReporter
from cdc_lake.source.base import FrameSource, format_stream_position
from cdc_lake.source.polling import PollingStream
from cdc_lake.source.postgres import server, slot
from cdc_lake.source.postgres.connection import Session
from cdc_lake.source.postgres.slot_peek import MissingPrepareProbe
from cdc_lake.source.postgres.stream import PostgresSlotFunctions, PostgresStream
from cdc_lake.source.socket_io import of_postgres


@contextmanager
def open_postgres(
    context: ReceiverContext, patience: float, recopy: Recopy, *, first: bool, enforce_wal_budget: Callable[[], object]
) -> Iterator[OpenStream]:
    """`connectors.factory.opened_stream` for this kind of source."""
    project, control, report = context.project, context.control, context.report
    streams = project.postgres.streams
    with ExitStack() as opened:
        dial = SessionFactory(project, opened)
        replication = dial("stream", replication=streams)
        source = dial.source
        facts = server.identify(replication, source)
        server.check_server(facts, source.place)
        if source.slot.failover:
            server.check_failover(facts, source.place, two_phase=source.decoding.two_phase)
        session = dial("catalog")
        server.wait_for_locks(session)
        with server.holders_named(session, project.postgres.tables):
            decoding.check_binary(project, session)
        target = server.goal(session)
        state, copied = context.bronze.state(), 0
        if not is_complete(state, control):
            with server.holders_named(session, project.postgres.tables):
                state, copied = retry_while_slot_active(
                    lambda: postgres_start.begin(context, session, replication, dial, facts),
                    context.stop, report, patience,
                )  # fmt: skip
            replication.close()  # this drops the temporary slot
            replication = dial("stream", replication=streams)
        else:
            timeline, held = check_resume(project, session, replication, facts, state, control)
            if held != state:
                state = context.bronze.turn_back(held.upto)
                text = f"the server's WAL has diverged after {Lsn(state.upto)}; resuming from that position"
                report(ProgressEvent("connect", text))
            note_timeline(timeline, control, state, report)
        _keep_on_standbys(project, session, replication)
        frames = retry_while_slot_active(
            lambda: _start(project, replication, session, facts, state), context.stop, report, patience
        )
        with server.holders_named(session, project.postgres.tables):
            came = settle_tables(context, session, state, target)  # nobody else reads the slot now
        table_copies = opened.enter_context(BackgroundCopies(project, state, came, recopy, report, lasting=not first))
        if first:
            copied_tables = table_copies.wait_for_copies((frames.tick, enforce_wal_budget), context.stop)
            copied += sum(table.rows for table in copied_tables)
            target = max([target, *(table.position for table in copied_tables)])
        limits, silence = project.pipeline.bronze.spool, project.postgres.silence_timeout / 1000
        hashing = opened.enter_context(HashingProcess())
        spool = opened.enter_context(Spool(project.spool, limits.max_bytes, limits.part))
        prepared = _prepared_transactions(project, spool, state, session, facts, frames)
        members = last_members(control, state)
        assembler, tabulate, again = decoding.reading_of(
            project, session, lambda: dial("layouts"), state, report, spool, hashing, prepared, members
        )
        after = format_stream_position(state.stream, state.upto)
        report(ProgressEvent("connect", f"slot `{project.slot}` streams after {after}", facts={"upto": state.upto}))
        yield OpenStream(
            frames=frames,
            assembler=assembler,
            ordering=CommitLsnOrdering(),
            tabulate=tabulate,
            again=again,
            domain=OrderDomain.LSN,
            state=state,
            goal=target,
            copied=copied,
            spilled=lambda: spool.written,
            prepared=prepared,
            raise_background_errors=table_copies.raise_background_errors,
            synchronous=server.SynchronousStandby(session, replication, silence) if streams else bool,
        )


def _prepared_transactions(
    project: Project,
    spool: Spool,
    state: StreamCheckpoint,
    session: Session,
    facts: server.ServerFacts,
    frames: FrameSource,
) -> PreparedTransactions | None:
    """The stored prepared transactions, if the pipeline uses two-phase decoding. Raises SourceError, LakeError.

    Otherwise stored files are removed: the slot, which was checked, contains the transactions as a whole.
    """
    place = prepared_files(project)
    if not project.postgres.decoding.two_phase:
        forget(place)
        return None
    changes = decoding.changed_whole(project, facts.product, session)
    unsent = MissingPrepareProbe(session, project.slot, changes, state.confirm, frames.tick)

    def highest() -> int | None:
        return bronze_reader(project).highest_commit(state.epoch)

    # another receiver may have advanced before we got the slot: an end that it read does not come again
    held = bronze_reader(project).state() or state
    return PreparedTransactions(place, spool, held, highest=highest, changed=unsent.has_changes, tick=frames.tick)


def _keep_on_standbys(project: Project, session: Session, replication: Session) -> None:
    """Enable synchronization of the slot to standbys, if the pipeline says so."""
    existing_slot = slot.find_slot(session, project.slot) if project.postgres.slot.failover else None
    if existing_slot is not None and not existing_slot.failover and existing_slot.active_pid is None:
        slot.keep_on_standbys(replication, project.slot)


def _start(
    project: Project, replication: Session, session: Session, facts: server.ServerFacts, state: StreamCheckpoint
) -> FrameSource:
    interval = project.postgres.status_interval / 1000
    if facts.wal_sender_timeout:
        interval = min(interval, facts.wal_sender_timeout / 3)
    if not decoding.by_publication(project):
        decoding.print_whole_names(replication)
    source, options = project.postgres, decoding.stream_options(project, facts.product)
    if source.mode == "polling":
        functions = PostgresSlotFunctions(replication, session, project.slot, source.slot.plugin, options)
        every, most = source.polling.interval / 1000, source.polling.max_changes
        return PollingStream(functions, state.confirm, interval=every, max_changes=most)
    silence = of_postgres(source.silence_timeout / 1000, facts.wal_sender_timeout)
    return PostgresStream(replication, project.slot, options, state.confirm, status_interval=interval, silence=silence)


def heartbeat(project: Project, every: int, report: ProgressReporter) -> PeriodicTask[Session]:
    """Sends heartbeats, every so many milliseconds; a refusal is reported once."""
    refused = False

    def report_refusal(error: CdcLakeError) -> None:
        """The receiver reports a server that is unavailable."""
        nonlocal refused
        if error.retry is Retry.NEVER and not refused:
            refused = True
            report(ProgressEvent("warning", f"heartbeat failed: {error.message}", facts={"code": error.code}))

    return PeriodicTask(
        "cdc-lake-heartbeat",
        lambda: every / 1000,
        lambda: session_of(project, application=f"cdc_lake {project.name} heartbeat"),
        server.beat,
        report_refusal,
    )
