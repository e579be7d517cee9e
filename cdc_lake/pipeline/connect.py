"""From a pipeline to an open stream: a new one, or the one that bronze was fed from, checked before it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from cdc_lake.bronze.port import BronzeState, BronzeWriter, Tabulate
from cdc_lake.config.project import Project
from cdc_lake.decode.assembler import Assembler
from cdc_lake.decode.columnar import tabulate
from cdc_lake.errors import NoTableMatches, SlotActive
from cdc_lake.lake.control import ControlTables
from cdc_lake.model.position import OrderDomain
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline import initial
from cdc_lake.pipeline.order import ArrivalOrder, Order
from cdc_lake.source import publication, slot
from cdc_lake.source.catalog import SourceCatalog
from cdc_lake.source.connection import Session, connect, place_of
from cdc_lake.source.postgres import PostgresStream
from cdc_lake.source.server import ServerFacts, check_same, check_server, goal, identify
from cdc_lake.source.stream import FrameSource, StreamIdentity, TransactionAssembler, shown

PATIENCE = 15.0
"""Seconds to wait for a slot that is still active: after a crash the server needs a while to notice."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A running stream after bronze's last position, and what belongs to it.

    `assembler` makes transactions of its frames, `order` says when they may be landed, `tabulate` makes columns of
    them. `goal` is a position in `domain`: everything committed before the connection was opened is at or below it.
    `copied`: rows of the initial copy that was made first.
    """

    frames: FrameSource
    assembler: TransactionAssembler
    order: Order
    tabulate: Tabulate
    domain: OrderDomain
    state: BronzeState
    goal: int
    copied: int


@contextmanager
def open_stream(
    project: Project,
    bronze: BronzeWriter,
    control: ControlTables,
    stop: threading.Event,
    tell: Tell,
    *,
    patience: float = PATIENCE,
) -> Iterator[OpenStream]:
    """Connect, start or check the stream, start replication. Raises SourceError, LakeError, StateError, Stopped."""
    source = project.postgres
    with ExitStack() as opened:

        def dial(what: str, *, replication: bool = False) -> Session:
            name = f"cdc_lake {project.name} {what}"
            session = connect(source, project.root, application=name, replication=replication)
            opened.callback(session.close)
            return session

        replication = dial("stream", replication=True)
        facts = identify(replication)
        check_server(facts, place_of(source))
        session = dial("catalog")
        target = goal(session)
        state, copied = bronze.state(), 0
        if state is None or not initial.is_complete(control, state.stream, state.epoch):
            state, copied = patiently(
                lambda: initial.begin(project, session, replication, facts, bronze, control, stop, tell),
                stop, tell, patience,
            )  # fmt: skip
            replication.close()  # and with it goes the temporary slot
            replication = dial("stream", replication=True)
        else:
            check_resume(project, session, facts, state, tell)
        frames = patiently(lambda: _start(project, replication, facts, state), stop, tell, patience)
        after = shown(state.stream, state.upto)
        tell(Progress("connect", f"slot `{project.slot}` streams after {after}", facts={"upto": state.upto}))
        assembler = Assembler(SourceCatalog(session))
        yield OpenStream(frames, assembler, ArrivalOrder(), tabulate, OrderDomain.LSN, state, target, copied)


def check_resume(project: Project, session: Session, facts: ServerFacts, state: BronzeState, tell: Tell) -> None:
    """Raise unless the stream that bronze holds can go on at this server, database and slot."""
    check_same(facts, StreamIdentity.parse(state.stream), project.slot, state.confirm)
    slot.check_slot(slot.find_slot(session, project.slot), project.slot, facts.database, state.confirm)
    carried = {p.table for p in publication.published(session, project.publication)}
    try:
        wanted = publication.select_tables(project.postgres.tables, publication.tables_in_database(session))
    except NoTableMatches:
        return  # a table that was dropped at the source: what it had is in bronze
    for table in sorted(set(wanted) - carried):
        tell(Progress("connect", f"table {table} matches `source.tables` but is not in the publication: not captured"))


def patiently(attempt: Callable[[], T], stop: threading.Event, tell: Tell, patience: float) -> T:
    """Try again while the slot is active elsewhere, for at most `patience` seconds; then raises SlotActive."""
    until, delay = time.monotonic() + patience, 0.1
    while True:
        try:
            return attempt()
        except SlotActive as active:
            if time.monotonic() + delay > until:
                raise
            tell(Progress("retry", active.message, facts={"code": active.code}))
        if stop.wait(delay):
            raise initial.Stopped
        delay = min(2 * delay, 2.0)


def _start(project: Project, replication: Session, facts: ServerFacts, state: BronzeState) -> PostgresStream:
    interval = project.postgres.status_interval / 1000
    if facts.wal_sender_timeout:
        interval = min(interval, facts.wal_sender_timeout / 3)
    return PostgresStream(replication, project.slot, project.publication, state.confirm, status_interval=interval)
