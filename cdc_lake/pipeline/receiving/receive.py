"""Loop 1: from the slot into bronze. Owns the replication slot; needs neither Spark nor a JVM.

    frames → whole transactions → in order → one commit, durable → only then is the server told it may forget

Here is what holds it up over losses of its connection and of the lake; what it does with one connection's stream is
`pipeline.receiving.loop`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from cdc_lake.bronze.port import BronzeWriter
from cdc_lake.config.project import Project
from cdc_lake.errors import LakeError, Retry, SourceError
from cdc_lake.lake.control import ControlTables, control_tables
from cdc_lake.observe.failpoint import CONNECTED, failpoint
from cdc_lake.observe.progress import Progress, Tell
from cdc_lake.pipeline.receiving.attempts import SOURCE_PAUSES, Attempts
from cdc_lake.pipeline.receiving.beside_stream import beside_the_stream
from cdc_lake.pipeline.receiving.connect import open_stream
from cdc_lake.pipeline.receiving.loop import ReceiveSummary, Receiving
from cdc_lake.pipeline.receiving.outlasting import OutlastingBronze
from cdc_lake.pipeline.receiving.wal_watch import WalWatch
from cdc_lake.pipeline.state.receiver_note import ReceiverNote
from cdc_lake.pipeline.stream.copying import Stopped
from cdc_lake.pipeline.stream.open_stream import PATIENCE, OpenStream, nothing
from cdc_lake.pipeline.stream.pulse import Pulse

ONCE_PATIENCE = 60.0
"""Seconds a run with a goal goes on trying, while nothing lands and no stream stands."""


def receive(
    project: Project,
    bronze: BronzeWriter,
    *,
    once: bool,
    stop: threading.Event,
    tell: Tell,
    control: ControlTables | None = None,
    slot_patience: float = PATIENCE,
    pulse: Pulse | None = None,
    pauses: tuple[float, float] = SOURCE_PAUSES,
) -> ReceiveSummary:
    """Receive until `stop` is set or, with `once`, until bronze holds everything committed before the start.

    Reconnects by itself once it was connected: without end, or with `once` for at most `ONCE_PATIENCE` seconds in which
    no attempt succeeds (`pipeline.receiving.attempts`). A lake that is away or full is waited for without end; with
    `once` the run ends. `pulse`: where the loop says how it does; `pauses`: in seconds, the shortest and the longest
    before the source is tried again.
    Raises SourceError, DecodeError, LakeError, StateError; bronze is then whole up to its last commit.
    """
    control = control or control_tables(project, project.pipeline.bronze.durability)
    with ReceiverNote(project.lake, project.name, tell) as note:
        outlasting = None if once else OutlastingBronze(bronze, stop, tell, note)
        bronze, waiting = outlasting or bronze, outlasting or nullcontext()
        pulse = pulse or Pulse()
        with beside_the_stream(project, tell, once=once) as watch:
            run = Receiving(
                project, bronze, control,
                once=once, stop=stop, tell=tell, connected=waiting, pulse=pulse, watch=watch,
            )  # fmt: skip
            heed, heeded = (nothing, tell) if watch is None else (watch.heed, _heeding(watch, tell))
            connect = partial(
                open_stream, project, bronze, control, stop, heeded, patience=slot_patience, first=once, heed=heed
            )
            _connections(run, connect, note, Attempts(tell, pauses))
    return run.summary()


def _heeding(watch: WalWatch, tell: Tell) -> Tell:
    """Tells, and where the slot is given up ends the initial copy, which tells of every chunk, as the stream would end.

    Tables that are copied beside the stream are ended by it, those that are copied before it as `open_stream` heeds.
    """
    receiver = threading.current_thread()

    def told(progress: Progress) -> None:
        if threading.current_thread() is receiver:
            watch.heed()
        tell(progress)

    return told


def _connections(
    run: Receiving, connect: Callable[[], AbstractContextManager[OpenStream]], note: ReceiverNote, attempts: Attempts
) -> None:
    """One connection after the other, until the run is done or nothing can be waited for."""
    give_up: float | None = None
    while not run.stop.is_set():
        run.heed()
        try:
            with connect() as stream:
                attempts.opened((stream.state.upto, stream.state.confirm))
                note.goes_on()
                failpoint(CONNECTED)
                run.follow(stream)
                return
        except Stopped:
            return
        except SourceError as error:
            now = time.monotonic()
            give_up = (None if attempts.over(_held(run)) else give_up) or now + ONCE_PATIENCE
            if error.retry is Retry.NEVER or not run.connected or (run.once and now > give_up):
                raise
            pause = attempts.after_source(error)
        except LakeError as error:
            if error.retry is Retry.NEVER or not run.connected or run.once:
                raise
            attempts.over(_held(run))
            note.waits(error)
            pause = attempts.after_lake(error)
        run.count(reconnects=1)
        run.stop.wait(pause)


def _held(run: Receiving) -> tuple[int | None, int | None]:
    """What bronze holds by now, and lets the server forget."""
    summary = run.summary()
    return summary.upto, summary.confirm
